"""Counting per key: Holdfast against Spark's own state store and against a query without state, on the same files.

    spark     groupBy("key") as a streaming query on RocksDB with changelog checkpointing, without a sink
    holdfast  the same aggregates in a store, with a Parquet sink and snapshots
    floor     reads, pre-aggregates and shuffles the same batches, and stores nothing

There are three workloads:

    uniform, zipf   a count per key, which is a whole number
    real            keys of 12 characters and an event time; count, sum, max and the last value by event time

The time of each micro-batch is Spark's `triggerExecution`, for all three. The first third of the batches is left out,
the results are medians over the others, and the order alternates from repeat to repeat.
"""

import argparse
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from benchmarks.common import (
    FSYNC,
    PARTITIONS,
    SPARK_ON_ROCKSDB,
    START,
    Columns,
    bench_app,
    console,
    finish,
    median,
    only_key,
    plot_lines,
    read,
    run_query,
    scratch,
    seconds_of,
    show,
    spark_session,
    write_batches,
)
from holdfast.topology.aggregates import Aggregate

KEYS = RECORDS = 500_000
FILES = 2


def real_columns(drawn: npt.NDArray[np.int64], batch: int, dice: np.random.Generator) -> pa.Table:
    """Keys such as `user-0012345`, the events of ten seconds in random order, and an amount."""
    numbers = pc.utf8_lpad(pa.array(drawn).cast(pa.string()), 7, "0")
    micros = (START + batch * 10) * 1_000_000 + dice.integers(0, 10_000_000, len(drawn))
    return pa.table(
        {
            "key": pc.binary_join_element_wise("user", numbers, "-"),
            "at": pa.array(micros).cast(pa.timestamp("us", "UTC")),
            "amount": dice.integers(0, 100_000, len(drawn)),
        }
    )


@dataclass(frozen=True)
class Workload:
    """The data of a workload, and the aggregates that both sides compute."""

    keys: str
    schema: str
    columns: Columns
    timestamp: str | None
    aggregates: Mapping[str, Aggregate]
    in_spark: tuple[str, ...]
    snapshot_after: str
    """The segments of about ten versions of a task: Spark makes its snapshots after ten, too (minDeltasForSnapshot)."""

    def read(self, spark: SparkSession, data: Path) -> DataFrame:
        return read(spark, data, FILES, self.schema)

    def grouped(self, frame: DataFrame) -> DataFrame:
        return frame.groupBy("key").agg(*map(F.expr, self.in_spark))


def counting(keys: str, snapshot_after: str) -> Workload:
    return Workload(keys, "key long", only_key, None, {"count": hf.count()}, ("count(1)",), snapshot_after)


WORKLOADS = {
    "uniform": counting("uniform", "24MiB"),
    "zipf": counting("zipf", "6MiB"),
    "real": Workload(
        "uniform",
        "key string, at timestamp, amount long",
        real_columns,
        "at",
        {
            "number": hf.count(),
            "total": hf.sum("amount"),
            "largest": hf.max("amount"),
            "newest": hf.last("amount"),
        },
        ("count(1)", "sum(amount)", "max(amount)", "max_by(amount, at)"),
        "40MiB",
    ),
}


def run_spark(spark: SparkSession, workload: Workload, data: Path, work: Path) -> list[float]:
    """Spark's own aggregation. It writes no output, while Holdfast writes Parquet files."""
    found = workload.grouped(workload.read(spark, data))
    return run_query(found.writeStream.outputMode("update").format("noop"), work)


def run_floor(spark: SparkSession, workload: Workload, data: Path, work: Path) -> list[float]:
    """The lower limit for any state store: the same plan, without state and output."""

    def sink(batch: DataFrame, number: int) -> None:
        batch.sparkSession.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
        workload.grouped(batch).write.format("noop").mode("overwrite").save()

    return run_query(workload.read(spark, data).writeStream.foreachBatch(sink), work)


def run_holdfast(spark: SparkSession, workload: Workload, data: Path, work: Path) -> list[float]:
    """The aggregates in a store, with a sink, snapshots, and the log on disk."""
    app = bench_app(spark, work, snapshots=hf.SnapshotSettings(bytes=workload.snapshot_after))
    stream = app.stream(workload.read(spark, data), key="key", timestamp=workload.timestamp)
    table = stream.group_by().aggregate(**workload.aggregates).store("counts")
    table.sink(hf.files(str(work / "out")))
    with app:
        app.process_all_available()
        taken = seconds_of(app.query)
        snapshots = len(list((work / "bench" / "log" / "snapshots").glob("*/*.json")))
        console.print(f"  holdfast: version {app.version}, {snapshots} snapshots in the log")
        assert snapshots > 0, "the run must have snapshots"
    return taken


CONTENDERS: dict[str, Callable[[SparkSession, Workload, Path, Path], list[float]]] = {
    "spark": run_spark,
    "holdfast": run_holdfast,
    "floor": run_floor,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one repeat of 12 batches")
    parser.add_argument("--only", choices=list(WORKLOADS))
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
        for kind in [arguments.only] if arguments.only else WORKLOADS:
            data, workload = folder / kind, WORKLOADS[kind]
            write_batches(
                data,
                workload.keys,
                keys_in_all=KEYS,
                records=RECORDS,
                batches=batches,
                files=FILES,
                columns=workload.columns,
            )
            taken: dict[str, list[float]] = {name: [] for name in chosen}
            lines: dict[str, list[float]] = {}
            for repeat in range(repeats):
                order = chosen if repeat % 2 == 0 else chosen[::-1]
                for name in order:
                    work = folder / f"work-{kind}-{name}-{repeat}"
                    seconds = CONTENDERS[name](spark, workload, data, work)
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
