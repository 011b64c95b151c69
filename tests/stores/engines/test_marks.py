"""Marks: what a family's mark looks like, and what the marks of all families say together."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DamagedObject
from holdfast.stores.engines.base import Mark, Resources, begun, ended, pack_mark, unpack_mark, whole_mark
from holdfast.words import NOTHING, Version


def at(version: int, applying: int | None = None) -> Mark:
    return Mark(Version(version), f"c{version}", "log-1", None if applying is None else Version(applying))


def test_format_1_reads_as_it_always_did() -> None:
    assert unpack_mark(b'{"format":1,"version":7,"commit":"c7","log":"log-1"}') == at(7)
    assert unpack_mark(b'{"format":1,"version":7,"commit":"c7","log":"log-1","applying":9}') == at(7, 9)
    assert pack_mark(at(7, 9)) == b'{"format":1,"version":7,"commit":"c7","log":"log-1","applying":9}'


def test_format_1_with_the_clocks_of_its_commit() -> None:
    timed = replace(at(7), wall=1_700_000_000_123, event=1_700_000_000_000)
    stored = b'{"format":1,"version":7,"commit":"c7","log":"log-1","wall":1700000000123,"event":1700000000000}'
    assert (unpack_mark(stored), pack_mark(timed)) == (timed, stored)
    without = b'{"format":1,"version":7,"commit":"c7","log":"log-1","applying":9,"wall":5}'
    assert unpack_mark(without) == replace(at(7, 9), wall=5)


def test_a_whole_mark_has_the_clocks_of_the_version_it_names() -> None:
    seven, eight = replace(at(7), wall=70, event=7), replace(at(8), wall=80, event=8)
    assert whole_mark([eight, seven]) == replace(at(7, 8), wall=70, event=7)
    assert begun(seven, eight) == replace(at(7, 8), wall=70, event=7)
    assert ended(seven, eight) == eight


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format":2,"version":7,"commit":"c7","log":"log-1"}', b"\xff"])
def test_a_mark_that_cannot_be_read_is_damage(data: bytes) -> None:
    with pytest.raises(DamagedObject):
        unpack_mark(data)


def test_the_smallest_counts_and_whatever_is_further_is_still_being_applied() -> None:
    assert whole_mark([]) is None
    assert whole_mark([None, None]) is None
    assert whole_mark([at(3), at(3)]) == at(3)
    assert whole_mark([at(4), at(3)]) == at(3, 4)
    assert whole_mark([at(3, 6), at(4)]) == at(3, 6)
    assert whole_mark([at(3), None]) == Mark(NOTHING, "", "log-1", Version(3))


@given(st.data())
def test_a_family_that_lost_the_end_of_its_writes_never_passes_for_whole(data: st.DataObject) -> None:
    """Two families get the same writes, and each keeps a prefix of its own; replay and lose again, some times."""
    marks: list[Mark | None] = [None, None]
    values: list[dict[str, int]] = [{}, {}]  # key -> the version whose value it holds
    last = 6

    def truth(version: int) -> dict[str, int]:
        # version v writes key "odd" or "even", and "all"
        return {
            key: newest
            for key, newest in (("all", version), ("odd", version - (version + 1) % 2), ("even", version - version % 2))
            if newest > 0
        }

    for _ in range(data.draw(st.integers(1, 4))):
        whole = whole_mark(marks)
        start = whole.version if whole else 0
        writes: list[tuple[str, object]] = []
        for version in range(start + 1, last + 1):
            writes.append(("mark", begun(whole, at(version))))
            writes += [("put", (key, version)) for key in ("all", "odd" if version % 2 else "even")]
            whole = ended(whole, at(version))
            writes.append(("mark", whole))
        for family in (0, 1):
            for kind, what in writes[: data.draw(st.integers(0, len(writes)))]:
                if kind == "mark":
                    assert isinstance(what, Mark)
                    marks[family] = what
                else:
                    assert isinstance(what, tuple)
                    values[family][what[0]] = what[1]
        found = whole_mark(marks)
        if found is not None and found.applying is None:
            assert values[0] == values[1] == truth(found.version)


def test_shared_parts_are_made_once() -> None:
    resources = Resources(5)
    made = [resources.shared(list, lambda size: [size]) for _ in range(2)]
    assert made == [[5], [5]]
    assert made[0] is made[1]
