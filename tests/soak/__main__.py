"""A soak: an app under load is killed, restarted while it runs, and changed, at random, for as long as you like.

    python -m tests.soak --minutes 30 [--seed 1] [--folder DIR]

For the last third of the time it is left alone, still under load. The soak ends with a comparison of every store and of
every row in the sinks' files with Spark SQL over the same input, and with the course of memory, open files, the log and
the state directory. It fails if a number is wrong, a process ends by itself or hangs, or something keeps growing. It
takes longer than the given minutes if by then not everything was done to the app once.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.soak.comparison import Compared
from tests.soak.course import Course
from tests.soak.deck import CARDS, CHANGES, HOW, dealt
from tests.soak.history import History, changes
from tests.soak.lives import Lives
from tests.soak.load import Load
from tests.soak.release import EVERYTHING

console = Console(width=None if sys.stdout.isatty() else 120)
ALONE = 1 / 3
"""The part of the time at the end in which the app is left alone."""


def soak(folder: Path, minutes: float, seed: int) -> bool:
    """Runs the soak; whether all is well."""
    console.print(f"soak of {minutes:g} minutes in {folder}, seed {seed}")
    stop, over = threading.Event(), threading.Event()
    load = Load(folder / "input", stop)
    lives = Lives(folder, random.Random(seed))
    history = History(folder / "base" / "soak" / "log" / "commits", lives.release_of, over)
    course = Course(folder, lambda: lives.life.process.pid, stop)
    _disturb(lives, history, course, load, minutes * 60, random.Random(seed))
    left = course.leftovers()
    stop.set()
    load.join()
    course.join()
    finished = lives.finish()
    over.set()
    history.join()
    history.look()
    (folder / "history.json").write_bytes(msgspec.json.encode(history.made()))
    compared = _compare(folder, lives) if finished else []
    lives.wrong += [*_uncovered(lives, history), *course.growth(), *left]
    _show(lives, history, course, compared)
    return not lives.wrong


def _disturb(lives: Lives, history: History, course: Course, load: Load, seconds: float, dice: random.Random) -> None:
    """The time under load: first everything is done to the app, then it is left alone."""
    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting", total=seconds)
        start = time.monotonic()

        def wait(length: float, what: str) -> None:
            until = time.monotonic() + length
            while (now := time.monotonic()) < until:
                text = f"{what}, {lives.count} lives, {load.files} files, {len(lives.wrong)} faults"
                progress.update(bar, description=text, completed=now - start)
                time.sleep(0.5)

        for number, card in enumerate(dealt(dice)):
            if number >= len(CARDS) and time.monotonic() - start > seconds * (1 - ALONE):
                break
            wait(dice.uniform(0, 8), f"next: {card}")
            lives.play(card, history)
        lives.stop()
        lives.start(EVERYTHING)
        lives.until_a_version(history)
        course.leave_alone()
        progress.update(bar, total=time.monotonic() - start + seconds * ALONE)
        wait(seconds * ALONE, "left alone")


def _compare(folder: Path, lives: Lives) -> list[Compared]:
    command = [sys.executable, "-m", "tests.soak.comparison", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lives.wrong.append(f"the comparison failed: {done.stderr[-3000:]}")
        return []
    found = msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=list[Compared])
    for each in (each for each in found if each.different):
        lives.wrong.append(f"{each.what}: {each.different} of {each.rows} differ, such as {'; '.join(each.examples)}")
    return found


def _uncovered(lives: Lives, history: History) -> list[str]:
    seen = changes(history.made())
    missing = [how for how in HOW if not lives.done[how]]
    missing += [what for what in CHANGES if not any(change.startswith(what) for change in seen)]
    return [f"never done: {what}" for what in missing]


def _show(lives: Lives, history: History, course: Course, compared: list[Compared]) -> None:
    drawn = Table(title="what was done to the app", title_justify="left")
    drawn.add_column("")
    drawn.add_column("times", justify="right")
    for name, times in sorted(lives.done.items()):
        drawn.add_row(name, str(times))
    drawn.add_section()
    for name, times in sorted(changes(history.made()).items()):
        drawn.add_row(f"{name}, in the log", str(times))
    table = Table(title="compared with Spark SQL", title_justify="left")
    for column in ("", "rows", "different"):
        table.add_column(column, justify="right" if column else "left")
    for each in compared:
        table.add_row(each.what, f"{each.rows:,}", f"{each.different:,}")
    console.print(drawn, course.table(), table)
    console.print(f"{len(history.made())} versions, {lives.count} lives")
    for line in lives.wrong:
        console.print(f"WRONG: {line}", style="red", markup=False)
    console.print("all is well" if not lives.wrong else f"{len(lives.wrong)} faults")


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
