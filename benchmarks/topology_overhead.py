"""What a larger topology costs: an app of ten operators, two sources and three stores against an app of one store.

    one     count and sum per key
    ten     the same records in two sources; where, with_column, branch, merge, a table, two aggregates and a join

Both apps read the same number of records per batch. `ratio` is the time of a batch of the larger app per time of a
batch of the smaller one. Batches are timed as in `count`.
"""

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import holdfast as hf
from benchmarks.common import (
    FSYNC,
    bench_app,
    contest,
    finish,
    median,
    read,
    run_app,
    scratch,
    show,
    spark_session,
    write_batches,
)
from benchmarks.count import FILES
from benchmarks.wide import NARROW

KEYS = 200_000
RECORDS = 100_000

Build = Callable[[SparkSession, hf.App, Path], None]


def one(spark: SparkSession, app: hf.App, data: Path) -> None:
    """One operator, one source, one store."""
    stream = app.stream(read(spark, data / "all", FILES, NARROW.schema), key="key", timestamp="at")
    stream.group_by().aggregate(n=hf.count(), total=hf.sum("amount")).store("totals")


def ten(spark: SparkSession, app: hf.App, data: Path) -> None:
    """Ten operators, two sources, three stores."""
    buyers = app.table(read(spark, data / "half", FILES, NARROW.schema), "buyers", key="key", timestamp="at")  # 1
    source = read(spark, data / "half", FILES, NARROW.schema)
    stream = app.stream(source, key="key", timestamp="at", name="orders")
    orders = stream.where("amount >= 0").with_column("tax", "amount / 10")  # 2, 3
    small, _large = orders.branch("amount < 50000")  # 4, 5
    merged = small.where("tax > 1").merge(orders.where("amount >= 50000"))  # 6, 7
    merged.group_by().aggregate(n=hf.count(), total=hf.sum("amount")).store("totals")  # 8
    joined = small.join(buyers, name="joined", prefix="b_")  # 9
    joined.to_stream().group_by().aggregate(n=hf.count()).store("small-orders")  # 10


BUILDS: dict[str, Build] = {"one": one, "ten": ten}


def run(spark: SparkSession, build: Build, data: Path, work: Path) -> list[float]:
    app = bench_app(spark, work)
    build(spark, app, data)
    return run_app(app)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one repeat of 9 batches")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    repeats, batches = (1, 9) if arguments.quick else (3, 15)
    warm = batches // 3
    spark = spark_session(**{"spark.sql.streaming.numRecentProgressUpdates": "1000"})
    with scratch("topology") as folder:
        for name, records in {"all": RECORDS, "half": RECORDS // 2}.items():
            write_batches(
                folder / name,
                "uniform",
                keys_in_all=KEYS,
                records=records,
                batches=batches,
                files=FILES,
                columns=NARROW.columns,
            )
        taken = contest(
            list(BUILDS), lambda name, work: run(spark, BUILDS[name], folder, work), folder, repeats=repeats, warm=warm
        )
    found = {name: median(values) for name, values in taken.items()}
    show(
        f"{KEYS:,} keys, {RECORDS:,} records per batch",
        ["app", "s per batch"],
        [[name, seconds] for name, seconds in found.items()],
    )
    finish(
        ratio=found["ten"] / found["one"],
        **{f"{name}_seconds": seconds for name, seconds in found.items()},
        repeats=repeats,
        batches=batches,
        fsync=FSYNC,
        quick=arguments.quick,
    )


if __name__ == "__main__":
    main()
