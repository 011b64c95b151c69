"""The rewrite of an aggregate's rows as columns: rows get the newest schema, and nothing else changes."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.access import ENTRY_SCHEMA, Now
from holdfast.stores.codecs.values import codec_of
from holdfast.stores.formats.cells import Cell, pack, unpack
from holdfast.stores.formats.rows import encode_row
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts import rewriter as module
from holdfast.stores.layouts.base import REWRITE_NOTE
from holdfast.stores.layouts.recency import SEQ_BYTES, with_seq
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.layouts.rewriter import RewriteProgress, Rewriter, RewriteStep, progress_in
from holdfast.stores.layouts.slices import slice_prefix
from holdfast.stores.schema.history import merged
from holdfast.stores.schema.row_history import row_schemas
from holdfast.stores.spec import RowValues, StoreSpec

NOW = Now(wall=10_000)
LAYOUTS = ({"n": "bigint"}, {"n": "bigint", "who": "string"}, {"peak": "double", "n": "bigint"})


def spec_of(layouts: int = 3, **options: Any) -> StoreSpec:
    """A table that has had this many schemas."""
    specs = [
        StoreSpec(name="t", key=Schema.of(k="string"), value=RowValues(Schema.of(**each)), codec="rows/1", **options)
        for each in LAYOUTS[:layouts]
    ]
    log = specs[0]
    for spec in specs[1:]:
        log = merged(log, spec)
    return log


def row(schema: int, *values: object, seq: int | None = None, **parts: Any) -> bytes:
    payload = encode_row(row_schemas(spec_of())[schema], values)
    return pack(Cell(payload if seq is None else with_seq(seq, payload), schema=schema, **parts))


@dataclass
class Table:
    """The bytes of a partition, version by version."""

    spec: StoreSpec
    cells: dict[bytes, bytes] = field(default_factory=dict)
    reads: int = 0

    def step(self, limit: int) -> RewriteStep | None:
        """One version with only a rewrite step in it."""
        step = self.dry(limit)
        if step is not None:
            self.cells.update(zip(step.part["key"].to_pylist(), step.part["value"].to_pylist(), strict=True))
        return step

    def dry(self, limit: int) -> RewriteStep | None:
        """A step whose version is lost."""
        return Rewriter(self.spec, NOW).step(self, limit)

    def finish(self, limit: int) -> RewriteProgress:
        while (step := self.step(limit)) is not None and not step.progress.finished:
            pass
        progress = progress_in(self.cells[REWRITE_NOTE])
        assert progress is not None
        return progress

    def values(self) -> dict[bytes, Any]:
        codec, lead = codec_of(self.spec), SEQ_BYTES if self.spec.max_entries else 0
        found = {key: unpack(data) for key, data in self.cells.items() if key < b"\x03"}
        return {key: codec.decode(cell.payload[lead:], cell.schema) for key, cell in found.items()}

    def schemas(self) -> set[int]:
        return {unpack(data).schema for key, data in self.cells.items() if key < b"\x03"}

    def get(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        self.reads += 1
        return pa.array([self.cells.get(key) for key in keys.to_pylist()], pa.binary())

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        self.reads += 1
        keys = sorted(key for key in self.cells if start <= key and (stop is None or key < stop))[:limit]
        return pa.table([keys, [self.cells[key] for key in keys]], schema=ENTRY_SCHEMA)

    def approximate_count(self) -> int:
        return len(self.cells)


def test_old_rows_are_rewritten_in_limited_steps_with_progress() -> None:
    table = Table(spec_of(), {b"\x01%d" % n: row(1 + n % 3, *_row_of(1 + n % 3, n), timestamp=n) for n in range(7)})
    before = table.values()
    steps = [table.step(3) for _ in range(3)]
    told = [(s.rewritten, s.progress.seen, s.progress.share, s.progress.finished) for s in steps if s is not None]
    assert told == [(2, 3, 3 / 7, False), (2, 6, 6 / 7, False), (1, 7, 1.0, True)]
    assert table.values() == before
    assert table.schemas() == {3}
    assert unpack(table.cells[b"\x014"]).timestamp == 4
    written = dict(table.cells)
    assert table.step(3) is None
    assert table.cells == written


def _row_of(schema: int, n: int) -> tuple[object, ...]:
    return {1: (n,), 2: (n, f"p{n}"), 3: (n / 2, n)}[schema]


def test_a_table_that_never_changed_is_not_even_read() -> None:
    table = Table(spec_of(1), {b"\x01a": row(1, 5)})
    assert table.step(10) is None
    assert table.reads == 0


def test_a_new_schema_during_a_rewrite_starts_another() -> None:
    table = Table(spec_of(2), {b"\x01%d" % n: row(1, n) for n in range(4)})
    table.step(2)
    table.spec = spec_of(3)
    assert table.finish(3).rewritten == 4
    assert table.schemas() == {3}


def test_hidden_slices_and_expired_rows_are_not_rewritten() -> None:
    hidden, live = slice_prefix(1) + b"\x01a", slice_prefix(9) + b"\x01a"
    over = slice_prefix(9) + b"\x01b"
    cells = {hidden: row(1, 1, expires=1), live: row(1, 2, expires=12_000), over: row(1, 3, expires=9_999)}
    table = Table(spec_of(ttl_ms=3_000, slice_ms=1_000), cells)
    done = table.finish(10)
    assert (done.seen, done.rewritten) == (2, 1)
    assert [unpack(table.cells[key]).schema for key in (hidden, over, live)] == [1, 1, 3]
    assert unpack(table.cells[live]).expires == 12_000


def test_the_number_of_a_rows_last_touch_stays() -> None:
    index = {b"\x04index": pack(Cell(b"")), b"\x05count": pack(Cell(b"\x00" * 8))}
    table = Table(spec_of(max_entries=5), {b"\x01a": row(2, 4, "ann", seq=77), **index})
    before = table.values()
    assert table.finish(10).rewritten == 1
    assert table.values() == before
    assert unpack(table.cells[b"\x01a"]).payload[:SEQ_BYTES] == with_seq(77, b"")
    assert {key: table.cells[key] for key in index} == index


def test_a_row_that_cannot_be_read_stays_and_is_counted() -> None:
    damaged = {b"\x01a": pack(Cell(b"short")), b"\x01b": b"\x09no cell", b"\x01c": pack(Cell(b"x" * 30, schema=9))}
    table = Table(spec_of(), {**damaged, b"\x01d": row(1, 8)})
    done = table.finish(10)
    # A row of an unknown schema was written by newer code: it isn't old.
    assert (done.seen, done.rewritten, done.unreadable) == (4, 1, 2)
    assert {key: table.cells[key] for key in damaged} == damaged
    assert unpack(table.cells[b"\x01d"]).schema == 3


def test_a_step_ends_with_its_note_and_changes_nothing_for_a_sink() -> None:
    table = Table(spec_of(), {b"\x01a": row(1, 8)})
    step = table.dry(1)
    assert step is not None
    assert step.part["key"].to_pylist() == [b"\x01a", REWRITE_NOTE]
    assert len(layout_of(table.spec).changed(step.part).keys) == 0
    assert layout_of(table.spec).changed(step.part.slice(0, 1)).keys.to_pylist() == [b"\x01a"]


_ROWS = st.integers(1, 3).flatmap(
    lambda schema: st.tuples(
        st.just(schema),
        st.tuples(
            *(
                {"bigint": st.none() | st.integers(-9, 9), "string": st.none() | st.text(max_size=3)}.get(
                    kind, st.none() | st.floats(allow_nan=False)
                )
                for kind in LAYOUTS[schema - 1].values()
            )
        ),
        st.sampled_from([0, 9_000, 11_000]),
    )
)


@given(
    st.dictionaries(st.binary(min_size=1, max_size=2), _ROWS, max_size=12),
    st.integers(1, 5),
    st.integers(1, 4),
    st.lists(st.booleans(), max_size=6),
    st.booleans(),
)
def test_columns_are_rewritten_like_single_rows_even_after_lost_versions(
    made: dict[bytes, Any], limit: int, page: int, lost: list[bool], bounded: bool
) -> None:
    """The result equals that for single entries; a lost version is computed again with the same step."""
    spec = spec_of(max_entries=9) if bounded else spec_of()
    cells = {
        b"\x01" + key: row(schema, *values, seq=7 if bounded else None, expires=expires)
        for key, (schema, values, expires) in made.items()
    }
    table, single = Table(spec, dict(cells)), Table(spec, dict(cells))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PAGE", page)
        for is_lost in [*lost, *[False] * (len(made) + 1)]:
            if is_lost:
                table.dry(limit)
                continue
            table.step(limit)
            with pytest.MonkeyPatch.context() as one_by_one:
                one_by_one.setattr(Rewriter, "_columns", Rewriter._one_by_one)
                single.step(limit)
            assert table.cells == single.cells
    shown = [unpack(data) for key, data in table.cells.items() if key != REWRITE_NOTE]
    assert all(cell.schema == 3 for cell in shown if not 0 < cell.expires <= NOW.wall)
