"""Joins of streams with tables, on real Spark."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.pipeline.sinks.builtin import Memory
from holdfast.topology.joining import How
from holdfast.words import Version
from tests.apps import NOON, entries_of, game, get, read, settings, write
from tests.test_changelog_tables import CHANGE, COLUMNS, change

pytestmark = pytest.mark.spark

GAMES = "player long, points long, at timestamp"
HOWS: tuple[How, ...] = ("inner", "left", "outer")
Batches = list[tuple[list[dict[str, object]], list[dict[str, object]]]]
"""The changes of two tables in each version."""


def played(player: int | None, points: int, second: int = 5) -> dict[str, Any]:
    return game(None, points, NOON + timedelta(seconds=second)) | {"player": player}


def games_app(spark: SparkSession, folder: Path) -> tuple[hf.App, hf.Stream, hf.Table]:
    for name in ("games", "changes"):
        (folder / name).mkdir(exist_ok=True)
    app = hf.App("joins", settings=settings(folder), spark=spark)
    changes = read(spark, folder / "changes", COLUMNS)
    players = app.table(changes, "players", key="id", timestamp="at", deleted="op = 'DELETE'")
    source = read(spark, folder / "games", "player string, points long, at timestamp")
    games = app.stream(source, key="player", timestamp="at", name="games").with_column("player", "CAST(player AS long)")
    return app, games, players


def assert_drawn(drawing: str) -> None:
    """Every line that connects two nodes connects nodes that the drawing has."""
    assert drawing.startswith("flowchart LR\n")
    lines = [line.strip() for line in drawing.splitlines()[1:]]
    nodes = {re.match(r"\w+", line.split("--> ")[-1].split("--- ")[-1])[0] for line in lines if "[" in line}  # type: ignore[index]
    edges = [re.split(r" (?:-->|---|-\. looked up \.->) ", line) for line in lines if "--" in line or "-." in line]
    assert {re.match(r"\w+", end)[0] for edge in edges for end in edge} <= nodes  # type: ignore[index]
    assert 'source0[/"players"/]' in lines and 'sub0store0[("players (key-value)")]' in drawing
    assert "sub0 -. looked up .-> sub1" in lines and "sub2 --> sub3" in lines


def joined(memory: Memory) -> list[list[tuple[Any, ...]]]:
    """Player, points and city of each version."""
    return [sorted((r["player"], r["points"], r["c_city"]) for r in rows) for rows in memory.versions.values()]


def test_a_record_looks_up_the_row_of_its_key(spark: SparkSession, tmp_path: Path) -> None:
    app, games, players = games_app(spark, tmp_path)
    inner, left, totals, as_of = hf.memory(), hf.memory(), hf.memory(), hf.memory()
    games.join(players, name="inner", prefix="c_").sink(inner)
    with_city = games.join(players, how="left", name="left", prefix="c_").sink(left)
    with_city.to_stream().key_by("c_city").group_by().aggregate(points=hf.sum("points")).store("by-city").sink(totals)
    kept = app.table(
        read(spark, tmp_path / "changes", COLUMNS),
        "kept",
        key="id",
        timestamp="at",
        deleted="op = 'DELETE'",
        history="1h",
    )
    games.join(kept, how="left", name="as-of", prefix="c_").sink(as_of)

    batches: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
        ([change(1, "Bern", 1)], [played(1, 3), played(2, 4)]),
        ([change(9, "Chur", 1)], [played(1, 5)]),
        ([change(1, "Basel", 2), change(2, "Thun", 2)], [played(1, 6, second=1), played(2, 7)]),
        ([change(1, None, 3, "DELETE")], [played(1, 8, second=2), played(2, 9, second=1)]),
    ]
    for number, (changes, records) in enumerate(batches):
        write(tmp_path / "changes", number, changes, CHANGE)
        write(tmp_path / "games", number, [record | {"player": str(record["player"])} for record in records])
    with app:
        app.process_all_available()
        assert app.version == len(batches), "a batch has a file of each source"
        assert entries_of(app, "by-city") == {"Bern": {"points": 8}, "Basel": {"points": 6}, "Thun": {"points": 16}}
        assert "inner join with the table players by player" in app.describe()
        assert entries_of(app, "kept").keys() == {2, 9}
        history = get(app, "/v1/stores/kept/history/1")[1]["history"]
        assert [row["value"]["city"] for row in history] == ["Bern", "Basel"]
        assert_drawn(app.describe(format="mermaid"))
    expected: list[list[tuple[Any, ...]]] = [
        [(1, 3, "Bern"), (2, 4, None)],
        [(1, 5, "Bern")],
        [(1, 6, "Basel"), (2, 7, "Thun")],
        [(1, 8, None), (2, 9, "Thun")],
    ]
    assert joined(left) == expected
    assert joined(inner) == [[row for row in rows if row[2]] for rows in expected]
    assert joined(as_of) == [*expected[:2], [(1, 6, "Bern"), (2, 7, "Thun")], [(1, 8, "Basel"), (2, 9, None)]]


def test_joins_that_cannot_be_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    _, games, players = games_app(spark, tmp_path)
    with pytest.raises(TopologyError, match=r"both have the column 'at'.*prefix="):
        games.join(players, name="j")
    with pytest.raises(TopologyError, match=r"needs a name"):
        games.join(players, prefix="c_")
    with pytest.raises(TopologyError, match=r"how='outer' is not known.*inner or left"):
        games.join(players, how="outer", name="j", prefix="c_")
    with pytest.raises(TopologyError, match=r"\(at timestamp\) and the table's \(id bigint\) have different types"):
        games.join(players, name="j", prefix="c_", on="at")
    recent = games.group_by().count().store("recent", ttl="1h")
    with pytest.raises(TopologyError, match=r"keeps its rows by time"):
        games.join(recent, name="j")


def test_a_join_of_tables_follows_both(spark: SparkSession, tmp_path: Path) -> None:
    """The result of each version is what Python makes of both tables at that version."""
    folders = tmp_path / "cities", tmp_path / "teams"
    batches: Batches = [
        ([change(1, "Bern", 1), change(2, "Thun", 1)], [change(1, "red", 1)]),
        ([change(1, "Basel", 2)], [change(3, "blue", 1)]),
        ([change(2, None, 3, "DELETE")], [change(2, "green", 2)]),
        ([change(2, "Chur", 4)], [change(1, None, 5, "DELETE")]),
        ([change(1, "Basel", 2)], [change(4, None, 5, "DELETE")]),
    ]
    for number, both in enumerate(batches):
        for folder, changes in zip(folders, both, strict=True):
            write(folder, number, changes, CHANGE)
    app = hf.App("tables", settings=settings(tmp_path), spark=spark)
    cities, teams = (
        app.table(
            read(spark, folder, COLUMNS).selectExpr("id", f"city AS {column}", "op = 'DELETE' AS gone", "at"),
            folder.name,
            key="id",
            timestamp="at",
            deleted="gone",
        )
        for folder, column in zip(folders, ("city", "team"), strict=True)
    )
    sinks = {how: hf.memory() for how in HOWS}
    for how, sink in sinks.items():
        cities.join(teams, how=how, name=how, prefix="t_").sink(sink)
    with app:
        app.process_all_available()
        assert app.version == len(batches)
        found = {how: entries_of(app, how) for how in HOWS}
    for how, sink in sinks.items():
        newest = check_joined(how, batches, sink)
        assert {key: (row["city"], row["t_team"]) for key, row in found[how].items()} == newest


def check_joined(how: How, batches: Batches, sink: Memory) -> dict[Any, Any]:
    """Compares what a sink got with what Python makes of both tables; returns the newest result."""
    sides: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
    before: dict[Any, Any] = {}
    for number, both in enumerate(batches, 1):
        for side, changes in zip(sides, both, strict=True):
            for each in changes:
                side[each["id"]] = None if each["op"] == "DELETE" else each["city"]
        left, right = ({key: value for key, value in side.items() if value is not None} for side in sides)
        keys = {"inner": left.keys() & right.keys(), "left": left.keys(), "outer": left.keys() | right.keys()}[how]
        now = {key: (left.get(key), right.get(key)) for key in keys}
        sent = {
            row["id"]: None if row["_deleted"] else (row["city"], row["t_team"])
            for row in sink.versions.get(Version(number), [])
        }
        changed = {key: now.get(key) for key in now.keys() | before.keys() if now.get(key) != before.get(key)}
        assert sent == changed, f"version {number} of {how}"
        before = now
    return before
