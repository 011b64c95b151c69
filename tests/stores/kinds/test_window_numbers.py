"""Windows of numbers: read as the store's type; a damaged cell is never a number."""

import struct
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import HoldfastError
from holdfast.stores.formats.cells import HEADER_BYTES


@pytest.mark.parametrize("value", [int, float, bool])
def test_a_window_store_reads_numbers_as_its_type(value: type) -> None:
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


def test_an_int_in_a_store_of_floats_becomes_a_float() -> None:
    bytes_ = hf.DictBytes()
    hf.WindowStore("w", value=int, size="1m").bind(bytes_, hf.Now(wall=0, event=0)).put("ann", 3, 0)
    store = hf.WindowStore("w", value=float, size="1m").bind(bytes_, hf.Now(wall=0, event=0))
    [(_, value)] = store.fetch("ann", from_=0, to=1)
    assert (value, type(value)) == (3.0, float)
