"""A table whose aggregates change, on real Spark: refused, begun in the middle, and lost."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.log.appfile import AppChanged
from holdfast.topology.aggregates import Aggregate
from tests.apps import held, read, settings, write

pytestmark = pytest.mark.spark


def game(player: str, points: int) -> dict[str, Any]:
    return {"player": player, "points": points, "at": dt.datetime(2024, 5, 1, tzinfo=dt.UTC)}


def run(
    spark: SparkSession, folder: Path, sent: list[dict[str, Any]], batch: int, **aggregates: Aggregate
) -> tuple[dict[Any, Any], list[dict[str, Any]]]:
    """A start with these aggregates and one batch more: what the store holds then, and what a sink was sent."""
    write(folder / "input", batch, sent)
    app = hf.App("points", settings=settings(folder), spark=spark)
    delivered: list[dict[str, Any]] = []
    stream = app.stream(read(spark, folder / "input"), key="player", timestamp="at")
    table = stream.group_by().aggregate(**aggregates).store("points")
    table.sink(hf.foreach(lambda version, rows: delivered.extend(rows.to_pylist())), name="sink")
    app.start()
    try:
        app.process_all_available()
        return held(app), delivered
    finally:
        app.stop()


def test_a_table_gains_and_loses_aggregates(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, tmp_path, [game("ann", 5), game("bob", 7)], 1, games=hf.count())
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
    # Ann's 5 came before there was a best; bob has had no record since and is read as he was stored.
    assert now == {"ann": {"games": 2, "best": 3, "mean": 3.0}, "bob": {"games": 1, "best": None, "mean": None}}
    assert delivered == [{"player": "ann", "games": 2, "best": 3, "mean": 3.0}]
    last, _ = run(spark, tmp_path, [game("bob", 9)], 4, games=hf.count(), mean=hf.mean("points", from_now=True))
    assert last == {"ann": {"games": 2, "mean": 3.0}, "bob": {"games": 2, "mean": 9.0}}
