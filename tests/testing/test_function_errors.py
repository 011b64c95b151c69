"""Errors of a user's own functions speak of what the user wrote: the operator, its functions and the store."""

import re
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.errors import HoldfastError, TopologyError
from holdfast.testing import TestDriver
from tests.testing.test_driver import game, without_spark
from tests.testing.test_windows import one_task

__all__ = ["without_spark"]  # a fixture for all tests here


def unlucky(value: int, event: Any) -> int:
    points = event if isinstance(event, int) else event.points
    if points == 13:
        raise ValueError("unlucky")
    return value + int(points)


def merge(earlier: int, later: int) -> int:
    raise ValueError("unlucky")


def reduced(games: hf.Stream, on_error: Any) -> None:
    games.group_by().reduce(unlucky, of="points", on_error=on_error).store("sums")


def aggregated(games: hf.Stream, on_error: Any) -> None:
    games.group_by().aggregate_with(int, unlucky, value=int, on_error=on_error).store("sums")


def sessions(games: hf.Stream, on_error: Any) -> None:
    windowed = games.group_by().window(hf.session("10s", grace="1m"))
    windowed.aggregate_with(int, lambda value, event: 1, merger=merge, value=int, on_error=on_error).store("sums")


def sliding(games: hf.Stream, on_error: Any) -> None:
    windowed = games.group_by().window(hf.sliding("10s", grace="1m"))
    windowed.reduce(unlucky, of="points", on_error=on_error).store("sums").final()


def cogrouped(games: hf.Stream, on_error: Any) -> None:
    pairs = (games.group_by(), unlucky), (games.group_by(), unlucky)
    hf.cogroup(*pairs).aggregate_with(int, value=int, on_error=on_error).store("sums")


CASES = [
    (reduced, "reduce(unlucky) of the store 'sums'", "reduce"),
    (aggregated, "aggregate_with(int, unlucky) of the store 'sums'", "aggregate_with"),
    (sessions, "aggregate_with(int, <lambda>, merge) of the store 'sums'", "aggregate_with"),
    (sliding, "reduce(unlucky) of the store 'sums'", "reduce"),
    (cogrouped, "aggregate_with(int, unlucky, unlucky) of the store 'sums'", "aggregate_with"),
]


@pytest.mark.parametrize(("operator", "place", "name"), CASES, ids=[case[0].__name__ for case in CASES])
def test_an_error_names_the_operator_and_its_functions(operator: Any, place: str, name: str) -> None:
    app, games = one_task()
    operator(games, None)
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 0), game("ann", 1, 15)])
    with pytest.raises(HoldfastError, match=re.escape(f"{place} raised ValueError: unlucky (at ")) as failed:
        driver.pipe("games", [game("ann", 13, 7)])
    assert f'before {name}(), or use {name}(..., on_error="dead_letter")' in str(failed.value)
    assert "Fix the function" in str(failed.value) and "process()" not in str(failed.value)


@pytest.mark.parametrize(("operator", "place", "name"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_dead_letter_names_the_operator_and_its_functions(operator: Any, place: str, name: str) -> None:
    app, games = one_task()
    operator(games, "dead_letter")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 0), game("ann", 1, 15)])
    driver.pipe("games", [game("ann", 13, 7)])
    assert {letter["reason"].startswith(f"{place} raised ValueError") for letter in driver.dead_letters()} == {True}


class Wrong(msgspec.Struct):
    city: str


def of_wrong(value: int, event: Wrong) -> int:
    return value


def of_a_dict(value: int, event: dict[str, int]) -> int:
    return value


def wrong_parts(games: hf.Stream) -> dict[str, tuple[tuple[Any, ...], str]]:
    """Arguments of cogroup, after a right one, and what their error says."""
    _, others = one_task()
    grouped = games.group_by()
    return {
        "not a pair": (
            (grouped,),
            r"is not a pair of a grouped stream and a function\. Write hf\.cogroup\(\(a\.group_by",
        ),
        "three": (((grouped, unlucky, int),), "is not a pair"),
        "not grouped": (((games, unlucky),), "is a stream that is not grouped. Write"),
        "no stream": ((("games", unlucky),), "'games' is no grouped stream"),
        "windows": (((grouped.window(hf.tumbling("1m")), unlucky),), r"has windows already.*\.window\(\.\.\.\)"),
        "no function": (((grouped, 3),), "3 is not a function"),
        "arguments": (((grouped, lambda value: value),), r"can't be called as f\(value, record\)"),
        "another app": (((others.group_by(), unlucky),), "belong to different apps"),
        "another key": (((games.group_by("points"), unlucky),), "columns of the same types"),
        "no such column": (((grouped, of_wrong),), "Wrong.city has no column and no default"),
        "no class": (((grouped, of_a_dict),), "Annotate it with a msgspec.Struct or a dataclass"),
        "nothing": ((), "needs at least two streams, and got 1"),
    }


@pytest.mark.parametrize("case", wrong_parts(one_task()[1]))
def test_cogroup_checks_its_arguments(case: str) -> None:
    _, games = one_task()
    parts, message = wrong_parts(games)[case]
    with pytest.raises(TopologyError, match=message):
        hf.cogroup((games.group_by(), unlucky), *parts)
