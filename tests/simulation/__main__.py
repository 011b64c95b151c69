"""`python -m tests.simulation`: runs many seeds, tells the story of one, or searches for what catches each mutation."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.simulation.mutations import MUTATIONS
from tests.simulation.run import Outcome, SeedFailed, run
from tests.simulation.searching import caught

_AT_ONCE = 25
_MOST = 2_000
"""Within this many seeds each mutation has to be caught."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run one seed and tell its story")
    parser.add_argument("--mutations", action="store_true", help="search for the first seed that catches each mutation")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="how many processes to use")
    given = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    if given.seed is not None:
        return _tell(given.seed, console)
    failed = _run_many(range(given.first, given.first + given.seeds), given.workers, console)
    if given.mutations and not failed:
        failed = _search(given.workers, console)
    return 1 if failed else 0


def _tell(seed: int, console: Console) -> int:
    try:
        outcome = run(seed, tell=lambda line: console.print(line, markup=False, highlight=False))
    except SeedFailed as failed:
        console.print(str(failed), markup=False, highlight=False)
        return 1
    console.print(f"seed {seed} holds: {outcome.steps} steps, {outcome.versions} versions, {outcome.fingerprint}")
    return 0


def _attempt(seeds: Iterable[int]) -> tuple[list[Outcome], list[str]]:
    done: list[Outcome] = []
    failures: list[str] = []
    for seed in seeds:
        try:
            done.append(run(seed))
        except SeedFailed as failed:
            failures.append(str(failed))
    return done, failures


def _run_many(seeds: range, workers: int, console: Console) -> int:
    parts = [seeds[start : start + _AT_ONCE] for start in range(0, len(seeds), _AT_ONCE)]
    faults: Counter[str] = Counter()
    steps = versions = failed = 0
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress, ProcessPoolExecutor(workers) as pool:
        bar = progress.add_task("seeds", total=len(seeds))
        for part, (done, failures) in zip(parts, pool.map(_attempt, parts), strict=True):
            for outcome in done:
                faults.update(outcome.faults)
                steps, versions = steps + outcome.steps, versions + outcome.versions
            for story in failures:
                console.print(story, markup=False, highlight=False)
            failed += len(failures)
            progress.advance(bar, len(part))
    table = Table("fault", "times", "per seed", title=f"{len(seeds)} seeds, {steps} steps, {versions} versions")
    for fault, times in [*faults.most_common(), ("all", faults.total())]:
        table.add_row(fault, str(times), f"{times / max(1, len(seeds)):.2f}")
    console.print(table)
    if failed:
        console.print(f"{failed} seeds failed")
    return failed


def _search_one(number: int) -> tuple[int, str]:
    failed = caught(MUTATIONS[number], range(_MOST))
    return (-1, "not caught") if failed is None else (failed.seed, str(failed.cause))


def _search(workers: int, console: Console) -> int:
    table = Table("mutation", "caught by seed", "because", title="mutations")
    missed = 0
    with ProcessPoolExecutor(workers) as pool:
        found = pool.map(_search_one, range(len(MUTATIONS)))
        for mutation, (seed, why) in zip(MUTATIONS, found, strict=True):
            missed += seed < 0
            table.add_row(mutation.name, str(seed), why)
    console.print(table)
    return missed


if __name__ == "__main__":
    sys.exit(main())
