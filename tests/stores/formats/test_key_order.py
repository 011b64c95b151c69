"""Whole columns of keys are sorted and searched as Python sorts and searches bytes."""

from bisect import bisect_left
from itertools import product
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.stores.formats import key_order as orders
from holdfast.stores.formats.key_order import SortedKeys, SoughtKeys, key_order

FEW_BYTES = st.sampled_from([b"", b"\x00", b"\x01", b"a", b"\xff"])
KEYS = st.one_of(
    st.binary(max_size=20),
    st.lists(FEW_BYTES, max_size=30).map(b"".join),
    st.tuples(st.sampled_from([b"12345678", b"123456789abcdef0", b""]), st.integers(0, 3)).map(
        lambda each: each[0] + bytes(each[1])
    ),
)
COLUMNS = st.lists(KEYS, max_size=60)


def column(keys: list[bytes], *, sliced: bool) -> pa.BinaryArray:
    return (
        pa.array([b"before", *keys, b"after"], pa.binary()).slice(1, len(keys))
        if sliced
        else pa.array(keys, pa.binary())
    )


@given(COLUMNS, st.booleans())
def test_keys_are_sorted_as_bytes(keys: list[bytes], sliced: bool) -> None:
    order = key_order(column(keys, sliced=sliced)).tolist()
    assert sorted(order) == list(range(len(keys)))
    assert [keys[n] for n in order] == sorted(keys)


@pytest.mark.parametrize(("few", "dense"), [(0, 1), (0, 4), (0, 1_000), (1_000, 64)])
@settings(deadline=None)
@given(keys=COLUMNS, limits=COLUMNS, in_order=st.booleans(), sliced=st.booleans())
def test_limits_are_found_as_a_bisection_finds_them(
    few: int, dense: int, keys: list[bytes], limits: list[bytes], in_order: bool, sliced: bool
) -> None:
    limits = sorted(limits) if in_order else limits
    with patch.object(orders, "_FEW", few), patch.object(orders, "_DENSE", dense):
        found = SortedKeys(column(keys, sliced=sliced)).first_at_least(SoughtKeys(column(limits, sliced=sliced)))
    assert found.tolist() == [bisect_left(sorted(keys), limit) for limit in limits]


def test_all_short_keys_of_three_bytes_are_in_order() -> None:
    every = [bytes(each) for length in range(5) for each in product(b"\x00\x01\xff", repeat=length)]
    padded = [b"\x02\x80\x00\x00\x00\x00\x00" + key for key in every]
    keys = SortedKeys(pa.array(padded[::-1], pa.binary()))
    assert [padded[::-1][n] for n in keys.order] == sorted(padded)
    found = keys.first_at_least(SoughtKeys(pa.array(padded, pa.binary())))
    assert found.tolist() == [sorted(padded).index(key) for key in padded]
