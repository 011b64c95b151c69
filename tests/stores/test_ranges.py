"""Ranges as columns are the same as ranges of Python bytes."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.formats.key_order import SortedKeys
from holdfast.stores.formats.keys import after_prefix
from holdfast.stores.ranges import Ranges, after_prefixes, expanded

KEYS = st.lists(st.sampled_from([b"", b"\x00", b"a", b"b", b"\xff"]), max_size=5).map(b"".join)


@given(st.lists(KEYS, max_size=30), st.integers(0, 3))
def test_the_bytes_after_prefixes_are_those_of_each_prefix(prefixes: list[bytes], first: int) -> None:
    column = pa.array(prefixes, pa.binary()).slice(first)
    before = column.to_pylist()
    assert after_prefixes(column).to_pylist() == [after_prefix(prefix) for prefix in prefixes[first:]]
    assert column.to_pylist() == before


@given(st.lists(KEYS, max_size=30, unique=True), st.lists(st.tuples(KEYS, st.none() | KEYS), max_size=100))
def test_keys_within_ranges_are_found(keys: list[bytes], pairs: list[tuple[bytes, bytes | None]]) -> None:
    ranges = Ranges.of(pairs)
    assert ranges.pairs() == pairs
    places, numbers = expanded(*ranges.within(SortedKeys(pa.array(keys, pa.binary()))))
    assert list(zip(numbers.tolist(), [sorted(keys)[place] for place in places], strict=True)) == [
        (number, key)
        for number, (start, stop) in enumerate(pairs)
        for key in sorted(keys)
        if key >= start and (stop is None or key < stop)
    ]
