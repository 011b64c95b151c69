"""A table whose columns changed: batches and the pass rewrite rows, and sinks get the batches' rows only."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import ErrorCategory
from holdfast.stores.codecs.values import codec_of
from holdfast.stores.formats.cells import Cell, pack, unpack
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.base import REWRITE_NOTE
from holdfast.stores.layouts.recency import SEQ_BYTES
from holdfast.stores.layouts.rewriter import progress_in
from holdfast.stores.layouts.slices import slices_to_drop
from holdfast.stores.schema.history import merged
from holdfast.testing import TestDriver, records
from tests.pipeline.outcomes import refusal
from tests.pipeline.tables import REDUCERS, OneTask, key_of, spec_with

WALL = 1_000_000
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bounded": {"max_entries": 4},
    "expiring": {"ttl": "8s"},
}
KINDS = {**OPTIONS, "versioned": {"retention": "8s"}}


def old_task(options: dict[str, Any]) -> OneTask:
    """A table with one column."""
    return OneTask(spec_with(Schema.of(n="bigint"), **options), reducers=REDUCERS[:1])


def become_new(task: OneTask, options: dict[str, Any], rewrite_entries: int = 0) -> None:
    """New code adds a column."""
    task.spec, task.reducers = merged(task.spec, spec_with(**options)), REDUCERS
    task.rewrite_entries = rewrite_entries


def rows(task: OneTask) -> dict[bytes, tuple[int, Any]]:
    """Each entry's schema, and its columns by name."""
    codec, lead = codec_of(task.spec), SEQ_BYTES if task.spec.max_entries else 0
    found = {key: unpack(cell) for key, cell in task.cells.items() if key[0] in (1, 2)}
    return {key: (cell.schema, codec.decode(cell.payload[lead:], cell.schema)) for key, cell in found.items()}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_the_pass_runs_with_batches_and_the_batch_wins(options: dict[str, Any]) -> None:
    task = old_task(options)
    task.step(dict.fromkeys("abcd", (5, 0)), WALL)
    become_new(task, options, rewrite_entries=2)
    first = task.step({"a": (7, 1)}, WALL + 1)
    # The pass rewrites `a` and `b` unchanged; the batch changes `a` after that.
    assert first.counts["rewritten/scores"] == 2
    assert task.sent() == [
        {"player": "a", "n": 2, "total": 7, **({"_deleted": False} if "max_entries" in options else {})}
    ]
    newest = {key[-1:]: row for key, row in sorted(rows(task).items())}
    assert newest[b"a"] == (2, {"n": 2, "total": 7})
    assert newest[b"b"] == (2, {"n": 1, "total": None})
    assert newest[b"c"] == (1, {"n": 1, "total": None})
    assert task.step({}, WALL + 2).counts["rewritten/scores"] == 2
    assert task.sent() == [], "a rewrite is not sent to sinks"
    task.step({}, WALL + 3)
    assert {schema for schema, _ in rows(task).values()} == {2}
    progress = progress_in(task.cells[REWRITE_NOTE])
    assert progress is not None
    assert (progress.rewritten, progress.finished, progress.share) == (4, True, 1.0)
    quiet = task.step({}, WALL + 4)
    assert (quiet.segments, quiet.counts) == ((), {}), "a finished pass writes nothing"


def test_without_the_pass_rows_keep_their_schema_until_they_are_written() -> None:
    task = old_task({})
    task.step(dict.fromkeys("ab", (5, 0)), WALL)
    become_new(task, {})
    task.step({"b": (7, 1)}, WALL + 1)
    assert {key: schema for key, (schema, _) in rows(task).items()} == {key_of("a"): 1, key_of("b"): 2}
    assert REWRITE_NOTE not in task.cells


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(st.integers(-9, 9), st.integers(0, 3))), max_size=5
    ),
    st.lists(
        st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(st.integers(-9, 9), st.integers(0, 3))), max_size=8
    ),
    st.sampled_from(list(KINDS)),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_a_table_with_the_pass_equals_one_without(
    before: list[Any], after: list[Any], kind: str, entries: int, chunk: int
) -> None:
    """Sinks and stores get the same with the pass and without it, except the schema."""
    task, twin = old_task(KINDS[kind]), old_task(KINDS[kind])
    for number, batch in enumerate(before):
        stepped(task, twin, batch, number, chunk)
    become_new(task, KINDS[kind], rewrite_entries=entries)
    become_new(twin, KINDS[kind])
    for number, batch in enumerate(after, len(before)):
        stepped(task, twin, batch, number, chunk)
        assert task.sent() == twin.sent()
        found, wanted = rows(task), rows(twin)
        assert {key: row for key, (_, row) in found.items()} == {key: row for key, (_, row) in wanted.items()}
        assert all(found[key][0] >= wanted[key][0] for key in found)
        progress = progress_in(task.cells.get(REWRITE_NOTE))
        if progress is not None and progress.finished:
            old = {key for key, (schema, _) in found.items() if schema < 2}
            assert not old - hidden(task, WALL + 1_500 * number), "a finished pass leaves no visible old row"


def hidden(task: OneTask, wall: int) -> set[bytes]:
    """Expired entries."""
    start, stop = slices_to_drop(task.spec, wall, wall - 1_500) or (b"", b"")
    return {k for k, cell in task.cells.items() if start <= k < stop or 0 < unpack(cell).expires <= wall}


def stepped(task: OneTask, twin: OneTask, batch: dict[str, tuple[int, int]], number: int, chunk: int) -> None:
    """Runs the same batch in both, 1.5 s after the last one in wall and event time."""
    wall = WALL + 1_500 * number
    timed = {player: (points, wall + time) for player, (points, time) in batch.items()}
    for each in (task, twin):
        each.step(timed, wall, event=wall - 1_500, chunk_rows=chunk)


def test_the_history_of_a_table_is_rewritten_too() -> None:
    task = old_task(KINDS["versioned"])
    for number in range(3):
        task.step(dict.fromkeys("ab", (5, WALL + number)), WALL, event=WALL)
    become_new(task, KINDS["versioned"], rewrite_entries=3)
    assert sorted(schema for schema, _ in rows(task).values()) == [1] * 6
    task.step({"a": (7, WALL + 9)}, WALL, event=WALL)
    # The former result of `a` is stored in the new schema, and so are two old rows and the latest of `b`.
    assert sorted(schema for schema, _ in rows(task).values()) == [1, 1, 1, 2, 2, 2, 2]
    while not (progress := progress_in(task.cells[REWRITE_NOTE])) or not progress.finished:
        task.step({}, WALL, event=WALL)
    assert {schema for schema, _ in rows(task).values()} == {2}


def test_a_damaged_row_is_reported_with_its_store_and_key_and_nothing_is_written() -> None:
    task = OneTask(spec_with())
    task.step({"a": (1, 0), "b": (1, 0)}, WALL)
    task.cells[key_of("b")] = pack(Cell(b"short"))
    refused = refusal(task.attempt({"a": (1, 0), "b": (1, 0)}, WALL + 1))
    assert refused.category is ErrorCategory.DATA
    assert refused.message.startswith(
        "DamagedRow: Store 'scores', key ['b']: a stored row has 5 bytes, and one of (n bigint"
    )
    assert refused.message.endswith("Nothing of the batch was committed.")


def changelog(columns: str, after: TestDriver | None = None, rewrite_entries: int = 0) -> TestDriver:
    """A table from a changelog with these columns, started on the log of a former release."""
    chosen = hf.Settings(partitions=1, batch=hf.BatchSettings(rewrite_entries=rewrite_entries))
    app = hf.App("cities", settings=chosen)
    app.table(records(f"id bigint, {columns}, at timestamp"), "cities", key="id", timestamp="at", deleted="gone")
    driver = TestDriver(app)
    if after is not None:
        driver._log_url, driver._done = after._log_url, after._done
        driver.crash()
        driver.output("cities")
    return driver


def schemas(driver: TestDriver) -> list[int]:
    (cells,) = driver._states.of_store("cities")
    return [unpack(cell).schema for key, cell in cells.scan(b"\x01", b"\x02")]


def test_a_table_from_a_changelog_gains_and_loses_columns() -> None:
    second = "2030-01-01 00:00:0"
    old = changelog("city string, gone boolean")
    old.pipe("cities", [{"id": n, "city": f"c{n}", "at": f"{second}1"} for n in range(4)])
    new = changelog("size bigint, city string, gone boolean", old, rewrite_entries=2)
    assert new.store("cities").get(1) == {"size": None, "city": "c1", "at": datetime(2030, 1, 1, 0, 0, 1, tzinfo=UTC)}
    older = {"id": 0, "city": "older", "size": 1, "at": f"{second}0"}
    new.pipe("cities", [{"id": 1, "city": "c1", "size": 9, "at": f"{second}2"}, older])
    # The pass rewrites 0 and 1, and the batch changes 1 after that. An older row is still older.
    assert new.counts["rewritten/cities"] == 2
    assert [(row["id"], row["size"]) for row in new.output("cities")] == [(1, 9)]
    assert schemas(new) == [2, 2, 1, 1]
    new.pipe("cities", [{"id": 2, "gone": True, "at": f"{second}3"}])
    assert [(row["id"], row["_deleted"]) for row in new.output("cities")] == [(2, True)]
    new.pipe("cities", [{"id": 9, "city": "c9", "at": f"{second}3"}])
    assert [(key, row["city"], row["size"]) for key, row in new.store("cities").items()] == [
        (0, "c0", None),
        (1, "c1", 9),
        (3, "c3", None),
        (9, "c9", None),
    ]
    assert set(schemas(new)) == {2}
    less = changelog("size bigint, gone boolean", new)
    assert less.store("cities").get(1) == {"size": 9, "at": datetime(2030, 1, 1, 0, 0, 2, tzinfo=UTC)}
