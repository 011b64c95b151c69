"""Counting per key and window: Holdfast against Spark's own windows with a watermark, on the same files.

    tumbling   a count per key and window of a minute
    hopping    the same in windows of 50 seconds, of which one begins every 10: a record is in 5
    session    a count per key and session, with a gap of 5 seconds
    final      tumbling windows that are sent once, when they close, instead of in each version that changes them

A batch has the events of ten seconds in random order, and some of the batch before. Spark keeps its windows in RocksDB
with changelog checkpointing, without a sink; Holdfast writes Parquet files. Sessions are in append mode in Spark, which
has no other mode for them. The time of each micro-batch is Spark's `triggerExecution`. The first third of the batches
is left out, and results are medians over the others.
"""

import argparse
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from benchmarks.common import (
    FSYNC,
    PARTITIONS,
    SPARK_ON_ROCKSDB,
    START,
    bench_app,
    console,
    contest,
    finish,
    median,
    plot_lines,
    read,
    run_app,
    run_query,
    scratch,
    show,
    spark_session,
    write_batches,
)
from holdfast.topology.windows import Windows

KEYS, RECORDS = 200_000, 500_000
SECONDS = 10
SCHEMA = "key long, at timestamp"

SPARKS: dict[str, Callable[[], Column]] = {
    "tumbling": lambda: F.window("at", "60 seconds"),
    "hopping": lambda: F.window("at", "50 seconds", "10 seconds"),
    "session": lambda: F.session_window("at", "5 seconds"),
}
OURS: dict[str, Windows] = {
    "tumbling": hf.tumbling("60s", grace="10s"),
    "hopping": hf.hopping("50s", every="10s", grace="10s"),
    "session": hf.session("5s", grace="10s"),
    "final": hf.tumbling("60s", grace="10s"),
}


def columns(drawn: npt.NDArray[np.int64], batch: int, dice: np.random.Generator) -> pa.Table:
    """Keys and event times: those of ten seconds, and one in twenty up to five seconds earlier."""
    micros = (START + batch * SECONDS) * 1_000_000 + dice.integers(0, SECONDS * 1_000_000, len(drawn))
    micros -= np.where(dice.random(len(drawn)) < 0.05, 5_000_000, 0)
    return pa.table({"key": drawn, "at": pa.array(micros, pa.timestamp("us", "UTC"))})


def run_spark(spark: SparkSession, name: str, data: Path, work: Path) -> list[float]:
    window = SPARKS[name]()
    frame = read(spark, data, schema=SCHEMA).withWatermark("at", "10 seconds")
    counts = frame.groupBy("key", window).count()
    mode = "append" if name == "session" else "update"
    return run_query(counts.writeStream.outputMode(mode).format("noop"), work)


def run_holdfast(spark: SparkSession, name: str, data: Path, work: Path) -> list[float]:
    app = bench_app(spark, work, snapshots=hf.SnapshotSettings(bytes="24MiB"))
    stream = app.stream(read(spark, data, schema=SCHEMA), key="key", timestamp="at")
    table = stream.group_by().window(OURS[name]).count().store("counts", retention="2m")
    (table.final() if name == "final" else table).sink(hf.files(str(work / "out")))
    return run_app(app)


def run_contender(spark: SparkSession, name: str, data: Path, contender: str, work: Path) -> list[float]:
    return (run_spark if contender == "spark" else run_holdfast)(spark, name, data, work)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one repeat of 12 batches")
    parser.add_argument("--only", choices=list(OURS))
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--batches", type=int)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    repeats, batches = (1, arguments.batches or 12) if arguments.quick else (3, arguments.batches or 24)
    warm = batches // 3
    spark = spark_session(
        **{
            **SPARK_ON_ROCKSDB,
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
            "spark.sql.session.timeZone": "UTC",
        }
    )
    rates: dict[str, float] = {}
    with scratch("windows") as folder:
        data = folder / "data"
        write_batches(data, "uniform", keys_in_all=KEYS, records=arguments.records, batches=batches, columns=columns)
        for name in [arguments.only] if arguments.only else OURS:
            contenders = ["holdfast", "spark"] if name in SPARKS else ["holdfast"]
            console.print(f"{name}:")
            run = partial(run_contender, spark, name, data)
            taken = contest(contenders, run, folder / name, repeats=repeats, warm=warm)
            rates |= {f"{each}_{name}": arguments.records / median(values) for each, values in taken.items()}
            console.print(f"plot: {plot_lines(f'windows-{name}', name, taken, 'batch', 'seconds')}")
    show(
        f"{KEYS:,} keys, batches of {arguments.records:,}, fsync {'on' if FSYNC else 'off'} on both sides",
        ["contender", "records/s"],
        [[name, f"{rate:,.0f}"] for name, rate in rates.items()],
    )
    finish(**figures_of(rates), repeats=repeats, batches=batches, fsync=FSYNC, quick=arguments.quick)


def figures_of(rates: dict[str, float]) -> dict[str, float]:
    """The ratios, and the rates they are made of."""
    named = {"vs_spark": "tumbling", "hopping_vs_spark": "hopping", "session_vs_spark": "session"}
    found = {
        label: rates[f"holdfast_{name}"] / rates[f"spark_{name}"]
        for label, name in named.items()
        if f"spark_{name}" in rates
    }
    if {"holdfast_final", "holdfast_tumbling"} <= rates.keys():
        found["final_ratio"] = rates["holdfast_tumbling"] / rates["holdfast_final"]
    return found | {f"{name}_records_per_s": rate for name, rate in rates.items()}


if __name__ == "__main__":
    main()
