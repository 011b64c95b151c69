"""Wide records: a stream of 40 columns of which 3 are used, against a stream of those 3 columns alone.

    wide      count and sum per key in a store, from Parquet files with 40 columns
    narrow    the same from files with the 3 columns that it uses
    spark     Spark's own aggregation of the wide files

Only the used columns should be read, so `ratio`, the time of a wide batch per time of a narrow one, should be near 1.
Batches are timed as in `count`.
"""

import argparse
import logging
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import holdfast as hf
from benchmarks.common import (
    FSYNC,
    PARTITIONS,
    SPARK_ON_ROCKSDB,
    START,
    contest,
    finish,
    median,
    scratch,
    show,
    spark_session,
    write_batches,
)
from benchmarks.count import FILES, KEYS, Workload, run_holdfast, run_spark

RECORDS = 250_000
OTHERS = 37
"""The number of columns that nobody uses: longs, doubles and texts."""


def narrow_columns(drawn: npt.NDArray[np.int64], batch: int, dice: np.random.Generator) -> pa.Table:
    micros = (START + batch * 10) * 1_000_000 + dice.integers(0, 10_000_000, len(drawn))
    at = pa.array(micros).cast(pa.timestamp("us", "UTC"))
    return pa.table({"key": drawn, "at": at, "amount": dice.integers(0, 100_000, len(drawn))})


def wide_columns(drawn: npt.NDArray[np.int64], batch: int, dice: np.random.Generator) -> pa.Table:
    table = narrow_columns(drawn, batch, dice)
    for n in range(OTHERS):
        table = table.append_column(f"c{n}", unused(n, len(drawn)))
    return table


@cache
def unused(number: int, records: int) -> pa.Array:
    dice = np.random.default_rng(number)
    match number % 3:
        case 0:
            return pa.array(dice.integers(0, 2**62, records))
        case 1:
            return pa.array(dice.random(records))
        case _:
            return pa.array(dice.integers(0, 10**12, records)).cast(pa.string())


NARROW = Workload(
    "uniform",
    "key long, at timestamp, amount long",
    narrow_columns,
    "at",
    {"number": hf.count(), "total": hf.sum("amount")},
    ("count(1)", "sum(amount)"),
    "6MiB",
)
TYPES = ("long", "double", "string")
WIDE = replace(
    NARROW,
    schema=", ".join([NARROW.schema, *(f"c{n} {TYPES[n % 3]}" for n in range(OTHERS))]),
    columns=wide_columns,
)
CONTENDERS = {"wide": (run_holdfast, WIDE), "narrow": (run_holdfast, NARROW), "spark": (run_spark, WIDE)}


def folder_of(folder: Path, workload: Workload) -> Path:
    return folder / ("wide" if workload is WIDE else "narrow")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one repeat of 9 batches")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    repeats, batches = (1, 9) if arguments.quick else (3, 15)
    warm = batches // 3
    spark = spark_session(
        **{
            **SPARK_ON_ROCKSDB,
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
        }
    )
    with scratch("wide") as folder:
        for workload in (WIDE, NARROW):
            write_batches(
                folder_of(folder, workload),
                workload.keys,
                keys_in_all=KEYS,
                records=RECORDS,
                batches=batches,
                files=FILES,
                columns=workload.columns,
            )

        def run(name: str, work: Path) -> list[float]:
            how, workload = CONTENDERS[name]
            return how(spark, workload, folder_of(folder, workload), work)

        taken = contest(list(CONTENDERS), run, folder, repeats=repeats, warm=warm)
    found = {name: median(values) for name, values in taken.items()}
    show(
        f"{KEYS:,} keys, batches of {RECORDS:,}, 3 of {OTHERS + 3} columns used",
        ["contender", "s per batch"],
        [[name, seconds] for name, seconds in found.items()],
    )
    finish(
        ratio=found["wide"] / found["narrow"],
        vs_spark=found["spark"] / found["wide"],
        **{f"{name}_seconds": seconds for name, seconds in found.items()},
        repeats=repeats,
        batches=batches,
        fsync=FSYNC,
        quick=arguments.quick,
    )


if __name__ == "__main__":
    main()
