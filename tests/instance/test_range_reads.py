"""Many ranges read at once are what a dictionary has in each of them."""

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.instance import range_reads
from holdfast.instance.keys_below import KeysBelow
from holdfast.instance.range_reads import IN_RANGES, read_ranges
from holdfast.instance.run import Run
from holdfast.stores.access import DictBytes
from holdfast.stores.formats import key_order
from holdfast.stores.ranges import Ranges
from holdfast.words import Version

SHORT = st.lists(st.sampled_from([b"\x00", b"\x01", b"a", b"b", b"\xff"]), min_size=1, max_size=3).map(b"".join)
KEYS = SHORT | SHORT.map(lambda key: b"\x02\x80\x00\x00\x00\x00\x00\x00\x07\x01" + key)
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=4), min_size=1, max_size=20)
RANGES = st.lists(st.tuples(KEYS | st.just(b""), st.none() | KEYS), max_size=20)


def run_of(entries: dict[bytes, bytes | None], version: int) -> Run:
    return Run(pa.array(list(entries), pa.binary()), pa.array(list(entries.values()), pa.binary()), Version(version))


@pytest.fixture(params=[(1, 1), (3, 1 << 20), (1 << 20, 20), (1 << 20, 1 << 20)], ids=str, scope="module")
def blocks(request: pytest.FixtureRequest) -> Iterator[None]:
    rows, size = request.param
    with patch.multiple(range_reads, BLOCK_ROWS=rows, BLOCK_BYTES=size, SENT_BYTES=max(1, size // 4)):
        yield


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("few", [0, 1_000])
@settings(deadline=None)
@given(
    versions=st.lists(CHANGES, max_size=5),
    engine=st.dictionaries(KEYS, st.binary(max_size=4), max_size=20),
    ranges=RANGES,
    in_order=st.booleans(),
)
def test_they_equal_a_model(
    few: int,
    versions: list[dict[bytes, bytes | None]],
    engine: dict[bytes, bytes],
    ranges: list[tuple[bytes, bytes | None]],
    in_order: bool,
) -> None:
    ranges = sorted(ranges, key=lambda each: each[0]) if in_order else ranges
    stored, model = DictBytes(), DictBytes()
    stored.entries.update(engine)
    model.entries.update(engine)
    for changes in versions:
        for key, value in changes.items():
            if value is None:
                model.delete(key)
            else:
                model.put(key, value)
    runs = [run_of(changes, number) for number, changes in enumerate(versions, start=1)][::-1]
    with patch.object(key_order, "_FEW", few):
        asked, below = Ranges.of(ranges), KeysBelow().adding(pa.array(list(engine), pa.binary()))
        batches = read_ranges(runs, asked, below.may_have_in(asked), lambda *each: list(stored.scan(*each)))
        found = pa.Table.from_batches(batches, IN_RANGES)
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (number, key, value)
        for number, (start, stop) in enumerate(ranges)
        if stop is None or start < stop
        for key, value in model.scan(start, stop)
    ]


def test_blocks_have_a_bounded_size() -> None:
    entries: dict[bytes, bytes | None] = {b"%05d" % number: bytes(1_000) for number in range(50_000)}
    ranges = Ranges.of((key, key + b"\x00") for key in entries)
    for below in (False, True):
        batches = list(read_ranges([run_of(entries, 1)], ranges, np.full(len(ranges), below), lambda *_: ()))
        assert max(batch.nbytes for batch in batches) <= range_reads.SENT_BYTES
        assert pa.Table.from_batches(batches)["key"].to_pylist() == list(entries)
