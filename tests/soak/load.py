"""The load of the soak: a thread that writes files of records until it is stopped."""

import threading
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from tests.apps import write
from tests.soak.app import RECORD

PLAYERS, LEVELS, ROWS = 5_000, 20, 500
EVERY = 0.5
"""Seconds between two files."""


class Load(threading.Thread):
    """Writes a file of records twice per second."""

    def __init__(self, folder: Path, stop: threading.Event) -> None:
        super().__init__(name="load", daemon=True)
        self._folder = folder
        self._stop_asked = stop
        self._dice = np.random.default_rng(3)
        self.files = 0
        self._write()
        self.start()

    def run(self) -> None:
        while not self._stop_asked.wait(EVERY):
            self._write()

    def _write(self) -> None:
        now = datetime.now(UTC)
        drawn = self._dice.integers(0, [PLAYERS, LEVELS, 100], (ROWS, 3)).tolist()
        rows = [{"player": f"player-{p}", "level": level, "points": points, "at": now} for p, level, points in drawn]
        write(self._folder, self.files, rows, RECORD)
        self.files += 1
