"""What the shop's app must store and send, by a plain program over the batches."""

from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from tests.histories import HistoryOracle

HISTORY_MS = 60_000


class Order(NamedTuple):
    id: int
    customer: str | None
    product: int
    amount: int
    gone: bool
    at: int
    """Milliseconds after the start."""


class Customer(NamedTuple):
    name: str
    city: str
    gone: bool
    at: int


class Product(NamedTuple):
    sku: int
    price: int
    gone: bool
    at: int


class Batch(NamedTuple):
    orders: Sequence[Order]
    customers: Sequence[Customer]
    products: Sequence[Product]


Row = TypeVar("Row", Order, Product)
Joined = tuple[str | None, int, int, str | None, int | None]
"""Customer, amount and time of an order, and the city of its customer with its time."""


class Truth(NamedTuple):
    both: dict[int, Joined]
    """The join by the foreign key."""
    both_sent: list[tuple[int, Joined | None]]
    """Its changes per version; None: deleted."""
    labelled: list[tuple[Any, ...]]
    """Id and amount of each order, the city of its customer at its time, the product's price, the city's country."""
    per_product: dict[int, tuple[int, int, int]]
    """Orders, their amounts, and how many of them had a city."""
    products: dict[int, int]
    countries: dict[str, str]
    unusable: int
    """Orders without a customer, which no stream is keyed by."""


class NewestRows(Generic[Row]):
    """A table without a history: the newest row per key, by its time. Nothing is kept of a deleted key."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}

    def apply(self, changes: Iterable[Row]) -> None:
        newest = {change[0]: change for change in sorted(changes, key=lambda change: change.at)}
        for key, change in newest.items():
            if key in self.rows and self.rows[key].at > change.at:
                continue
            self.rows.pop(key, None)
            if not change.gone:
                self.rows[key] = change


class Shop:
    """Processes batches in order. `clock` is the event clock of the version before."""

    def __init__(self, countries: dict[str, str]) -> None:
        self.clock: int | None = None
        self.newest = [0, 0, 0]
        self.countries = countries
        self.orders: NewestRows[Order] = NewestRows()
        self.products: NewestRows[Product] = NewestRows()
        self.customers: HistoryOracle[str] = HistoryOracle()
        self.both: dict[int, Joined] = {}
        self.both_sent: list[tuple[int, Joined | None]] = []
        self.labelled: list[tuple[Any, ...]] = []
        self.per_product: dict[int, tuple[int, int, int]] = {}
        self.unusable = 0

    def batch(self, batch: Batch) -> None:
        kept = float("-inf") if self.clock is None else self.clock - HISTORY_MS
        for customer in batch.customers:
            self.customers.put(customer.name, customer.at, None if customer.gone else customer.city, kept)
        self.orders.apply(batch.orders)
        self.products.apply(batch.products)
        self._join_tables()
        for order in batch.orders:
            self._join_record(order, kept)
        newest = [max((each.at for each in rows), default=0) for rows in batch]
        self.newest = [max(old, new) for old, new in zip(self.newest, newest, strict=True)]
        self.clock = min(self.newest)

    def _join_tables(self) -> None:
        joined: dict[int, Joined] = {}
        for key, order in self.orders.rows.items():
            latest = None if order.customer is None else self.customers.latest(order.customer)
            at, city = latest or (None, None)
            joined[key] = (order.customer, order.amount, order.at, city, at)
        for key in sorted({*self.both, *joined}):
            if self.both.get(key) != joined.get(key):
                self.both_sent.append((key, joined.get(key)))
        self.both = joined

    def _join_record(self, order: Order, kept: float) -> None:
        if order.customer is None:
            self.unusable += 1
            return
        city = self.customers.at(order.customer, order.at, kept)
        product = self.products.rows.get(order.product)
        country = None if city is None else self.countries.get(city)
        self.labelled.append((order.id, order.amount, city, product.price if product else None, country))
        orders, amount, cities = self.per_product.get(order.product, (0, 0, 0))
        self.per_product[order.product] = orders + 1, amount + order.amount, cities + (city is not None)


def truth(batches: Iterable[Batch], countries: dict[str, str]) -> Truth:
    shop = Shop(countries)
    for batch in batches:
        shop.batch(batch)
    return Truth(
        both=shop.both,
        both_sent=sorted(shop.both_sent, key=repr),
        labelled=sorted(shop.labelled, key=repr),
        per_product=shop.per_product,
        products={key: row.price for key, row in shop.products.rows.items()},
        countries=countries,
        unusable=shop.unusable,
    )
