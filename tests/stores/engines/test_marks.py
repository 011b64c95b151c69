"""Marks: a family's mark as bytes, and the engine's mark from those of its families."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DamagedObject
from holdfast.stores.engines.base import (
    Mark,
    Resources,
    engine_mark,
    mark_after_changes,
    mark_before_changes,
    pack_mark,
    unpack_mark,
)
from holdfast.words import NOTHING, Version


def at(version: int, applying: int | None = None) -> Mark:
    return Mark(Version(version), f"c{version}", "log-1", None if applying is None else Version(applying))


def test_format_1_is_readable() -> None:
    assert unpack_mark(b'{"format":1,"version":7,"commit":"c7","log":"log-1","wall":0}') == at(7)
    assert unpack_mark(b'{"format":1,"version":7,"commit":"c7","log":"log-1","wall":0,"applying":9}') == at(7, 9)
    assert pack_mark(at(7, 9)) == b'{"format":1,"version":7,"commit":"c7","log":"log-1","wall":0,"applying":9}'


def test_format_1_with_the_clocks_of_its_commit() -> None:
    timed = replace(at(7), wall=1_700_000_000_123, event=1_700_000_000_000)
    stored = b'{"format":1,"version":7,"commit":"c7","log":"log-1","wall":1700000000123,"event":1700000000000}'
    assert (unpack_mark(stored), pack_mark(timed)) == (timed, stored)
    without = b'{"format":1,"version":7,"commit":"c7","log":"log-1","wall":5,"applying":9}'
    assert unpack_mark(without) == replace(at(7, 9), wall=5)


def test_an_engines_mark_has_the_clocks_of_its_version() -> None:
    seven, eight = replace(at(7), wall=70, event=7), replace(at(8), wall=80, event=8)
    assert engine_mark([eight, seven]) == replace(at(7, 8), wall=70, event=7)
    assert mark_before_changes(seven, eight) == replace(at(7, 8), wall=70, event=7)
    assert mark_after_changes(seven, eight) == eight


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format":2,"version":7,"commit":"c7","log":"log-1"}', b"\xff"])
def test_a_mark_that_cannot_be_read_is_damage(data: bytes) -> None:
    with pytest.raises(DamagedObject):
        unpack_mark(data)


def test_the_smallest_mark_counts_and_higher_versions_are_still_being_applied() -> None:
    assert engine_mark([]) is None
    assert engine_mark([None, None]) is None
    assert engine_mark([at(3), at(3)]) == at(3)
    assert engine_mark([at(4), at(3)]) == at(3, 4)
    assert engine_mark([at(3, 6), at(4)]) == at(3, 6)
    assert engine_mark([at(3), None]) == Mark(NOTHING, "", "log-1", Version(3))


@given(st.data())
def test_a_family_that_lost_its_last_writes_never_counts_as_complete(data: st.DataObject) -> None:
    """Two families get the same writes and each keeps a different prefix of them, several times over."""
    marks: list[Mark | None] = [None, None]
    values: list[dict[str, int]] = [{}, {}]  # key -> the version of its value
    last = 6

    def expected(version: int) -> dict[str, int]:
        # version v writes key "odd" or "even", and "all"
        return {
            key: newest
            for key, newest in (("all", version), ("odd", version - (version + 1) % 2), ("even", version - version % 2))
            if newest > 0
        }

    for _ in range(data.draw(st.integers(1, 4))):
        whole = engine_mark(marks)
        start = whole.version if whole else 0
        writes: list[tuple[str, object]] = []
        for version in range(start + 1, last + 1):
            writes.append(("mark", mark_before_changes(whole, at(version))))
            writes += [("put", (key, version)) for key in ("all", "odd" if version % 2 else "even")]
            whole = mark_after_changes(whole, at(version))
            writes.append(("mark", whole))
        for family in (0, 1):
            for kind, what in writes[: data.draw(st.integers(0, len(writes)))]:
                if kind == "mark":
                    assert isinstance(what, Mark)
                    marks[family] = what
                else:
                    assert isinstance(what, tuple)
                    values[family][what[0]] = what[1]
        found = engine_mark(marks)
        if found is not None and found.applying is None:
            assert values[0] == values[1] == expected(found.version)


def test_shared_parts_are_made_once() -> None:
    resources = Resources(5)
    made = [resources.shared(list, lambda size: [size]) for _ in range(2)]
    assert made == [[5], [5]]
    assert made[0] is made[1]
