"""How the rows of tables and joins get to their tasks."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.pipeline.driver import Step
from holdfast.pipeline.failing import readers_of
from holdfast.pipeline.planners import planner_of
from holdfast.pipeline.planning import BY_BYTES, BY_ROWS, NOTHING_SEALED
from holdfast.pipeline.reader_records import ReaderRecords
from holdfast.pipeline.source_readers import SourceReaders
from holdfast.pipeline.stage_plan import MemberFrame, SharedColumns
from holdfast.pipeline.task import Limits
from holdfast.topology.topology import Source, Topology
from holdfast.words import Millis, Version
from tests.apps import NOON

pytestmark = pytest.mark.spark

LIMITS = Limits(partitions=2, chunk_rows=1_000, inline_limit=1_000)


def joined(spark: SparkSession, folder: Path, columns: str) -> Topology:
    """A table, and a join with it."""
    app = hf.App("joined", settings=hf.Settings(base_dir=str(folder / "base")), spark=spark)
    frame = spark.readStream.schema(f"player string, at timestamp, {columns}").parquet(str(folder))
    table = app.table(frame, "table", key="player", timestamp="at")
    app.stream(frame, key="player", timestamp="at").join(table, name="join", prefix="t_")
    return app._topology


@pytest.mark.parametrize(
    ("columns", "arrow"), [("points int, price decimal(10, 2)", BY_ROWS), ("points int, text string", BY_BYTES)]
)
def test_spark_adds_up_bytes_only_where_a_row_can_be_large(
    spark: SparkSession, tmp_path: Path, columns: str, arrow: dict[str, str]
) -> None:
    topology = joined(spark, tmp_path, columns)
    for name in ("table", "join"):
        assert planner_of(topology.subtopology(name), LIMITS).arrow == arrow


def test_rows_of_a_stage_have_no_columns_that_only_order_them(spark: SparkSession, tmp_path: Path) -> None:
    table = joined(spark, tmp_path, "points int").subtopology("table")
    records = spark.createDataFrame([], table.stream.frame.schema)
    rows = planner_of(table, LIMITS).planned(records, Step(Version(1), Millis(0)), NOTHING_SEALED)
    assert "t" in rows.frame.columns
    assert rows.columns is not None and "t" not in rows.columns and rows.selected.columns == [*rows.columns]
    shared = SharedColumns.of([MemberFrame(rows.frame, rows.keys, rows.columns)])
    assert sorted(name for _, name in shared.names[0]) == sorted(rows.columns)


def test_records_are_selected_again_only_where_they_have_other_columns(spark: SparkSession, tmp_path: Path) -> None:
    app = hf.App("used", settings=hf.Settings(base_dir=str(tmp_path / "base")), spark=spark)
    frame = spark.readStream.schema("player string, at timestamp, points int").parquet(str(tmp_path))
    app.table(frame, "table", key="player", timestamp="at")
    stream = app.stream(frame, key="player", timestamp="at")
    stream.where("points > 0").group_by().count().store("games")
    both = [app._topology.subtopology(name) for name in ("table", "games")]
    (of_table,), (of_games,) = (readers_of(each, planner_of(each, LIMITS)) for each in both)
    origin = of_table.branch.origin
    assert isinstance(origin, Source)
    source = SourceReaders(origin, [of_table, of_games])
    assert source.uses_all(of_table) and not source.uses_all(of_games)
    batch = spark.createDataFrame([("ann", NOON, 1)], frame.schema)
    of_whole, of_others = (
        ReaderRecords(each, batch, source.own_steps(each), Millis(0), whole=source.uses_all(each)).all()
        for each in (of_table, of_games)
    )
    assert of_whole is batch and of_others.columns == ["player", "at"]
