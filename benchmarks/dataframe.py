"""A whole store as a dataframe: how many entries per second become Arrow columns, over HTTP.

A real app counts records by a million string keys and keeps sums beside the counts. The store is read through
`GET /v1/stores/{store}/arrow`, from the first byte of the request to a table in the client, while the source is quiet:
all columns, one column, and again after the memory of the instance was emptied by a restart, so that every entry comes
from RocksDB. The processor time per entry is that of the instance.
"""

import argparse
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import holdfast as hf
from benchmarks.common import FSYNC, PARTITIONS, finish, median, scratch, show, spark_session
from benchmarks.idle import processor_seconds
from benchmarks.query import instance_seconds

KEYS = 1_000_000
FILES = 4
END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The last bytes of a whole Arrow stream."""
PATH = "/v1/stores/players/arrow"


def write_players(records: Path, keys: int) -> None:
    """Writes one record per player."""
    numbers = points_of(keys)
    digits = pc.utf8_lpad(pa.array(np.arange(keys)).cast(pa.string()), 7, "0")
    players = pa.table({"player": pc.binary_join_element_wise("player-", digits, ""), "points": numbers})
    records.mkdir()
    for n in range(FILES):
        pq.write_table(players.slice(n * keys // FILES, keys // FILES), records / f"{n}.parquet")


def players_app(spark: SparkSession, folder: Path) -> hf.App:
    """An app whose store `players` has a count, a sum and the highest number per player."""
    settings = hf.Settings(
        base_dir=str(folder / "base"),
        partitions=PARTITIONS,
        rest=hf.RestSettings(port=0),
        log=hf.LogSettings(fsync=FSYNC),
    )
    app = hf.App("players", settings=settings, spark=spark)
    source = spark.readStream.schema("player string, points long").parquet(str(folder / "input"))
    table = app.stream(source, key="player").group_by()
    table.aggregate(games=hf.count(), points=hf.sum("points"), best=hf.max("points")).store("players")
    return app


def points_of(keys: int) -> npt.NDArray[np.int64]:
    """The points of each player."""
    return np.random.default_rng(7).integers(0, 10**9, keys)


def read(address: str, path: str) -> pa.Table:
    """The store as a table. Every read is checked: pyarrow takes a stream that was cut for a short one."""
    with urllib.request.urlopen(address + path) as answer:
        data = answer.read()
    table = pa.ipc.open_stream(data).read_all()
    assert data.endswith(END), f"{path} was cut after {table.num_rows:,} rows"
    assert table.num_rows == KEYS, f"{path} has {table.num_rows:,} rows of {KEYS:,}"
    assert pc.sum(table["points"]).as_py() == int(points_of(KEYS).sum()), f"{path} has other points"
    return table


def timed(read: Callable[[], object], repeats: int) -> tuple[float, float]:
    """The median of the seconds, and of the instance's processor time."""
    taken, used = [], []
    for _ in range(repeats):
        before, began = processor_seconds(), time.monotonic()
        read()
        taken.append(time.monotonic() - began)
        used.append(instance_seconds(before))
    return median(taken), median(used)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    quick = parser.parse_args().quick
    repeats = 3 if quick else 9
    spark = spark_session()
    found: dict[str, tuple[float, float]] = {}
    with scratch("dataframe") as folder:
        write_players(folder / "input", KEYS)
        with players_app(spark, folder) as app:
            app.process_all_available()
            address = str(app.address)
            read(address, PATH)
            found["all columns"] = timed(lambda: read(address, PATH), repeats)
            found["one column"] = timed(lambda: read(address, f"{PATH}?columns=points"), repeats)
            found["to pandas"] = timed(lambda: read(address, PATH).to_pandas(), repeats)
        with players_app(spark, folder) as app:
            app.process_all_available()
            again = str(app.address)
            read(again, PATH)
            found["all columns, from RocksDB"] = timed(lambda: read(again, PATH), repeats)
    spark.stop()
    show(
        f"a store of {KEYS:,} entries as Arrow",
        ["", "seconds", "rows/s", "processor us per row"],
        [[name, taken, KEYS / taken, used / KEYS * 1e6] for name, (taken, used) in found.items()],
    )
    finish(
        rows_per_s=KEYS / found["all columns"][0],
        one_column_rows_per_s=KEYS / found["one column"][0],
        pandas_rows_per_s=KEYS / found["to pandas"][0],
        rocksdb_rows_per_s=KEYS / found["all columns, from RocksDB"][0],
        rocksdb_cpu_us=found["all columns, from RocksDB"][1] / KEYS * 1e6,
        cpu_us=found["all columns"][1] / KEYS * 1e6,
        quick=quick,
    )


if __name__ == "__main__":
    main()
