"""Sub-topologies after sub-topologies, on real Spark: re-keyed in the same version."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.pipeline.sinks.builtin import Memory
from holdfast.testing import TestDriver, records
from tests.apps import NOON, entries_of, game, read, settings, write

pytestmark = pytest.mark.spark


class Points(hf.Processor):
    """Forwards each player's points so far, by the parity of the sum."""

    points = hf.KeyValueStore("points", value=int)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.points[key] = self.points.get(key, 0) + event.points
        ctx.forward(key, {"parity": self.points[key] % 2, "points": self.points[key]})


class Days(hf.Processor):
    """Keeps the event time of forwarded rows."""

    seconds = hf.KeyValueStore("seconds", key=int, value=int)

    def process(self, key: int, event: Any, ctx: hf.Context) -> None:
        self.seconds[key] = ctx.timestamp


def derived_app(spark: SparkSession, folder: Path, memory: Memory) -> hf.App:
    app = hf.App("derived", settings=settings(folder), spark=spark)
    stream = app.stream(read(spark, folder / "input"), key="player", timestamp="at")
    points = stream.process(Points, output="player string, parity int, points bigint")
    forwarded = points.to_stream(key="parity")
    forwarded.group_by().aggregate(n=hf.count(), most=hf.max("points"), who=hf.last("player")).store("parities")
    forwarded.process(Days)
    players = stream.group_by().aggregate(games=hf.count()).store("players")
    players.to_stream().key_by("games").group_by().count().store("by-games").sink(memory)
    return app


def test_forwarded_rows_and_changes_of_tables_are_streams(spark: SparkSession, tmp_path: Path) -> None:
    late = NOON + timedelta(seconds=1)
    write(tmp_path / "input", 1, [game("ann", 3), game("bob", 4, late), game("ann", 2, late)])
    write(tmp_path / "input", 2, [game("ann", 1)])
    memory = hf.memory()
    with derived_app(spark, tmp_path, memory) as app:
        app.process_all_available()
        assert app.version == 2, "both levels of a batch are one version"
        assert entries_of(app, "parities") == {
            0: {"n": 2, "most": 6, "who": "bob"},
            1: {"n": 2, "most": 5, "who": "ann"},
        }
        noon = round(NOON.timestamp() * 1000)
        assert entries_of(app, "seconds") == {0: noon, 1: noon + 1_000}, "rows have the time of their record"
        assert entries_of(app, "by-games") == {1: {"count": 1}, 2: {"count": 1}, 3: {"count": 1}}
        newest = app._started().driver.newest
        assert newest is not None and newest.counts["records"] == 1, "derived records are not the source's"
        assert newest.clocks.sources.keys() == {"main"}
    assert sorted(row["games"] for row in memory.rows()) == [1, 2, 3]  # type: ignore[type-var]


def test_a_derived_stream_needs_known_columns(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    app = hf.App("wrong", settings=settings(tmp_path), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
    with pytest.raises(TopologyError, match="has no output yet"):
        stream.process(Points).to_stream(key="player")
    table = stream.group_by().aggregate(_time=hf.count()).store("table")
    with pytest.raises(TopologyError, match="has a column '_time', which a derived stream needs"):
        table.to_stream()
    other = stream.group_by().aggregate(n=hf.count()).store("other")
    with pytest.raises(TopologyError, match="no column 'm'"):
        other.to_stream().key_by("m")


class FailsForEight(hf.Processor):
    seen = hf.KeyValueStore("eights", value=int)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.seen[key] = 1 // (event.points - 8)


def set_aside(stream: hf.Stream, late: hf.Sink) -> None:
    """Sub-topologies that set records of derived streams aside: late, without a key, and failing."""
    rows = stream.group_by().aggregate(points=hf.last("points")).store("latest").to_stream()
    rows.group_by().window(hf.tumbling("10s")).count().store("windows").late.sink(late)
    named = rows.with_column("name", "IF(points = 7, NULL, player)").key_by("name")
    named.join(named, within=hf.join_window("10s"), prefix="other_", name="pairs")
    rows.process(FailsForEight, on_error="dead_letter")
    failing = rows.on_error("dead_letter").with_column("n", "CAST(IF(points = 9, 'x', '1') AS int)")
    failing.group_by().aggregate(n=hf.sum("n")).store("numbers")


SET_ASIDE = [
    [game("ann", 1, NOON)],
    [game(name, points, NOON + timedelta(minutes=5)) for name, points in (("bob", 7), ("cid", 8), ("dan", 9))],
    [game("ann", 2, NOON + timedelta(seconds=1))],
]


def check_set_aside(late: list[Any], letters: list[Any]) -> None:
    assert late == [{"player": "ann", "points": 2}]
    records = [(str(letter["reason"]).partition(" ")[0], letter["record"]) for letter in letters]
    assert ("FailsForEight.process()", {"player": "cid", "points": 8}) in records
    assert ("with_column('n',", {"player": "dan", "points": 9}) in records
    shown = {name for reason, record in records if reason == "no" for name in record}
    assert shown and not shown & {"_time", "_task", "_row"}


def test_late_records_and_dead_letters_have_no_internal_columns(spark: SparkSession, tmp_path: Path) -> None:
    for number, batch in enumerate(SET_ASIDE):
        write(tmp_path / "input", number, batch)
    late, letters = Memory(), Memory()
    app = hf.App("aside", settings=settings(tmp_path), spark=spark)
    set_aside(app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at"), late)
    app.dead_letters(letters)
    with app:
        app.process_all_available()
    check_set_aside(late.rows(), [{**row, "record": json.loads(str(row["record"]))} for row in letters.rows()])


def test_in_a_test_driver_they_have_none_either(spark: SparkSession) -> None:
    app = hf.App("aside")
    set_aside(app.stream(records("player string, points long, at timestamp"), key="player", timestamp="at"), Memory())
    driver = TestDriver(app)
    for batch in SET_ASIDE:
        driver.pipe("main", batch)
    check_set_aside(driver.output("windows/late"), driver.dead_letters())
