"""Aggregates by a user's own function, on real Spark: reduce, aggregate_with, and tombstones from both."""

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.pipeline.sinks.builtin import Memory
from holdfast.testing import TestDriver, records
from tests.apps import NOON, entries_of, game, get, read, settings, write

pytestmark = pytest.mark.spark


class Best(msgspec.Struct):
    """A user's own class, for values."""

    points: int
    games: int = 1


class Played(msgspec.Struct):
    points: int


def add(best: Best, event: Played) -> Best | None:
    """Forgets a player who gets 0 points."""
    return Best(max(best.points, event.points), best.games + 1) if event.points else None


def reducing_app(spark: SparkSession, folder: Path, sums: Memory, bests: Memory) -> hf.App:
    app = hf.App("reducing", settings=settings(folder), spark=spark)
    stream = app.stream(read(spark, folder / "input"), key="player", timestamp="at")
    total = stream.group_by().reduce(lambda old, new: None if new == 0 else old + new, of="points").store("totals")
    total.sink(sums)
    best = stream.group_by().aggregate_with(lambda: Best(0, 0), add, value=Best).store("bests")
    best.sink(bests)
    runs = stream.group_by().window(hf.sliding("10s", grace="1m"))
    runs.aggregate_with(list, lambda run, event: [*run, event.points], value=list[int | None]).store("runs")
    changes = best.to_stream().with_column("games", "get_json_object(value, '$.games')")
    changes.key_by("_deleted").group_by().aggregate(n=hf.count(), games=hf.last("games")).store("kinds")
    return app


def test_a_function_of_the_user_keeps_a_value_per_key(spark: SparkSession, tmp_path: Path) -> None:
    sums, bests = hf.memory(), hf.memory()
    late = NOON + timedelta(seconds=9)
    write(tmp_path / "input", 1, [game("ann", 3), game("ann", 4, late), game("bob", 5), game("ann", None)])
    with reducing_app(spark, tmp_path, sums, bests) as app:
        app.process_all_available()
        assert entries_of(app, "totals") == {"ann": 7, "bob": 5}
        assert entries_of(app, "bests")["ann"] == {"points": 4, "games": 2}
        assert entries_of(app, "kinds") == {False: {"n": 2, "games": "2"}}, "one change per key and version"
    shutil.rmtree(tmp_path / "base" / "reducing" / "state")
    write(tmp_path / "input", 2, [game("ann", 1), game("bob", 0, late), game("cleo", 0)])
    with reducing_app(spark, tmp_path, sums, bests) as app:
        app.process_all_available()
        assert entries_of(app, "totals").keys() == {"ann", "cleo"}, "the first value is a result without a call"
        _, found = get(app, "/v1/stores/totals/keys/ann")
        assert (found["value"], found["timestamp"]) == (8, int(late.timestamp() * 1000)), "the latest time stays"
        assert get(app, "/v1/stores/bests/keys/bob")[0] == 404
        _, found = get(app, "/v1/stores/runs/windows/ann")
        assert [window["value"] for window in found["windows"]] == [[3, None, 1], [3, None, 1, 4], [4]], "by event time"
        assert entries_of(app, "kinds") == {False: {"n": 3, "games": "3"}, True: {"n": 1, "games": None}}
    gone = [row["player"] for row in bests.rows() if row["_deleted"]]
    assert gone == ["bob"], "cleo was never there"
    assert json.loads(str([row["value"] for row in bests.rows() if row["player"] == "ann"][-1]))["games"] == 3


def test_wrong_functions_are_refused_where_they_are_written(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    app = hf.App("wrong", settings=settings(tmp_path), spark=spark)
    grouped = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at").group_by()
    with pytest.raises(TopologyError, match="no column 'pionts'"):
        grouped.reduce(max, of="pionts")
    takes_one: Any = lambda old: old  # noqa: E731
    with pytest.raises(TopologyError, match=r"can't be called as f\(value, record\)"):
        grouped.reduce(takes_one, of="points")
    not_a_function: Any = 3
    with pytest.raises(TopologyError, match="3 is not a function"):
        grouped.aggregate_with(int, not_a_function, value=int)
    grouped.reduce(max, of="points").store("twice")
    with pytest.raises(TopologyError, match="There are two stores named"):
        grouped.reduce(min, of="points").store("twice")


class Player(msgspec.Struct):
    points: int = 0
    city: str = ""


def scored(player: Player, event: Played) -> Player:
    return Player(player.points + event.points, player.city)


def moved(player: Player, event: Any) -> Player | None:
    return None if event.city == "" else Player(player.points, event.city)


MOVED = [("ann", "Oslo"), ("bob", ""), ("cleo", "Rome")]
MOVES = pa.schema([("who", pa.string()), ("city", pa.string()), ("moved_at", pa.timestamp("us", "UTC"))])


def test_several_streams_keep_one_value_per_key(spark: SparkSession, tmp_path: Path) -> None:
    late = NOON + timedelta(seconds=9)
    write(tmp_path / "input", 1, [game("ann", 3), game("ann", 4, late), game("bob", 5)])
    write(tmp_path / "moves", 1, [{"who": who, "city": city, "moved_at": late} for who, city in MOVED], MOVES)
    app = hf.App("cogrouped", settings=settings(tmp_path), spark=spark)
    games = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
    frame = read(spark, tmp_path / "moves", "who string, city string, moved_at timestamp")
    moves = app.stream(frame, name="moves", key="who", timestamp="moved_at")
    both = hf.cogroup((games.group_by(), scored), (moves.group_by(), moved))
    both.aggregate_with(Player, value=Player).store("players")
    with pytest.raises(TopologyError, match="needs at least two streams"):
        hf.cogroup((games.group_by(), scored))
    with pytest.raises(TopologyError, match="Group all of them by columns of the same types"):
        hf.cogroup((games.group_by("points"), scored), (moves.group_by(), moved)).aggregate_with(Player, value=Player)
    with app:
        app.process_all_available()
        assert entries_of(app, "players") == {
            "ann": {"points": 7, "city": "Oslo"},
            "cleo": {"points": 0, "city": "Rome"},
        }, "bob was deleted by his move, which came after his game"


def test_columns_of_python_values_can_be_joined_and_ranked(spark: SparkSession) -> None:
    """As the errors say of a join with such a table, and of its `top`."""
    app = hf.App("columns")
    stream = app.stream(records("player string, points bigint, at timestamp"), key="player", timestamp="at", name="in")
    best = stream.group_by().reduce(max, of="points").store("best")
    made = best.to_stream().with_column("best", "CAST(value AS bigint)").group_by()
    rows = made.aggregate(best=hf.last("best")).store("best-rows")
    rows.top(1, by="best", name="top")
    stream.join(rows, name="with-best")
    driver = TestDriver(app)
    driver.pipe("in", [{**game(player, points), "at": driver.now.wall} for player, points in (("ann", 3), ("bob", 7))])
    assert {row["player"]: row["best"] for row in driver.output("with-best")} == {"ann": 3, "bob": 7}
    ((_, top),) = driver.store("top").items()
    assert top.value == [{"player": "bob", "best": 7}]
