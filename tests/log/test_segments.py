"""Segments: parts one after the other, each found and verified by itself."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.log.segments import DEAD, OUTPUT, STATE, STATE_SCHEMA, BadSegment, open_part, seal
from tests.log.making import changes

ROWS = st.dictionaries(st.binary(max_size=20), st.none() | st.binary(max_size=50), max_size=30)


@given(st.lists(ROWS, max_size=4), st.sampled_from(["lz4", "zstd", None]))
def test_every_part_comes_back_from_its_own_bytes(stores: list[dict[bytes, bytes | None]], compression: str) -> None:
    tables = [changes(rows) for rows in stores]
    sealed = seal([(STATE, str(n), table) for n, table in enumerate(tables)], compression=compression)  # type: ignore[arg-type]
    end = 0
    for part, table in zip(sealed.parts, tables, strict=True):
        assert (part.offset, part.rows) == (end, table.num_rows)
        end = part.offset + part.length
        assert open_part(sealed.data[part.offset : end], part, place="here") == table
    assert end == len(sealed.data)


def test_a_part_can_be_written_in_batches() -> None:
    batches = changes({b"a": b"1", b"b": None, b"c": b"3"}).to_batches(max_chunksize=1)
    sealed = seal([(STATE, "s", batches)])
    assert sealed.parts[0].rows == 3
    assert open_part(sealed.data, sealed.parts[0], place="here") == pa.Table.from_batches(batches)


def test_a_state_part_without_rows_keeps_its_columns() -> None:
    nothing: list[pa.RecordBatch] = []
    for sealed in (seal([(STATE, "s", nothing)]), seal([(STATE, "s", changes({}))])):
        assert open_part(sealed.data, sealed.parts[0], place="here") == STATE_SCHEMA.empty_table()


def test_other_parts_have_columns_of_their_own() -> None:
    table = pa.table({"player": ["a", None], "peak": [1.5, 2.5]})
    sealed = seal([(OUTPUT, "rows", table), (DEAD, "late", table)])
    for part in sealed.parts:
        assert open_part(sealed.data[part.offset : part.offset + part.length], part, place="here") == table


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        ("states", changes({}), "not 'states'"),
        (OUTPUT, [], "no batch"),
        (STATE, pa.table({"key": [b"a"], "value": ["text"]}), "must have"),
        (STATE, pa.table({"key": [b"a"]}), "must have"),
    ],
)
def test_a_part_that_no_reader_could_use_is_refused(kind: str, rows: pa.Table, message: str) -> None:
    with pytest.raises(BadSegment, match=message):
        seal([(kind, "x", rows)])
