"""A table under another codec: what it keeps and sends is what a plain one does, and a codec that fails stops it."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.codecs.values import codec_of
from holdfast.stores.formats.cells import Cell, pack, unpack
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.recency import SEQ_BYTES
from holdfast.stores.schema.history import merged
from holdfast.stores.schema.rewrite import NOTE, progress_in
from tests.codecs import Zipped
from tests.pipeline.tables import REDUCERS, OneTask, key_of, spec_with

WALL = 1_000_000
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"max_entries": 3},
    {"ttl": "3s"},
    {"max_entries": 3, "ttl": "3s"},
    {"retention": "3s"},
)
BATCHES = st.lists(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(-9, 9), st.integers(0, 3))), max_size=6
)


def entries(task: OneTask) -> dict[bytes, tuple[Any, Cell]]:
    """Each entry's row, and its cell with what stands before the row."""
    codec, lead = codec_of(task.spec), SEQ_BYTES if task.spec.max_entries else 0
    found = {key: unpack(cell) for key, cell in task.cells.items() if key[0] in (1, 2)}
    return {
        key: (codec.decode(cell.payload[lead:]), replace(cell, payload=cell.payload[:lead]))
        for key, cell in found.items()
    }


@given(BATCHES, st.sampled_from(["json/1", "msgpack/1", "avro/1", Zipped.id]), st.sampled_from(OPTIONS))
def test_a_table_says_what_its_plain_twin_says(batches: list[Any], codec: str, options: dict[str, Any]) -> None:
    task, twin = OneTask(spec_with(codec=codec, **options)), OneTask(spec_with(**options))
    for wall, batch in enumerate(batches):
        counts = [each.step(batch, WALL + 1_000 * wall, chunk_rows=4).counts for each in (task, twin)]
        assert counts[0] == counts[1]
        assert task.sent() == twin.sent()
        assert entries(task) == entries(twin)
        assert task.cells.keys() == twin.cells.keys()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    ("codec", "says"),
    [
        ("tests.codecs:Afraid", "ZeroDivisionError: of all numbers"),
        ("tests.codecs:Rounding", "it reads back as {'n': 2, 'total': 100}"),
    ],
)
def test_a_codec_that_fails_is_told_with_store_key_and_row_and_nothing_is_written(
    codec: str, says: str, options: dict[str, Any]
) -> None:
    task = OneTask(spec_with(codec=codec, **options))
    task.step({"a": (1, 0), "b": (1, 0), "c": (1, 0)}, WALL)
    result = task.attempt({"a": (1, 0), "b": (100, 0), "c": (1, 0)}, WALL + 1)
    assert result.error is not None
    assert (result.segments, result.error.retry) == ((), False)
    assert result.error.message == (
        f"Key ['b']: codec {codec!r} of store 'scores' can't write the row {{'n': 2, 'total': 101}}: {says}. Mend the "
        "codec, or keep the aggregate in a store of another. Nothing of the batch was committed."
    )


def test_a_damaged_row_is_told_with_its_key() -> None:
    task = OneTask(spec_with(codec="json/1"))
    task.step({"a": (1, 0), "b": (1, 0)}, WALL)
    task.cells[key_of("b")] = pack(Cell(b'{"n":"1","total":1}'))
    result = task.attempt({"a": (1, 0), "b": (1, 0)}, WALL + 1)
    assert result.error is not None
    assert result.error.message.startswith(
        "Key ['b']: a stored row of store 'scores' can't be read by codec 'json/1' as (n bigint, total bigint): "
        "Expected `int | null`, got `str` - at `$.n`. It begins with b'{"
    )


def test_the_pass_leaves_a_row_alone_that_its_codec_cannot_write() -> None:
    task = OneTask(spec_with(Schema.of(n="bigint"), codec="tests.codecs:Afraid"), reducers=REDUCERS[:1])
    task.step(dict.fromkeys("abc", (1, 0)), WALL)
    refused = task.cells[key_of("b")] = pack(Cell(pickle.dumps({"n": 101})))
    task.spec, task.reducers = merged(task.spec, spec_with(codec="tests.codecs:Afraid")), REDUCERS
    task.rewrite_entries = 10
    task.step({}, WALL + 1)
    progress = progress_in(task.cells[NOTE])
    assert progress is not None
    assert (progress.rewritten, progress.unreadable, progress.finished) == (2, 1, True)
    assert task.cells[key_of("b")] == refused
