"""Searching for the first seed that fails, with or without a mutation."""

from collections.abc import Iterable

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
    with mutation.active():
        return first_failure(seeds)
