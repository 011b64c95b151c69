"""Searching for the first seed that fails, with or without a mutation."""

from collections.abc import Iterable

from tests.simulation.model import Violation
from tests.simulation.mutations import Mutation
from tests.simulation.run import SeedFailed, run


def first_failure(seeds: Iterable[int]) -> SeedFailed | None:
    for seed in seeds:
        try:
            run(seed)
        except SeedFailed as failed:
            return failed
    return None


def caught(mutation: Mutation, seeds: Iterable[int]) -> SeedFailed | None:
    """The first seed in which an invariant is broken. A mutation that only makes the code raise isn't noticed by it."""
    with mutation.active():
        for seed in seeds:
            failed = first_failure([seed])
            if failed is not None and isinstance(failed.__cause__, Violation):
                return failed
    return None
