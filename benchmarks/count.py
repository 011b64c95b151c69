"""Counting per key: Holdfast against Spark's own state store and against a query without state, on the same files.

    spark     df.groupBy("key").count() as a streaming query on RocksDB with changelog checkpointing, without a sink
    holdfast  the same count in a store, with a Parquet sink and snapshots
    floor     reads, pre-aggregates and shuffles the same batches, and stores nothing

The time of each micro-batch is Spark's `triggerExecution`, for all three. The first third of the batches is left out,
the results are medians over the others, and the order alternates from repeat to repeat.
"""

import argparse
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from benchmarks.common import (
    FSYNC,
    SPARK_ON_ROCKSDB,
    console,
    finish,
    median,
    plot_lines,
    read,
    run_query,
    scratch,
    seconds_of,
    show,
    spark_session,
    write_batches,
)

KEYS = RECORDS = 500_000
PARTITIONS = 2
FILES = 2


def run_spark(spark: SparkSession, data: Path, work: Path) -> list[float]:
    """Spark's own count. It writes no output, while Holdfast writes Parquet files."""
    counts = read(spark, data).groupBy("key").count()
    return run_query(counts.writeStream.outputMode("update").format("noop"), work)


def run_floor(spark: SparkSession, data: Path, work: Path) -> list[float]:
    """The lower limit for any state store: the same plan, without state and output."""

    def sink(batch: DataFrame, number: int) -> None:
        batch.sparkSession.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
        batch.groupBy("key").count().write.format("noop").mode("overwrite").save()

    return run_query(read(spark, data).writeStream.foreachBatch(sink), work)


def run_holdfast(spark: SparkSession, data: Path, work: Path) -> list[float]:
    """The count in a store, with a sink, snapshots, and the log on disk."""
    settings = hf.Settings(
        base_dir=str(work),
        partitions=PARTITIONS,
        log=hf.LogSettings(fsync=FSYNC),
        rest=hf.RestSettings(port=0),
        snapshots=hf.SnapshotSettings(bytes=SNAPSHOT_AFTER[data.name]),
    )
    app = hf.App("bench", settings=settings, spark=spark)
    counts = app.stream(read(spark, data), key="key").group_by().count().store("counts")
    counts.sink(hf.files(str(work / "out")))
    with app:
        app.process_all_available()
        taken = seconds_of(app.query)
        snapshots = len(list((work / "bench" / "log" / "snapshots").glob("*/*.json")))
        console.print(f"  holdfast: version {app.version}, {snapshots} snapshots in the log")
        assert snapshots > 0, "the run must have snapshots"
    return taken


SNAPSHOT_AFTER = {"uniform": "24MiB", "zipf": "6MiB"}
"""The segments of about ten versions of a task: Spark makes its snapshots after ten, too (minDeltasForSnapshot)."""

CONTENDERS: dict[str, Callable[[SparkSession, Path, Path], list[float]]] = {
    "spark": run_spark,
    "holdfast": run_holdfast,
    "floor": run_floor,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one repeat of 12 batches")
    parser.add_argument("--only", choices=["uniform", "zipf"])
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    repeats, batches = (1, 12) if arguments.quick else (3, 24)
    warm = batches // 3
    spark = spark_session(
        **{
            **SPARK_ON_ROCKSDB,
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
        }
    )
    figures: dict[str, float] = {}
    chosen = arguments.contenders.split(",")
    with scratch("count") as folder:
        for kind in [arguments.only] if arguments.only else ["uniform", "zipf"]:
            data = folder / kind
            write_batches(data, kind, keys_in_all=KEYS, records=RECORDS, batches=batches, files=FILES)
            taken: dict[str, list[float]] = {name: [] for name in chosen}
            lines: dict[str, list[float]] = {}
            for repeat in range(repeats):
                order = chosen if repeat % 2 == 0 else chosen[::-1]
                for name in order:
                    work = folder / f"work-{kind}-{name}-{repeat}"
                    seconds = CONTENDERS[name](spark, data, work)
                    console.print(f"  {kind} {name}: median {median(seconds[warm:]):.2f} s per batch")
                    taken[name] += seconds[warm:]
                    lines[name] = seconds
                    shutil.rmtree(work, ignore_errors=True)
            rates = {name: RECORDS / median(values) for name, values in taken.items()}
            show(
                f"{kind}: {KEYS:,} keys, batches of {RECORDS:,}, fsync {'on' if FSYNC else 'off'} on both sides",
                ["contender", "records/s", "s per batch"],
                [[name, f"{rate:,.0f}", RECORDS / rate] for name, rate in rates.items()],
            )
            console.print(f"plot: {plot_lines(f'count-{kind}', f'count, {kind}', lines, 'batch', 'seconds')}")
            for a, b, label in (("holdfast", "spark", "vs_spark"), ("floor", "holdfast", "vs_floor")):
                if a in rates and b in rates:
                    figures[f"{label}_{kind}"] = rates[a] / rates[b]
            figures |= {f"{name}_records_per_s_{kind}": rate for name, rate in rates.items()}
    finish(**figures, repeats=repeats, batches=batches, fsync=FSYNC, quick=arguments.quick)


if __name__ == "__main__":
    main()
