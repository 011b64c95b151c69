"""Cells: the envelope of formats 1 and 2, alone and in columns."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DamagedObject, TopologyError
from holdfast.stores.formats.cells import NEVER, NO_TIMESTAMP, Cell, pack, pack_many, unpack, unpack_many

_I64 = st.integers(-(2**63), 2**63 - 1)
_CELLS = st.lists(st.none() | st.builds(Cell, st.binary(max_size=20), _I64, _I64), max_size=10)
_NUMBERED = st.lists(
    st.none() | st.builds(Cell, st.binary(max_size=20), _I64, _I64, st.integers(1, 3) | st.just(65535)), max_size=10
)
_NOT_NUMBERED = [pack(Cell(b"", schema=2))[:18], b"\x02\x00\x01" + bytes(16), b"\x02\x00\x00" + bytes(20)]
"""One that is too short, and two with a schema number that needs format 1."""


def test_format_1_never_changes() -> None:
    assert unpack(bytes.fromhex("0100000000000000070000000000000000616263")) == Cell(b"abc", timestamp=7, expires=NEVER)
    assert pack(Cell(b"")).hex() == "0180000000000000000000000000000000"
    assert pack(Cell(b"x", timestamp=-1, expires=2**40)).hex() == "01ffffffffffffffff000001000000000078"


def test_format_2_never_changes() -> None:
    golden = "02000200000000000000070000000000000000616263"
    assert unpack(bytes.fromhex(golden)) == Cell(b"abc", timestamp=7, expires=NEVER, schema=2)
    assert pack(Cell(b"abc", timestamp=7, schema=2)).hex() == golden
    assert pack(Cell(b"", schema=65535)).hex() == "02ffff80000000000000000000000000000000"
    assert pack_many(pa.array([b"x"]), pa.array([-1]), pa.array([2**40]), schema=3)[0].as_py().hex() == (
        "020003ffffffffffffffff000001000000000078"
    )


@pytest.mark.parametrize("schema", [0, -1, 65536])
def test_an_impossible_schema_number_is_rejected(schema: int) -> None:
    with pytest.raises(TopologyError, match="from 1 to 65535"):
        pack(Cell(b"a", schema=schema))
    with pytest.raises(TopologyError, match="from 1 to 65535"):
        pack_many(pa.array([b"a"]), schema=schema)


@given(_CELLS, st.integers(1, 65535))
def test_a_column_of_one_schema_is_packed_like_single_cells(cells: list[Cell | None], schema: int) -> None:
    packed = pack_many(pa.array([None if cell is None else cell.payload for cell in cells], pa.binary()), schema=schema)
    assert packed.to_pylist() == [None if cell is None else pack(Cell(cell.payload, schema=schema)) for cell in cells]


@given(_NUMBERED)
def test_a_column_may_have_cells_of_several_schemas(cells: list[Cell | None]) -> None:
    column = pa.array([None if cell is None else pack(cell) for cell in cells], pa.binary())
    for each in (column, pa.concat_arrays([column, column]).slice(len(cells))):
        parts = unpack_many(each)
        for part in parts:
            part.validate(full=True)
        rows = zip(*(part.to_pylist() for part in parts), strict=True)
        assert [None if row == (None,) * 4 else Cell(*row) for row in rows] == cells


@given(_CELLS)
def test_columns_give_the_same_bytes_as_single_cells(cells: list[Cell | None]) -> None:
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


def test_a_cell_may_have_no_timestamp_and_no_expiry() -> None:
    assert unpack(pack_many(pa.array([b"a"]))[0].as_py()) == Cell(b"a", NO_TIMESTAMP, NEVER)
    some = pack_many(pa.array([b"a", b"b"]), pa.array([None, 5], pa.int64()), pa.array([9, None], pa.int64()))
    assert [unpack(each) for each in some.to_pylist()] == [Cell(b"a", NO_TIMESTAMP, 9), Cell(b"b", 5, NEVER)]


@pytest.mark.parametrize(
    "data", [b"", b"\x01", pack(Cell(b"a"))[:16], b"\x03" + pack(Cell(b"abc"))[1:], *_NOT_NUMBERED]
)
def test_bytes_that_are_not_a_cell_are_an_error(data: bytes) -> None:
    with pytest.raises(DamagedObject):
        unpack(data)
    with pytest.raises(DamagedObject):
        unpack_many(pa.array([pack(Cell(b"fine")), data]))
    with pytest.raises(DamagedObject):
        unpack_many(pa.array([None, data]))
