"""Thousands of seeds hold, a seed is always the same story, and every mutation is noticed."""

import os
import subprocess
import sys

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.run import SeedFailed, run
from tests.simulation.searching import caught, first_failure

SEEDS, PART = 2_000, 125


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_seeds_hold(first: int) -> None:
    if (failed := first_failure(range(first, first + PART))) is not None:
        raise failed


@pytest.mark.parametrize("seed", range(10, 15))
def test_the_same_seed_twice_takes_the_same_path(seed: int) -> None:
    assert run(seed) == run(seed)


def test_a_seed_takes_the_same_path_in_another_process() -> None:
    script = "from tests.simulation.run import run; print(*[run(seed).fingerprint for seed in range(10, 20)])"
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [run(seed).fingerprint for seed in range(10, 20)]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_every_mutation_is_noticed(mutation: Mutation) -> None:
    """The seed that noticed it last comes first, then as many as have to hold: a change of code changes all stories."""
    assert caught(mutation, (mutation.first, *range(SEEDS))) is not None


def test_a_seed_that_fails_tells_its_story_and_how_to_replay_it() -> None:
    mutation = next(each for each in MUTATIONS if each.name == "a batch is computed again")
    failed = caught(mutation, range(mutation.first, SEEDS))
    assert isinstance(failed, SeedFailed)
    assert f"python -m tests.simulation --seed {failed.seed}" in str(failed)
    assert " batch\n" in str(failed)
    with mutation.active(), pytest.raises(SeedFailed) as again:
        run(failed.seed)
    assert str(again.value) == str(failed)
