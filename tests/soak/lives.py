"""The processes of a soak's app: one at a time, two while they overlap."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.deck import Card
from tests.soak.history import History
from tests.soak.processes import kill, of_kind
from tests.soak.release import Release

LONGEST_START, LONGEST_STOP, LONGEST_BATCH = 300, 120, 300
"""Seconds after which a process that should run, have ended or have made a version counts as hanging."""
LONGEST_REST = 1800


@dataclass
class Life:
    """One process of the app."""

    process: subprocess.Popen[bytes]
    release: Release
    errors: Path
    running: Path
    """Exists once the app runs."""
    started: float = field(default_factory=time.monotonic)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def last_words(self) -> str:
        return self.errors.read_text(errors="replace")[-1500:]


class Lives:
    """What runs now, what was done to it, and what went wrong."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self._folder, self._dice = folder, dice
        self._releases: dict[int, Release] = {}
        self.count = 0
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.life = self.start(Release())

    def start(self, release: Release, *options: str) -> Life:
        self.count += 1
        errors = self._folder / f"life-{self.count:03d}.txt"
        running = errors.with_suffix(".running")
        with errors.open("wb") as stderr:
            command = [sys.executable, "-m", "tests.soak.app", str(self._folder), str(release), str(running), *options]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
        self._releases[process.pid] = release
        self.life = Life(process, release, errors, running)
        return self.life

    def release_of(self, pid: int) -> Release:
        return self._releases[pid]

    def play(self, card: Card, history: History) -> None:
        """Does what the card says. Changes wait until the release before has made a version."""
        if card.change:
            self.until_a_version(history)
        elif self._dice.random() < 0.8:
            self.until_running()
        if self.life.ended:
            self.wrong.append(f"{self.life.errors.name} ended by itself: {self.life.last_words()}")
            self.start(self.life.release)
            return
        release = self.life.release.changed(card.change, self._dice.choice(["continue", "start_over"]))
        match card.how:
            case "stop":
                self.stop()
                self.start(release)
            case "overlap":
                self._overlap(release)
            case "kill starting driver":
                self.stop()
                self.start(release)
                time.sleep(self._dice.uniform(1, 12))
                self._kill("driver", release)
            case how:
                self._kill(how.partition(" ")[2], release)
        self.done[card.how] += 1

    def _kill(self, kind: str, release: Release) -> None:
        deadline = time.monotonic() + LONGEST_BATCH
        while not (found := of_kind(self.life.process.pid, kind)):  # workers come with the first batch
            if self.life.ended or time.monotonic() > deadline:
                self.wrong.append(f"{self.life.errors.name} has no {kind}: {self.life.last_words()}")
                return
            time.sleep(0.2)
        kill(self._dice.choice(found))
        if kind in ("driver", "jvm"):
            self._wait(self.life, f"after kill {kind}")
            self.start(release)

    def until_running(self) -> None:
        life = self.life
        while not life.ended and not life.running.exists():
            if time.monotonic() - life.started > LONGEST_START:
                self.wrong.append(f"{life.errors.name} isn't running after {LONGEST_START} s: {life.last_words()}")
                return
            time.sleep(0.2)

    def until_a_version(self, history: History) -> None:
        self.until_running()
        life, since = self.life, time.monotonic()
        while not life.ended and not history.made_by(life.process.pid):
            if time.monotonic() - since > LONGEST_BATCH:
                self.wrong.append(f"{life.errors.name} made no version in {LONGEST_BATCH} s: {life.last_words()}")
                return
            time.sleep(0.2)

    def _overlap(self, release: Release) -> None:
        """A second driver starts while the first one runs. The first one has to end, and the second one to run."""
        old = self.life
        self.start(release)
        self.until_running()
        self._wait(old, "although another driver has taken over")
        # Spark's workers may write more after it.
        if old.running.exists() and "has taken over" not in old.errors.read_text(errors="replace"):
            self.wrong.append(f"{old.errors.name} ended without the winner's name: {old.last_words()}")

    def stop(self) -> None:
        self.life.process.send_signal(signal.SIGTERM)
        self._wait(self.life, "after SIGTERM")

    def _wait(self, life: Life, when: str, seconds: float = LONGEST_STOP) -> None:
        try:
            life.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.wrong.append(f"{life.errors.name} still runs {seconds} s {when}: {life.last_words()}")
            for pid in [*of_kind(life.process.pid, "jvm"), life.process.pid]:
                kill(pid)
            life.process.wait()

    def finish(self) -> bool:
        """Processes the rest of the input in one more life; whether it worked."""
        self.stop()
        life = self.start(self.life.release, "--finish")
        self._wait(life, "and should have processed the rest of the input", LONGEST_REST)
        if life.process.returncode:
            self.wrong.append(f"the last life failed: {life.last_words()}")
        return not life.process.returncode
