"""How memory, the log and the state directory develop over the time of a soak."""

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from statistics import median

from rich.table import Table

from tests.soak.processes import of_kind, resident_mib

ALLOWED = {"objects in the log": 1.25, "MiB in the log": 1.25, "files of state": 1.25, "MiB of instances": 1.2}
"""How many times the larger median of the first two thirds the median of the last third may be.

What grows steadily has 5/3 of it, less where it starts above zero.
"""
_PER_START = ("leader", "app")
"""Folders of the log with an object per start, which are left out: a soak starts an app a hundred times."""


class Course(threading.Thread):
    """Takes samples, once per second until it is stopped."""

    def __init__(self, folder: Path, pid: Callable[[], int], stop: threading.Event) -> None:
        super().__init__(name="course", daemon=True)
        self._pid, self._stop_asked = pid, stop
        self._log, self._state = folder / "base" / "soak" / "log", folder / "base" / "soak" / "state"
        self.samples: dict[str, list[float]] = defaultdict(list)
        self.start()

    def run(self) -> None:
        while not self._stop_asked.wait(1):
            self._sample(self._pid())

    def _sample(self, pid: int) -> None:
        log, state = sizes(self._log, _PER_START), sizes(self._state)
        self.samples["objects in the log"].append(len(log))
        self.samples["MiB in the log"].append(sum(log) / (1 << 20))
        self.samples["files of state"].append(len(state))
        self.samples["MiB of instances"].append(resident_mib(of_kind(pid, "instance")))

    def thirds(self, name: str) -> list[float]:
        """The median of each third of the time."""
        values = self.samples[name]
        third = max(1, len(values) // 3)
        return [median(part) for part in (values[:third], values[third : 2 * third], values[2 * third :]) if part]

    def growth(self) -> list[str]:
        """What kept growing, or was never there, one sentence each."""
        found = []
        for name, allowed in ALLOWED.items():
            if not any(self.samples[name]):
                found.append(f"{name}: no sample has any")
                continue
            first, *rest = self.thirds(name)
            if len(rest) == 2 and rest[1] > allowed * max(first, rest[0]):
                found.append(f"{name} keep growing: {first:.0f}, then {rest[0]:.0f}, then {rest[1]:.0f}")
        return found

    def table(self) -> Table:
        table = Table(title="the median of each third of the time", title_justify="left")
        for column in ("", "first", "second", "last"):
            table.add_column(column, justify="right" if column else "left")
        for name in ALLOWED:
            table.add_row(name, *[f"{value:,.0f}" for value in self.thirds(name)])
        return table


def sizes(folder: Path, without: Collection[str] = ()) -> list[int]:
    """The sizes of all files below a folder, but for some folders in it. Files and folders may be deleted meanwhile."""
    found = []
    for place, folders, files in os.walk(folder):  # unlike Path.rglob, it passes over a folder that is gone
        if place == str(folder):
            folders[:] = [each for each in folders if each not in without]
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                found.append(os.stat(os.path.join(place, name)).st_size)
    return found
