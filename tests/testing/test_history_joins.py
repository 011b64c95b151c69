"""Joins of a stream with a table that has a history: each record gets the row of its own time."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.stores.access import BEGINNING
from holdfast.testing import TestDriver, records
from tests.apps import NOON as START
from tests.histories import HistoryOracle

PRICES = "item string, price bigint, gone boolean, at timestamp"
TRADES = "item string, n bigint, at timestamp"
KEPT = 100


def prices_app() -> hf.App:
    app = hf.App("prices", settings=hf.Settings(partitions=1))
    prices = app.table(
        records(PRICES), "prices", key="item", timestamp="at", deleted="gone", history=timedelta(seconds=KEPT)
    )
    trades = app.stream(records(TRADES), key="item", timestamp="at", name="trades")
    for how in ("inner", "left"):
        trades.join(prices, how=how, name=how, prefix="p_")
    return app


def price(item: str, price: int | None, second: int) -> dict[str, Any]:
    return {"item": item, "price": price, "gone": price is None, "at": START + timedelta(seconds=second)}


def trade(item: str, n: int, second: int) -> dict[str, Any]:
    return {"item": item, "n": n, "at": START + timedelta(seconds=second)}


def found(driver: TestDriver, how: str) -> dict[int, int | None]:
    return {row["n"]: row["p_price"] for row in driver.output(how)}


def test_a_record_gets_the_row_that_was_valid_at_its_time() -> None:
    driver = TestDriver(prices_app())
    driver.pipe("prices", [price("tea", 3, 10), price("tea", 4, 20), price("tea", None, 40)])
    driver.pipe("trades", [trade("tea", n, second) for n, second in enumerate((9, 10, 19, 20, 39, 40, 50))])
    assert found(driver, "left") == {0: None, 1: 3, 2: 3, 3: 4, 4: 4, 5: None, 6: None}
    assert found(driver, "inner") == {1: 3, 2: 3, 3: 4, 4: 4}


def test_rows_of_the_same_version_count_by_their_own_time() -> None:
    driver = TestDriver(prices_app())
    driver.pipe("prices", [price("tea", 3, 10)])
    driver.pipe_all(
        {
            "prices": [price("tea", 4, 20), price("tea", 5, 30)],
            "trades": [trade("tea", n, 15 + 10 * n) for n in range(3)],
        }
    )
    assert found(driver, "left") == {0: 3, 1: 4, 2: 5}


def test_a_late_row_of_the_table_counts_from_its_time_on() -> None:
    driver = TestDriver(prices_app())
    driver.pipe("prices", [price("tea", 3, 10), price("tea", 5, 30)])
    driver.output("prices")
    driver.pipe("prices", [price("tea", 4, 20)])
    assert driver.output("prices") == [], "the latest row is the same"
    driver.pipe("trades", [trade("tea", n, 15 + 10 * n) for n in range(3)])
    assert found(driver, "left") == {0: 3, 1: 4, 2: 5}
    assert driver.store("prices").get("tea").value["price"] == 5


def test_records_and_rows_before_the_history() -> None:
    """A record has no match, unless the latest row was valid then already. A row is left out and counted."""
    driver = TestDriver(prices_app())
    driver.pipe_all(
        {
            "prices": [price("tea", 3, 10), price("tea", 4, 200), price("old", 7, 10), price("cake", 9, 300)],
            "trades": [trade("none", 0, 300)],
        }
    )
    driver.output("left")
    driver.pipe_all(
        {"trades": [trade("tea", 1, 150), trade("tea", 2, 200), trade("old", 3, 150)], "prices": [price("tea", 8, 199)]}
    )
    assert found(driver, "left") == {1: None, 2: 4, 3: 7}
    assert driver.counts["expired/prices"] == 1
    driver.pipe("trades", [trade("tea", 4, 200), trade("tea", 5, 199)])
    assert found(driver, "left") == {4: 4, 5: None}


def test_an_aggregate_with_a_history() -> None:
    """Its rows are valid from the latest event time of their key on, one per version."""
    app = hf.App("totals")
    games = app.stream(
        records("player string, points bigint, at timestamp"), key="player", timestamp="at", name="games"
    )
    totals = games.group_by().aggregate(total=hf.sum("points")).store("totals", history="1h")
    looks = app.stream(records(TRADES), key="item", timestamp="at", name="looks")
    looks.join(totals, how="left", name="seen")
    driver = TestDriver(app)
    for second, points in ((10, 1), (20, 2), (30, 3)):
        driver.pipe("games", [{"player": "ann", "points": points, "at": START + timedelta(seconds=second)}])
    driver.pipe("looks", [trade("ann", second, second) for second in (5, 10, 25, 30)])
    assert {row["n"]: row["total"] for row in driver.output("seen")} == {5: None, 10: 1, 25: 3, 30: 6}
    assert "left join with the table totals by item, as of the record's time" in app.describe()


ITEMS = st.sampled_from("ab")
PUTS = st.tuples(st.just("prices"), ITEMS, st.integers(0, 400), st.none() | st.integers(1, 9))
LOOKS = st.tuples(st.just("trades"), ITEMS, st.integers(0, 400), st.just(None))
Event = tuple[str, str, int, int | None]


@given(batches=st.lists(st.lists(PUTS | LOOKS, max_size=8), max_size=6))
def test_rows_are_those_of_an_oracle(batches: list[list[Event]]) -> None:
    driver = TestDriver(prices_app())
    oracle: HistoryOracle[int] = HistoryOracle()
    number = 0
    for events in batches:
        clock = driver.now.event
        kept = BEGINNING if clock is None else clock / 1000 - START.timestamp() - KEPT
        batch: dict[str, list[dict[str, Any]]] = {"prices": [], "trades": []}
        looks: list[tuple[int, str, int]] = []
        last = {(item, second): value for source, item, second, value in events if source == "prices"}
        for (item, second), value in last.items():
            batch["prices"].append(price(item, value, second))
            oracle.put(item, second, value, kept)
        for source, item, second, _ in events:
            if source == "trades":
                number += 1
                batch["trades"].append(trade(item, number, second))
                looks.append((number, item, second))
        driver.pipe_all(batch)
        assert found(driver, "left") == {n: oracle.at(item, second, kept) for n, item, second in looks}


def test_joins_that_are_not_possible() -> None:
    app = hf.App("wrong")
    prices = app.table(records(PRICES), "prices", key="item", timestamp="at", deleted="gone", history="1h")
    untimed = app.stream(records("item string, n bigint"), key="item", name="untimed")
    with pytest.raises(TopologyError, match=r"as of the record's event time, and the stream has none. Name its column"):
        untimed.join(prices, name="j")
    counts = untimed.group_by().count().store("counts", history="1h")
    trades = app.stream(records(TRADES), key="item", timestamp="at", name="trades")
    with pytest.raises(TopologyError, match=r"table 'counts' has none"):
        trades.join(counts, name="j")
    with pytest.raises(TopologyError, match=r"history='1h'\): a row is valid from its event time on"):
        app.table(records("item string, x bigint"), "other", key="item", history="1h")
