"""Decimals as keys and as scores: exact, and in the order of their numbers, wherever keys are read."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.log.appfile import AppChanged, AppSpec
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec
from holdfast.testing import ProcessorTest, TestDriver, records
from tests.apps import NOON, entries_of, get, read, settings, write
from tests.instance.app_log import AppLog, new_url
from tests.log.making import subtopologies_of
from tests.query.instances import Group, started

BOUGHT = "customer string, price decimal(10,2), large decimal(38,4), at timestamp"


def bought(customer: str, price: str, large: str = "12345678901234567890123456789012.0001") -> dict[str, Any]:
    return {"customer": customer, "price": Decimal(price), "large": Decimal(large), "at": NOON}


SALES = [bought("ann", "9.90"), bought("bob", "10.10"), bought("cleo", "-3.00"), bought("ann", "0.21", "-7.5")]
SALES += [bought("bob", "9.90", "-7.5")]


def spending(app: hf.App, stream: hf.Stream) -> hf.App:
    spent = stream.group_by().aggregate(spent=hf.sum("price")).store("spent")
    spent.top(2, by="spent", name="best")
    stream.group_by("price").count().store("by-price")
    stream.group_by("large", "customer").count().store("by-large")
    stream.group_by("price").window(hf.tumbling("1m")).count().store("minutes")
    prices = stream.key_by("price").with_column("customer", "customer")
    prices.group_by().aggregate(last=hf.last("customer")).store("buyers")
    return app


def test_a_leaderboard_by_money() -> None:
    app = hf.App("shop", settings=hf.Settings(partitions=1))
    spending(app, app.stream(records(BOUGHT), key="customer", timestamp="at", name="sales"))
    driver = TestDriver(app)
    driver.pipe("sales", SALES)
    assert driver.store("best").get("all").value == [
        {"customer": "bob", "spent": "20.00"},
        {"customer": "ann", "spent": "10.11"},
    ]
    assert driver.store("best-scores").get(("all", "cleo")) == Decimal("-3.00")
    assert [driver.store("best-scores").rank(("all", name)) for name in ("bob", "ann", "cleo")] == [1, 2, 3]
    prices = driver.store("by-price")
    assert [str(price) for price in prices.keys()] == ["-3.00", "0.21", "9.90", "10.10"]  # noqa: SIM118
    assert prices.get(Decimal("9.9")) == {"count": 2}
    assert [str(price) for price, _ in prices.range(Decimal("0.21"), Decimal(10))] == ["0.21", "9.90"]
    found = [entry for entry, _ in driver.store("by-large").prefix((Decimal("-7.5"),))]
    assert found == [(Decimal("-7.5000"), "ann"), (Decimal("-7.5000"), "bob")]
    assert dict(driver.store("minutes").fetch(Decimal("9.90"), from_=NOON)) == {1767268800000: {"count": 2}}


def test_joins_by_a_decimal() -> None:
    app = hf.App("shop", settings=hf.Settings(partitions=2))
    labels = app.table(records("price decimal(10,2), label string"), "labels", key="price")
    sales = app.stream(records(BOUGHT), key="customer", timestamp="at", name="sales")
    sales.key_by("price").select("price", "customer", "at").join(labels, name="labelled").sink(hf.memory())
    orders = app.table(records("id string, price decimal(10,2)"), "orders", key="id")
    orders.join(labels, on="price", name="labelled-orders").sink(hf.memory())
    sales.key_by("price").group_by().window(hf.session("1m")).count().store("visits")
    driver = TestDriver(app)
    driver.pipe("labels", [{"price": Decimal("9.90"), "label": "usual"}, {"price": Decimal(-3), "label": "refund"}])
    driver.pipe("orders", [{"id": "o1", "price": Decimal(-3)}])
    driver.pipe("sales", SALES)
    found = [(row["customer"], row["price"], row["label"]) for row in driver.output("labelled")]
    nine = Decimal("9.90")
    assert sorted(found) == [("ann", nine, "usual"), ("bob", nine, "usual"), ("cleo", Decimal(-3), "refund")]
    assert [row["label"] for row in driver.output("labelled-orders")] == ["refund"]
    assert [value for _, value in driver.store("visits").fetch(Decimal("9.9"))] == [{"count": 2}]


class Steps(hf.Processor):
    """Which customers were at a price level."""

    levels = hf.KeyValueStore("levels", key=hf.decimal(10, 2), value=list[str])
    pairs: hf.KeyValueStore[tuple[str, Decimal], int] = hf.KeyValueStore(
        "pairs", key=(str, hf.decimal(38, 4)), value=int, other_key=True
    )

    def process(self, key: Decimal, event: Any, ctx: hf.Context) -> None:
        assert type(key) is Decimal
        self.levels[key] = [*self.levels.get(key, []), event.customer]
        self.pairs[event.customer, event.large] = 1
        ctx.forward(key, {"below": sum(1 for _ in self.levels.range(to=key))})


def test_a_processor_has_decimals_as_keys() -> None:
    test = ProcessorTest(Steps, output="price decimal(10,2), below int")
    for each in SALES:
        test.pipe(each["price"], each)
    assert dict(test.store("levels").items()) == {
        Decimal("-3.00"): ["cleo"],
        Decimal("0.21"): ["ann"],
        Decimal("9.90"): ["ann", "bob"],
        Decimal("10.10"): ["bob"],
    }
    assert test.store("pairs").get(("bob", Decimal("-7.5"))) == 1


def test_a_key_with_other_digits_is_refused() -> None:
    """They would be other bytes, and other partitions."""

    def store(type_: str) -> StoreSpec:
        return StoreSpec(name="by-price", key=Schema.of(price=type_), codec="rows/1")

    app = AppLog(new_url(), specs=(store("decimal(10,2)"),))
    app.commit({})
    with pytest.raises(AppChanged, match=r"decimal\(10,2\).*decimal\(20,2\)"):
        app.changed(store("decimal(20,2)"))


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[hf.App]:
    folder = tmp_path_factory.mktemp("shop")
    types = {"price": pa.decimal128(10, 2), "large": pa.decimal128(38, 4), "at": pa.timestamp("us", "UTC")}
    schema = pa.schema([("customer", pa.string()), *types.items()])
    write(folder / "input", 1, SALES[:3], schema)
    write(folder / "input", 2, SALES[3:], schema)
    app = hf.App("shop", settings=settings(folder), spark=spark)
    sales = app.stream(read(spark, folder / "input", BOUGHT), key="customer", timestamp="at")
    spending(app, sales)
    sales.key_by("price").process(Steps, output="price decimal(10,2), below int")
    with app:
        app.process_all_available()
        yield app


@pytest.mark.spark
def test_an_app_by_decimals_on_spark(shop: hf.App, spark: SparkSession) -> None:
    """Its keys are found in the partitions to which Spark has sent them."""
    assert entries_of(shop, "by-price") == {
        "-3.00": {"count": 1},
        "0.21": {"count": 1},
        "9.90": {"count": 2},
        "10.10": {"count": 1},
    }
    for price in ("-3.00", "0.21", "10.10"):
        assert get(shop, f"/v1/stores/by-price/keys/{price}")[1]["value"] == {"count": 1}
    assert get(shop, "/v1/stores/levels/keys/9.9")[1]["value"] == ["ann", "bob"]
    assert get(shop, "/v1/stores/by-large/keys/%5B-7.5,%22bob%22%5D")[1]["key"] == ["-7.5000", "bob"]
    top = get(shop, "/v1/stores/best/top/all?limit=9")[1]["top"]
    assert [(row["value"]["customer"], row["value"]["spent"]) for row in top] == [
        ("bob", "20.00"),
        ("ann", "10.11"),
        ("cleo", "-3.00"),
    ]
    loaded = spark.read.format("holdfast").option("address", str(shop.address)).load("by-price")
    assert loaded.schema["price"].dataType.simpleString() == "decimal(10,2)"
    assert loaded.where("price = 9.90").collect()[0]["count"] == 2


PRICES = StoreSpec(name="prices", key=Schema.of(price="decimal(10,2)"), codec="msgpack/1")
LARGE = StoreSpec(name="large", key=Schema.of(large="decimal(38,4)", customer="string"), codec="msgpack/1")
APP = AppSpec(
    id="game", partitions=3, stores=(PRICES, LARGE), subtopologies=subtopologies_of({"prices": 0, "large": 0})
)
MOST = Decimal("1234567890123456789012345678901234.0001")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with started(tmp_path, APP) as group:
        numbers = range(-500, 500)
        group.driver.commit(PRICES, {(Decimal(n).scaleb(-2),): n for n in numbers})
        group.driver.commit(LARGE, {(Decimal("-7.5"), "ann"): 1, (Decimal("-7.5"), "bob"): 2, (MOST, "cleo"): 3})
        group.settle()
        yield group


def test_rest_writes_decimals_as_text(group: Group) -> None:
    for at in range(2):
        found = group.get("/v1/stores/prices/keys/-0.5", at).json()
        assert (found["key"], found["value"]) == ("-0.50", -50)
    answer = group.get("/v1/stores/prices/range", 0, **{"from": "-0.02", "to": "0.015"})
    assert (answer.status_code, answer.json()["example"]) == (400, "1.00")
    answer = group.get("/v1/stores/prices/range", 0, **{"from": "-0.02", "to": "0.01"})
    assert [each["key"] for each in answer.json()["entries"]] == ["-0.02", "-0.01", "0.00", "0.01"]
    several = group.client.post(
        f"{group.rests[0].url}/v1/stores/large/keys", json=[["-7.5", "bob"], [str(MOST), "cleo"]]
    )
    assert [each["value"] for each in several.json()["entries"]] == [2, 3]
    prefix = group.get("/v1/stores/large/range", 0, prefix='["-7.50"]').json()
    assert [each["key"] for each in prefix["entries"]] == [["-7.5000", "ann"], ["-7.5000", "bob"]]


def test_sql_and_clients_have_decimals(group: Group) -> None:
    with hf.Client([each.url for each in group.rests]) as client:
        prices = client.store("prices")
        assert prices.get(Decimal("-0.5")) == -50
        assert prices.get_many([Decimal("0.1"), Decimal(99)]) == {Decimal("0.1"): 10}
        found = [each.key for each in prices.range(Decimal("-0.01"), Decimal("0.01"))]
        assert found == [Decimal("-0.01"), Decimal("0.00"), Decimal("0.01")]
        assert all(type(each) is Decimal for each in found)
        assert client.store("large").get((MOST, "cleo")) == 3
        cheap = client.sql("SELECT price, value FROM prices WHERE price > -0.02 AND price <= 0.01 ORDER BY price")
        assert cheap.arrow["price"].to_pylist() == found
        assert client.sql("SELECT sum(price) FROM prices").arrow.to_pylist()[0] == {"sum(price)": Decimal("-5.00")}
        frame = client.store("large").dataframe().arrow
        assert frame.schema.field("large").type == pa.decimal128(38, 4)
        assert sorted(frame["large"].to_pylist()) == [Decimal("-7.5"), Decimal("-7.5"), MOST]
