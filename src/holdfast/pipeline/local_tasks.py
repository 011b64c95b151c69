"""Runs the tasks of a version in this process, without Spark: what `planners.BatchTasks` does for a test driver.

Sub-topologies, tasks, segments and results are the same. Only stateless steps and SQL expressions need Spark, on this
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.log.log import Log
from holdfast.pipeline.driver import BatchResult, Step
from holdfast.pipeline.due import must_run
from holdfast.pipeline.local_records import LocalRows, holds
from holdfast.pipeline.planners import planner_of
from holdfast.pipeline.planning import Planner, Sealed
from holdfast.pipeline.results import TaskDone, TaskResult, decode, encode
from holdfast.pipeline.sealed import sealed_table
from holdfast.pipeline.source_readers import Reader, Steps, applied, base, earlier_readers, shared_steps
from holdfast.pipeline.static_tables import StaticTables
from holdfast.pipeline.task import Limits
from holdfast.pipeline.task_columns import DEAD
from holdfast.pipeline.task_state import TaskState
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.partition import partitions_of
from holdfast.topology.outputs import DerivedOutput
from holdfast.topology.plain_frames import arrow_schema, local_session, static_table
from holdfast.topology.steps import PlainStep
from holdfast.topology.stream import SOURCE
from holdfast.topology.topology import Source, StaticRows
from holdfast.words import TaskId

if TYPE_CHECKING:
    from holdfast.topology.topology import SubTopology

PLACE = "_place"
"""The column with a record's place in its version, by which readers know what another one has reported."""

StateOf = Callable[[TaskId], TaskState]


class LocalTasks:
    """Runs the tasks of all sub-topologies, in order."""

    def __init__(self, subtopologies: Sequence[SubTopology], limits: Limits, static: StaticTables) -> None:
        self.partitions, self.static = limits.partitions, static
        self.planners: list[tuple[SubTopology, Planner]] = [(each, planner_of(each, limits)) for each in subtopologies]
        self.outputs = {output.name: output for each in subtopologies for output in each.outputs}
        self.readers = {
            planner: [Reader(planner, branch) for branch in each.stream.branches] for each, planner in self.planners
        }
        self.of_source: dict[Source, list[Reader]] = {}
        for reader in (reader for own in self.readers.values() for reader in own):
            if isinstance(origin := reader.branch.origin, Source):
                self.of_source.setdefault(origin, []).append(reader)
        self.earlier = {
            reader: others for readers in self.of_source.values() for reader, others in earlier_readers(readers).items()
        }

    def compute(self, batch: Mapping[str, pa.Table], step: Step, log: Log, state: StateOf) -> BatchResult:
        """The results of a version with these records, by the name of their source."""
        records = {
            source: batch[source.name] if source.name in batch else arrow_schema(source.frame).empty_table()
            for source in self.of_source
        }
        version = _LocalVersion(self, step, log, state, records)
        return BatchResult(version.run(), version.counts())

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
    _based: dict[tuple[int, ...], pa.Table] = field(default_factory=dict)

    def run(self) -> list[TaskResult]:
        """The results of all tasks. Where one has failed, no further sub-topology runs."""
        for subtopology, planner in self.tasks.planners:
            records = self._records(planner)
            if records is not None:
                self._run_tasks(subtopology, planner, planner.local(records, self.step))
            elif (self.batch and planner.every_version) or must_run(subtopology, self.due, self.step):
                self._run_tasks(subtopology, planner, None)
            if not all(isinstance(result, TaskDone) for result in self.results):
                break
        return self.results

    def counts(self) -> dict[str, int]:
        """How many records each source had, after the steps that all its readers share."""
        found = {}
        for source, readers in self.tasks.of_source.items():
            shared = shared_steps([reader.steps for reader in readers])
            found[source.name] = after(self.batch[source], shared).num_rows
        return found

    def _run_tasks(self, subtopology: SubTopology, planner: Planner, rows: LocalRows | None) -> None:
        work = planner.work(self.step, self._sealed())
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
        origin = reader.branch.origin
        if isinstance(origin, StaticRows):
            unread = self.tasks.static.is_unread(origin)
            return _selected(static_table(origin.frame), reader) if unread else None
        if not isinstance(origin, Source):
            output = self.tasks.outputs[origin.name]
            assert isinstance(output, DerivedOutput)
            time = self.step.wall if self.step.event is None else self.step.event
            sealed = sealed_table(output, self.results, time, self.log)
            return None if sealed is None else _selected(after(sealed, reader.steps), reader)
        if origin not in self.batch:
            return None
        records = self._with_places(origin, reader)
        reported = {place for other in self.tasks.earlier[reader] for place in self._unusable(origin, other)}
        if reported:
            left_out = reported & self._unusable(origin, reader)
            kept = [place not in left_out for place in records[PLACE].to_pylist()]
            records = records.filter(pa.array(kept, pa.bool_()))
        return _selected(records, reader)

    def _with_places(self, source: Source, reader: Reader) -> pa.Table:
        """The records of a branch. Branches that differ only in filters have the same places."""
        first = base(reader.steps)
        known = (id(source), *map(id, first))
        if known not in self._based:
            table = after(self.batch[source], first)
            self._based[known] = table.append_column(PLACE, pa.array(np.arange(table.num_rows)))
        return after(self._based[known], reader.steps[len(first) :])

    def _unusable(self, source: Source, reader: Reader) -> set[int]:
        """The places of the records that a reader can't use."""
        records = self._with_places(source, reader)
        found = np.zeros(records.num_rows, dtype=bool)
        for case in reader.planner.unusable(self.step.wall):
            found |= holds(case, records)
        return set(records[PLACE].filter(pa.array(found)).to_pylist())


def _shares(subtopology: SubTopology, rows: LocalRows, partitions: int) -> list[list[pa.RecordBatch]]:
    """The rows of each partition. Unusable ones may have no key, and are in the first partition."""
    table = rows.table
    where = np.zeros(table.num_rows, dtype=np.int32)
    usable = table[DEAD].is_null()
    keys = [whole(table[name].filter(usable)) for name in rows.keys]
    where[usable.to_numpy()] = partitions_of(subtopology.key, keys, partitions)
    return [table.filter(pa.array(where == n)).to_batches() for n in range(partitions)]


def _selected(table: pa.Table, reader: Reader) -> pa.Table:
    """The columns that the planner uses, of the types that the topology expects."""
    schema = arrow_schema(reader.branch.frame)
    return pa.table({name: table[name].cast(schema.field(name).type) for name in reader.columns})


def after(table: pa.Table, steps: Steps) -> pa.Table:
    """The records after these stateless steps. Steps that only choose columns need no Spark."""
    while steps and isinstance(steps[0], PlainStep):
        table, steps = steps[0].arrow(table), steps[1:]
    return applied(local_session().createDataFrame(table), steps).toArrow() if steps else table
