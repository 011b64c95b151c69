"""A soak: an app under load is killed, restarted while it runs, and changed, at random, for as long as you like.

    python -m tests.soak --minutes 30 [--seed 1] [--folder DIR]

It ends with a comparison against Spark SQL over the same input, and with the course of memory, log and state over time.
It fails if a number is wrong, a process ends by itself, or memory, the log or the state directory keep growing.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.soak.app import RELEASES, Verdict
from tests.soak.course import Course
from tests.soak.load import Load
from tests.soak.processes import kill, of_kind

console = Console(width=None if sys.stdout.isatty() else 120)
LONGEST_START, LONGEST_STOP = 180, 90
"""Seconds after which a process that should run, or that should have ended, counts as hanging."""


@dataclass
class Life:
    """One process of the app."""

    process: subprocess.Popen[bytes]
    release: str
    errors: Path
    running: Path
    """Exists once the app runs."""
    started: float = field(default_factory=time.monotonic)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def last_words(self) -> str:
        return self.errors.read_text(errors="replace")[-1500:]


class Soak:
    """The soak: what runs now, what was done to it, and what went wrong."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.dice = random.Random(seed)
        self.lives = 0
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.life = self._start("first")

    def _start(self, release: str, *options: str) -> Life:
        self.lives += 1
        errors = self.folder / f"life-{self.lives:03d}-{release}.txt"
        running = errors.with_suffix(".running")
        with errors.open("wb") as stderr:
            command = [sys.executable, "-m", "tests.soak.app", str(self.folder), release, str(running), *options]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr)
        return Life(process, release, errors, running)

    def act(self) -> str:
        """Does one thing to the app, at random. Most apps run by then; some are still starting."""
        if self.dice.random() < 0.8:
            self._wait_until_running()
        if self.life.ended:
            self.wrong.append(f"life {self.lives} ended by itself: {self.life.last_words()}")
            self.life = self._start(self.life.release)
            return "restart"
        action = self.dice.choice(
            ["kill driver", "kill jvm", "kill instance", "kill worker", "stop", "overlap", "change", "change", "none"]
        )
        match action.split():
            case ["kill", kind]:
                self._kill(kind)
            case ["stop"]:
                self._stop()
                self.life = self._start(self.life.release)
            case ["overlap"]:
                self._overlap()
            case ["change"]:
                self._stop()
                self.life = self._start(self.dice.choice(sorted(RELEASES)))
        self.done[action] += 1
        return action

    def _kill(self, kind: str) -> None:
        found = of_kind(self.life.process.pid, kind)
        if found and kill(self.dice.choice(found)) and kind in ("driver", "jvm"):
            self._wait(self.life, f"after kill {kind}")
            self.life = self._start(self.life.release)

    def _wait_until_running(self) -> None:
        while not self.life.ended and not self.life.running.exists():
            if time.monotonic() - self.life.started > LONGEST_START:
                self.wrong.append(f"{self.life.errors.name} isn't running after {LONGEST_START} s")
                return
            time.sleep(0.2)

    def _overlap(self) -> None:
        """A second driver starts while the first one runs. The first one has to end, and the second one to run."""
        old = self.life
        self.life = self._start(self.dice.choice([old.release, self.dice.choice(sorted(RELEASES))]))
        self._wait_until_running()
        self._wait(old, "although another driver has taken over")

    def _stop(self) -> None:
        self.life.process.send_signal(signal.SIGTERM)
        self._wait(self.life, "after SIGTERM")

    def _wait(self, life: Life, when: str) -> None:
        try:
            life.process.wait(LONGEST_STOP)
        except subprocess.TimeoutExpired:
            self.wrong.append(f"{life.errors.name} still runs {LONGEST_STOP} s {when}: {life.last_words()}")
            for pid in [*of_kind(life.process.pid, "jvm"), life.process.pid]:
                kill(pid)
            life.process.wait()

    def finish(self) -> Verdict:
        """Processes the rest of the input and returns the verdict."""
        self._stop()
        life = self._start(self.life.release, "--finish")
        out, _ = life.process.communicate(timeout=900)
        if life.process.returncode:
            self.wrong.append(f"the last life failed: {life.last_words()}")
            return Verdict()
        return msgspec.json.decode(out.strip().splitlines()[-1], type=Verdict)


def soak(folder: Path, minutes: float, seed: int) -> bool:
    """Runs the soak; whether all is well."""
    console.print(f"soak of {minutes:g} minutes in {folder}, seed {seed}")
    stop = threading.Event()
    load = Load(folder / "input", stop)
    run = Soak(folder, seed)
    course = Course(folder, lambda: run.life.process.pid, stop)
    end = time.monotonic() + minutes * 60
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting", total=minutes * 60)
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, run.dice.uniform(5, 25)))
            text = f"{run.act()}, {run.lives} lives, {load.files} files"
            progress.update(bar, description=text, completed=minutes * 60 - (end - time.monotonic()))
    stop.set()
    load.join()
    course.join()
    verdict = run.finish()
    run.wrong += [*verdict.wrong, *course.growth()]
    _show(run, course, verdict)
    return not run.wrong


def _show(run: Soak, course: Course, verdict: Verdict) -> None:
    table = Table(title="what was done", title_justify="left")
    table.add_column("action")
    table.add_column("times", justify="right")
    for action, times in sorted(run.done.items()):
        table.add_row(action, str(times))
    console.print(table, course.table())
    console.print(f"version {verdict.version}, {verdict.keys} keys, {run.lives} lives")
    for line in run.wrong:
        console.print(f"WRONG: {line}", style="red")
    console.print("all is well" if not run.wrong else f"{len(run.wrong)} faults")


def main() -> None:
    parser = argparse.ArgumentParser(description="An app under load is killed, restarted and changed at random.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="holdfast-soak-"))
    sys.exit(0 if soak(folder, options.minutes, options.seed) else 1)


if __name__ == "__main__":
    main()
