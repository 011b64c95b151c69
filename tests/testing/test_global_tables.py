"""Global tables in the test driver: joins without a shuffle, and static rows."""

from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import faults
from holdfast.describe import describe
from holdfast.errors import TopologyError
from holdfast.pipeline.driver import TaskFailed
from holdfast.testing import TestDriver, records
from holdfast.topology.plain_frames import StaticFrame
from holdfast.topology.topology import StaticRows
from tests.testing.test_driver import without_spark  # noqa: F401  a fixture

ORDERS = "order string, product bigint, at timestamp"
PRODUCTS = "id bigint, name string, gone boolean, at timestamp"
SETTINGS = hf.Settings(partitions=3)


def order(name: str | None, product: int | None, at: int = 0) -> dict[str, Any]:
    return {"order": name, "product": product, "at": at}


def product(id: int, name: str | None, at: int = 0, *, gone: bool = False) -> dict[str, Any]:
    return {"id": id, "name": name, "gone": gone, "at": at}


def static(*names: tuple[int, str | None]) -> pa.Table:
    return pa.table(
        {"id": pa.array([id for id, _ in names], pa.int64()), "name": pa.array([n for _, n in names], pa.string())}
    )


def app_with(products: Any, **options: Any) -> tuple[hf.App, "hf.Stream", Any]:
    app = hf.App("orders", settings=SETTINGS)
    orders = app.stream(records(ORDERS), key="order", timestamp="at", name="orders")
    return app, orders, app.global_table(products, "products", key="id", **options)


def changelog_app() -> tuple[hf.App, "hf.Stream", Any]:
    return app_with(records(PRODUCTS), timestamp="at", deleted="gone")


def names_of(driver: TestDriver, output: str) -> list[tuple[Any, Any]]:
    return sorted(((row["order"], row["name"]) for row in driver.output(output)), key=repr)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_the_documented_table_of_inputs_and_outputs(how: str) -> None:
    """Kafka Streams' table for joins of a stream with a table; a global one gives the same. One input per line."""
    app = hf.App("documented", settings=SETTINGS)
    stream = app.stream(records("key string, left string"), key="left", name="stream")
    table = app.global_table(records("key string, right string, gone boolean"), "table", key="key", deleted="gone")
    stream.join(table, how=how, on="key", name="joined")
    driver = TestDriver(app)
    lines: list[tuple[str | None, str | None, tuple[str, str | None] | None]] = [
        ("stream", "A", ("A", None)),
        ("table", "a", None),
        ("stream", "B", ("B", "a")),
        ("table", "b", None),
        ("table", None, None),
        ("stream", "C", ("C", None)),
        ("table", "c", None),
        ("table", None, None),
        ("table", "d", None),
        ("stream", "D", ("D", "d")),
    ]
    for source, value, expected in lines:
        assert source is not None
        side = {"left": value} if source == "stream" else {"right": value, "gone": value is None}
        driver.pipe(source, [{"key": "k", **side}])
        found = [(row["left"], row["right"]) for row in driver.output("joined")]
        is_there = expected is not None and (how == "left" or expected[1] is not None)
        assert found == ([expected] if is_there else []), (source, value)


def test_a_record_looks_up_any_columns_and_changes_of_the_version_come_first() -> None:
    app, orders, products = changelog_app()
    for how in ("inner", "left"):
        orders.join(products, how=how, on="product", name=how, prefix="p_")
    driver = TestDriver(app)
    driver.pipe_all({"products": [product(7, "tea")], "orders": [order("a", 7), order("b", 9), order("c", None)]})
    assert sorted((row["order"], row["p_name"]) for row in driver.output("inner")) == [("a", "tea")]
    left = {row["order"]: row["p_name"] for row in driver.output("left")}
    assert left == {"a": "tea", "b": None, "c": None}, "a null isn't in any table, and the record stays"
    driver.pipe_all({"products": [product(9, "cup", 1), product(7, None, 1, gone=True)], "orders": [order("d", 7)]})
    assert driver.output("inner") == []
    driver.pipe("orders", [order("f", None)])
    assert driver.output("inner") == []
    driver.pipe("orders", [order("e", 9), order(None, 9)])
    assert [(row["order"], row["p_name"]) for row in driver.output("inner")] == [("e", "cup")]
    assert [letter["reason"] for letter in driver.dead_letters()] == ["no key: order is null"]
    assert [(key, row["name"]) for key, row in driver.store("products").items()] == [(9, "cup")]


def test_joined_rows_are_a_stream_by_the_streams_key() -> None:
    app, orders, products = app_with(static((7, "tea"), (9, "cup")))
    joined = orders.join(products, on="product", name="named")
    joined.to_stream().key_by("name").group_by().count().store("per-name")
    driver = TestDriver(app)
    driver.pipe("orders", [order("a", 7), order("b", 7), order("c", 9), order("d", 1)])
    assert driver.store("per-name").items() == [("cup", {"count": 1}), ("tea", {"count": 2})]


def test_a_key_of_several_columns_and_a_key_that_is_too_long() -> None:
    app = hf.App("wide", settings=SETTINGS)
    visits = app.stream(records("id string, country string, city string"), key="id", name="visits")
    rows = pa.table({"country": ["ch", "de"], "city": ["Bern", "Ulm"], "people": [144_000, 129_000]})
    cities = app.global_table(rows, "cities", key=("country", "city"))
    visits.select("id", "country", "city").join(cities, on=["country", "city"], how="left", name="sizes")
    driver = TestDriver(app)
    driver.pipe(
        "visits",
        [
            {"id": "1", "country": "ch", "city": "Bern"},
            {"id": "2", "country": "de", "city": "Bern"},
            {"id": "3", "country": "de", "city": "x" * 70_000},
            {"id": "4", "country": None, "city": "Ulm"},
        ],
    )
    assert {row["id"]: row["people"] for row in driver.output("sizes")} == {
        "1": 144_000,
        "2": None,
        "3": None,
        "4": None,
    }


# Static rows


def restarted(driver: TestDriver, rows: pa.Table) -> TestDriver:
    """The app after a start that finds other static rows."""
    origin = driver._topology.subtopology("products").stream.branches[0].origin
    assert isinstance(origin, StaticRows)
    frame: Any = origin.frame
    assert isinstance(frame, StaticFrame)
    frame.table = rows
    return driver.crash()


def test_the_first_version_after_a_start_has_what_changed_in_static_rows() -> None:
    app, orders, products = app_with(static((7, "tea"), (9, "cup"), (10, None)))
    orders.join(products, on="product", how="left", name="named")
    driver = TestDriver(app)
    assert driver.store("products").items() == []
    driver.pipe("orders", [order("a", 7)])
    assert names_of(driver, "named") == [("a", "tea")], "the version that reads the rows uses them"
    assert len(driver.output("products")) == 3
    driver.pipe("orders", [order("b", 9)])
    assert driver.output("products") == [], "they are read once"
    restarted(driver, static((7, "green tea"), (10, None), (11, "pot"))).pipe("orders", [order("c", 7), order("d", 9)])
    assert names_of(driver, "named") == [("b", "cup"), ("c", "green tea"), ("d", None)]
    changed = {row["id"]: (row["name"], row["_deleted"]) for row in driver.output("products")}
    assert changed == {7: ("green tea", False), 9: (None, True), 11: ("pot", False)}
    assert [id for id, _ in driver.store("products").items()] == [10, 11, 7]


def test_static_rows_come_without_a_batch_too() -> None:
    app, orders, products = app_with(static((7, "tea")))
    orders.join(products, on="product", name="named")
    driver = TestDriver(app)
    driver.pipe("orders", [order("a", 7)])
    restarted(driver, static((7, "cup")))
    assert driver.advance("1s") == 2, "a version of the driver's own"
    assert driver.store("products").get(7) == {"name": "cup"}
    assert driver.advance("1h") == 2, "and no other"
    restarted(driver, static())
    driver.advance("1s")
    assert driver.store("products").items() == []


@pytest.mark.parametrize("point", ["commit.before", "commit.after"])
def test_static_rows_are_those_of_the_version_that_exists(point: str) -> None:
    """A crash around the commit of the rows, and a start that finds others."""

    class Crash(BaseException):
        pass

    def crash() -> None:
        raise Crash

    app, orders, products = app_with(static((7, "tea")))
    orders.join(products, on="product", name="named")
    driver = TestDriver(app)
    with pytest.raises(Crash), faults.active({point: crash}):
        driver.pipe("orders", [order("a", 7)])
    restarted(driver, static((7, "cup")))
    driver.pipe("orders", [order("b", 7)])
    first = "cup" if point == "commit.before" else "tea"
    assert names_of(driver, "named") == [("a", first), ("b", "cup")]
    assert driver.store("products").get(7) == {"name": "cup"}


def test_static_rows_gain_a_column_with_the_code() -> None:
    def named(rows: pa.Table) -> hf.App:
        app, orders, products = app_with(rows)
        orders.join(products, on="product", name="named")
        return app

    driver = TestDriver(named(static((7, "tea"), (9, "cup"))))
    driver.pipe("orders", [order("a", 7)])
    wider = static((7, "tea"), (9, "cup")).append_column("price", pa.array([3, None], pa.int64()))
    later = TestDriver(named(wider))
    later._log_url, later._done = driver._log_url, driver._done
    later._start()
    later.pipe("orders", [order("b", 7)])
    assert later.output("named")[-1] == {**order("b", 7), "at": ANY, "name": "tea", "price": 3}
    changed = [row["id"] for row in later.output("products") if row.get("price")]
    assert changed == [7], "a row with a null is the same row"
    assert later.store("products").get(9) == {"name": "cup", "price": None}


def test_two_rows_of_one_key_are_refused() -> None:
    app, orders, products = app_with(static((7, "tea"), (8, "x"), (7, "cup")))
    orders.join(products, on="product", name="named")
    with pytest.raises(TaskFailed, match=r"'products' has 3 rows with 2 keys: several rows have the key \{'id': 7\}"):
        TestDriver(app).pipe("orders", [order("a", 7)])


def test_a_static_row_without_a_key_is_a_dead_letter() -> None:
    rows = pa.table({"id": pa.array([7, None], pa.int64()), "name": ["tea", "cup"]})
    app, orders, products = app_with(rows)
    orders.join(products, on="product", name="named")
    driver = TestDriver(app)
    driver.pipe("orders", [order("a", 7)])
    assert [letter["record"] for letter in driver.dead_letters()] == [{"id": None, "name": "cup"}]
    assert driver.store("products").get(7) == {"name": "tea"}


# What can't be


def test_combinations_that_cannot_be_are_errors_when_the_app_is_built() -> None:
    app, orders, products = app_with(static((7, "tea")))
    refused: list[tuple[str, dict[str, Any]]] = [
        (r"on='order' is of type string, and the table's key is \(id bigint\). Cast it", {"on": "order"}),
        (r"on= has 2 column\(s\), and the table's key \(id bigint\) has 1", {"on": ["order", "product"]}),
        (r"within= is for a join of two streams", {"on": "product", "within": hf.join_window("1s")}),
        (r"how='outer' is not known.*inner or left", {"on": "product", "how": "outer"}),
        (r"needs a name", {"on": "product", "name": None}),
    ]
    for match, options in refused:
        with pytest.raises(TopologyError, match=match):
            orders.join(products, **{"name": "j", **options})
    with pytest.raises(TopologyError, match=r"both have the column 'name'.*prefix="):
        app.stream(records("name string, product bigint"), key="name", name="n").join(products, on="product", name="j")
    table = orders.group_by("product").count().store("per-product")
    with pytest.raises(TopologyError, match=r"'products' is a global table, which only streams can be joined with"):
        table.join(products, name="j")
    with pytest.raises(TopologyError, match=r"belongs to another app"):
        changelog_app()[1].join(products, on="product", name="j")
    with pytest.raises(TopologyError, match=r"deleted=...\) is for a changelog stream, and this DataFrame is static"):
        app.global_table(static(), "other", key="id", deleted="name is null")
    with pytest.raises(TopologyError, match=r"durable=False\) of a static DataFrame would be empty on an instance"):
        app.global_table(static(), "other", key="id", durable=False)
    with pytest.raises(TopologyError, match=r"streaming or static DataFrame or a pyarrow.Table, not list"):
        app.global_table([], "other", key="id")
    with pytest.raises(TopologyError, match=r"two stores named 'products'"):
        app.global_table(static(), "products", key="id")


def test_an_app_of_static_rows_alone_is_refused() -> None:
    app = hf.App("alone")
    app.global_table(static((7, "tea")), "products", key="id")
    with pytest.raises(TopologyError, match="reads static DataFrames alone"):
        TestDriver(app)


def test_the_description_shows_it() -> None:
    app, orders, products = app_with(static((7, "tea")))
    orders.join(products, on="product", how="left", name="named")
    text = app.describe()
    assert "a static DataFrame, read at each start (key id bigint)" in text
    assert "global: in one partition, which every instance has and every task reads" in text
    assert "left join with the global table products on product, not shuffled" in text
    drawing = app.describe(format="mermaid")
    assert "sub0 -. looked up .-> sub1" in drawing and "the rows of a static DataFrame" in drawing
    driver = TestDriver(app)
    driver.pipe("orders", [order("a", 7)])
    running = describe(app.id, app.settings, driver._topology)
    assert "Sub-topology products, task 0_0\n" in running
    assert "Sub-topology named, tasks 1_0 to 1_2\n" in running
