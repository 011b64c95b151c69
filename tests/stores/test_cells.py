"""Cells: the envelope of format 1, alone and in columns."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DamagedObject
from holdfast.stores.cells import NEVER, NO_TIMESTAMP, Cell, pack, pack_many, unpack, unpack_many

_I64 = st.integers(-(2**63), 2**63 - 1)
_CELLS = st.lists(st.none() | st.builds(Cell, st.binary(max_size=20), _I64, _I64), max_size=10)


def test_format_1_reads_as_it_always_did() -> None:
    assert unpack(bytes.fromhex("0100000000000000070000000000000000616263")) == Cell(b"abc", timestamp=7, expires=NEVER)
    assert pack(Cell(b"")).hex() == "0180000000000000000000000000000000"
    assert pack(Cell(b"x", timestamp=-1, expires=2**40)).hex() == "01ffffffffffffffff000001000000000078"


@given(_CELLS)
def test_columns_give_what_single_cells_give(cells: list[Cell | None]) -> None:
    payloads = pa.array([None if cell is None else cell.payload for cell in cells], pa.binary())
    timestamps = pa.array([0 if cell is None else cell.timestamp for cell in cells], pa.int64())
    expires = pa.array([0 if cell is None else cell.expires for cell in cells], pa.int64())
    packed = pack_many(payloads, timestamps, expires)
    assert packed.to_pylist() == [None if cell is None else pack(cell) for cell in cells]
    for column in (packed, pa.concat_arrays([packed, packed]).slice(len(cells))):
        parts = unpack_many(column)
        for part in parts:
            part.validate(full=True)
        assert parts.payloads.to_pylist() == payloads.to_pylist()
        assert parts.timestamps.to_pylist() == [None if cell is None else cell.timestamp for cell in cells]
        assert parts.expires.to_pylist() == [None if cell is None else cell.expires for cell in cells]


def test_without_timestamp_and_expiry() -> None:
    assert unpack(pack_many(pa.array([b"a"]))[0].as_py()) == Cell(b"a", NO_TIMESTAMP, NEVER)
    some = pack_many(pa.array([b"a", b"b"]), pa.array([None, 5], pa.int64()), pa.array([9, None], pa.int64()))
    assert [unpack(each) for each in some.to_pylist()] == [Cell(b"a", NO_TIMESTAMP, 9), Cell(b"b", 5, NEVER)]


@pytest.mark.parametrize("data", [b"", b"\x01", pack(Cell(b"a"))[:16], b"\x02" + pack(Cell(b"abc"))[1:]])
def test_what_is_no_cell_is_never_a_value(data: bytes) -> None:
    with pytest.raises(DamagedObject):
        unpack(data)
    with pytest.raises(DamagedObject):
        unpack_many(pa.array([pack(Cell(b"fine")), data]))
    with pytest.raises(DamagedObject):
        unpack_many(pa.array([None, data]))
