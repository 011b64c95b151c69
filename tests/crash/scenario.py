"""The app that crash tests kill: every aggregate over generated records, on real Spark.

    python -m tests.crash.scenario <folder>          runs until all input is counted, then compares and prints a verdict

The folder has the input, the log, the state and the checkpoint, and is kept between kills. The verdict compares
the store, read over REST, and the file sink with a Spark SQL batch over the same input.
"""

import json
import logging
import math
import os
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast import faults
from tests.apps import INTERPRETED, entries_of, read, settings, write

ARROW = pa.schema(
    [
        ("player", pa.string()),
        ("points", pa.int64()),
        ("price", pa.decimal128(10, 2)),
        ("weight", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("place", pa.int64()),
    ]
)
SCHEMA = "player string, points long, price decimal(10,2), weight double, at timestamp, place long"
FILES, ROWS, PLAYERS = 14, 120, 40


def write_input(folder: Path, files: int = FILES) -> None:
    """The same records every time: nulls, NaN, decimals, ties in time."""
    dice = np.random.default_rng(5)
    for number in range(files):
        players = [f"player-{n}" for n in dice.integers(0, PLAYERS, ROWS)]
        weights = [None if x < 0.1 else math.nan if x < 0.15 else float(x) for x in dice.random(ROWS)]
        times = [datetime(2026, 1, 1, 0, 0, int(second), tzinfo=UTC) for second in dice.integers(0, 50, ROWS)]
        points = [None if x < 5 else int(x) for x in dice.integers(0, 100, ROWS)]
        prices = [Decimal(int(x)) / 100 for x in dice.integers(0, 10_000, ROWS)]
        places = range(number * ROWS, (number + 1) * ROWS)
        columns = (players, points, prices, weights, times, places)
        write(folder, number, [dict(zip(ARROW.names, row, strict=True)) for row in zip(*columns, strict=True)], ARROW)


EVERY_STEP: dict[str, Any] = {
    "log": hf.LogSettings(inline_bytes="1KiB", retention="0s", clean_interval="1s"),
    "snapshots": hf.SnapshotSettings(bytes="8KiB", age="1s"),
    "state": hf.StateSettings(flush_versions=2),
}
"""Settings under which a short run does every step: objects of a task and of all tasks, snapshots, cleaning."""


def crashing(id: str, folder: Path, spark: SparkSession | None = None, **changes: Any) -> hf.App:
    """An app with these settings and a Spark session that says little."""
    chosen = hf.SparkSettings(master="local[2]", config={"spark.ui.enabled": "false", **INTERPRETED})
    with_retries = {**EVERY_STEP, "retry": hf.RetrySettings(), "spark": chosen, **changes}
    app = hf.App(id, settings=settings(folder, **with_retries), spark=spark)
    app.spark.sparkContext.setLogLevel("ERROR")
    return app


def build(folder: Path, spark: SparkSession | None = None, **changes: Any) -> hf.App:
    app = crashing("crash", folder, spark, **changes)
    source = read(app.spark, folder / "input", SCHEMA)
    totals = (
        app.stream(source, key="player", timestamp="at", position="place")
        .group_by("player")
        .aggregate(
            games=hf.count(),
            scored=hf.count("points"),
            points=hf.sum("points"),
            spent=hf.sum("price"),
            price=hf.mean("price"),
            weight=hf.mean("weight"),
            lightest=hf.min("weight"),
            heaviest=hf.max("weight"),
            opening=hf.first("points"),
            latest=hf.last("points"),
        )
        .store("totals")
    )
    totals.sink(hf.files(str(folder / "out")))
    return app


def truth(spark: SparkSession, folder: Path) -> dict[str, dict[str, Any]]:
    """The same aggregates by Spark SQL, in one batch."""
    records: DataFrame = spark.read.schema(SCHEMA).parquet(str(folder / "input"))
    order = F.struct("at", "place")
    rows = records.groupBy("player").agg(
        F.count("*").alias("games"),
        F.count("points").alias("scored"),
        F.sum("points").alias("points"),
        F.sum("price").alias("spent"),
        F.avg("price").alias("price"),
        F.avg("weight").alias("weight"),
        F.min("weight").alias("lightest"),
        F.max("weight").alias("heaviest"),
        F.min_by("points", order).alias("opening"),
        F.max_by("points", order).alias("latest"),
    )
    return {row["player"]: {k: v for k, v in row.asDict().items() if k != "player"} for row in rows.collect()}


def delivered(folder: Path, versions: int) -> dict[str, dict[str, Any]]:
    """The file sink's newest rows, after checking that each version was written once and completely."""
    marks = {int(path.stem): json.loads(path.read_text()) for path in (folder / "out" / "_versions").glob("*.json")}
    assert sorted(marks) == list(range(1, versions + 1)), sorted(marks)
    named = [entry["file"] for mark in marks.values() for entry in mark["files"]]
    assert sorted(named) == sorted(path.name for path in (folder / "out").glob("*.parquet"))
    rows: dict[str, dict[str, Any]] = {}
    for version in sorted(marks):
        for entry in marks[version]["files"]:
            for row in pq.read_table(folder / "out" / entry["file"]).to_pylist():
                rows[row.pop("player")] = row
    return rows


def differs(a: Any, b: Any) -> bool:
    """Exact for whole numbers and decimals, 1e-9 for floats; REST gives decimals and NaN as text."""
    if isinstance(a, str):
        a = Decimal(a) if isinstance(b, Decimal) else float(a)
    if isinstance(a, float) and isinstance(b, float):
        return not (math.isnan(a) and math.isnan(b)) and not math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    return bool(a != b)


def differences(found: dict[str, dict[str, Any]], true: dict[str, dict[str, Any]]) -> list[str]:
    wrong = [f"{key}: {'missing' if key in true else 'too many'}" for key in set(found) ^ set(true)]
    return wrong + [
        f"{key}.{name}: {found[key][name]!r} instead of {value!r}"
        for key in set(found) & set(true)
        for name, value in true[key].items()
        if differs(found[key][name], value)
    ]


def process_all(app: hf.App) -> None:
    """Processes all input, and waits for the faults of this life that haven't happened by then."""
    app.process_all_available()
    if (folder := os.environ.get("HOLDFAST_FAULT_DIR")) is not None:
        faults.wait_for(faults.wanted(), Path(folder))
        app.process_all_available()


def main(folder: Path) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    app = build(folder)
    app.start()
    process_all(app)
    true = truth(app.spark, folder)
    wrong = differences(entries_of(app, "totals"), true)
    app.stop()
    wrong += differences(delivered(folder, app.version), true)
    print(json.dumps({"wrong": wrong, "version": app.version, "keys": len(true)}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
