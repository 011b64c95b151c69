"""Buckets: golden bytes, round trips, and bytes that are none."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DamagedObject
from holdfast.stores.formats.buckets import decode_buckets, encode_buckets

ROWS = st.lists(st.tuples(st.integers(-(2**62), 2**62), st.binary(max_size=5)), max_size=4)


def encoded(buckets: list[list[tuple[int, bytes]]], spilled: list[int]) -> pa.BinaryArray:
    rows = [row for bucket in buckets for row in bucket]
    return encode_buckets(
        np.array(spilled, dtype=np.int64),
        np.array([len(bucket) for bucket in buckets], dtype=np.int64),
        np.array([time for time, _ in rows], dtype=np.int64),
        pa.array([row for _, row in rows], pa.binary()),
    )


def test_golden_bytes() -> None:
    (bucket,) = encoded([[(1, b"ab"), (-2, b"c")]], [7]).to_pylist()
    assert bucket.hex() == "010700000002000000" + "0100000000000000feffffffffffffff" + "0200000001000000" + "616263"


@given(buckets=st.lists(ROWS, max_size=4), offset=st.integers(0, 3))
def test_what_is_written_is_read(buckets: list[list[tuple[int, bytes]]], offset: int) -> None:
    """Also in a part of a column, whose bytes begin somewhere else."""
    found = decode_buckets(encoded(buckets, list(range(len(buckets)))).slice(min(offset, len(buckets))), "a")
    kept = buckets[offset:]
    rows = [(n, time, row) for n, bucket in enumerate(kept) for time, row in bucket]
    everything = np.ones(len(rows), dtype=bool)
    read = zip(found.owners.tolist(), found.times.tolist(), found.rows(everything).to_pylist(), strict=True)
    assert list(read) == rows
    assert found.spilled.tolist() == list(range(len(buckets)))[offset:]


@given(data=st.binary(max_size=60), first=st.sampled_from([b"", b"\x01", b"\x01\x00\x00\x00\x00\x01\x00\x00\x00"]))
def test_other_bytes_are_an_error_or_a_bucket(data: bytes, first: bytes) -> None:
    try:
        found = decode_buckets(pa.array([first + data], pa.binary()), "a")
    except DamagedObject:
        return
    assert (found.stops <= len(first + data)).all() and (found.starts <= found.stops).all()


@pytest.mark.parametrize("cut", range(1, 36))
def test_a_bucket_that_was_cut_off_is_an_error(cut: int) -> None:
    (bucket,) = encoded([[(1, b"ab"), (-2, b"c")]], [7]).to_pylist()
    with pytest.raises(DamagedObject, match="a bucket of store 'pairs-left' can't be read"):
        decode_buckets(pa.array([bucket[:-cut]], pa.binary()), "pairs-left")
