"""From a record's arrival at the source to its answer over REST, with small batches, and where the time goes.

A real app counts records by key in one instance, with Holdfast's own settings. Another process adds a file of a few
records with a new key, asks REST for that key every few milliseconds until it is answered, and watches the store. Files
come ten per second (steady), and then one at a time at random moments of a quiet app. The peer of the quiet app is
Spark's own delay between two looks, 10 ms instead of 100.

The time of each record is divided into

    waits      from the file's appearance to the start of the batch that reads it: Spark's delay between two looks, or
               the batch before
    plans      Spark lists the source, writes its offsets, plans the query
    runs       the tasks, from Spark's call of the app to the commit
    commits    the put of the commit
    applies    until the replica shows the version, and REST answers the next question for the key
    asks       that last request itself
"""

import argparse
import http.client
import json
import multiprocessing
import queue
import random
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import holdfast as hf
from benchmarks.common import FSYNC, PARTITIONS, finish, scratch, show, spark_session
from benchmarks.idle import processor_seconds
from holdfast import faults
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.words import Version

RECORDS = 10
"""Records per file."""
STEADY_PER_SECOND = 10.0
QUIET_PER_SECOND = 0.7
ASK_SECONDS = 0.005
STEPS = ("waits", "plans", "runs", "commits", "applies", "asks")
_BEFORE_CALL = ("latestOffset", "walCommit", "getBatch", "queryPlanning")
"""What Spark does in a batch before it calls the app."""
_SPARK_STEPS = (*_BEFORE_CALL, "addBatch", "commitOffsets", "triggerExecution")


@dataclass(frozen=True)
class Answer:
    """One record: when its file appeared, when its last request was sent and answered, when a watcher got it."""

    key: int
    arrived: float
    asked: float
    answered: float
    watched: float
    version: int


class Watching(threading.Thread):
    """Watches the store, and notes when each key's change came and its version."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        parts = urlsplit(address)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=600)
        self.seen: dict[int, tuple[float, int]] = {}

    def run(self) -> None:
        self._connection.request("GET", "/v1/stores/counts/watch?from_version=1")
        answer = self._connection.getresponse()
        for line in iter(answer.readline, b""):
            if line.startswith(b"data:"):
                change = json.loads(line[5:])
                self.seen.setdefault(change["key"], (time.time(), change["version"]))


class Asking(threading.Thread):
    """Asks for one key after the other, each until it is answered.

    Records become visible in the order of their arrival, so one thread is enough, and costs the same however late they
    are. A thread per key would ask more often the later they are, and delay them further.
    """

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        parts = urlsplit(address)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        self._due: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.answered: dict[int, tuple[float, float]] = {}
        """When the last request for a key was sent, and when it was answered."""

    def add(self, key: int) -> None:
        self._due.put(key)

    def run(self) -> None:
        while True:
            key = self._due.get()
            while key not in self.answered:
                asked = time.time()
                self._connection.request("GET", f"/v1/stores/counts/keys/{key}")
                answer = self._connection.getresponse()
                answer.read()
                if answer.status == 200:
                    self.answered[key] = asked, time.time()
                else:
                    time.sleep(ASK_SECONDS)


def load(address: str, folder: str, first: int, count: int, per_second: float, results: Any) -> None:
    """Adds files and asks for their keys: steadily, or each one some time after the last was answered."""
    chance, source = random.Random(first), Path(folder)
    watching, asking = Watching(address), Asking(address)
    watching.start()
    asking.start()
    arrived: dict[int, float] = {}
    began = time.monotonic()
    for n in range(count):
        if per_second < 1:
            _wait_for(asking, arrived)
            time.sleep(chance.random() / per_second)
        else:
            time.sleep(max(0.0, began + n / per_second - time.monotonic()))
        key = first + n
        hidden = source / f"_{key}"
        pq.write_table(pa.table({"key": [key] * RECORDS}), hidden)
        arrived[key] = time.time()
        hidden.rename(source / f"{key:07d}.parquet")
        asking.add(key)
    _wait_for(asking, arrived)
    while not arrived.keys() <= watching.seen.keys():
        time.sleep(ASK_SECONDS)
    results.put([Answer(key, arrived[key], *asking.answered[key], *watching.seen[key]) for key in sorted(arrived)])


def _wait_for(asking: Asking, keys: Collection[int]) -> None:
    while len(asking.answered) < len(keys):
        time.sleep(ASK_SECONDS)


def answers(address: str, folder: Path, first: int, count: int, per_second: float) -> list[Answer]:
    """The answers that another process got, so that its threads don't delay the driver."""
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    process = spawn.Process(target=load, args=(address, str(folder), first, count, per_second, results))
    process.start()
    found: list[Answer] = results.get(timeout=600)
    process.join()
    return found


@dataclass
class Commits:
    """When each commit of this process began and ended, in their order."""

    times: list[tuple[float, float]] = field(default_factory=list)
    _began: float = 0.0

    def begin(self) -> None:
        self._began = time.time()

    def end(self) -> None:
        self.times.append((self._began, time.time()))


def steps_of(answer: Answer, app: hf.App, log: Log, commits: Commits) -> dict[str, float]:
    """The seconds of each step of one record."""
    commit = log.commit(Version(answer.version))
    assert commit is not None and commit.spark is not None
    batch = commit.spark.batch
    progress = next(each for each in app.query.recentProgress if each["batchId"] == batch and each["numInputRows"])
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    called = began + sum(progress["durationMs"].get(step, 0) for step in _BEFORE_CALL) / 1000
    before, after = commits.times[answer.version - 1]
    marks = [answer.arrived, began, called, before, after, answer.asked, answer.answered]
    return {step: marks[n + 1] - marks[n] for n, step in enumerate(STEPS)}


@dataclass(frozen=True)
class Measured:
    """The milliseconds of all records of one load."""

    visible: list[float]
    watched: list[float]
    steps: list[dict[str, float]]
    spark: dict[str, float]
    """The mean milliseconds of each of Spark's own steps per batch."""
    cpu: float
    """The milliseconds of processor time of all processes of the app per batch, which other load changes little."""


def spark_steps(app: hf.App, first: int) -> list[dict[str, float]]:
    """What Spark itself reports of the batches with records from this one on."""
    return [
        each["durationMs"] for each in app.query.recentProgress if each["numInputRows"] and each["batchId"] >= first
    ]


def measured(spark: SparkSession, folder: Path, delay: str | None, steady: int, quiet: int) -> dict[str, Measured]:
    """An app with this delay between two looks, under both loads."""
    source = folder / "input"
    source.mkdir(parents=True)
    looks = hf.BatchSettings() if delay is None else hf.BatchSettings(poll_interval=delay)
    settings = hf.Settings(
        base_dir=str(folder / "base"),
        partitions=PARTITIONS,
        rest=hf.RestSettings(port=0),
        log=hf.LogSettings(fsync=FSYNC),
        batch=looks,
    )
    app, commits = hf.App("latency", settings=settings, spark=spark), Commits()
    app.stream(spark.readStream.schema("key long").parquet(str(source)), key="key").group_by().count().store("counts")
    found: dict[str, Measured] = {}
    with faults.active({"commit.before": commits.begin, "commit.after": commits.end}), app:
        assert app.address is not None
        answers(app.address, source, 0, 100, STEADY_PER_SECOND)  # the JVM compiles what it runs
        loads = {"steady": (steady, STEADY_PER_SECOND), "quiet": (quiet, QUIET_PER_SECOND)}
        first = 1_000_000
        for name, (count, per_second) in loads.items():
            if count:
                batch = 1 + max((each["batchId"] for each in app.query.recentProgress), default=0)
                before = processor_seconds()
                got = answers(app.address, source, first, count, per_second)
                used = sum(seconds - before.get(pid, 0.0) for pid, seconds in processor_seconds().items())
                taken = spark_steps(app, batch)
                first += 1_000_000
                log = Log.open(open_storage(str(folder / "base" / "latency" / "log")))
                found[name] = Measured(
                    [(each.answered - each.arrived) * 1000 for each in got],
                    [(each.watched - each.arrived) * 1000 for each in got],
                    [steps_of(each, app, log, commits) for each in got],
                    {step: float(np.mean([each.get(step, 0) for each in taken])) for step in _SPARK_STEPS},
                    used / len(taken) * 1000,
                )
    return found


def percentiles(values: Sequence[float]) -> list[float]:
    return [float(np.percentile(values, percent)) for percent in (50, 99)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="20 seconds of steady records and 20 quiet ones")
    quick = parser.parse_args().quick
    spark = spark_session(**{"spark.sql.streaming.numRecentProgressUpdates": "100000"})
    with scratch("latency") as folder:
        ours = measured(spark, folder / "ours", None, 200 if quick else 1_000, 20 if quick else 100)
        peer = measured(spark, folder / "peer", "10ms", 0, 20 if quick else 100)
    spark.stop()
    loads = {"steady": ours["steady"], "quiet": ours["quiet"], "quiet, looks every 10 ms": peer["quiet"]}
    show(
        "a record's arrival to its answer over REST, ms",
        ["load", "records", "p50", "p99", "most", "watch p50", "watch p99"],
        [
            [name, len(each.visible), *percentiles(each.visible), max(each.visible), *percentiles(each.watched)]
            for name, each in loads.items()
        ],
    )
    show(
        "where the time goes, ms, mean and p99",
        ["load", *STEPS],
        [[name, *(_shown([steps[step] for steps in each.steps]) for step in STEPS)] for name, each in loads.items()],
    )
    show(
        "Spark's steps per batch, ms",
        ["load", *_SPARK_STEPS, "processor time"],
        [[name, *each.spark.values(), each.cpu] for name, each in loads.items()],
    )
    p50, p99 = percentiles(ours["steady"].visible)
    quiet_p50, quiet_p99 = percentiles(ours["quiet"].visible)
    finish(
        visible_p50_ms=p50,
        visible_p99_ms=p99,
        watched_p50_ms=percentiles(ours["steady"].watched)[0],
        watched_p99_ms=percentiles(ours["steady"].watched)[1],
        quiet_p50_ms=quiet_p50,
        quiet_p99_ms=quiet_p99,
        quiet_cpu_ms_per_batch=ours["quiet"].cpu,
        quiet_p50_vs_10ms=quiet_p50 / percentiles(peer["quiet"].visible)[0],
        **{f"{step}_ms": float(np.mean([each[step] for each in ours["steady"].steps])) * 1000 for step in STEPS},
        quick=quick,
    )


def _shown(seconds: Sequence[float]) -> str:
    return f"{np.mean(seconds) * 1000:.0f} / {np.percentile(seconds, 99) * 1000:.0f}"


if __name__ == "__main__":
    main()
