"""The tasks of a join by a foreign key, as columns: the links of changed rows, the index, and the joined rows.

`topology.foreign_keys` has the picture.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.log import Log
from holdfast.log.segments import OUTPUT, STATE
from holdfast.pipeline.record_columns import KeyedColumns, last_per_key
from holdfast.pipeline.results import Tally, TaskResult
from holdfast.pipeline.rewriting import rewritten
from holdfast.pipeline.table_join_task import changed_rows
from holdfast.pipeline.table_rows import FoundRows, LookedUpTable, TableRows
from holdfast.pipeline.task import READ_ROWS, Limits, Part, check_own, chunks
from holdfast.pipeline.task_state import TaskState
from holdfast.pipeline.writing import write_segments
from holdfast.stores.access import Now
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import pack_many
from holdfast.stores.formats.keys import LONGEST_KEY, decode_keys, encode_keys
from holdfast.stores.formats.rows import encode_rows
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.as_of import beginnings
from holdfast.stores.layouts.base import part
from holdfast.stores.ranges import Ranges
from holdfast.stores.spec import StoreSpec
from holdfast.topology.foreign_keys import UNLINKED
from holdfast.topology.lookups import How
from holdfast.topology.outputs import forwarded_to
from holdfast.words import TaskId, Version

Columns = Sequence[pa.Array]


@dataclass(frozen=True)
class ForeignKeyWork(ABC):
    """What every task of one of the three sub-topologies does in one version. The driver sends it to the workers."""

    subtopology: int
    version: Version
    name: str
    table: LookedUpTable
    """The table that it looks up: the left one, or in the index the right one."""
    columns: KeyedColumns
    now: Now
    limits: Limits

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        tally = Tally()
        segments = self._segments_after(task, batches, log, state, tally)
        return write_segments(log, task, self.version, segments, tally, inline_limit=self.limits.inline_limit)

    def _segments_after(
        self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState, tally: Tally
    ) -> Iterator[list[Part]]:
        rows = TableRows(self.table, self.now, task.partition, log, state)
        yield from self._segments(task, batches, rows, state, tally)

    @abstractmethod
    def _segments(
        self, task: TaskId, batches: Iterable[pa.RecordBatch], rows: TableRows, state: TaskState, tally: Tally
    ) -> Iterator[list[Part]]:
        """The parts of each segment."""

    def _usable(self, batches: Iterable[pa.RecordBatch], tally: Tally) -> tuple[pa.Table | None, list[Part]]:
        """All usable records, None if there is none, and the parts with the dead letters."""
        gathered: list[pa.Table] = []
        parts: list[Part] = []
        for chunk in chunks(batches, min(READ_ROWS, self.limits.chunk_rows)):
            records, dead = self.columns.usable(chunk, self.name, tally)
            parts += dead
            gathered.append(records)
        return pa.concat_tables(gathered) if sum(map(len, gathered)) else None, parts

    def _times(self, records: pa.Table) -> pa.Array:
        if self.columns.time is None:
            return pa.nulls(records.num_rows, pa.int64())
        return whole(records[self.columns.time])


@dataclass(frozen=True)
class LinksWork(ForeignKeyWork):
    """Sends the foreign keys that changed rows have and had."""

    on: tuple[str, ...]
    links: pa.Schema
    answers: pa.Schema

    def _segments(
        self, task: TaskId, batches: Iterable[pa.RecordBatch], rows: TableRows, state: TaskState, tally: Tally
    ) -> Iterator[list[Part]]:
        changed, dead = self.columns.last_of_each_key(batches, self.limits.chunk_rows, self.name, tally)
        yield dead
        for chunk in _slices(changed):
            key, times = [whole(chunk[name]) for name in self.columns.keys], self._times(chunk)
            check_own(self.table.store.key, key, task, self.limits.partitions)
            keys = encode_keys(self.table.store.key, key)
            had, former = _foreign_keys(self.table.store, self.on, key, rows.before(keys))
            has, foreign = _foreign_keys(self.table.store, self.on, key, rows.of(keys))
            same = reduce(pc.and_, (pc.fill_null(pc.equal(a, b), False) for a, b in zip(former, foreign, strict=True)))
            ended = self._links(key, former, times, linked=False).filter(pc.and_not(had, pc.and_(has, same)))
            links = pa.concat_tables([ended, self._links(key, foreign, times, linked=True).filter(has)])
            unlinked = self._unlinked(key, times).filter(pc.invert(has))
            sent = {self.name: links, forwarded_to(self.name, UNLINKED): unlinked}
            yield [(OUTPUT, name, table) for name, table in sent.items() if table.num_rows]

    def _links(self, key: Columns, foreign: Columns, times: pa.Array, *, linked: bool) -> pa.Table:
        return _typed([*foreign, *key, pa.repeat(pa.scalar(linked), len(times)), times], self.links)

    def _unlinked(self, key: Columns, times: pa.Array) -> pa.Table:
        """Answers for rows that have no foreign key."""
        nothing = [pa.nulls(len(times), field.type) for field in self.answers][len(key) : -2]
        return _typed([*key, *nothing, pa.repeat(pa.scalar(False), len(times)), times], self.answers)


@dataclass(frozen=True)
class IndexWork(ForeignKeyWork):
    """Keeps the links by foreign key, and answers with the right table's rows."""

    index: StoreSpec
    answers: pa.Schema

    def _segments(
        self, task: TaskId, batches: Iterable[pa.RecordBatch], rows: TableRows, state: TaskState, tally: Tally
    ) -> Iterator[list[Part]]:
        records, dead = self._usable(batches, tally)
        yield dead
        if records is None:
            return
        check_own(self.table.store.key, self._foreign(records), task, self.limits.partitions)
        linked = whole(records[self.columns.values[-1]])
        new, changed = records.filter(pc.fill_null(linked, False)), records.filter(pc.is_null(linked))
        links = self._stored(new)
        ended = self._stored(records.filter(pc.fill_null(pc.invert(linked), False)))
        ended = ended.filter(pc.is_null(pc.index_in(ended, value_set=links)))
        yield self._changes(links, ended)
        kept = self._links_of(changed, state)
        kept = kept.filter(pc.is_null(pc.index_in(kept, value_set=pa.concat_arrays([ended, links]))))
        times = pa.concat_arrays([self._times(new), pa.nulls(len(kept), pa.int64())])
        answered = pa.table({"link": pa.concat_arrays([links, kept]), "time": times})
        by_key = last_per_key(changed, self.columns.keys)
        for chunk in _slices(answered):
            yield [(OUTPUT, self.name, self._answers(chunk, by_key, rows))]

    def _foreign(self, records: pa.Table) -> list[pa.Array]:
        return [whole(records[name]) for name in self.columns.keys]

    def _stored(self, records: pa.Table) -> pa.BinaryArray:
        """The stored keys of links."""
        if not records.num_rows:
            return pa.array([], pa.binary())
        key = [whole(records[name]) for name in self.columns.values[:-1]]
        return encode_keys(self.index.key, [*self._foreign(records), *key])

    def _changes(self, links: pa.BinaryArray, ended: pa.BinaryArray) -> list[Part]:
        if not len(links) + len(ended):
            return []
        rows = encode_rows(self.index.columns, [pa.repeat(pa.scalar(True), len(links))])
        cells = pa.concat_arrays([pack_many(rows, schema=self.index.schema), pa.nulls(len(ended), pa.binary())])
        return [(STATE, self.index.name, part(pa.concat_arrays([links, ended]), cells))]

    def _links_of(self, changed: pa.Table, state: TaskState) -> pa.BinaryArray:
        """The stored links of foreign keys whose rows changed, as of `v-1`."""
        if not changed.num_rows:
            return pa.array([], pa.binary())
        ranges = Ranges.of_prefixes(pc.unique(beginnings(self.table.store.key, self._foreign(changed))))
        return whole(state.scan_many(self.index.name, ranges)["key"])

    def _answers(self, chunk: pa.Table, changed: pa.Table, rows: TableRows) -> pa.Table:
        """The rows of the right table for these links, each with its time or that of the change, whichever is later."""
        key = self.table.store.key
        columns = decode_keys(self.index.key, whole(chunk["link"]))
        foreign = encode_keys(key, columns[: len(key.fields)])
        coded = foreign.dictionary_encode()
        found = rows.of(coded.dictionary)
        times = pc.max_element_wise(whole(chunk["time"]), found.times.take(coded.indices))
        if changed.num_rows:
            of_right = pc.index_in(foreign, value_set=encode_keys(key, self._foreign(changed)))
            times = pc.max_element_wise(times, self._times(changed).take(of_right))
        taken = [each.take(coded.indices) for each in (*found.columns, found.there)]
        return _typed([*columns[len(key.fields) :], foreign, *taken, times], self.answers)


@dataclass(frozen=True)
class ForeignKeyJoinWork(ForeignKeyWork):
    """Puts answers together with the rows of the left table."""

    store: StoreSpec
    how: How
    on: tuple[str, ...]
    foreign: Schema

    def _segments(
        self, task: TaskId, batches: Iterable[pa.RecordBatch], rows: TableRows, state: TaskState, tally: Tally
    ) -> Iterator[list[Part]]:
        before = state.store(self.store.name)
        first = rewritten(self.store, self.now, self.limits.rewrite_entries, before, tally)
        answers, dead = self._usable(batches, tally)
        yield [*first, *dead]
        for chunk in _slices(answers):
            key = [whole(chunk[name]) for name in self.columns.keys]
            check_own(self.store.key, key, task, self.limits.partitions)
            keys = encode_keys(self.store.key, key)
            mine = rows.of(keys)
            foreign, *theirs, there = (whole(chunk[name]) for name in self.columns.values)
            there = mine.there if self.how == "left" else pc.and_(mine.there, there)
            fields = zip([*mine.columns, *theirs], self.store.columns.fields, strict=True)
            joined = encode_rows(self.store.columns, [each.cast(field.field_type.arrow) for each, field in fields])
            joined = pc.if_else(there, joined, pa.scalar(None, joined.type))
            current = self._is_current(key, mine, foreign)
            times = None
            if self.columns.time is not None:
                times = pc.max_element_wise(self._times(chunk), mine.times).filter(current)
            yield changed_rows(self, keys.filter(current), times, joined.filter(current), state, tally)

    def _is_current(self, key: Columns, mine: FoundRows, answered: pa.BinaryArray) -> pa.BooleanArray:
        """Which answers are for the foreign key that the row has now: one per row.

        If the join was removed from the app for some versions, the index may have links that have ended meanwhile.
        """
        linked, columns = _foreign_keys(self.table.store, self.on, key, mine)
        typed = zip(columns, self.foreign.fields, strict=True)
        known = encode_keys(self.foreign, [each.filter(linked).cast(field.field_type.arrow) for each, field in typed])
        has = pc.replace_with_mask(pa.nulls(len(linked), pa.binary()), linked, known)
        return pc.or_(pc.is_null(answered), pc.fill_null(pc.equal(answered, has), False))


def _foreign_keys(
    store: StoreSpec, on: Sequence[str], key: Columns, found: FoundRows
) -> tuple[pa.BooleanArray, Columns]:
    """Which rows have a foreign key, and its columns."""
    names = (*store.key.names, *(field.name for field in store.columns.fields if not field.hidden_in))
    columns = dict(zip(names, (*key, *found.columns), strict=True))
    foreign = [columns[name] for name in on]
    there = reduce(pc.and_, [found.there, *(pc.is_valid(each) for each in foreign)])
    variable = [each for each in foreign if pa.types.is_string(each.type) or pa.types.is_binary(each.type)]
    if variable:  # one that is too long can't be the key of a row
        length = reduce(pc.add, (pc.binary_length(each) for each in variable))
        there = pc.and_(there, pc.fill_null(pc.less_equal(length, LONGEST_KEY), False))
    return there, foreign


def _slices(records: pa.Table | None) -> Iterator[pa.Table]:
    """Tables of a bounded number of records."""
    for first in range(0, 0 if records is None else records.num_rows, READ_ROWS):
        assert records is not None
        yield records.slice(first, READ_ROWS)


def _typed(columns: Columns, schema: pa.Schema) -> pa.Table:
    return pa.table([column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)
