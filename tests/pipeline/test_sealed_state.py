"""A table's state with this version's changes over it equals a dictionary with the same changes."""

from itertools import islice

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.log.segments import STATE_SCHEMA
from holdfast.pipeline.sealed_state import FEW, SealedState
from holdfast.stores.access import DictBytes
from holdfast.stores.ranges import Ranges
from holdfast.testing.processor import StateInMemory

KEYS = st.integers(0, 9).map(lambda n: bytes([1, n]))
LIMITS = st.integers(1, 6)


def state_of(before: dict[bytes, bytes], changes: dict[bytes, bytes | None]) -> tuple[SealedState, DictBytes]:
    stored, expected = DictBytes(), DictBytes()
    for key, value in before.items():
        stored.put(key, value)
        expected.put(key, value)
    for key, change in changes.items():
        if change is None:
            expected.delete(key)
        else:
            expected.put(key, change)
    table = pa.table([list(changes), list(changes.values())], schema=STATE_SCHEMA)
    return SealedState(StateInMemory({"rows": stored}), table), expected


@given(
    st.dictionaries(KEYS, st.binary(max_size=3), min_size=3),
    st.dictionaries(KEYS, st.none() | st.binary(max_size=3), min_size=1),
    KEYS,
    st.none() | KEYS,
    LIMITS,
    st.booleans(),
)
def test_it_reads_as_if_the_changes_were_applied(
    before: dict[bytes, bytes],
    changes: dict[bytes, bytes | None],
    start: bytes,
    stop: bytes | None,
    limit: int,
    reverse: bool,
) -> None:
    state, expected = state_of(before, changes)
    keys = [bytes([1, n]) for n in range(10)]
    assert state.get("rows", pa.array(keys, pa.binary())).to_pylist() == expected.get_many(keys)
    many = keys * (FEW // len(keys) + 2)
    assert state.get("rows", pa.array(many, pa.binary())).to_pylist() == expected.get_many(many)
    found = state.scan("rows", start, stop, reverse=reverse, limit=limit).to_pylist()
    entries = list(islice(expected.scan(start, stop, reverse=reverse), limit))
    assert [(row["key"], row["value"]) for row in found] == entries
    ranges = [(b"\x01\x02", b"\x01\x05"), (b"\x01\x07", None)]
    rows = state.scan_many("rows", Ranges.of(ranges)).to_pylist()
    assert [(r["key"], r["value"]) for r in rows] == [each for span in ranges for each in expected.scan(*span)]
