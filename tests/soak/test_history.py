"""What the versions of a soak say about its changes."""

from collections.abc import Sequence

import pytest

from tests.soak.history import Made, changes, runs


def made(*releases: str) -> list[Made]:
    return [Made(n + 1, n, release, 1) for n, release in enumerate(releases)]


def test_changes_are_those_between_two_versions() -> None:
    before = made("/continue", "levels/continue", "levels/start_over", "best/continue", "levels+copy/start_over")
    assert changes(before) == {
        "store added": 1,
        "store removed": 1,
        "store back, starts over": 1,
        "column added": 1,
        "column removed": 1,
        "sink added": 1,
    }
    assert changes(made("levels/continue", "/continue", "levels/continue"))["store back, continues"] == 1


@pytest.mark.parametrize(
    ("present", "continues", "expected"),
    [
        ("xx-xx", "-----", [1, 1, None, 2, 2]),
        ("xx-xx", "xxxxx", [1, 1, None, 1, 1]),
        ("--x-x", "xxx-x", [None, None, 1, None, 1]),
        ("x-x-x", "----x", [1, None, 2, None, 2]),
    ],
)
def test_a_part_that_comes_back_starts_over_or_continues(
    present: str, continues: str, expected: Sequence[int | None]
) -> None:
    assert runs([c == "x" for c in present], [c == "x" for c in continues]) == expected
