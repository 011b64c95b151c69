"""How memory, open files, the log and the state directory develop over the time of a soak.

Processes are killed and started all the time, and a release with two stores has twice the tasks and objects of one with
one store. So growth is judged while the app is left alone, in the last part of the soak. The log keeps the versions of
some seconds, which are more if the app gets faster, so its objects may grow as much as the versions per second do. At
its end the log has nothing left from before, but for what is still named: kills and restarts leave nothing that stays.
"""

import contextlib
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import msgspec
from rich.table import Table

from holdfast.log.names import COMMITS, number_of
from tests.soak.app import HEAP
from tests.soak.processes import of_kind, open_files, resident_mib

KINDS = ("driver", "jvm", "instance", "worker")
EVERY = 2
"""Seconds between two samples."""
ALLOWED = 1.25
"""How many times the larger median of the first two thirds the median of the last third may be.

What grows steadily has 5/3 of it, less where it starts above zero.
"""
FEW = 8
"""What is less than this more than before isn't growth, however little there was."""
OF_PROCESSES = tuple(f"{what} of {kind}" for what in ("MiB", "open files") for kind in KINDS)
IN_HEAP = "MiB in Spark's heap after a collection"
OF_FILES = (
    "commits",
    "segments",
    "manifests of snapshots",
    "files of snapshots that a manifest names",
    "files of snapshots that none names",
    "positions of sinks",
    "app files",
    "MiB in the log",
    "files of state",
    "MiB of state",
)
VERSION = "versions made"
LONG_ENOUGH = 120
"""Seconds alone after which everything from before is cleaned: the retention is 20 s, and snapshots are 5 s old."""
CLEANED = ("commits/", "segments/", "snapshots/", "sinks/")
PER_START = ("leaders", "temporary files")
"""They grow with each start or kill, and not with time. They are shown only."""


class Course(threading.Thread):
    """Takes samples from when the app is left alone until it is stopped."""

    def __init__(self, folder: Path, pid: Callable[[], int], stop: threading.Event) -> None:
        super().__init__(name="course", daemon=True)
        self._pid, self._stop_asked = pid, stop
        self._log, self._state = folder / "base" / "soak" / "log", folder / "base" / "soak" / "state"
        self._heap = folder / HEAP
        self.samples: dict[str, list[float]] = defaultdict(list)
        self._alone_since: float | None = None
        self.start()

    def leave_alone(self) -> None:
        """The app is left alone from now on: samples are taken."""
        self._alone_since = time.time()

    def run(self) -> None:
        while not self._stop_asked.wait(EVERY):
            if self._alone_since is not None:
                self._sample_files()
                self._sample_processes(self._pid())

    def _sample_files(self) -> None:
        log, state = sizes(self._log), sizes(self._state)
        self.samples[VERSION].append(newest_version(log))
        for name, count in counted(self._log, log).items():
            self.samples[name].append(count)
        self.samples["MiB in the log"].append(sum(log.values()) / (1 << 20))
        self.samples["files of state"].append(len(state))
        self.samples["MiB of state"].append(sum(state.values()) / (1 << 20))

    def _sample_processes(self, pid: int) -> None:
        for kind in KINDS:
            pids = of_kind(pid, kind)
            self.samples[f"MiB of {kind}"].append(resident_mib(pids))
            self.samples[f"open files of {kind}"].append(open_files(pids))
        if self._heap.exists() and (text := self._heap.read_text()):
            self.samples[IN_HEAP].append(float(text))

    def thirds(self, name: str) -> list[float]:
        """The median of each third of the time; of versions, how many were made in it."""
        values = self.samples[name]
        third = max(1, len(values) // 3)
        parts = [part for part in (values[:third], values[third : 2 * third], values[2 * third :]) if part]
        return [part[-1] - part[0] if name == VERSION else median(part) for part in parts]

    def growth(self) -> list[str]:
        """What kept growing, or was never there, one sentence each."""
        found = []
        for name in (*OF_PROCESSES, IN_HEAP, *OF_FILES):
            if not self.samples[name]:
                found.append(f"{name}: there is no sample")
                continue
            thirds = self.thirds(name)
            if len(thirds) == 3 and grew(thirds) > (self._faster() if name in OF_FILES else 1.0):
                shown = ", then ".join(f"{value:.0f}" for value in thirds)
                found.append(f"{name} keep growing: {shown}, with {self.thirds(VERSION)} versions")
        return found

    def _faster(self) -> float:
        """How many times as many versions as before were made in the last third, at least 1."""
        *before, last = self.thirds(VERSION)
        return max(1.0, last / max(1.0, *before))

    def leftovers(self) -> list[str]:
        """The objects from before the app was left alone that should have been cleaned since, one sentence each."""
        if self._alone_since is None or time.time() - self._alone_since < LONG_ENOUGH:
            return []
        log = sizes(self._log)
        named = named_files(self._log, log)
        old = [name for name in log if _written(self._log / name) < self._alone_since]
        return [f"{name} is left from before" for name in old if name.startswith(CLEANED) and name not in named]

    def table(self) -> Table:
        table = Table(title="the median of each third of the time alone", title_justify="left")
        table.add_column("")
        for column in ("samples", "first", "second", "last", "most"):
            table.add_column(column, justify="right")
        for group in ((VERSION, *OF_FILES, *PER_START), (*OF_PROCESSES, IN_HEAP)):
            for name in group:
                values = self.samples[name]
                thirds = [f"{value:,.0f}" for value in self.thirds(name)] if values else []
                most = f"{max(values):,.0f}" if values else ""
                table.add_row(name, str(len(values)), *(thirds + [""] * 3)[:3], most)
            table.add_section()
        return table


def grew(thirds: list[float]) -> float:
    """How many times as much as before and what is allowed there was in the last third; 0 for a few more.

    >>> grew([100, 100, 120]), grew([100, 150, 250]), grew([2, 2, 4])
    (0.96, 1.3333333333333333, 0.0)
    """
    *before, last = thirds
    return last / (ALLOWED * max(before)) if last > max(before) + FEW else 0.0


def newest_version(names: Iterable[str]) -> int:
    """The newest version of a log with objects of these names.

    >>> newest_version(["commits/00000000000000000012.json", "segments/all/00000000000000000013"])
    12
    """
    return max((number_of(name) or 0 for name in names if name.startswith(COMMITS)), default=0)


def sizes(folder: Path) -> dict[str, int]:
    """The files below a folder with their sizes. Files and folders may be deleted meanwhile."""
    found = {}
    for place, _, files in os.walk(folder):  # unlike Path.rglob, it passes over a folder that is gone
        for name in files:
            path = os.path.join(place, name)
            with contextlib.suppress(FileNotFoundError):
                found[os.path.relpath(path, folder)] = os.stat(path).st_size
    return found


def counted(log: Path, names: dict[str, int]) -> Counter[str]:
    """The objects of a log by what they are."""
    found: Counter[str] = Counter(dict.fromkeys((*OF_FILES[:7], *PER_START), 0))
    plain = {"commits": "commits", "segments": "segments", "sinks": "positions of sinks", "leader": "leaders"}
    plain |= {"app": "app files", ".tmp": "temporary files"}
    named = named_files(log, names)
    for name in names:
        top, _, rest = name.partition("/")
        if top in plain:
            found[plain[top]] += 1
        elif top == "snapshots" and "/files/" in rest:
            found[f"files of snapshots that {'a manifest names' if name in named else 'none names'}"] += 1
        elif top == "snapshots":
            found["manifests of snapshots"] += 1
    return found


def named_files(log: Path, names: Iterable[str]) -> set[str]:
    """The files of snapshots that a manifest names."""
    manifests = [name for name in names if name.startswith("snapshots/") and "/files/" not in name]
    return {file for manifest in manifests for file in _files_of(log, manifest)}


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # cleaned just now
        return time.time()


def _files_of(log: Path, manifest: str) -> set[str]:
    try:
        files = msgspec.json.decode((log / manifest).read_bytes())["files"]
    except FileNotFoundError:
        return set()
    return {f"{manifest.rpartition('/')[0]}/files/{file['hash']}" for file in files}
