"""A Python processor that counts per key, against Spark's own Python state API, on the same Parquet files.

    tws       transformWithState (Row) on RocksDB with changelog checkpointing: one ValueState per key, without a sink
    holdfast  hf.Processor with a KeyValueStore, with snapshots, and the log on disk

Both run Python for each key, keep a count and emit nothing. The time of each micro-batch is Spark's `triggerExecution`.
The first batch is left out, the results are medians over the others, and the order alternates from repeat to repeat.
"""

import argparse
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import holdfast as hf
from benchmarks.common import (
    FSYNC,
    PARTITIONS,
    SPARK_ON_ROCKSDB,
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

KEYS = RECORDS = 200_000
QUICK_RECORDS = 100_000
FILES = 2


class Counting(hf.Processor):
    """The count as a user of Holdfast writes it."""

    counts = hf.KeyValueStore("counts", key=int, value=int)

    def process(self, key: int, event: Any, ctx: hf.Context) -> None:
        self.counts[key] = self.counts.get(key, 0) + 1


class SparkCounting(StatefulProcessor):
    """The count as a user of Spark writes it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        before = self._count.get()
        self._count.update(((before[0] if before is not None else 0) + sum(1 for _ in rows),))
        yield from ()

    def close(self) -> None:
        pass


def run_tws(spark: SparkSession, data: Path, work: Path) -> list[float]:
    counted = (
        read(spark, data)
        .groupBy("key")
        .transformWithState(SparkCounting(), "key long, count long", outputMode="Update", timeMode="None")
    )
    return run_query(counted.writeStream.outputMode("update").format("noop"), work)


def run_holdfast(spark: SparkSession, data: Path, work: Path) -> list[float]:
    app = bench_app(spark, work, snapshots=hf.SnapshotSettings(bytes="32MiB"))
    app.stream(read(spark, data), key="key").process(Counting)
    return run_app(app)


CONTENDERS: dict[str, Callable[[SparkSession, Path, Path], list[float]]] = {"tws": run_tws, "holdfast": run_holdfast}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one repeat of 4 batches, each of half the records")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    repeats, batches, records = (1, 4, QUICK_RECORDS) if arguments.quick else (2, 7, RECORDS)
    spark = spark_session(**SPARK_ON_ROCKSDB, **{"spark.sql.shuffle.partitions": str(PARTITIONS)})
    chosen = arguments.contenders.split(",")
    with scratch("processor") as folder:
        data = folder / "data"
        write_batches(data, "uniform", keys_in_all=KEYS, records=records, batches=batches, files=FILES)
        taken = contest(chosen, lambda name, work: CONTENDERS[name](spark, data, work), folder, repeats=repeats, warm=1)
    rates = {name: records / median(values) for name, values in taken.items()}
    show(
        f"{KEYS:,} keys, batches of {records:,}, fsync {'on' if FSYNC else 'off'} on both sides",
        ["contender", "records/s", "s per batch"],
        [[name, f"{rate:,.0f}", records / rate] for name, rate in rates.items()],
    )
    figures: dict[str, float] = {f"{name}_records_per_s": rate for name, rate in rates.items()}
    if "holdfast" in rates:
        figures["records_per_s"] = rates["holdfast"]
        if "tws" in rates:
            figures["vs_tws"] = rates["holdfast"] / rates["tws"]
    finish(**figures, repeats=repeats, batches=batches, fsync=FSYNC, quick=arguments.quick)


if __name__ == "__main__":
    main()
