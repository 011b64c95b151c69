"""Windows of numbers read at once: what one by one gives, or left to one by one; a damaged cell is never a number."""

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import HoldfastError
from holdfast.stores.codecs.numbers import FORMS
from holdfast.stores.formats import cells
from holdfast.stores.formats.cells import HEADER_BYTES, Cell
from holdfast.stores.kinds.keying import Row, time_bytes
from holdfast.stores.kinds.timednumbers import timed_numbers

WHOLE = st.integers(-(2**63), 2**64 - 1)
NARROW = st.sampled_from([st.integers(0, 127), st.integers(128, 255), st.integers(256, 65_535), st.integers(-9, -1)])
REAL = st.floats(allow_nan=False)


def rows_of(numbers: list[Any], times: list[int], after: bytes = b"") -> list[Row]:
    return [
        (b"\x01ann\x00\x00" + time_bytes(time) + after, cells.pack(Cell(msgspec.msgpack.encode(number))))
        for time, number in zip(times, numbers, strict=True)
    ]


@given(
    st.one_of(st.lists(WHOLE, max_size=9), NARROW.flatmap(lambda some: st.lists(some, max_size=9)), st.lists(REAL)),
    st.integers(0, 2**40),
    st.booleans(),
)
def test_numbers_at_once_are_those_one_by_one(numbers: list[Any], first: int, duplicates: bool) -> None:
    times = list(range(first, first + len(numbers)))
    forms = FORMS[float if numbers and isinstance(numbers[0], float) else int]
    rows = rows_of(numbers, times, time_bytes(7) if duplicates else b"")
    place = -16 if duplicates else -8
    for some, wanted in ((rows, list(zip(times, numbers, strict=True))), (rows[::-1], None)):
        found = timed_numbers(forms, place, HEADER_BYTES)(some)
        firsts = {msgspec.msgpack.encode(number)[:1] for number in numbers}
        if len(firsts) <= 1 or all(0 <= number < 128 for number in numbers):
            is_negative_fixint = bool(numbers) and isinstance(numbers[0], int) and -32 <= numbers[0] < 0
            assert (found is None) == is_negative_fixint, "numbers of one form are read at once"
        assert found is None or found == (wanted or list(zip(times, numbers, strict=True))[::-1])


def test_a_time_before_1970_is_left_to_others() -> None:
    assert timed_numbers(FORMS[int], -8, HEADER_BYTES)(rows_of([1, 2], [-1, 5])) is None


@given(st.lists(st.integers(256, 65_535), min_size=2, max_size=6), st.data())
def test_one_cell_that_is_no_such_number_leaves_all_to_others(numbers: list[int], data: st.DataObject) -> None:
    rows = rows_of(numbers, list(range(len(numbers))))
    at = data.draw(st.integers(0, len(rows) - 1))
    key, cell = rows[at]
    wrong = data.draw(
        st.sampled_from(
            [cell[:-1], cell + b"\x00", b"\x02" + cell[1:], cell[:HEADER_BYTES] + b"\xcc\x01", cell[:5], b"", b"\x01"]
        )
    )
    rows[at] = (key, wrong)
    assert timed_numbers(FORMS[int], -8, HEADER_BYTES)(rows) is None


@pytest.mark.parametrize("value", [int, float, bool])
def test_a_window_store_reads_them_as_its_type(value: type) -> None:
    bytes_ = hf.DictBytes()
    store: Any = hf.WindowStore("w", value=value, size="1m").bind(bytes_, hf.Now(wall=0, event=0))
    for n in range(5):
        store.put("ann", value(n * 500), n * 60_000)
    found = list(store.fetch("ann", from_=0, to=300_000))
    assert found == [(n * 60_000, value(n * 500)) for n in range(5)]
    assert {type(number) for _, number in found} == {value}
    key, cell = bytes_.entries.peekitem(2)
    bytes_.entries[key] = cell[:HEADER_BYTES] + struct.pack(">BH", 0xCD, 9)[:2]
    with pytest.raises(HoldfastError):
        list(store.fetch("ann", from_=0, to=300_000))


def test_a_whole_number_in_a_store_of_floats_becomes_one() -> None:
    bytes_ = hf.DictBytes()
    hf.WindowStore("w", value=int, size="1m").bind(bytes_, hf.Now(wall=0, event=0)).put("ann", 3, 0)
    store = hf.WindowStore("w", value=float, size="1m").bind(bytes_, hf.Now(wall=0, event=0))
    [(_, value)] = store.fetch("ann", from_=0, to=1)
    assert (value, type(value)) == (3.0, float)
