"""The mark of a task's engines together, from their own marks."""

from collections.abc import Sequence

import pytest

from holdfast.instance.task_engines import task_mark
from holdfast.stores.engines.base import Mark
from holdfast.words import NOTHING, Version


def at(version: int, applying: int | None = None) -> Mark:
    ahead = {} if applying is None else {"applying": Version(applying), "applying_commit": f"c{applying}"}
    return Mark(Version(version), f"c{version}", "log-1", **ahead)  # type: ignore[arg-type]


EMPTY = Mark(NOTHING, "", "log-1", Version(3), "c3")


@pytest.mark.parametrize(
    ("marks", "together"),
    [
        ([], None),
        ([None, None], None),
        ([at(3), at(3)], at(3)),
        ([at(4), at(3)], at(3, 4)),
        ([at(3, 6), at(4)], at(3, 6)),
        ([at(3), None], EMPTY),
    ],
)
def test_the_smallest_mark_counts_and_higher_versions_are_still_being_applied(
    marks: Sequence[Mark | None], together: Mark | None
) -> None:
    assert task_mark([(mark, NOTHING) for mark in marks]) == together
