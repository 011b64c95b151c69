"""What a sink gets of a commit, from its segments: a table's rows, what a processor forwarded or changed in a store of
its own, or the dead letters.

For a table the rows are its changed keys with their results, made from the state part: what is stored and what is sent
can't differ, and a version's rows are there for as long as its segments are. What the pass of `stores.schema.rewrite`
put into the newest shape hasn't changed, and is not sent. Where a store can delete, each row says in a column
`_deleted` whether its key is gone; its results are null then. Stores that never do have no such column.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.commits import Commit
from holdfast.log.log import Log
from holdfast.log.objects import ObjectMissing
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import FIRST_SCHEMA, unpack, unpack_many
from holdfast.stores.formats.keys import FORMAT, decode_keys
from holdfast.stores.layouts.recency import split_seqs
from holdfast.stores.layouts.slices import AREA, split_sliced, split_sliced_keys
from holdfast.stores.schema.rewrite import is_step
from holdfast.stores.schema.row_columns import decode_layouts
from holdfast.stores.spec import TIMESTAMPED, StoreSpec
from holdfast.topology import outputs
from holdfast.topology.outputs import DELETED
from holdfast.topology.processor import DeclaredStore
from holdfast.topology.reducers import HIDDEN
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
            if task.topology == self.topology and not is_step(table["key"]) and (found := self.decode(table)).num_rows:
                yield Rows(task, number, found)

    def decode(self, table: pa.Table) -> pa.Table:
        """Entries as they are stored, as rows; what the store keeps beside its entries is left out."""
        assert self.spec.value is not None
        keys, cells = whole(table["key"]), whole(table["value"])
        sliced = self.spec.entries_in_slices
        if self.spec.max_entries or self.spec.retention_ms or self.spec.schema > FIRST_SCHEMA:
            entries = pc.starts_with(keys, AREA if sliced else FORMAT)
            keys, cells = keys.filter(entries), cells.filter(entries)
        if sliced:
            _, keys = split_sliced_keys(keys)
        found = unpack_many(cells)
        payloads = found.payloads
        if self.spec.max_entries:
            _, payloads = split_seqs(payloads)
        columns = dict(zip((f.name for f in self.spec.key.fields), decode_keys(self.spec.key, keys), strict=True))
        results = decode_layouts(self.spec, payloads, found.schemas)
        for field, column in zip(self.spec.value.fields, results, strict=True):
            if HIDDEN not in field.name:
                columns[field.name] = column
        if self.spec.max_entries:
            columns[DELETED] = cells.is_null()
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
            if task.topology == self.topology and not is_step(table["key"]) and (found := self.decode(table)).num_rows:
                yield Rows(task, number, found)

    def decode(self, table: pa.Table) -> pa.Table:
        changed = self._changed(table)
        store = self.declared.bind(DictBytes(), Now(wall=0), lambda name, number: None, spec=self.spec)
        values = [None if cell is None else _as_json(store.stored_value(cell)) for cell in changed.values()]
        names = [field.name for field in self.spec.key.fields]
        columns = dict(zip(names, decode_keys(self.spec.key, pa.array(changed, pa.binary())), strict=True))
        columns["value"] = pa.array(values, pa.string())
        if self.spec.kind == TIMESTAMPED:
            times = [None if cell is None else unpack(cell).timestamp for cell in changed.values()]
            columns["timestamp"] = pa.array(times, pa.int64())
        columns[DELETED] = pa.array([value is None for value in values], pa.bool_())
        return pa.table(columns)

    def _changed(self, table: pa.Table) -> dict[bytes, bytes | None]:
        """Own key → cell. A key may be in several slices: the newest one that has it counts."""
        changed: dict[bytes, bytes | None] = {}
        sliced = self.spec.entries_in_slices
        area = AREA if sliced else FORMAT
        for key, cell in sorted(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)):
            if key.startswith(area):
                own = split_sliced(key)[1] if sliced else key
                if cell is not None or own not in changed:
                    changed[own] = cell
        return changed


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
