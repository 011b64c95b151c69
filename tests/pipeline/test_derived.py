"""Sub-topologies after sub-topologies, on real Spark: re-keyed in the same version."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.pipeline.sinks.builtin import Memory
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
