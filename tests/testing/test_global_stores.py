"""Global tables that processors read as a whole."""

import dataclasses
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.pipeline.driver import TaskFailed
from holdfast.stores.kinds.global_store import NotWritable
from holdfast.testing import ProcessorTest, TestDriver
from tests.testing.test_driver import without_spark  # noqa: F401  a fixture
from tests.testing.test_global_tables import app_with, changelog_app, order, product, static


class Product(msgspec.Struct):
    name: str | None
    gone: bool = False


class Named(hf.Processor):
    """Names the product of an order, and counts the products that there are."""

    products = hf.GlobalStore("products", key=int, value=Product)
    seen = hf.KeyValueStore("seen", value=int)

    def prefetch(self, key: str, event: Any) -> Any:
        yield self.products, event.product

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        found = self.products.get(event.product)
        self.seen[key] = sum(1 for _ in self.products.items())
        ctx.forward(key, {"name": found.name if found else None, "from_7": len(list(self.products.range(7)))})


NAMED = "order string, name string, from_7 bigint"


def test_a_processor_reads_all_rows_of_a_global_table() -> None:
    app, orders, _ = changelog_app()
    orders.process(Named, output=NAMED)
    driver = TestDriver(app)
    driver.pipe_all({"products": [product(n, f"p{n}") for n in range(10)], "orders": [order(c, 7) for c in "abcdefg"]})
    assert {row["order"]: (row["name"], row["from_7"]) for row in driver.output("named")} == dict.fromkeys(
        "abcdefg", ("p7", 3)
    )
    changes = [product(7, "tea", 1), product(8, None, 1, gone=True), product(20, "pot", 1)]
    driver.pipe_all({"products": changes, "orders": [order("a", 7), order("b", 8), order("c", 20)]})
    assert [(r["order"], r["name"], r["from_7"]) for r in sorted(driver.output("named"), key=str)] == [
        ("a", "tea", 3),
        ("b", None, 3),
        ("c", "pot", 3),
    ]
    assert driver.store("seen").get("c") == 10
    assert "reads the global table products" in app.describe()
    assert "sub0 -. looked up .-> sub1" in app.describe(format="mermaid")


@pytest.mark.parametrize(
    "write", [lambda store: store.put(1, {}), lambda store: store.__setitem__(1, {}), lambda store: store.delete(1)]
)
def test_a_processor_cannot_write_a_global_table(write: Any) -> None:
    class Writes(hf.Processor):
        products = hf.GlobalStore("products", key=int)

        def process(self, key: str, event: Any, ctx: hf.Context) -> None:
            write(self.products)

    app, orders, _ = changelog_app()
    orders.process(Writes)
    with pytest.raises(TaskFailed, match=r"NotWritable.*can only read it.*Send the change to the table's source"):
        TestDriver(app).pipe("orders", [order("a", 1)])
    with pytest.raises(hf.NotBound):
        Writes.products.get(1)
    with pytest.raises(NotWritable):
        write(Writes.products)


def test_a_processor_test_takes_the_rows_of_a_global_table() -> None:
    test = ProcessorTest(
        Named, output=NAMED, tables={"products": {7: {"name": "tea", "gone": False}, 9: {"name": None, "gone": True}}}
    )
    assert test.pipe("a", {"product": 7}) == [("a", {"name": "tea", "from_7": 2})]
    assert test.pipe("b", {"product": 1}) == [("b", {"name": None, "from_7": 2})]
    assert ProcessorTest(Named, tables={"products": {}}).pipe("a", {"product": 7}) == [
        ("a", {"name": None, "from_7": 0})
    ]
    with pytest.raises(TopologyError, match=r"reads the global table 'products'. Give its rows"):
        ProcessorTest(Named)


@dataclasses.dataclass
class Priced:
    name: str
    price: float


def test_declarations_that_do_not_fit_the_table_are_errors() -> None:
    def processor(declared: Any) -> Any:
        return type("Reads", (hf.Processor,), {"rows": declared, "process": lambda self, key, event, ctx: None})

    _, orders, _ = app_with(static((7, "tea")))
    refused = [
        (r"no such global table. Did you mean 'products'.*before process\(\)", hf.GlobalStore("product", key=int)),
        (r"the table's key is \(id bigint\), and the declared one \(key string\)", hf.GlobalStore("products")),
        (r"Priced has the field 'price'.*It has name", hf.GlobalStore("products", key=int, value=Priced)),
        (r"value=int has no fields", hf.GlobalStore("products", key=int, value=int)),
    ]
    for match, declared in refused:
        with pytest.raises(TopologyError, match=match):
            orders.process(processor(declared))
