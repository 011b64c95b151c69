"""What a quiet app costs: processor time and puts, by how often Spark looks for records.

An app with one table, two partitions and one instance has processed everything. The peer is Spark's own delay of 10 ms
between two looks. Processor time is that of all processes of the app: driver, JVM, instance and Python workers. Latency
is from the moment a file with one record appears in the quiet app until a query sees it. Puts are those of versions and
those of the group, which are heartbeats: each is seen as a file of the log that is new or was replaced.
"""

import argparse
import os
import time
import urllib.request
from dataclasses import dataclass
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


def files_of(log: Path) -> dict[Path, tuple[int, int]]:
    """The objects of a log, each with what another put of it changes."""
    found: dict[Path, tuple[int, int]] = {}
    for path in log.rglob("*.*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue  # a temporary one
        if path.is_file() and ".tmp" not in path.parts:
            found[path] = status.st_ino, status.st_mtime_ns
    return found


def puts_of(log: Path, seconds: float) -> tuple[int, int]:
    """The puts per hour without the group's, and the group's. A name is looked at more often than it is put."""
    began, before, puts, of_group = time.monotonic(), files_of(log), 0, 0
    while (passed := time.monotonic() - began) < seconds:
        time.sleep(0.1)
        now = files_of(log)
        written = [path.relative_to(log).parts[0] for path, status in now.items() if before.get(path) != status]
        of_group += written.count("group")
        puts += len(written) - written.count("group")
        before = now
    return round(puts * 3600 / passed), round(of_group * 3600 / passed)


@dataclass(frozen=True)
class Idle:
    """What a quiet app costs."""

    core: float
    """The share of a core."""
    puts: int
    """Per hour, without the group's."""
    group_puts: int
    latency: float
    """Seconds until a record can be read."""


def idle(spark: SparkSession, folder: Path, delay: str, seconds: float, records: int) -> Idle:
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
        before, began = processor_seconds(), time.monotonic()
        time.sleep(seconds)
        after, passed = processor_seconds(), time.monotonic() - began
        used = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
        puts, of_group = puts_of(log, min(seconds, 60))  # afterwards, since looking takes processor time
    return Idle(used / passed, puts, of_group, median(taken))


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
        ["delay", "of a core, %", "puts per hour", "heartbeats per hour", "until a record is readable, s"],
        [[delay, 100 * each.core, each.puts, each.group_puts, each.latency] for delay, each in found.items()],
    )
    finish(
        cpu_10ms_vs_100ms=found["10ms"].core / found["100ms"].core,
        cpu_100ms=found["100ms"].core,
        cpu_500ms=found["500ms"].core,
        puts_per_hour=found["100ms"].puts,
        heartbeats_per_hour=found["100ms"].group_puts,
        latency_100ms_vs_10ms=found["100ms"].latency / found["10ms"].latency,
        quick=quick,
    )


if __name__ == "__main__":
    main()
