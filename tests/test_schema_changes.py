"""A table whose aggregates change, on real Spark: refused, added with from_now, and removed."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.log.appfile import AppChanged
from holdfast.topology.aggregates import Aggregate
from tests.apps import entries_of, game, get, read, settings, write

pytestmark = pytest.mark.spark


def run(
    spark: SparkSession,
    folder: Path,
    sent: list[dict[str, Any]],
    batch: int,
    progress: dict[str, Any] | None = None,
    **aggregates: Aggregate,
) -> tuple[dict[Any, Any], list[dict[str, Any]]]:
    """Starts with these aggregates and one more batch. Returns the store's entries and the rows that a sink got.

    With `progress` the pass over old rows runs, and its progress is put there.
    """
    write(folder / "input", batch, sent)
    chosen = settings(folder, batch=hf.BatchSettings(rewrite_entries=0 if progress is None else 100))
    app = hf.App("points", settings=chosen, spark=spark)
    delivered: list[dict[str, Any]] = []
    stream = app.stream(read(spark, folder / "input"), key="player", timestamp="at")
    table = stream.group_by().aggregate(**aggregates).store("points")
    table.sink(hf.foreach(lambda version, commit, rows: delivered.extend(rows.to_pylist())), name="sink")
    with app:
        app.process_all_available()
        if progress is not None:
            progress.update(get(app, "/v1/stores/points/rewriting")[1])
        return entries_of(app), delivered


def test_a_table_gains_and_loses_aggregates(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, tmp_path, [game("ann", 5), game("bob", 7)], 1, games=hf.count())
    # Both are a bigint of the same name: only their functions differ.
    with pytest.raises(AppChanged, match=r"has games as count\(\*\) in the log and as sum\(points\) in the code"):
        run(spark, tmp_path, [], 2, games=hf.sum(F.col("points")))
    with pytest.raises(AppChanged, match=r"as sum\(\.\.\.\) in the code"):
        run(spark, tmp_path, [], 2, games=hf.sum(F.col("points") * 2))
    with pytest.raises(AppChanged, match="gained the aggregate best.*from_now=True on best"):
        run(spark, tmp_path, [], 2, games=hf.count(), best=hf.max("points"))
    now, delivered = run(
        spark,
        tmp_path,
        [game("ann", 3)],
        3,
        games=hf.count(),
        best=hf.max("points", from_now=True),
        mean=hf.mean("points", from_now=True),
    )
    # Ann's 5 came before `best` existed; bob has had no record since.
    assert now == {"ann": {"games": 2, "best": 3, "mean": 3.0}, "bob": {"games": 1, "best": None, "mean": None}}
    assert delivered == [{"player": "ann", "games": 2, "best": 3, "mean": 3.0}]
    progress: dict[str, Any] = {}
    mean = hf.mean("points", from_now=True)
    last, delivered = run(spark, tmp_path, [game("cat", 9)], 4, progress, games=hf.count(), mean=mean)
    assert last == {
        "ann": {"games": 2, "mean": 3.0},
        "bob": {"games": 1, "mean": None},
        "cat": {"games": 1, "mean": 9.0},
    }
    # The pass rewrote ann and bob to schema 3; the sink gets cat only.
    assert (progress["schema"], progress["rewritten"], progress["finished"], progress["share"]) == (3, 2, True, 1.0)
    assert delivered == [{"player": "cat", "games": 1, "mean": 9.0}]
