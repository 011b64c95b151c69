"""A row of a table that is equal to the one that its key has is not a change, whoever follows the table."""

from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import TestDriver, records
from tests.testing.test_driver import at, without_spark

__all__ = ["without_spark"]  # a fixture for all tests here

PLAYERS = "id string, city string, points bigint, gone boolean, at timestamp"
KINDS: dict[str, dict[str, Any]] = {
    "timed": {"timestamp": "at"},
    "history": {"timestamp": "at", "history": "1h"},
    "untimed": {},
}


def followed(**options: Any) -> TestDriver:
    """A table with everything that can follow one."""
    app = hf.App("players", settings=hf.Settings(partitions=2))
    players = app.table(records(PLAYERS), "players", key="id", deleted="gone", **options)
    timed: dict[str, Any] = {"timestamp": "at"} if "timestamp" in options else {}
    cities = app.table(records("city string, at timestamp, zip bigint"), "cities", key="city", **timed)
    levels = app.table(records("id string, at timestamp, level bigint"), "levels", key="id", **timed)
    players.to_stream().group_by("city").count().store("per-city")
    players.join(levels, how="left", name="both", prefix="l_")
    players.join(cities, on="city", how="left", name="linked", prefix="c_")
    if "history" not in options:
        players.top(2, by="points", name="top")
    return TestDriver(app)


def snapshot(second: float, **cities: str | None) -> list[dict[str, Any]]:
    return [
        {"id": player, "city": city, "points": 3, "gone": city is None, "at": at(second)}
        for player, city in cities.items()
    ]


def sent(driver: TestDriver, options: dict[str, Any]) -> dict[str, int]:
    names = ["players", "per-city", "both", "linked", *([] if "history" in options else ["top"])]
    return {name: number for name in names if (number := len(driver.output(name)))}


@pytest.mark.parametrize("options", KINDS.values(), ids=list(KINDS))
def test_a_repeated_snapshot_sends_nothing(options: dict[str, Any]) -> None:
    driver = followed(**options)
    driver.pipe("players", snapshot(1, ann="Bern", bob="Ulm", zoe="Bern"))
    top = {} if "history" in options else {"top": 1}
    assert sent(driver, options) == {"players": 3, "per-city": 2, "both": 3, "linked": 3, **top}
    driver.pipe("players", snapshot(1, ann="Bern", bob="Ulm", zoe="Bern", cid=None))
    driver.crash()
    driver.pipe("players", snapshot(1, ann="Bern"))
    assert sent(driver, options) == {}
    newest = driver._driver.newest
    assert newest is not None and not newest.segments, "nothing was written either"
    driver.pipe("players", [*snapshot(1, ann="Bern", zoe="Bern"), *snapshot(2, bob="Bonn")])
    assert [(row["id"], row["city"]) for row in driver.output("players")] == [("bob", "Bonn")]
    assert sent(driver, options) == {"per-city": 1, "both": 1, "linked": 1, **top}
    driver.pipe("players", [*snapshot(1, bob="Ulm"), *snapshot(2, bob="Bonn")])
    assert sent(driver, options) == {}, "a changelog that is read again"
    driver.pipe("players", snapshot(2, bob="Ulm"))
    assert [(row["id"], row["city"]) for row in driver.output("players")] == [("bob", "Ulm")]


def test_each_column_makes_a_row_another_one() -> None:
    app = hf.App("columns", settings=hf.Settings(partitions=1))
    app.table(records("id string, note string, x double, blob string, at timestamp"), "rows", key="id", timestamp="at")
    driver = TestDriver(app)
    row: dict[str, Any] = {"id": "a", "note": "ab", "x": 1.5, "blob": "c", "at": at(1)}
    changes: list[dict[str, Any]] = [
        {"note": "a", "blob": "bc"},
        {"x": None},
        {"x": float("nan")},
        {"note": None},
        {"note": ""},
        {"at": at(2)},
    ]
    driver.pipe("rows", row)
    driver.output("rows")
    for change in changes:
        row |= change
        driver.pipe("rows", row)
        driver.pipe("rows", row)
        assert len(driver.output("rows")) == 1, change
