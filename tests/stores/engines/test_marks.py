"""Marks: a family's mark as bytes, and the engine's mark from those of its families."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DamagedObject
from holdfast.stores.engines.base import (
    Mark,
    Resources,
    mark_after_changes,
    mark_before_changes,
)
from holdfast.stores.engines.family_marks import FamilyMark, combined, pack_mark, unpack_mark
from holdfast.words import NOTHING, Version


def at(version: int, applying: int | None = None) -> Mark:
    ahead = {} if applying is None else {"applying": Version(applying), "applying_commit": f"c{applying}"}
    return Mark(Version(version), f"c{version}", "log-1", **ahead)  # type: ignore[arg-type]


def test_format_1_is_readable() -> None:
    stored = b'{"format":1,"version":7,"commit":"c7","log":"log-1","wall":0,"changed":{"counts":5,"names":0}}'
    found = FamilyMark(at(7), {"counts": Version(5), "names": NOTHING})
    assert (unpack_mark(stored), pack_mark(found)) == (found, stored)
    applying = (
        b'{"format":1,"version":7,"commit":"c7","log":"log-1","wall":0,"changed":{},'
        b'"applying":9,"applying_commit":"c9"}'
    )
    assert (unpack_mark(applying), pack_mark(FamilyMark(at(7, 9)))) == (FamilyMark(at(7, 9)), applying)


def test_format_1_with_the_clocks_of_its_commit() -> None:
    timed = FamilyMark(replace(at(7), wall=1_700_000_000_123, event=1_700_000_000_000))
    stored = (
        b'{"format":1,"version":7,"commit":"c7","log":"log-1","wall":1700000000123,"changed":{},"event":1700000000000}'
    )
    assert (unpack_mark(stored), pack_mark(timed)) == (timed, stored)


def test_an_engines_mark_has_the_clocks_of_its_version() -> None:
    seven, eight = replace(at(7), wall=70, event=7), replace(at(8), wall=80, event=8)
    assert mark_before_changes(seven, eight) == replace(at(7, 8), wall=70, event=7)
    assert mark_after_changes(seven, eight) == eight


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format":2,"version":7,"commit":"c7","log":"log-1"}', b"\xff"])
def test_a_mark_that_cannot_be_read_is_damage(data: bytes) -> None:
    with pytest.raises(DamagedObject):
        unpack_mark(data)


def test_a_family_that_no_mark_knows_makes_the_engine_start_over() -> None:
    old = FamilyMark(at(3), {"a": Version(3)})
    assert combined({"a": None}, None) is None
    assert combined({"a": old, "new": None}, old) == FamilyMark(
        Mark(NOTHING, "", "log-1", Version(3), "c3"), {"a": NOTHING, "new": NOTHING}
    )


FAMILIES = ("a", "b", "c")
LAST = 7


@given(st.data())
def test_a_family_that_lost_its_last_writes_never_counts_as_complete(data: st.DataObject) -> None:
    """Each family keeps a different prefix of its writes, several times over; versions are applied in groups."""
    subsets = st.sets(st.sampled_from(FAMILIES))
    changes = {version: data.draw(subsets) for version in range(1, LAST + 1)}
    marks: dict[str, FamilyMark | None] = dict.fromkeys((*FAMILIES, ENGINE))
    values = dict.fromkeys(FAMILIES, 0)  # the version of each family's value
    for _ in range(data.draw(st.integers(1, 5))):
        writes = writes_of(marks, changes, data)
        for family, own in writes.items():
            for write in own[: data.draw(st.integers(0, len(own)))]:
                if isinstance(write, FamilyMark):
                    marks[family] = write
                else:
                    values[family] = write
        found = combined({family: marks[family] for family in FAMILIES}, marks[ENGINE])
        expected = {
            family: max(
                (v for v in range(1, LAST + 1) if family in changes[v] and found and v <= found.mark.version), default=0
            )
            for family in FAMILIES
        }
        if found is not None and found.mark.applying is None:
            assert values == expected
        elif found is not None:
            assert all(expected[family] <= values[family] <= (found.mark.applying or 0) for family in FAMILIES)


ENGINE = "the engine itself"


def writes_of(
    marks: dict[str, FamilyMark | None], changes: dict[int, set[str]], data: st.DataObject
) -> dict[str, list[FamilyMark | int]]:
    """What an engine with these marks writes to each family until the last version, as RocksDB's does."""
    writes: dict[str, list[FamilyMark | int]] = {family: [] for family in marks}
    found = combined({family: marks[family] for family in FAMILIES}, marks[ENGINE])
    before, last_changes = (None, dict.fromkeys(FAMILIES, NOTHING)) if found is None else (found.mark, found.changed)
    start = 0 if before is None else data.draw(st.integers(max(0, before.version - 1), before.version))
    while start < LAST:
        version = data.draw(st.integers(start + 1, min(LAST, start + 3)))
        applying = FamilyMark(mark_before_changes(before, at(version)), last_changes)
        touched = {
            family: max(v for v in group if family in changes[v])
            for group in [range(start + 1, version + 1)]
            for family in FAMILIES
            if any(family in changes[v] for v in group)
        }
        for family, newest in touched.items():
            writes[family] += [applying, newest]
        before = mark_after_changes(before, at(version))
        last_changes = {**last_changes, **dict.fromkeys(touched, Version(version))}
        for family in (*touched, ENGINE):
            writes[family].append(FamilyMark(before, last_changes))
        start = version
    return writes


def test_shared_parts_are_made_once() -> None:
    resources = Resources(5)
    made = [resources.shared(list, lambda size: [size]) for _ in range(2)]
    assert made == [[5], [5]]
    assert made[0] is made[1]
