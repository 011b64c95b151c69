"""What a sink gets of a commit: the rows of one table, or the dead letters, read back from the segments.

For a table the rows are its changed keys with their results, made from the state part: what is stored and what is sent
can't differ, and a version's rows are there for as long as its segments are.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from holdfast.log.commits import Commit
from holdfast.log.log import Log
from holdfast.stores.cells import unpack_many
from holdfast.stores.keys import decode_keys
from holdfast.stores.rows import decode_rows
from holdfast.stores.spec import StoreSpec
from holdfast.topology.reducers import HIDDEN
from holdfast.topology.sink import Rows
from holdfast.words import TaskId


@dataclass(frozen=True)
class TableOutput:
    """The changed rows of a table: key columns, then results."""

    spec: StoreSpec
    topology: int

    def rows(self, log: Log, commit: Commit) -> Iterator[Rows]:
        for task, number, table in _parts(log, commit, "state", self.spec.name):
            if task.topology == self.topology:
                yield Rows(task, number, self._decode(table))

    def _decode(self, table: pa.Table) -> pa.Table:
        assert self.spec.value is not None
        keys, cells = table["key"].combine_chunks(), table["value"].combine_chunks()
        columns = dict(zip((f.name for f in self.spec.key.fields), decode_keys(self.spec.key, keys), strict=True))
        rows = decode_rows(self.spec.value, unpack_many(cells).payloads)
        for field, column in zip(self.spec.value.fields, rows, strict=True):
            if HIDDEN not in field.name:
                columns[field.name] = column
        return pa.table(columns)


@dataclass(frozen=True)
class DeadLetters:
    """Records that could not be used: the reason, the record as JSON, and how often it came."""

    def rows(self, log: Log, commit: Commit) -> Iterator[Rows]:
        for task, number, table in _parts(log, commit, "dead", None):
            letters = [msgspec.json.decode(letter, type=_Letter) for letter in table["letter"].to_pylist()]
            columns = {
                "reason": pa.array([letter.reason for letter in letters], pa.string()),
                "record": pa.array([bytes(letter.record).decode() for letter in letters], pa.string()),
                "times": table["times"],
            }
            yield Rows(task, number, pa.table(columns))


class _Letter(msgspec.Struct):
    reason: str
    record: msgspec.Raw


Output = TableOutput | DeadLetters


def _parts(log: Log, commit: Commit, kind: str, name: str | None) -> Iterator[tuple[TaskId, int, pa.Table]]:
    for task, refs in sorted(commit.segments.items(), key=lambda item: TaskId.parse(item[0])):
        number = 0
        for ref in refs:
            for part in ref.parts:
                if part.kind == kind and name in (None, part.name):
                    yield TaskId.parse(task), number, log.read_part(ref, part)
                    number += 1
