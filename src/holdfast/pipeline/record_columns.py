"""The columns of single records in a task, and what is done with every chunk of them."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.segments import DEAD as DEAD_PART
from holdfast.pipeline.results import Tally
from holdfast.pipeline.task import Part
from holdfast.pipeline.task_columns import DEAD, Clocks


@dataclass(frozen=True)
class KeyedColumns:
    """The names of a task's columns: key, values in the order in which they were asked for, and times."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    time: str | None
    clocks: Clocks

    def usable(self, chunk: pa.Table, name: str, tally: Tally) -> tuple[pa.Table, list[Part]]:
        """The usable records of a chunk, and the part with its dead letters. Counts both, and moves the clocks."""
        parts: list[Part] = []
        tally.records += chunk.num_rows
        if chunk[DEAD].null_count < chunk.num_rows:
            letters = chunk[DEAD].drop_null()
            tally.add("dead", len(letters))
            times = pa.array([1] * len(letters), pa.int64())
            parts.append((DEAD_PART, name, pa.table({"letter": letters, "times": times})))
            chunk = chunk.filter(pc.is_null(chunk[DEAD]))
        for source, column in self.clocks:
            tally.saw(source, pc.max(chunk[column]).as_py())
        return chunk, parts
