"""How memory, the log and the state directory develop over the time of a soak."""

import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from rich.table import Table

from tests.soak.processes import of_kind, resident_mib

ALLOWED = {"objects in the log": 1.5, "MiB in the log": 1.5, "files of state": 1.5, "MiB of instances": 1.3}
"""How many times the largest value of the middle third the largest value of the last third may have."""


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
        log, state = _sizes(self._log), _sizes(self._state)
        self.samples["objects in the log"].append(len(log))
        self.samples["MiB in the log"].append(sum(log) / (1 << 20))
        self.samples["files of state"].append(len(state))
        self.samples["MiB of instances"].append(resident_mib(of_kind(pid, "instance")))

    def thirds(self, name: str) -> list[float]:
        """The largest value of each third of the time."""
        values = self.samples[name]
        third = max(1, len(values) // 3)
        return [max(part) for part in (values[:third], values[third : 2 * third], values[2 * third :]) if part]

    def growth(self) -> list[str]:
        """What kept growing, one sentence each."""
        found = []
        for name, allowed in ALLOWED.items():
            first, *rest = self.thirds(name)
            if len(rest) == 2 and rest[1] > allowed * max(first, rest[0]):
                found.append(f"{name} keep growing: at most {first:.0f}, then {rest[0]:.0f}, then {rest[1]:.0f}")
        return found

    def table(self) -> Table:
        table = Table(title="the largest value in each third of the time", title_justify="left")
        for column in ("", "first", "second", "last"):
            table.add_column(column, justify="right" if column else "left")
        for name in ALLOWED:
            table.add_row(name, *[f"{value:,.0f}" for value in self.thirds(name)])
        return table


def _sizes(folder: Path) -> list[int]:
    """The sizes of all files below a folder. A file may be deleted meanwhile."""
    sizes = []
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return sizes
