"""Joins of tables by a foreign key: the rows of an oracle, for random changes and batch boundaries."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.log.appfile import AppChanged
from holdfast.stores.formats.cells import unpack
from holdfast.testing import TestDriver, records
from tests.documented_joins import START

ORDERS = "id bigint, customer string, amount bigint, gone boolean, at timestamp"
CUSTOMERS = "name string, city string, gone boolean, at timestamp"

Order = tuple[int, str | None, int | None]
"""Key, foreign key and amount; an order without an amount is deleted."""
Customer = tuple[str, str | None]
Change = Order | Customer
Row = tuple[Any, ...]
"""Customer, amount, time of the order, city, time of the customer."""

NAMES = st.sampled_from(["ann", "bob", "cid"])
CHANGES = st.one_of(
    st.tuples(st.integers(1, 5), st.none() | NAMES, st.none() | st.integers(1, 9)),
    st.tuples(NAMES, st.none() | st.sampled_from(["Bern", "Ulm"])),
)


def tables(app: hf.App, **options: Any) -> tuple[hf.Table, hf.Table]:
    orders = app.table(records(ORDERS), "orders", key="id", timestamp="at", deleted="gone", **options)
    customers = app.table(records(CUSTOMERS), "customers", key="name", timestamp="at", deleted="gone")
    return orders, customers


def batch_of(changes: list[Change], second: int) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """The records of one version, each a second after the other."""
    batch: dict[str, list[dict[str, Any]]] = {"orders": [], "customers": []}
    for change in changes:
        second += 1
        at = START + timedelta(seconds=second)
        if len(change) == 3:
            number, name, amount = change
            batch["orders"].append({"id": number, "customer": name, "amount": amount, "gone": amount is None, "at": at})
        else:
            person, city = change
            batch["customers"].append({"name": person, "city": city, "gone": city is None, "at": at})
    return batch, second


class Oracle:
    """Both tables as dictionaries, joined again after each version."""

    def __init__(self) -> None:
        self.orders: dict[int, dict[str, Any]] = {}
        self.customers: dict[str, dict[str, Any]] = {}

    def apply(self, batch: Mapping[str, list[dict[str, Any]]]) -> None:
        for row in batch["orders"]:
            self.orders[row["id"]] = row
        for row in batch["customers"]:
            self.customers[row["name"]] = row

    def joined(self, how: str) -> dict[int, Row]:
        rows = {}
        for number, order in self.orders.items():
            customer = self.customers.get(order["customer"])
            theirs = None if customer is None or customer["gone"] else (customer["city"], customer["at"])
            if not order["gone"] and (theirs or how == "left"):
                rows[number] = (order["customer"], order["amount"], order["at"], *(theirs or (None, None)))
        return rows


def shown(row: Mapping[str, Any]) -> Row | None:
    if row.get("_deleted"):
        return None
    return tuple(row[name] for name in ("customer", "amount", "at", "c_city", "c_at"))


@given(batches=st.lists(st.lists(CHANGES, max_size=6), min_size=1, max_size=6), crashes=st.sets(st.integers(0, 5)))
def test_each_version_sends_the_rows_that_change(batches: list[list[Change]], crashes: set[int]) -> None:
    app = hf.App("linked", settings=hf.Settings(partitions=2))
    orders, customers = tables(app)
    for how in ("inner", "left"):
        orders.join(customers, on="customer", how=how, name=how, prefix="c_")
    driver, oracle, second = TestDriver(app), Oracle(), 0
    before: dict[str, dict[int, Any]] = {"inner": {}, "left": {}}
    for number, changes in enumerate(batches):
        batch, second = batch_of(changes, second)
        driver.pipe_all(batch)
        oracle.apply(batch)
        if number in crashes:
            driver.crash()
        for how, was in before.items():
            now, sent = oracle.joined(how), driver.output(how)
            changed = {each: now.get(each) for each in now.keys() | was.keys() if now.get(each) != was.get(each)}
            assert len(sent) == len({row["id"] for row in sent}), "one row per key and version"
            assert {row["id"]: shown(row) for row in sent} == changed
            assert {key: shown(row) for key, row in driver.store(how).items()} == now
            before[how] = now
    links = {key for key, _ in driver.store("left-index").items()}
    assert links == {(row[0], number) for number, row in oracle.joined("left").items() if row[0] is not None}


def test_a_table_joined_with_itself_and_by_a_part_of_its_key() -> None:
    app = hf.App("staff")
    staff = app.table(records("id bigint, boss bigint, name string, at timestamp"), "staff", key="id", timestamp="at")
    staff.join(staff, on="boss", how="left", name="with-boss", prefix="boss_")
    tasks = app.table(
        records("owner bigint, task string, hours bigint, at timestamp"),
        "tasks",
        key=["owner", "task"],
        timestamp="at",
    )
    tasks.join(staff, on="owner", name="with-owner", prefix="owner_")
    driver = TestDriver(app)

    def person(number: int, boss: int | None, name: str, second: int) -> dict[str, Any]:
        return {"id": number, "boss": boss, "name": name, "at": START + timedelta(seconds=second)}

    driver.pipe("staff", [person(1, None, "ann", 1), person(2, 1, "bob", 1), person(3, 1, "cid", 1)])
    driver.pipe("tasks", [{"owner": 2, "task": "paint", "hours": 3, "at": START + timedelta(seconds=2)}])
    driver.pipe("staff", [person(1, 1, "Ann", 3), person(3, 2, "cid", 3), person(2, 1, "Bob", 3)])
    assert {key: row["boss_name"] for key, row in driver.store("with-boss").items()} == {1: "Ann", 2: "Ann", 3: "Bob"}
    assert {key: row["owner_name"] for key, row in driver.store("with-owner").items()} == {(2, "paint"): "Bob"}


def test_rows_of_a_bounded_table_that_are_evicted_leave_the_join() -> None:
    app = hf.App("bounded", settings=hf.Settings(partitions=1))
    games = app.stream(records("player bigint, team string, at timestamp"), key="player", timestamp="at", name="games")
    players = games.group_by().aggregate(team=hf.last("team")).store("players", max_entries=2)
    teams = app.table(records("team string, city string, at timestamp"), "teams", key="team", timestamp="at")
    players.join(teams, on="team", name="both")
    driver = TestDriver(app)
    driver.pipe("teams", [{"team": "red", "city": "Bern", "at": START}])
    for second in (1, 2, 3):
        driver.pipe("games", [{"player": second, "team": "red", "at": START + timedelta(seconds=second)}])
    assert sorted(key for key, _ in driver.store("both").items()) == [2, 3]
    assert sorted(key for key, _ in driver.store("both-index").items()) == [("red", 2), ("red", 3)]


def test_rows_that_expire_leave_the_join_when_nothing_arrives() -> None:
    app = hf.App("expiring")
    games = app.stream(records("player bigint, team string, at timestamp"), key="player", timestamp="at", name="games")
    players = games.group_by().aggregate(team=hf.last("team")).store("players", ttl="10s", ttl_to_sinks=True)
    teams = app.table(records("team string, city string, at timestamp"), "teams", key="team", timestamp="at")
    players.join(teams, on="team", name="both")
    driver = TestDriver(app)
    driver.pipe("teams", [{"team": "red", "city": "Bern", "at": START}])
    driver.pipe("games", [{"player": 1, "team": "red", "at": START}])
    assert [row["_deleted"] for row in driver.output("both")] == [False]
    driver.advance("20s")
    assert [row["_deleted"] for row in driver.output("both")] == [True]
    assert driver.store("both").items() == [] and driver.store("both-index").items() == []


def test_a_foreign_key_that_is_too_long_for_a_key_is_none() -> None:
    app = hf.App("long")
    orders, customers = tables(app)
    orders.join(customers, on="customer", how="left", name="both", prefix="c_")
    driver = TestDriver(app)
    driver.pipe_all(batch_of([(1, "ann", 3), ("ann", "Bern")], 0)[0])
    driver.pipe_all(batch_of([(1, "a" * 40_000, 4)], 10)[0])
    ((_, row),) = driver.store("both").items()
    assert row["amount"] == 4 and row["c_city"] is None
    assert driver.store("both-index").items() == [] and driver.dead_letters() == []


def test_what_it_looks_like() -> None:
    app = hf.App("described")
    orders, customers = tables(app)
    orders.join(customers, on="customer", how="left", name="both", prefix="c_")
    text = app.describe()
    assert "foreign keys of the table orders, re-keyed from id to customer" in text
    assert "keys of the table orders by foreign key, with the rows of customers, re-keyed to id" in text
    assert "left join of the tables orders and customers by the foreign key customer" in text


def test_joins_that_are_not_possible() -> None:
    app = hf.App("wrong")
    orders, customers = tables(app)
    with pytest.raises(TopologyError, match=r"how='outer' is not possible.*Use inner or left"):
        orders.join(customers, on="customer", how="outer", name="j", prefix="c_")
    with pytest.raises(TopologyError, match=r"'orders' has no column 'custmer'. Did you mean 'customer'"):
        orders.join(customers, on="custmer", name="j", prefix="c_")
    with pytest.raises(TopologyError, match=r"\(amount bigint\) and the key of 'customers' \(name string\)"):
        orders.join(customers, on="amount", name="j", prefix="c_")
    with pytest.raises(TopologyError, match=r"both tables have the column 'at'"):
        orders.join(customers, on="customer", name="j")
    with pytest.raises(TopologyError, match=r"needs a name"):
        orders.join(customers, on="customer", prefix="c_")
    with pytest.raises(
        TopologyError, match=r"keys of the same types. If columns of 'orders' are the key of 'customers'"
    ):
        orders.join(customers, name="j", prefix="c_")
    untimed = app.table(records("name string, x bigint"), "untimed", key="name")
    timeless = r"join\(name='j'\): the table 'untimed' has no event times, and the table '%s' has\."
    with pytest.raises(TopologyError, match=timeless % "orders"):
        orders.join(untimed, on="customer", name="j")
    with pytest.raises(TopologyError, match=timeless % "customers"):
        untimed.join(customers, name="j", prefix="c_")
    orders.join(customers, on="customer", name="j", prefix="c_")
    with pytest.raises(TopologyError, match=r"two outputs named 'j-links'|two stores"):
        orders.join(customers, on="customer", name="j", prefix="c_")


def test_tables_without_event_times() -> None:
    app = hf.App("untimed")
    orders = app.table(records("id bigint, customer string"), "orders", key="id")
    customers = app.table(records("name string, city string"), "customers", key="name")
    orders.join(customers, on="customer", how="left", name="linked")
    orders.join(orders, name="twice", prefix="other_")
    driver = TestDriver(app)
    driver.pipe("orders", [{"id": 1, "customer": "ann"}])
    driver.pipe("customers", [{"name": "ann", "city": "Bern"}])
    assert driver.store("linked").items() == [(1, {"customer": "ann", "city": "Bern"})]
    assert driver.store("twice").items() == [(1, {"customer": "ann", "other_customer": "ann"})]


def linked(columns: str, after: TestDriver | None = None) -> TestDriver:
    """Joins by key and by foreign key with customers of these columns, started on the log of a former release."""
    app = hf.App("changing", settings=hf.Settings(partitions=1, batch=hf.BatchSettings(rewrite_entries=10)))
    orders = app.table(records("id string, customer string, gone boolean"), "orders", key="id", deleted="gone")
    customers = app.table(records(f"name string, {columns}"), "customers", key="name")
    orders.join(customers, on="customer", how="left", name="linked")
    orders.join(customers, how="left", name="by-key")
    driver = TestDriver(app)
    if after is not None:
        driver._log_url, driver._done = after._log_url, after._done
        driver.crash()
    return driver


def test_joined_tables_gain_the_columns_of_their_tables() -> None:
    old = linked("city string")
    old.pipe_all(
        {
            "orders": [{"id": "a", "customer": "ann"}, {"id": "b", "customer": "bob"}],
            "customers": [{"name": "ann", "city": "Bern"}, {"name": "bob", "city": "Ulm"}],
        }
    )
    new = linked("city string, size bigint", old)
    new.pipe("customers", [{"name": "ann", "city": "Bern", "size": 3}])
    rows = {key: (row["city"], row["size"]) for key, row in new.store("linked").items()}
    assert rows == {"a": ("Bern", 3), "b": ("Ulm", None)}
    (cells,) = new._states.of_store("linked")
    assert {unpack(cell).schema for _, cell in cells.scan(b"\x01", b"\x02")} == {2}


@pytest.mark.parametrize("on", [None, "id"], ids=["by key", "by foreign key"])
@pytest.mark.parametrize(("how", "right"), [("inner", "customers"), ("left", "partners")])
def test_what_a_table_joins_cannot_change_in_place(on: str | None, how: str, right: str) -> None:
    """Rows that don't change would stay as the former join made them."""

    def joined(how: str, right: str) -> TestDriver:
        app = hf.App("changing")
        orders = app.table(records("id string, amount bigint"), "orders", key="id")
        tables = {
            name: app.table(records("id string, city string"), name, key="id") for name in ("customers", "partners")
        }
        orders.join(tables[right], on=on, how=how, name="j")
        return TestDriver(app)

    driver, later = joined("left", "customers"), joined(how, right)
    driver.pipe("orders", [{"id": "a", "amount": 1}])
    later._log_url, later._done = driver._log_url, driver._done
    with pytest.raises(
        AppChanged, match=f"'j' has join left of orders and customers in .* {how} of orders and {right}"
    ):
        later.crash()


def test_links_that_ended_while_the_join_was_removed_answer_nothing() -> None:
    def app_of(*, joined: bool, returned: dict[str, Literal["continue", "start_over"]] | None = None) -> hf.App:
        app = hf.App("shop", settings=hf.Settings(partitions=2, returned_stores=returned or {}))
        orders, customers = tables(app)
        if joined:
            orders.join(customers, on="customer", how="left", name="joined", prefix="customer_")
        return app

    def started_after(driver: TestDriver, app: hf.App) -> TestDriver:
        later = TestDriver(app)
        later._log_url, later._done = driver._log_url, driver._done
        return later.crash()

    def pipe(driver: TestDriver, changes: list[Change], second: int) -> None:
        driver.pipe_all(batch_of(changes, second)[0])

    driver = TestDriver(app_of(joined=True))
    pipe(driver, [(1, "ann", 3), ("ann", "Bern"), ("bob", "Ulm")], 0)
    driver = started_after(driver, app_of(joined=False))
    pipe(driver, [(1, "bob", 3)], 10)
    driver = started_after(driver, app_of(joined=True, returned={"joined": "continue", "joined-index": "continue"}))
    pipe(driver, [(1, "bob", 4)], 20)
    for second, changes in enumerate(([("ann", "Genf")], [("bob", "Bonn"), ("ann", "Zug")], [("ann", "Chur")])):
        pipe(driver, [*changes], 30 + 10 * second)
        row = driver.store("joined").get(1)
        assert (row["customer"], row["customer_city"]) == ("bob", "Ulm" if second == 0 else "Bonn")


@pytest.mark.parametrize(("foreign", "column"), [("linked", "there"), ("foreign", "foreign"), ("there", "linked")])
def test_columns_can_have_any_names(foreign: str, column: str) -> None:
    app = hf.App("shop", settings=hf.Settings(partitions=2))
    orders = app.table(records(f"id bigint, {foreign} string"), "orders", key="id")
    customers = app.table(records(f"name string, {column} string"), "customers", key="name")
    orders.join(customers, on=foreign, name="joined", prefix="of_" if foreign == column else "")
    driver = TestDriver(app)
    driver.pipe("orders", [{"id": 1, foreign: "ann"}])
    driver.pipe("customers", [{"name": "ann", column: "Bern"}])
    assert list(driver.store("joined").get(1).values()) == ["ann", "Bern"]


class Times(hf.Processor):
    """The event times of the rows of a key, in milliseconds after the start."""

    times = hf.KeyValueStore("times", value=list[int])

    def process(self, key: Any, event: Any, ctx: hf.Context) -> None:
        self.times[key] = [*self.times.get(key, []), ctx.timestamp - int(START.timestamp() * 1_000)]


@pytest.mark.parametrize("kept", [{}, {"history": "1h"}], ids=["latest", "history"])
@pytest.mark.parametrize(
    ("how", "foreign"), [("inner", False), ("left", False), ("outer", False), ("inner", True), ("left", True)]
)
def test_a_joined_row_has_the_later_time_of_both_rows(how: str, foreign: bool, kept: dict[str, Any]) -> None:
    app = hf.App("times", settings=hf.Settings(partitions=2))
    columns = "id string, value string, gone boolean, at timestamp"
    left, right = (
        app.table(records(columns), name, key="id", timestamp="at", deleted="gone", **kept)
        for name in ("left", "right")
    )
    left.join(right, on="value" if foreign else None, how=how, name="both", prefix="r_").to_stream().process(Times)
    driver = TestDriver(app)

    def pipe(table: str, value: str | None, millis: int) -> None:
        at = START + timedelta(milliseconds=millis)
        driver.pipe(table, [{"id": "k", "value": value, "gone": value is None, "at": at}])

    pipe("left", "k", 100)
    pipe("right", "k", 5)
    driver.crash()
    pipe("right", "b", 50)
    pipe("left", "k", 120)
    pipe("right", None, 160)
    pipe("left", "k", 130)
    pipe("right", "c", 165)
    pipe("left", None, 170)
    pipe("right", None, 180)
    # With the time of a deletion too, of a joined row or of one side.
    assert (
        driver.store("times").get("k")
        == {
            "inner": [100, 100, 120, 160, 165, 170],
            "left": [100, 100, 100, 120, 160, 130, 165, 170],
            "outer": [100, 100, 100, 120, 160, 130, 165, 170, 180],
        }[how]
    )
