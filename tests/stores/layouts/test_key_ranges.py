"""The ranges of many keys as columns are those of each key alone."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.access import BytesAsColumns, DictBytes
from holdfast.stores.formats.times import time_bytes
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.key_ranges import ranges_of_keys
from holdfast.stores.layouts.slices import slice_prefix
from holdfast.stores.layouts.timed import AFTER_TIME, AFTER_TIMES, NEWEST, number_note
from holdfast.stores.spec import StoreSpec

SPEC = StoreSpec(name="s", key=Schema.of(k="string"), codec="msgpack/1", retention_ms=80, slice_ms=10)
SPANS = st.dictionaries(st.text("ab", max_size=9), st.tuples(st.integers(-40, 40), st.integers(0, 30)), max_size=12)


@pytest.mark.parametrize("lead", [b"", b"\x00"])
@given(spans=SPANS, newest=st.none() | st.integers(-3, 5), is_open=st.booleans())
def test_they_are_those_of_each_key(
    lead: bytes, spans: dict[str, tuple[int, int]], newest: int | None, is_open: bool
) -> None:
    store = DictBytes()
    if newest is not None:
        store.put(NEWEST, number_note(newest))
    keys = [b"\x01" + text.encode() + b"\x00\x00" for text in spans]
    earliest = np.array([first for first, _ in spans.values()], dtype=np.int64)
    latest = earliest + np.array([length for _, length in spans.values()], dtype=np.int64)
    found = ranges_of_keys(
        SPEC, BytesAsColumns(store), pa.array(keys, pa.binary()), earliest, None if is_open else latest, lead=lead
    )
    expected = []
    for key, first, last in zip(keys, earliest.tolist(), latest.tolist(), strict=True):
        after = AFTER_TIMES if is_open else time_bytes(last) + AFTER_TIME
        until = -100 if newest is None else newest if is_open else min(newest, last // SPEC.slice_ms)
        prefixes = [slice_prefix(number) + lead + key for number in range(first // SPEC.slice_ms, until + 1)]
        expected += [(prefix + time_bytes(first), prefix + after) for prefix in prefixes]
    assert found.pairs() == sorted(expected)
