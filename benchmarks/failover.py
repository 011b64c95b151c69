"""Failover: an instance with active tasks is killed (kill -9) while records arrive and keys are looked up.

Three instances, one standby per task, default settings; 20,000 records per second in, 500 lookups per second through
the REST addresses of the living. All keys were written before, so `failed_lookups` counts every answer but 200 of the
instances that live. `longest_lookup_ms` is the longest one from when it was due, `next_commit_s` is the time from the
kill to the next commit, and `longest_gap_s` the longest time between two commits, from the last one before the kill to
10 seconds after it. The plot has the course of both.

The instances are processes that the app has started, so it learns of the end of one by waiting for the process. How
soon it learns of the end of a server on another host, by a connection that is refused or reset, isn't measured here.
"""

import argparse
import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf
from benchmarks.common import START, bench_app, console, finish, read, scratch, show, spark_session
from benchmarks.open_loop import Lookup, lookups, percentile
from benchmarks.timeline import plot_timeline
from holdfast.group.generations import Generations
from holdfast.group.members import Member, Members
from holdfast.log.log import Log
from holdfast.log.storage import open_storage

KEYS, RECORDS_PER_S, FILES_PER_S, LOOKUPS_PER_S = 100_000, 20_000, 2, 500
AROUND_S = 10.0
"""So many seconds after the kill the gaps between commits are looked at."""


class Arrivals(threading.Thread):
    """Writes a file of records at a fixed rate."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.stopped = threading.Event()
        self._dice = np.random.default_rng(5)
        self._number = 0
        folder.mkdir(parents=True)
        self.write(range(KEYS))

    def write(self, keys: Sequence[int] | npt.NDArray[np.int64]) -> None:
        hidden, path = self.folder / f"_{self._number:06d}", self.folder / f"{self._number:06d}.parquet"
        pq.write_table(pa.table({"key": pa.array(keys, pa.int64())}), hidden)
        os.utime(hidden, (START + self._number, START + self._number))
        hidden.rename(path)
        self._number += 1

    def run(self) -> None:
        began = time.monotonic()
        while not self.stopped.wait(max(0.0, began + self._number / FILES_PER_S - time.monotonic())):
            self.write(self._dice.integers(0, KEYS, RECORDS_PER_S // FILES_PER_S))


def commits(app: hf.App) -> list[float]:
    """When each commit was made, by the wall clock of the files in the log."""
    folder = Path(app.settings.log_url(app.id)) / "commits"
    return sorted(path.stat().st_mtime for path in folder.glob("*.json"))


def run(folder: Path, before: float, after: float) -> tuple[list[Lookup], list[float], float]:
    """The lookups, the commits and the moment of the kill."""
    arrivals = Arrivals(folder / "input")
    spark = spark_session()
    app = bench_app(spark, folder / "work", instances=3, standbys=1)
    stream = app.stream(read(spark, folder / "input", files=4), key="key")
    stream.group_by().count().store("counts")
    made: list[float] = []
    with app:
        app.process_all_available()
        arrivals.start()
        addresses = list(app.addresses)
        with lookups(folder, addresses, "counts", rate=LOOKUPS_PER_S, keys=KEYS) as asked:
            time.sleep(before)
            victim = _active(app)
            asked.ask_only([address for address in addresses if address != victim.rest])
            time.sleep(0.05)  # for requests that were on their way to it
            made += commits(app)
            killed = time.time()
            os.kill(victim.pid, signal.SIGKILL)
            time.sleep(after)
        made += commits(app)
        arrivals.stopped.set()
        arrivals.join()
    alive = [each for each in asked.found if each.address != victim.rest]
    return alive, sorted(set(made)), killed


def _active(app: hf.App) -> Member:
    """A member that is active for a task in the newest generation: there are fewer tasks than members."""
    storage = open_storage(app.settings.log_url(app.id), {})
    log = Log.identify(storage)
    generation = Generations(storage, log).follow()
    assert generation is not None
    return Members(storage, log).read()[generation.tasks[min(generation.tasks)].active]


def longest_gap(made: Sequence[float], killed: float) -> float:
    """The longest time between two commits around the kill.

    >>> longest_gap([1.0, 5.0, 6.0, 8.5, 9.0, 40.0], killed=5.5)
    2.5
    """
    first = max(number for number, at in enumerate(made) if at <= killed)
    around = [at for at in made[first:] if at <= killed + AROUND_S]
    return max((after - before for before, after in pairwise(around)), default=AROUND_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a shorter run")
    quick = parser.parse_args().quick
    logging.getLogger().setLevel(logging.ERROR)
    before, after = (10.0, 15.0) if quick else (30.0, 60.0)
    with scratch("failover") as folder:
        asked, made, killed = run(folder, before, after)
    failed = [each for each in asked if each.status != 200]
    later = [at for at in made if at > killed]
    assert later, "no commit after the kill"
    window = [each for each in asked if each.due > killed - 5]
    latencies = [1000 * each.seconds for each in asked]
    rows = [
        ("lookups", len(asked)),
        ("failed", len(failed)),
        ("p50 ms", percentile(latencies, 50)),
        ("p99 ms", percentile(latencies, 99)),
        ("longest ms after the kill", max(1000 * each.seconds for each in window)),
        ("next commit after s", later[0] - killed),
        ("longest gap between commits s", longest_gap(made, killed)),
    ]
    show("kill -9 of an active instance, one standby", ["", "figure"], rows)
    for each in failed[:5]:
        console.print(f"  failed: {each}")
    path = plot_timeline(
        "failover",
        "kill -9 of an active instance at 0 s",
        {"lookup, ms": [(each.due - killed, 1000 * each.seconds) for each in asked]},
        {"commits": [at - killed for at in made if at > killed - before], "kill": [0.0]},
    )
    console.print(f"timeline: {path}")
    finish(
        failed_lookups=len(failed),
        longest_lookup_ms=max(latencies),
        next_commit_s=later[0] - killed,
        longest_gap_s=longest_gap(made, killed),
        lookups=len(asked),
        p99_ms=percentile(latencies, 99),
    )


if __name__ == "__main__":
    main()
