"""The app of joins that crash tests kill: by a foreign key, as of a record's time, and with two global tables.

    python -m tests.crash.shop <folder>              runs until all input is processed, then compares

    orders ────► orders (table) ────┬─► both (join by the foreign key) ─► sink
    customers ─► customers (history)┘
                     └──────┐
    orders ─────────────────┴─► then (as of the order's time) ─► priced ─► labelled ─┬─► sink
    products ─► products (global table, of a stream) ─────────────┘           │      └─► per-product, re-keyed
    countries (global table, of static rows) ─────────────────────────────────┘

The folder is kept between kills. Stores and sinks are compared with a plain program, `shop_oracle.py`. The static rows
differ from start to start, by one that no order looks up, so that each start has changes of them in its first version.
"""

import json
import logging
import random
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import holdfast as hf
from tests.apps import entries_of, read, write
from tests.crash.scenario import crashing, process_all
from tests.crash.shop_oracle import HISTORY_MS, Batch, Customer, Order, Product, Truth, truth
from tests.crash.spark_batches import files_of_batches
from tests.test_processors import delivered

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES, CITIES, PRODUCTS = ("ann", "bob", "cid", "dee", "eva"), ("Bern", "Basel", "Chur", "Ulm"), range(1, 6)
COUNTRIES = {"Bern": "CH", "Basel": "CH", "Ulm": "DE"}
_AT = ("at", pa.timestamp("us", "UTC"))
_NUMBERS = [(name, pa.int64()) for name in ("id", "product", "amount")]
ORDER = pa.schema([*_NUMBERS, ("customer", pa.string()), ("gone", pa.bool_()), _AT])
CUSTOMER = pa.schema([("name", pa.string()), ("city", pa.string()), ("gone", pa.bool_()), _AT])
PRODUCT = pa.schema([("sku", pa.int64()), ("price", pa.int64()), ("gone", pa.bool_()), _AT])
ORDERS = "id bigint, customer string, product bigint, amount bigint, gone boolean, at timestamp"
CUSTOMERS = "name string, city string, gone boolean, at timestamp"
PRODUCTS_FRAME = "sku bigint, price bigint, gone boolean, at timestamp"
SOURCES = ("orders", "customers", "products")
STORES, OUTPUTS = ("both", "products", "countries", "per-product"), ("both", "labelled")
PARTITIONS = 2
"""As in all apps of these tests."""
STEP_MS = 12_000


def made_up(files: int) -> list[Batch]:
    """The records of each file of the sources: the same every time, some of them from before the history."""
    dice = random.Random(7)
    number = 0

    def time(base: int) -> int:
        """A time that no other record has."""
        nonlocal number
        number += 1
        late = dice.randrange(60_000, 100_000) if dice.random() < 0.1 else 0
        return (base + dice.randrange(-15_000, 10_000) - late) // 1_000 * 1_000 + number % 1_000

    found = []
    for file in range(files):
        base = file * STEP_MS
        orders = [
            Order(
                dice.randrange(40),
                dice.choice((*NAMES, "nobody", None)),
                dice.choice(PRODUCTS),
                dice.randrange(1, 100),
                dice.random() < 0.2,
                time(base),
            )
            for _ in range(25)
        ]
        customers = [Customer(dice.choice(NAMES), dice.choice(CITIES), dice.random() < 0.2, time(base)) for _ in NAMES]
        products = [
            Product(dice.choice(PRODUCTS), dice.randrange(100), dice.random() < 0.2, time(base)) for _ in range(3)
        ]
        found.append(Batch(orders, customers, products))
    return found


def as_spark_read_them(folder: Path) -> list[Batch]:
    """The records of each batch."""
    files = made_up(len(list((folder / "orders").glob("*.parquet"))))
    return [
        Batch(
            [each for n in orders for each in files[n].orders],
            [each for n in customers for each in files[n].customers],
            [each for n in products for each in files[n].products],
        )
        for orders, customers, products in files_of_batches(folder / "base/shop/checkpoint", len(files))
    ]


def write_input(folder: Path, files: int) -> None:
    for number, batch in enumerate(made_up(files)):
        for (name, rows), schema in zip(rows_of(batch).items(), (ORDER, CUSTOMER, PRODUCT), strict=True):
            write(folder / name, number, rows, schema)


def rows_of(batch: Batch) -> dict[str, list[dict[str, Any]]]:
    """The records of each source."""
    return {
        "orders": [as_row(each) for each in batch.orders],
        "customers": [as_row(each) for each in batch.customers],
        "products": [as_row(each) for each in batch.products],
    }


def as_row(record: Order | Customer | Product) -> dict[str, Any]:
    row = record._asdict()
    return {**row, "at": START + timedelta(milliseconds=row["at"])}


def countries_in(life: int) -> dict[str, str]:
    """The static rows of the app's n-th start."""
    return {**COUNTRIES, "a start": str(life)}


def build(app: hf.App, frames: Sequence[Any], countries: Mapping[str, str], folder: Path) -> None:
    """The topology, of streaming DataFrames or of the records of a test driver, in the order of the sources."""
    of_orders, of_customers, of_products = frames
    orders = app.table(of_orders, "orders", key="id", timestamp="at", deleted="gone")
    history = timedelta(milliseconds=HISTORY_MS)
    customers = app.table(of_customers, "customers", key="name", timestamp="at", deleted="gone", history=history)
    products = app.global_table(of_products, "products", key="sku", timestamp="at", deleted="gone")
    rows = pa.table({"city": list(countries), "country": list(countries.values())})
    places = app.global_table(rows, "countries", key="city")
    both = orders.join(customers, on="customer", how="left", name="both", prefix="c_")
    both.sink(hf.files(str(folder / "both")))
    stream = app.stream(of_orders, key="id", timestamp="at", name="orders")
    then = stream.join(customers, on="customer", how="left", name="then", prefix="c_").to_stream()
    priced = then.join(products, on="product", how="left", name="priced", prefix="p_").to_stream()
    labelled = priced.join(places, on="c_city", how="left", name="labelled", prefix="w_")
    labelled.sink(hf.files(str(folder / "labelled")))
    by_product = labelled.to_stream().key_by("product").group_by()
    sums = by_product.aggregate(orders=hf.count(), amount=hf.sum("amount"), cities=hf.count("c_city"))
    sums.store("per-product")


def on_spark(folder: Path, life: int) -> hf.App:
    batch = hf.BatchSettings(idle_after="1h", idle_interval="100ms")
    app = crashing("shop", folder, batch=batch)
    schemas = (ORDERS, CUSTOMERS, PRODUCTS_FRAME)
    frames = [read(app.spark, folder / name, schema) for name, schema in zip(SOURCES, schemas, strict=True)]
    build(app, frames, countries_in(life), folder)
    return app


def wait_for_static_rows(app: hf.App, life: int) -> None:
    """If this start found no records, the driver makes the version that has its static rows on its own."""
    deadline = time.monotonic() + 60
    while (found := stored_countries(entries_of(app, "countries"))) != countries_in(life):
        assert time.monotonic() < deadline, f"{found} instead of {countries_in(life)}"
        time.sleep(0.05)


def stored_countries(entries: Mapping[Any, Any]) -> dict[Any, Any]:
    return {city: row["country"] for city, row in entries.items()}


class Found(NamedTuple):
    """What an app has stored and sent."""

    stores: Mapping[str, Mapping[Any, Any]]
    outputs: Mapping[str, Sequence[Mapping[str, Any]]]

    def differences(self, true: Truth) -> list[str]:
        sums = self.stores["per-product"].items()
        labelled = [
            (row["id"], row["amount"], row["c_city"], row["p_price"], row["w_country"])
            for row in self.outputs["labelled"]
        ]
        sent = [(row["id"], None if row["_deleted"] else joined_of(row)) for row in self.outputs["both"]]
        found = {
            "both": {key: joined_of(row) for key, row in self.stores["both"].items()},
            "both_sent": sorted(sent, key=repr),
            "labelled": sorted(labelled, key=repr),
            "per_product": {key: (row["orders"], row["amount"], row["cities"]) for key, row in sums},
            "products": {key: row["price"] for key, row in self.stores["products"].items()},
            "countries": stored_countries(self.stores["countries"]),
        }
        expected = true._asdict()
        return [
            f"{name}: {value} instead of {expected[name]}" for name, value in found.items() if value != expected[name]
        ]


def joined_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["customer"], row["amount"], _millis(row["at"]), row["c_city"], _millis(row["c_at"])


def _millis(moment: datetime | str | None) -> int | None:
    """A time after the start. REST gives a text."""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    return None if moment is None else round((moment - START).total_seconds() * 1_000)


def main(folder: Path) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    life = len(list(folder.glob("faults-*")))
    app = on_spark(folder, life)
    app.start()
    process_all(app)
    wait_for_static_rows(app, life)
    true = truth(as_spark_read_them(folder), countries_in(life))
    stores = {name: entries_of(app, name) for name in STORES}
    app.stop()
    wrong = Found(stores, {name: delivered(folder / name) for name in OUTPUTS}).differences(true)
    print(json.dumps({"wrong": wrong, "version": app.version}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
