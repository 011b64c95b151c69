"""Runs the tasks of a version in this process, without Spark: what `planners.BatchTasks` does for a test driver.

Sub-topologies, tasks, segments and results are the same. Only stateless steps and SQL expressions need Spark, on this
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from holdfast.log.log import Log
from holdfast.pipeline.checking import free
from holdfast.pipeline.driver import BatchResult, Step
from holdfast.pipeline.due import must_run
from holdfast.pipeline.failing import LettersWork, can_fail, readers_of, stop_for, without_failed
from holdfast.pipeline.local_records import LocalRows, holds, latest
from holdfast.pipeline.planners import planner_of
from holdfast.pipeline.planning import Planner, Sealed
from holdfast.pipeline.processing_task import ProcessingWork, Watch, unwatched
from holdfast.pipeline.record_ids import RECORD_ID, hide_ids, show_ids
from holdfast.pipeline.results import TaskDone, TaskResult, decode, encode
from holdfast.pipeline.sealed import sealed_table
from holdfast.pipeline.source_readers import (
    Origin,
    Reader,
    SourceClock,
    Steps,
    applied,
    in_query,
    reporting_first,
    shared_steps,
    used_of,
)
from holdfast.pipeline.spark_errors import concerns_data
from holdfast.pipeline.static_tables import StaticTables
from holdfast.pipeline.task import Limits
from holdfast.pipeline.task_columns import DEAD
from holdfast.pipeline.task_state import TaskState
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.partition import partitions_of
from holdfast.topology.derived import hidden_of
from holdfast.topology.outputs import DerivedOutput
from holdfast.topology.parsing import UNREADABLE
from holdfast.topology.plain_frames import arrow_schema, local_session, static_table
from holdfast.topology.processor import OnError
from holdfast.topology.steps import PlainStep
from holdfast.topology.stream import SOURCE
from holdfast.topology.topology import Source, StaticRows
from holdfast.words import Millis, TaskId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.topology.topology import SubTopology

StateOf = Callable[[TaskId], TaskState]


class LocalTasks:
    """Runs the tasks of all sub-topologies, in order."""

    def __init__(
        self, subtopologies: Sequence[SubTopology], limits: Limits, static: StaticTables, watch: Watch = unwatched
    ) -> None:
        """`watch` is called around the calls of processors."""
        self.partitions, self.static, self.watch = limits.partitions, static, watch
        self.planners: list[tuple[SubTopology, Planner]] = [(each, planner_of(each, limits)) for each in subtopologies]
        self.outputs = {output.name: output for each in subtopologies for output in each.outputs}
        self.inline_limit, self.max_ahead_millis = limits.inline_limit, limits.max_ahead_millis
        self.readers = {planner: readers_of(each, planner) for each, planner in self.planners}
        by_origin: dict[Origin, list[Reader]] = {}
        for reader in (reader for own in self.readers.values() for reader in own):
            by_origin.setdefault(reader.branch.origin, []).append(reader)
        self.of_source = {origin: own for origin, own in by_origin.items() if isinstance(origin, Source)}
        self.used = {source: {name for each in own for name in each.read} for source, own in self.of_source.items()}
        """The columns that the app uses of each source."""
        self.clocks = {
            source: SourceClock.of(
                source.frame, in_query(source.frame, shared_steps([each.steps for each in own])), own
            )
            for source, own in self.of_source.items()
        }
        for source, clock in self.clocks.items():
            clock.check(source)
        self.first = {reader: others for own in by_origin.values() for reader, others in reporting_first(own).items()}

    def compute(self, batch: Mapping[str, pa.Table], step: Step, log: Log, state: StateOf) -> BatchResult:
        """The results of a version with these records, by the name of their source."""
        records = {
            source: batch[source.name] if source.name in batch else arrow_schema(source.frame).empty_table()
            for source in self.of_source
        }
        version = _LocalVersion(self, step, log, state, records)
        return BatchResult(version.run(), version.counts(), version.read())

    def compute_idle(self, due: Collection[str], step: Step, log: Log, state: StateOf) -> BatchResult:
        """The results of a version without a batch."""
        return BatchResult(_LocalVersion(self, step, log, state, {}, due).run())


@dataclass
class _LocalVersion:
    """One version in this process."""

    tasks: LocalTasks
    step: Step
    log: Log
    state: StateOf
    batch: Mapping[Source, pa.Table]
    due: Collection[str] = ()
    results: list[TaskResult] = field(default_factory=list)
    failed: dict[Reader, list[tuple[OnError, pa.Table]]] = field(default_factory=dict)
    """The letters of records for which a step failed, with their numbers."""
    letters: list[TaskResult] = field(default_factory=list)
    _known: dict[Reader, pa.Table | None] = field(default_factory=dict)

    def run(self) -> list[TaskResult]:
        """The results of all tasks. Where one has failed, no further sub-topology runs."""
        for subtopology, planner in self.tasks.planners:
            rows = self._rows(planner)
            if rows is not None:
                self._run_tasks(subtopology, planner, rows)
                self._write_letters(subtopology, planner)
            elif (self.batch and planner.every_version) or must_run(subtopology, self.due, self.step):
                self._run_tasks(subtopology, planner, None)
            if not all(isinstance(result, TaskDone) for result in self.results):
                break
        return [*self.results, *self.letters]

    def _rows(self, planner: Planner) -> LocalRows | None:
        """The rows of a planner's tasks, None if there can't be any. Records that fail are set apart."""
        readers = self.tasks.readers[planner]
        try:
            records = self._records(planner)
            return None if records is None else planner.local(records, self.step)
        except (PySparkException, Py4JJavaError) as error:
            steps = ((*reader.steps, *reader.computed) for reader in readers)
            if not concerns_data(error) or not any(map(can_fail, steps)):
                raise
            for reader in readers:
                if (origin := self._origin(reader.branch.origin)) is not None:
                    self._known[reader], self.failed[reader] = checked(origin, reader, error)
        records = self._records(planner)
        return None if records is None else planner.local(records, self.step)

    def _write_letters(self, subtopology: SubTopology, planner: Planner) -> None:
        task, *_ = subtopology.tasks(self.tasks.partitions)
        for reader in self.tasks.readers[planner]:
            reported = self._reported(reader)
            for on_error, letters in self.failed.get(reader, ()):
                own = letters
                if on_error == "dead_letter":
                    kept = [number not in reported for number in letters[RECORD_ID].to_pylist()]
                    own = letters.filter(pa.array(kept, pa.bool_()))
                work = LettersWork(
                    subtopology.number, self.step.version, subtopology.name, self.tasks.inline_limit, on_error
                )
                self.letters.append(work.run(task, own.to_batches(), self.log, self.state(task)))

    def counts(self) -> dict[str, int]:
        """How many records each source had, after the steps that all its readers share."""
        found = {}
        for source, readers in self.tasks.of_source.items():
            shared = shared_steps([reader.steps for reader in readers])
            found[source.name] = count_after(self.batch[source], shared)
        return found

    def read(self) -> dict[str, Millis | None]:
        """The largest event time of each source that has read records."""
        found = dict[str, Millis | None]()
        for source, clock in self.tasks.clocks.items():
            if clock.times and (records := self.batch[source]).num_rows:
                steps = self.tasks.of_source[source][0].steps[: clock.anew]
                records = after(records, steps) if steps else readable(records)
                found[source.name] = latest(records, clock.times, self.step.wall + self.tasks.max_ahead_millis)
        return found

    def _run_tasks(self, subtopology: SubTopology, planner: Planner, rows: LocalRows | None) -> None:
        work = planner.work(self.step, self._sealed())
        if isinstance(work, ProcessingWork):
            work = replace(work, watch=self.tasks.watch)
        tasks = subtopology.tasks(self.tasks.partitions)
        shares = [[]] * len(tasks) if rows is None else _shares(subtopology, rows, len(tasks))
        for task, share in zip(tasks, shares, strict=True):
            # Encoded, as on the way from a worker.
            self.results.append(decode(encode(work.run(task, share, self.log, self.state(task)))))

    def _sealed(self) -> Sealed:
        done = (result for result in self.results if isinstance(result, TaskDone))
        return {each.task: (*each.segments, *each.volatile) for each in done}

    def _records(self, planner: Planner) -> pa.Table | None:
        """The records of a sub-topology's stream, None if there can't be any. Merged ones have their origin's name."""
        readers = self.tasks.readers[planner]
        tables = [(reader.branch.origin.name, table) for reader in readers if (table := self._of(reader)) is not None]
        if not tables or len(readers) == 1:
            return tables[0][1] if tables else None
        names = tables[0][1].column_names
        tagged = (
            table.select(names).append_column(SOURCE, pa.repeat(pa.scalar(name), table.num_rows))
            for name, table in tables
        )
        return pa.concat_tables(tagged)

    def _of(self, reader: Reader) -> pa.Table | None:
        """The records of one branch, with the columns that its planner uses."""
        records = self._numbered(reader)
        if records is None:
            return None
        if reported := self._reported(reader):
            left_out = reported & self._unusable(reader, records)
            kept = [number not in left_out for number in records[RECORD_ID].to_pylist()]
            records = records.filter(pa.array(kept, pa.bool_()))
        return _selected(records, reader, used_of(self.tasks.readers[reader.planner], self.tasks.used))

    def _numbered(self, reader: Reader) -> pa.Table | None:
        """The records of a branch, with the number that each has in its origin; None if there can't be any."""
        if reader not in self._known:
            table = self._origin(reader.branch.origin)
            if table is not None:
                table = after(table, reader.steps)
            self._known[reader] = table
        return self._known[reader]

    def _origin(self, origin: Origin) -> pa.Table | None:
        if isinstance(origin, Source):
            return self.batch.get(origin)
        if isinstance(origin, StaticRows):
            return static_table(origin.frame) if self.tasks.static.is_unread(origin) else None
        output = self.tasks.outputs[origin.name]
        assert isinstance(output, DerivedOutput)
        time = self.step.wall if self.step.event is None else self.step.event
        return sealed_table(output, self.results, time, self.log)

    def _reported(self, reader: Reader) -> set[int]:
        """The numbers of the records of which others make dead letters."""
        return {number for other in self.tasks.first[reader] for number in self._dead(other)}

    def _dead(self, reader: Reader) -> set[int]:
        """The numbers of the records of which a reader makes dead letters."""
        records = self._numbered(reader)
        if records is None:
            return set()
        letters = [each for on_error, each in self.failed.get(reader, ()) if on_error == "dead_letter"]
        failed = {number for each in letters for number in each[RECORD_ID].to_pylist()}
        return failed | self._unusable(reader, records)

    def _unusable(self, reader: Reader, records: pa.Table) -> set[int]:
        """The numbers of those of its records that a reader can't use."""
        found = np.zeros(records.num_rows, dtype=bool)
        for case in reader.planner.unusable(self.step.wall):
            found |= holds(case, records)
        return set(records[RECORD_ID].filter(pa.array(found)).to_pylist())


def _shares(subtopology: SubTopology, rows: LocalRows, partitions: int) -> list[list[pa.RecordBatch]]:
    """The rows of each partition. Unusable ones may have no key, and are in the first partition."""
    table = rows.table
    where = np.zeros(table.num_rows, dtype=np.int32)
    usable = table[DEAD].is_null()
    keys = [whole(table[name].filter(usable)) for name in rows.keys]
    where[usable.to_numpy()] = partitions_of(subtopology.key, keys, partitions)
    return [table.filter(pa.array(where == n)).to_batches() for n in range(partitions)]


def _selected(table: pa.Table, reader: Reader, used: Collection[str]) -> pa.Table:
    """The columns that the planner or a dead letter uses, of the types that the topology expects."""
    schema = arrow_schema(reader.branch.frame)
    return pa.table({name: table[name].cast(schema.field(name).type) for name in reader.letter_columns(used)})


def after(table: pa.Table, steps: Steps) -> pa.Table:
    """The records after these stateless steps, each with the number of the record that it was.

    Steps that only choose columns need no Spark.
    """
    table = table.append_column(RECORD_ID, pa.array(np.arange(table.num_rows)))
    while steps and isinstance(steps[0], PlainStep):
        numbers, table, steps = table[RECORD_ID], steps[0].arrow(table), steps[1:]
        if RECORD_ID not in table.column_names:  # a step that keeps all records, and chooses their columns
            table = table.append_column(RECORD_ID, numbers)
    return _after_on_spark(table, steps) if steps else table


def _after_on_spark(table: pa.Table, steps: Steps) -> pa.Table:
    return _numbered_rows(applied(hide_ids(local_session().createDataFrame(table)), steps))


def _numbered_rows(frame: DataFrame) -> pa.Table:
    numbered = show_ids(frame)
    if numbered is not None:
        return numbered.toArrow()
    found = frame.toArrow()  # other rows than the records that were given, with numbers that no record has
    return found.append_column(RECORD_ID, pa.array(-1 - np.arange(found.num_rows)))


def checked(table: pa.Table, reader: Reader, cause: Exception) -> tuple[pa.Table, list[tuple[OnError, pa.Table]]]:
    """The records of a reader after its steps, and the letters of those that failed."""
    kept: list[DataFrame] = []
    try:
        good, failed = without_failed(
            _numbered_frame(table), (*reader.steps, *reader.computed), kept, hidden_of([reader.branch.origin])
        )
        stop_for(failed, cause)
        return _numbered_rows(good), [(each.on_error, each.letters.toArrow()) for each in failed]
    finally:
        free(kept)


def _numbered_frame(table: pa.Table) -> DataFrame:
    """The records with hidden numbers, as an RDD: Spark's optimizer would compute what fails for a local table."""
    numbered = table.append_column(RECORD_ID, pa.array(np.arange(table.num_rows)))
    return hide_ids(local_session().createDataFrame(numbered).localCheckpoint())


def readable(records: pa.Table) -> pa.Table:
    """The records of a source without texts that could not be read."""
    return records.filter(records[UNREADABLE].is_null()) if UNREADABLE in records.column_names else records


def count_after(table: pa.Table, steps: Steps) -> int:
    """How many records there are after these steps, with those that fail in one."""
    try:
        return int(after(table, steps).num_rows)
    except (PySparkException, Py4JJavaError) as error:
        if not concerns_data(error):
            raise
    kept: list[DataFrame] = []
    try:
        good, failed = without_failed(_numbered_frame(table), steps, kept)
        return good.count() + sum(each.broken.records.count() for each in failed)
    finally:
        free(kept)
