"""What a sink gets of a commit, from its segments: a table's rows, what a processor forwarded or changed in a store of
its own, or the dead letters.

For a table the rows are its changed keys with their results, made from the state part: what is stored and what is sent
can't differ, and a version's rows are there for as long as its segments are. The store's layout says which entries a
part changes; one that was only rewritten to the newest schema hasn't changed, and is not sent. Where a store can
delete, each row says in a column `_deleted` whether its key is gone; its results are null then. Stores that never do
have no such column.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from holdfast.log.commits import Commit
from holdfast.log.log import Log
from holdfast.log.objects import ObjectMissing
from holdfast.stores.formats.keys import decode_keys
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.schema.row_columns import decode_columns
from holdfast.stores.spec import TIMESTAMPED, StoreSpec
from holdfast.topology import outputs
from holdfast.topology.outputs import DELETED
from holdfast.topology.processor import DeclaredStore
from holdfast.topology.sink import Rows
from holdfast.words import TaskId

logger = logging.getLogger(__name__)

_GONE = "version %d: what store %r changed was gone before a sink had it: the store isn't durable"


@dataclass(frozen=True)
class TableOutput:
    """The changed rows of a table: key columns, then results, then `_deleted` where the store can delete."""

    spec: StoreSpec
    topology: int

    def rows(self, log: Log, commit: Commit) -> Iterator[Rows]:
        for task, number, table in _parts(log, commit, "state", self.spec.name):
            if task.topology == self.topology and (found := self.decode(table)).num_rows:
                yield Rows(task, number, found)

    def decode(self, table: pa.Table) -> pa.Table:
        """Entries as they are stored, as rows; what the store keeps beside its entries is left out."""
        layout = layout_of(self.spec)
        changed = layout.changed(table)
        names = (field.name for field in self.spec.key.fields)
        columns = dict(zip(names, decode_keys(self.spec.key, changed.keys), strict=True))
        results = decode_columns(self.spec, changed.cells.payloads, changed.cells.schemas)
        for field, column in zip(self.spec.columns.fields, results, strict=True):
            if not field.hidden_in:
                columns[field.name] = column
        if layout.deletes:
            columns[DELETED] = changed.gone
        return pa.table(columns)


@dataclass(frozen=True)
class ProcessorOutput:
    """The rows a processor forwarded, in the order it did so within a task."""

    name: str
    topology: int

    def rows(self, log: Log, commit: Commit) -> Iterator[Rows]:
        for task, number, table in _parts(log, commit, "output", self.name):
            if task.topology == self.topology:
                yield Rows(task, number, table)


@dataclass(frozen=True)
class StoreChanges:
    """What changed in a processor's key-value store: key columns, the value as JSON, and whether the key is gone.

    Gone is what the processor deleted, what was evicted, and what was over, in a store with `max_entries` or without a
    TTL of its own. One with a TTL alone forgets by dropping slices whole, and that is no change.
    """

    spec: StoreSpec
    topology: int
    declared: DeclaredStore

    def rows(self, log: Log, commit: Commit) -> Iterator[Rows]:
        for task, number, table in _parts(log, commit, "state", self.spec.name):
            if task.topology == self.topology and (found := self.decode(table)).num_rows:
                yield Rows(task, number, found)

    def decode(self, table: pa.Table) -> pa.Table:
        changed = layout_of(self.spec).changed(table).in_order()
        codec = self.declared.value_codec(self.spec)
        read = zip(changed.cells.payloads.to_pylist(), changed.cells.schemas.to_pylist(), strict=True)
        values = [None if value is None else _as_json(codec.decode(value, schema)) for value, schema in read]
        names = [field.name for field in self.spec.key.fields]
        columns = dict(zip(names, decode_keys(self.spec.key, changed.keys), strict=True))
        columns["value"] = pa.array(values, pa.string())
        if self.spec.kind == TIMESTAMPED:
            columns["timestamp"] = changed.cells.timestamps
        columns[DELETED] = changed.gone
        return pa.table(columns)


def _as_json(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


@dataclass(frozen=True)
class DeadLetterOutput:
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


Output = TableOutput | ProcessorOutput | StoreChanges | DeadLetterOutput


def output_of(declared: outputs.Output) -> Output:
    """How the rows of an output are read out of a commit."""
    match declared:
        case outputs.AggregateRows():
            return TableOutput(declared.store, declared.topology)
        case outputs.ForwardedRows():
            return ProcessorOutput(declared.name, declared.topology)
        case outputs.ChangedEntries():
            return StoreChanges(declared.store, declared.topology, declared.declared)
        case outputs.DeadLetters():
            return DeadLetterOutput()


def _parts(log: Log, commit: Commit, kind: str, name: str | None) -> Iterator[tuple[TaskId, int, pa.Table]]:
    for task in sorted(map(TaskId.parse, commit.segments.keys() | commit.volatile.keys())):
        number = 0
        for ref in (*commit.of_task(task), *commit.volatile_of(task)):
            for part in ref.parts:
                if part.type == kind and name in (None, part.name):
                    try:
                        table = log.read_part(ref, part)
                    except ObjectMissing:
                        if ref not in commit.volatile_of(task):
                            raise
                        logger.warning(_GONE, commit.version, part.name)
                        continue
                    yield task, number, table
                    number += 1
