"""Joining two streams within ten minutes, and a stream with a table: Holdfast against Spark, on the same files.

    spark           an inner join with watermarks, on RocksDB with changelog checkpointing, without a sink
    holdfast        an inner join, with both streams' records in stores, snapshots, the log on disk, and a Parquet sink
    spark-table     a join of the left stream with a static DataFrame of one row per key, not broadcast, without a sink
    holdfast-table  a join of the left stream with a table of the same rows, kept in a store, with a Parquet sink

Spark reads and shuffles its table in every batch; Holdfast's comes with the first batch. A batch has the events of a
minute of both streams, in random order, so the state has those of the last ten. A record has one match on average. The
time of each micro-batch is Spark's `triggerExecution`. The first third of the batches is left out, results are medians
over the others, and the order alternates from repeat to repeat.
"""

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from benchmarks.common import (
    FSYNC,
    PARTITIONS,
    SPARK_ON_ROCKSDB,
    START,
    bench_app,
    contest,
    finish,
    median,
    read,
    run_app,
    run_query,
    scratch,
    show,
    spark_session,
    write_batches,
)

KEYS, RECORDS = 1_000_000, 100_000
"""Keys in all, and records per batch and stream."""
FILES = 2
SCHEMA = "key long, at timestamp, amount long"
TABLE = "key long, name string, score long"


def columns(drawn: npt.NDArray[np.int64], batch: int, dice: np.random.Generator) -> pa.Table:
    micros = (START + batch * 60) * 1_000_000 + dice.integers(0, 60_000_000, len(drawn))
    at = pa.array(micros).cast(pa.timestamp("us", "UTC"))
    return pa.table({"key": drawn, "at": at, "amount": dice.integers(0, 100_000, len(drawn))})


def write_table(folder: Path, keys: int) -> None:
    """One row per key."""
    folder.mkdir(parents=True)
    every = np.arange(keys)
    rows = pa.table({"key": every, "name": [f"name-{key:08d}" for key in every], "score": every * 7})
    pq.write_table(rows, folder / "rows.parquet")


def run_spark(spark: SparkSession, data: Path, work: Path) -> list[float]:
    left = read(spark, data / "left", FILES, SCHEMA).withWatermark("at", "1 minute").alias("l")
    right = read(spark, data / "right", FILES, SCHEMA).withWatermark("at", "1 minute").alias("r")
    near = F.expr("r.at BETWEEN l.at - INTERVAL 10 MINUTES AND l.at + INTERVAL 10 MINUTES")
    joined = left.join(right, (F.col("l.key") == F.col("r.key")) & near)
    return run_query(joined.writeStream.outputMode("append").format("noop"), work)


def run_holdfast(spark: SparkSession, data: Path, work: Path) -> list[float]:
    app = bench_app(spark, work, snapshots=hf.SnapshotSettings(bytes="16MiB"))
    left, right = (
        app.stream(read(spark, data / side, FILES, SCHEMA), key="key", timestamp="at", name=side)
        for side in ("left", "right")
    )
    joined = left.join(right, within=hf.join_window("10m", grace="1m"), name="pairs", prefix="right_")
    joined.sink(hf.files(str(work / "out")))
    return run_app(app)


def run_spark_table(spark: SparkSession, data: Path, work: Path) -> list[float]:
    table = spark.read.schema(TABLE).parquet(str(data / "table"))
    joined = read(spark, data / "left", FILES, SCHEMA).join(table, "key")
    return run_query(joined.writeStream.outputMode("append").format("noop"), work)


def run_holdfast_table(spark: SparkSession, data: Path, work: Path) -> list[float]:
    app = bench_app(spark, work, snapshots=hf.SnapshotSettings(bytes="16MiB"))
    table = app.table(spark.readStream.schema(TABLE).parquet(str(data / "table")), "names", key="key")
    left = app.stream(read(spark, data / "left", FILES, SCHEMA), key="key", timestamp="at", name="left")
    left.join(table, name="named").sink(hf.files(str(work / "out")))
    return run_app(app)


CONTENDERS: dict[str, Callable[[SparkSession, Path, Path], list[float]]] = {
    "spark": run_spark,
    "holdfast": run_holdfast,
    "spark-table": run_spark_table,
    "holdfast-table": run_holdfast_table,
}
RATIOS = (("vs_spark", "spark", "holdfast"), ("table_vs_spark", "spark-table", "holdfast-table"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one repeat of 9 batches with fewer records")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    repeats, batches = (1, 9) if arguments.quick else (3, 24)
    share = 4 if arguments.quick else 1
    keys, records = KEYS // share, RECORDS // share
    warm = batches // 3
    spark = spark_session(
        **{
            **SPARK_ON_ROCKSDB,
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            "spark.sql.autoBroadcastJoinThreshold": "-1",
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
        }
    )
    chosen = arguments.contenders.split(",")
    with scratch("join") as folder:
        for n, side in enumerate(("left", "right")):
            write_batches(
                folder / side,
                "uniform",
                keys_in_all=keys,
                records=records,
                batches=batches,
                files=FILES,
                columns=columns,
                seed=42 + n,
            )
        write_table(folder / "table", KEYS)
        taken = contest(
            chosen, lambda name, work: CONTENDERS[name](spark, folder, work), folder, repeats=repeats, warm=warm
        )
    found = {name: median(values) for name, values in taken.items()}
    streams = {name: 1 if name.endswith("-table") else 2 for name in found}
    show(
        f"{keys:,} keys, batches of {records:,} records per stream",
        ["contender", "s per batch", "records/s"],
        [[name, seconds, f"{streams[name] * records / seconds:,.0f}"] for name, seconds in found.items()],
    )
    ratio = {
        name: found[spark_] / found[holdfast]
        for name, spark_, holdfast in RATIOS
        if spark_ in found and holdfast in found
    }
    finish(
        **ratio,
        **{f"{name.replace('-', '_')}_seconds": seconds for name, seconds in found.items()},
        repeats=repeats,
        batches=batches,
        records=records,
        fsync=FSYNC,
        quick=arguments.quick,
    )


if __name__ == "__main__":
    main()
