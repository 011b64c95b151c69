"""Segments: parts one after the other, each found and verified by itself."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.log.segments import (
    DEAD,
    OUTPUT,
    STATE,
    STATE_SCHEMA,
    BadSegment,
    PartTooLarge,
    in_segments,
    open_part,
    seal,
)
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


def test_a_state_part_without_rows_keeps_its_columns() -> None:
    sealed = seal([(STATE, "s", changes({}))])
    assert open_part(sealed.data, sealed.parts[0], place="here") == STATE_SCHEMA.empty_table()


def test_a_part_says_how_large_its_rows_are_before_compression() -> None:
    (part,) = seal([(STATE, "s", changes({b"k": bytes(100_000)}))]).parts
    assert part.length < 2_000 and 100_000 < part.bytes < 101_000


@given(st.lists(st.tuples(st.sampled_from([STATE, OUTPUT, DEAD]), ROWS), max_size=6), st.integers(1, 500))
def test_segments_are_cut_at_a_number_of_bytes(parts: list[tuple[str, dict[bytes, bytes | None]]], most: int) -> None:
    unsealed = [(kind, str(n), changes(rows)) for n, (kind, rows) in enumerate(parts)]
    segments = list(in_segments(unsealed, most))
    found: dict[tuple[str, str], list[pa.Table]] = {}
    for kind, name, table in (part for segment in segments for part in segment):
        found.setdefault((kind, name), []).append(table)
    assert [(*place, pa.concat_tables(tables)) for place, tables in found.items()] == unsealed
    assert all(len(tables) == 1 for (kind, _), tables in found.items() if kind == STATE), "sinks read them as one"
    for segment in segments:
        assert len(segment) == 1 or sum(table.nbytes for _, _, table in segment) <= most
        assert all(table.num_rows < 2 or table.nbytes <= most for kind, _, table in segment if kind != STATE)


def test_a_column_beyond_2_gib_is_refused_before_it_is_written() -> None:
    """Committed, it could never be applied: no array of bytes can be that long."""
    block = pa.array([bytes(1 << 28)], pa.binary())
    keys = pa.chunked_array([pa.array([bytes([n])], pa.binary()) for n in range(9)])
    rows = pa.table([keys, pa.chunked_array([block] * 9)], schema=STATE_SCHEMA)
    with pytest.raises(PartTooLarge, match=r"store 'counts'.*take 2,415,\d+,\d+ bytes.*Nothing.*batch.max_records"):
        seal([(STATE, "counts", rows)])
    assert [table.num_rows for segment in in_segments([(OUTPUT, "rows", rows)]) for _, _, table in segment] == [1] * 9


def test_other_parts_have_columns_of_their_own() -> None:
    table = pa.table({"player": ["a", None], "peak": [1.5, 2.5]})
    sealed = seal([(OUTPUT, "rows", table), (DEAD, "late", table)])
    for part in sealed.parts:
        assert open_part(sealed.data[part.offset : part.offset + part.length], part, place="here") == table


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        ("states", changes({}), "not 'states'"),
        (STATE, pa.table({"key": [b"a"], "value": ["text"]}), "must have"),
        (STATE, pa.table({"key": [b"a"]}), "must have"),
    ],
)
def test_a_part_that_no_reader_could_use_is_refused(kind: str, rows: pa.Table, message: str) -> None:
    with pytest.raises(BadSegment, match=message):
        seal([(kind, "x", rows)])
