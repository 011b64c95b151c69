"""A rebalance under load: a fourth instance joins a group of three, while an app works through its input at full speed.

The instances run as servers on this machine, with one standby per task. `dip` is by how much fewer records per second
the app takes from the moment the fourth one is started until no task moves any more, compared with the time before; the
first minute is not counted, in which the JVM compiles its code. It is a mean, in which a short stop hardly shows, so
`deepest_dip` is the same for the worst `WINDOW_S` seconds of that time, and `deepest_dip_before` for the worst ones
before: that much is due to chance. On few cores the fourth process itself takes a part of them from Spark.
"""

import argparse
import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import holdfast as hf
from benchmarks.common import FSYNC, console, finish, read, scratch, show, spark_session, write_batches
from benchmarks.timeline import plot_timeline
from holdfast.group.generations import Generation, Generations
from holdfast.group.members import Members
from holdfast.log.log import Log
from holdfast.log.storage import open_storage

APP, KEYS, RECORDS = "bench", 400_000, 100_000
STILL_SECONDS = 6.0
"""A group in which no generation was made for this long, and in which nothing is warming, has settled."""

WINDOW_S = 2.0
"""How long the worst moment is. Batches take about a tenth of it."""


@contextlib.contextmanager
def server(folder: Path, id: str) -> Iterator[None]:
    """An instance as a server, killed at the end of the block."""
    environment = {**os.environ, "HOLDFAST_STATE__DIR": str(folder / f"state-{id}"), "HOLDFAST_REST__PORT": "0"}
    command = [sys.executable, "-m", "holdfast", "instance", "--app", APP, "--log", str(folder / "log"), "--id", id]
    with (folder / f"{id}.txt").open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Group:
    """The group as its log shows it."""

    def __init__(self, folder: Path) -> None:
        self._storage = open_storage(str(folder / "log"), {})
        self._log = Log.identify(self._storage)
        self._generations = Generations(self._storage, self._log)

    def newest(self) -> Generation | None:
        return self._generations.follow()

    def hosts(self, id: str) -> bool:
        member = Members(self._storage, self._log).read().get(id)
        return member is not None and any(hosted.running for hosted in member.tasks.values())

    def wait_until_settled(self, id: str) -> float:
        """Waits until a member hosts tasks and nothing moves any more; the time of the last generation."""
        number, since = 0, time.time()
        while True:
            newest = self.newest()
            if newest is not None and newest.number != number:
                number, since = newest.number, time.time()
            still = newest is not None and not any(place.warming for place in newest.tasks.values())
            if still and self.hosts(id) and time.time() - since > STILL_SECONDS:
                return since
            time.sleep(0.2)


def run(folder: Path, warm: float, before: float) -> tuple[list[tuple[float, float]], float, float]:
    """Per batch its end and its records per second; when the fourth instance was started, and when it was settled."""
    spark = spark_session(**{"spark.sql.streaming.numRecentProgressUpdates": "1000"})
    settings = hf.Settings(
        base_dir=str(folder / "driver"),
        partitions=8,
        instances="external",
        standbys=1,
        log=hf.LogSettings(url=str(folder / "log"), fsync=FSYNC),
        rest=hf.RestSettings(port=0),
    )
    app = hf.App(APP, settings=settings, spark=spark)
    app.stream(read(spark, folder / "data"), key="key").group_by().count().store("counts")
    with contextlib.ExitStack() as running:
        for id in ("a", "b", "c"):
            running.enter_context(server(folder, id))
        running.enter_context(app)
        group = Group(folder)
        group.wait_until_settled("c")
        time.sleep(warm + before)
        joined = time.time()
        running.enter_context(server(folder, "d"))
        settled = group.wait_until_settled("d")
        progress = [each for each in app.query.recentProgress if each["numInputRows"] > 0]
    ends = [datetime.fromisoformat(each["timestamp"]).timestamp() for each in progress]
    seconds = [each["durationMs"]["triggerExecution"] / 1000 for each in progress]
    rates = [each["numInputRows"] / took for each, took in zip(progress, seconds, strict=True)]
    return [(end + took, rate) for end, took, rate in zip(ends, seconds, rates, strict=True)], joined, settled


def mean(batches: list[tuple[float, float]]) -> float:
    """Records per second of all batches together, which have the same size."""
    return len(batches) / sum(1 / rate for _, rate in batches)


def slowest(batches: list[tuple[float, float]], begin: float, end: float) -> float:
    """The fewest records per second in any `WINDOW_S` seconds that end with a batch, or with `end`.

    A batch counts for the part of it that is inside, as if its records came one by one.

    >>> steady = [(float(second), float(RECORDS)) for second in range(1, 11)]
    >>> slowest(steady, 2.0, 10.0) / RECORDS
    1.0
    >>> slowest([each for each in steady if each[0] != 6.0], 2.0, 10.0) / RECORDS  # nothing for a second
    0.5
    """
    spans = [(ended - RECORDS / rate, ended) for ended, rate in batches]

    def records(until: float) -> float:
        inside = ((max(began, until - WINDOW_S), min(ended, until), ended - began) for began, ended in spans)
        return sum(RECORDS * max(0.0, last - first) / took for first, last, took in inside)

    ends = [until for until in (*(ended for _, ended in spans), end) if begin + WINDOW_S <= until <= end]
    return min(map(records, ends)) / WINDOW_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a shorter run")
    quick = parser.parse_args().quick
    logging.getLogger().setLevel(logging.ERROR)
    batches, warm, before = (200, 15.0, 15.0) if quick else (700, 60.0, 40.0)
    with scratch("rebalance") as folder:
        write_batches(folder / "data", "uniform", keys_in_all=KEYS, records=RECORDS, batches=batches)
        found, joined, settled = run(folder, warm, before)
    earlier = [each for each in found if joined - before < each[0] < joined]
    during = [each for each in found if joined <= each[0] <= max(settled, joined + 5)]
    rows = [
        ("before", len(earlier), mean(earlier)),
        ("while tasks move", len(during), mean(during)),
    ]
    show("a fourth instance joins", ["", "batches", "records/s"], rows)
    worst = [
        slowest(found, *span) / mean(earlier)
        for span in ((joined - before, joined), (joined, max(settled, joined + 5)))
    ]
    console.print(f"settled after {settled - joined:.1f} s")
    path = plot_timeline(
        "rebalance",
        "a fourth instance joins at 0 s",
        {"records per second": [(end - joined, rate) for end, rate in found]},
        {"joins": [0.0], "settled": [settled - joined]},
    )
    console.print(f"timeline: {path}")
    finish(
        dip=1 - mean(during) / mean(earlier),
        deepest_dip=1 - worst[1],
        deepest_dip_before=1 - worst[0],
        before=mean(earlier),
        during=mean(during),
        settled_s=settled - joined,
    )


if __name__ == "__main__":
    main()
