"""The app of the soak, in several releases, on real Spark.

python -m tests.soak.app <folder> <release>             runs until it is stopped or killed
    python -m tests.soak.app <folder> <release> --finish    processes all input and prints a verdict, as JSON
"""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from tests.apps import entries_of
from tests.crash.scenario import differences

RECORD = pa.schema(
    [("player", pa.string()), ("level", pa.int64()), ("points", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
)
SCHEMA = "player string, level long, points long, at timestamp"


@dataclass(frozen=True)
class Release:
    """What the code of a release has beside the store `totals`."""

    levels: bool = False
    """A second store."""
    best: bool = False
    """One more aggregate in `totals`."""
    copy: bool = False
    """One more sink."""


class Verdict(msgspec.Struct):
    """How the stores compare with Spark SQL after the last life."""

    wrong: list[str] = []
    version: int = 0
    keys: int = 0


RELEASES = {
    "first": Release(),
    "levels": Release(levels=True),
    "best": Release(best=True, copy=True),
    "all": Release(levels=True, best=True, copy=True),
}


def build(folder: Path, release: Release) -> hf.App:
    settings = hf.Settings(
        base_dir=str(folder / "base"),
        partitions=2,
        log=hf.LogSettings(inline_bytes="1KiB", retention="0s", clean_interval="1s"),
        snapshots=hf.SnapshotSettings(bytes="256KiB", age="5s"),
        state=hf.StateSettings(flush_versions=8),
        rest=hf.RestSettings(port=0),
        returned_stores={"levels": "start_over"},
        spark=hf.SparkSettings(master="local[2]", config={"spark.ui.enabled": "false"}),
    )
    app = hf.App("soak", settings=settings)
    app.spark.sparkContext.setLogLevel("ERROR")
    source = app.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 20).parquet(str(folder / "input"))
    stream = app.stream(source, key="player", timestamp="at")
    aggregates = {"games": hf.count(), "points": hf.sum("points")}
    if release.best:
        aggregates["best"] = hf.max("points", from_now=True)
    totals = stream.group_by().aggregate(**aggregates).store("totals")
    totals.sink(hf.files(str(folder / "out")), name="files")
    if release.copy:
        totals.sink(hf.files(str(folder / "copy")), name="copy")
    if release.levels:
        stream.group_by("level").count().store("levels")
    return app


def records(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.schema(SCHEMA).parquet(str(folder / "input"))


def truth(spark: SparkSession, folder: Path) -> dict[str, dict[str, Any]]:
    """Games and points by Spark SQL, in one batch."""
    rows = records(spark, folder).groupBy("player").agg(F.count("*").alias("games"), F.sum("points").alias("points"))
    return {row["player"]: {"games": row["games"], "points": row["points"]} for row in rows.collect()}


def too_many(found: dict[Any, dict[str, Any]], spark: SparkSession, folder: Path) -> list[str]:
    """Levels that count more than there is. They may count less, since the store was added late or started over."""
    rows = records(spark, folder).groupBy("level").count().collect()
    true = {row["level"]: row["count"] for row in rows}
    return [f"level {level}: {row}" for level, row in found.items() if row["count"] > true.get(level, 0)]


def finish(app: hf.App, folder: Path, release: Release) -> Verdict:
    with app:
        app.process_all_available()
        true = truth(app.spark, folder)
        wrong = differences(entries_of(app, "totals"), true)
        if release.levels:
            wrong += too_many(entries_of(app, "levels"), app.spark, folder)
        return Verdict(wrong, app.version, len(true))


def main(folder: Path, name: str, running: Path, *, finishing: bool) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    release = RELEASES[name]
    app = build(folder, release)
    if finishing:
        print(msgspec.json.encode(finish(app, folder, release)).decode(), flush=True)
    else:
        app.on_state(lambda old, new: running.touch() if new is hf.AppState.RUNNING else None)
        app.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), finishing="--finish" in sys.argv)
