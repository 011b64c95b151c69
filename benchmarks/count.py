"""Counting per key: Holdfast against Spark's own state store and against the floor, on the same Parquet files.

    spark     df.groupBy("key").count() as a streaming query on RocksDB with changelog checkpointing, into no sink
    holdfast  the same count in a store, with a Parquet sink and snapshots
    floor     the same batches read, pre-aggregated and shuffled, and nothing kept

Time is Spark's own `triggerExecution` of each micro-batch, for all three. The first third of the batches is left out,
medians are taken over the rest, the order alternates from repeat to repeat.
"""

import argparse
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from benchmarks.common import (
    console,
    finish,
    median,
    plot_lines,
    read,
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
    """Spark's own count. Its changed rows go nowhere, while Holdfast's go to Parquet files: the harder comparison."""
    query = (
        read(spark, data)
        .groupBy("key")
        .count()
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(work / "checkpoint"))
        .format("noop")
        .start()
    )
    query.processAllAvailable()
    taken = seconds_of(query)
    query.stop()
    return taken


def run_floor(spark: SparkSession, data: Path, work: Path) -> list[float]:
    """What no state store can be faster than: the same plan, thrown away."""

    def sink(batch: DataFrame, number: int) -> None:
        batch.sparkSession.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
        batch.groupBy("key").count().write.format("noop").mode("overwrite").save()

    query = (
        read(spark, data).writeStream.option("checkpointLocation", str(work / "checkpoint")).foreachBatch(sink).start()
    )
    query.processAllAvailable()
    taken = seconds_of(query)
    query.stop()
    return taken


def run_holdfast(spark: SparkSession, data: Path, work: Path) -> list[float]:
    """The count in a store: sink on, snapshots on, the log on disk as a user has it."""
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
        query = app.query
        taken = seconds_of(query)
        snapshots = len(list((work / "bench" / "log" / "snapshots").glob("*/*.json")))
        console.print(f"  holdfast: version {app.version}, {snapshots} snapshots in the log")
        assert snapshots > 0, "the run was to have snapshots"
    return taken


SNAPSHOT_AFTER = {"uniform": "24MiB", "zipf": "6MiB"}
"""Segments of about ten versions of a task, as Spark's own snapshots come after ten (minDeltasForSnapshot)."""

FSYNC = False
"""Spark's checkpoint files on a local disk are written without fsync; so is Holdfast's log here. Printed."""

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
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            "spark.sql.streaming.stateStore.providerClass": (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            ),
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
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
                    console.print(f"  {kind} {name}: median {median(seconds[warm:]):.2f} s a batch")
                    taken[name] += seconds[warm:]
                    lines[name] = seconds
                    shutil.rmtree(work, ignore_errors=True)
            rates = {name: RECORDS / median(values) for name, values in taken.items()}
            show(
                f"{kind}: {KEYS:,} keys, batches of {RECORDS:,}, fsync {'on' if FSYNC else 'off'} on both sides",
                ["contender", "records/s", "s a batch"],
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
