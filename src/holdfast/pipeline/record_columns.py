"""The columns of single records in a task, and what is done with every chunk of them."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.segments import DEAD as DEAD_PART
from holdfast.pipeline.results import Tally
from holdfast.pipeline.task import READ_ROWS, Part, chunks
from holdfast.pipeline.task_columns import DEAD, OF_SOURCE, Clocks


@dataclass(frozen=True)
class KeyedColumns:
    """The names of a task's columns: key, values in the order in which they were asked for, and times."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    time: str | None
    clocks: Clocks
    sources: tuple[str, ...] = ()
    """The sources of a merged stream."""

    def usable(self, chunk: pa.Table, name: str, tally: Tally) -> tuple[pa.Table, list[Part]]:
        """The usable records of a chunk, and the part with its dead letters. Counts both, and moves the clocks."""
        parts: list[Part] = []
        tally.records += chunk.num_rows
        if self.sources:
            tally.read_numbered(self.sources, chunk[OF_SOURCE])
        if chunk[DEAD].null_count < chunk.num_rows:
            letters = chunk[DEAD].drop_null()
            tally.add("dead", len(letters))
            times = pa.array([1] * len(letters), pa.int64())
            parts.append((DEAD_PART, name, pa.table({"letter": letters, "times": times})))
            chunk = chunk.filter(pc.is_null(chunk[DEAD]))
        for source, column in self.clocks:
            tally.saw(source, pc.max(chunk[column]).as_py())
        return chunk, parts

    def last_of_each_key(
        self, batches: Iterable[pa.RecordBatch], rows: int, name: str, tally: Tally
    ) -> tuple[pa.Table | None, list[Part]]:
        """The last usable record of each key, None if there is none, and the parts with the dead letters.

        Memory depends on the number of keys, not on that of records.
        """
        last: pa.Table | None = None
        parts: list[Part] = []
        for chunk in chunks(batches, min(READ_ROWS, rows)):
            records, dead = self.usable(chunk, name, tally)
            parts += dead
            last = last_per_key(records if last is None else pa.concat_tables([last, records]), self.keys)
        return last if last is not None and last.num_rows else None, parts


def last_per_key(records: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """The last record of each key, in the order of the records.

    >>> last_per_key(pa.table({"k": ["a", "b", "a"], "n": [1, 2, 3]}), ("k",)).to_pylist()
    [{'k': 'b', 'n': 2}, {'k': 'a', 'n': 3}]
    """
    places = pa.table({**{name: _as_stored(records[name]) for name in keys}, "_at": np.arange(records.num_rows)})
    last = places.group_by(list(keys), use_threads=False).aggregate([("_at", "max")])["_at_max"]
    return records.take(pa.array(np.sort(last.to_numpy())))


def _as_stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of a key in which values that are stored under one key are equal: 0.0 and -0.0, and all NaN.

    >>> _as_stored(pa.chunked_array([[0.0, -0.0]])).to_pylist()
    [0.0, 0.0]
    """
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(
        pc.is_nan(column), pa.scalar(float("nan"), column.type), pc.add(column, pa.scalar(0.0, column.type))
    )
