"""What a quiet app costs: processor time and puts, by how often Spark looks for records.

An app with one table, two partitions and one instance has processed everything. The peer is Spark's own delay of 10 ms
between two looks. Processor time is that of all processes of the app: driver, JVM, instance and Python workers. Latency
is from the moment a file with one record appears in the quiet app until a query sees it.
"""

import argparse
import os
import time
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import holdfast as hf
from benchmarks.common import FSYNC, finish, median, scratch, show, spark_session

DELAYS = ("10ms", "100ms", "500ms")
_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds() -> dict[int, float]:
    """The processor time of this process and of each of its descendants so far."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    own, found = {os.getpid()}, 0
    while len(own) > found:
        found = len(own)
        own |= {pid for pid, parent in parents.items() if parent in own}
    return {pid: used[pid] for pid in own}


def write(folder: Path, number: int, key: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f"_{number}"
    pq.write_table(pa.table({"key": [key]}), hidden)
    hidden.rename(folder / f"{number:05d}.parquet")


def is_readable(app: hf.App, key: int) -> bool:
    try:
        with urllib.request.urlopen(f"{app.address}/v1/stores/counts/keys/{key}") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def latency(app: hf.App, folder: Path, number: int) -> float:
    began = time.monotonic()
    write(folder, number, number)
    while not is_readable(app, number):
        time.sleep(0.002)
    return time.monotonic() - began


def idle(spark: SparkSession, folder: Path, delay: str, seconds: float, records: int) -> tuple[float, int, float]:
    """The share of a core, the objects written per hour, and the seconds until a record can be read."""
    write(folder / "input", 0, 0)
    settings = hf.Settings(
        base_dir=str(folder / "base"),
        partitions=2,
        rest=hf.RestSettings(port=0),
        log=hf.LogSettings(fsync=FSYNC),
        batch=hf.BatchSettings(poll_interval=delay),
    )
    app = hf.App(f"idle-{delay}", settings=settings, spark=spark)
    source = spark.readStream.schema("key long").parquet(str(folder / "input"))
    app.stream(source, key="key").group_by().count().store("counts", ttl="1d")
    with app:
        app.process_all_available()
        taken = [latency(app, folder / "input", number) for number in range(1, records + 1)]
        time.sleep(5)
        log = folder / "base" / f"idle-{delay}" / "log"
        objects, before, began = len(list(log.rglob("*.*"))), processor_seconds(), time.monotonic()
        time.sleep(seconds)
        after, passed = processor_seconds(), time.monotonic() - began
        used = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
        written = len(list(log.rglob("*.*"))) - objects
    return used / passed, round(written * 3600 / passed), median(taken)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="20 seconds per delay")
    quick = parser.parse_args().quick
    spark = spark_session()
    with scratch("idle") as folder:
        idle(spark, folder / "warm", "50ms", 1, 3)  # the JVM compiles what it runs
        found = {delay: idle(spark, folder / delay, delay, 20 if quick else 120, 10) for delay in DELAYS}
    spark.stop()
    show(
        "a quiet app, by Spark's delay between two looks",
        ["delay", "of a core, %", "puts per hour", "until a record is readable, s"],
        [[delay, 100 * used, written, seconds] for delay, (used, written, seconds) in found.items()],
    )
    finish(
        cpu_10ms_vs_100ms=found["10ms"][0] / found["100ms"][0],
        cpu_100ms=found["100ms"][0],
        cpu_500ms=found["500ms"][0],
        puts_per_hour=found["100ms"][1],
        latency_100ms_vs_10ms=found["100ms"][2] / found["10ms"][2],
        quick=quick,
    )


if __name__ == "__main__":
    main()
