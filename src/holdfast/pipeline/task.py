"""Shared by the tasks of all operators: limits, chunks of rows, parts of segments, and a check of the shuffle."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.partition import partitions_of
from holdfast.stores.formats.types import Schema
from holdfast.words import TaskId

Part = tuple[str, str, pa.Table]
"""The type of a segment's part, its name in the segment, and its rows."""

READ_ROWS = 200_000
"""How many keys a task reads at once."""

READ_LARGE_ROWS = 20_000
"""The same where rows have sketches of some kilobytes."""

READ_BYTES = 64 << 20
"""How many bytes of rows a task processes at once: large values come in smaller chunks."""


@dataclass(frozen=True)
class Limits:
    """The limits of an app's tasks, the same in all sub-topologies."""

    partitions: int
    chunk_rows: int
    inline_limit: int
    """How many bytes of a segment a task may return to the driver; a larger one is an object that the task writes."""
    inline_share: int = 0
    """A task's share of the bytes that a commit may have inline."""
    max_ahead_millis: int = 0
    state_bytes: int = 0
    rewrite_entries: int = 0


class WrongPartition(HoldfastError):
    """A task got a key of another partition: the shuffle was not by key."""

    category = ErrorCategory.BUG


def check_own(schema: Schema, key: Sequence[pa.Array], task: TaskId, partitions: int) -> None:
    """Checks that the shuffle was by key: each key hashes to this partition."""
    where = partitions_of(schema, key, partitions)
    strays = (where != task.partition).nonzero()[0]
    if len(strays):
        stray = int(strays[0])
        raise WrongPartition(
            f"Key {[column[stray].as_py() for column in key]} came to task {task} and belongs to partition "
            f"{where[stray]}. Nothing was written. Please report this with the pipeline's df.explain()."
        )


def chunks(batches: Iterable[pa.RecordBatch], rows: int, most_bytes: int = READ_BYTES) -> Iterator[pa.Table]:
    """Tables of as many batches as it takes to reach `rows` rows or `most_bytes`.

    >>> batches = [pa.RecordBatch.from_pydict({"n": [n]}) for n in range(5)]
    >>> [table.num_rows for table in chunks(batches, 2)]
    [2, 2, 1]
    """
    waiting: list[pa.RecordBatch] = []
    number = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        number += batch.num_rows
        size += batch.nbytes
        if number >= rows or size >= most_bytes:
            yield pa.Table.from_batches(waiting)
            waiting, number, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def chunks_of_keys(
    table: pa.Table, schema: Schema, names: Sequence[str], partitions: int, rows: int
) -> Iterator[pa.Table]:
    """A task's table in chunks of at least about `rows` rows, with all rows of a key in one chunk.

    The columns of the key are `names`. As keys are distributed to partitions, so they are to chunks.

    >>> table = pa.table({"k": ["a", "b", "a", "c", "b"]})
    >>> [chunk["k"].to_pylist() for chunk in chunks_of_keys(table, Schema.of(k="string"), ["k"], 1, 2)]
    [['a', 'a', 'c'], ['b', 'b']]
    """
    number = table.num_rows // rows
    if number < 2:
        yield table
        return
    where = partitions_of(schema, [whole(table[name]) for name in names], partitions * number) // partitions
    for chunk in range(number):
        if (own := where == chunk).any():
            yield table.filter(pa.array(own))
