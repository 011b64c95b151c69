"""The tasks of one stage and partition, one after the other in one Spark task.

Spark hands over the rows of all members, those of the first member first. Each member is a task of its own, with its
own state, segments and result. What a member has sealed is read by the next ones from its segments, as from another
job: a table's changes by a join that looks them up, an output by a sub-topology with the same key. If Spark runs the
task again, all of it runs again, and only the results of one attempt reach the driver.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self, runtime_checkable

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.log import Log
from holdfast.log.segments import SegmentRef
from holdfast.pipeline.grouping import RejectFastPlan
from holdfast.pipeline.remote_state import StateLocations, state_before
from holdfast.pipeline.results import FastPlanRejected, TaskDone, TaskResult, refused
from holdfast.pipeline.sealed import SealedInput
from holdfast.pipeline.worker import TaskWork, in_worker, log_of
from holdfast.words import TaskId

MEMBER = "_member"
"""The column with the number of the member that a row belongs to."""

NUMBER = "_number"
"""The column with the number of a source's records, in rows that count them."""

Sealed = Mapping[str, tuple[SegmentRef, ...]]
Columns = tuple[tuple[str, str], ...]


class WrongOrder(HoldfastError):
    """A Spark task got the rows of its members in another order than planned."""

    category = ErrorCategory.BUG


@runtime_checkable
class LooksUpSealed(Protocol):
    """The work of a task that looks up tables of other sub-topologies."""

    def after(self, sealed: Sealed) -> Self:
        """The same work, after these tasks of tables have sealed their changes."""


@dataclass(frozen=True)
class StageMember:
    """One sub-topology of a stage."""

    work: TaskWork
    number: int = 0
    """The number of its rows."""
    columns: Columns = ()
    """The columns of the shared rows, and their names in the task."""
    sealed: SealedInput | None = None
    """How it reads its rows from what a former member has sealed; None if Spark hands them over."""


@dataclass(frozen=True)
class CountedSource:
    """A source whose records are counted: its rows have the numbers of records per part of the batch."""

    source: str
    number: int
    column: str


class StageDone(msgspec.Struct, frozen=True):
    """What the tasks of one partition return to the driver."""

    tasks: tuple[TaskResult, ...]
    counted: dict[str, int] = {}
    """Source → how many records it had, of those that this partition counted."""


@dataclass(frozen=True)
class StageWork:
    """What every Spark task of a stage does in one version. The driver sends it to the workers."""

    members: tuple[StageMember, ...]
    counted: tuple[CountedSource, ...]
    locations: StateLocations = field(repr=False)

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The body of `mapInArrow`."""
        return in_worker(lambda partition: _encoder.encode(self._run(partition, batches)))

    def _run(self, partition: int, batches: Iterator[pa.RecordBatch]) -> StageDone:
        log, rows = log_of(self.locations), _InOrder(batches)
        done: list[TaskResult] = []
        sealed: dict[str, tuple[SegmentRef, ...]] = {}
        for member in self.members:
            task = TaskId(member.work.subtopology, partition)
            own = (
                rows.of(member.number, member.columns)
                if member.sealed is None
                else member.sealed.read(task, sealed, log)
            )
            done.append(self._run_member(member.work, task, own, sealed, log))
            if not isinstance(result := done[-1], TaskDone):
                return StageDone(tuple(done))
            sealed[result.task] = (*result.segments, *result.volatile)
        counted = {
            each.source: sum(pc.sum(batch[NUMBER]).as_py() for batch in rows.of(each.number, ((each.column, NUMBER),)))
            for each in self.counted
        }
        return StageDone(tuple(done), counted)

    def _run_member(
        self, work: TaskWork, task: TaskId, rows: Iterable[pa.RecordBatch], sealed: Sealed, log: Log
    ) -> TaskResult:
        if isinstance(work, LooksUpSealed):
            work = work.after(sealed)
        try:
            return work.run(task, rows, log, state_before(self.locations, task, work.version))
        except RejectFastPlan as reason:
            return FastPlanRejected(str(task), str(reason))
        except HoldfastError as error:
            return refused(task, error)


class _InOrder:
    """The rows of a Spark task, member by member."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def of(self, member: int, columns: Columns) -> Iterator[pa.RecordBatch]:
        """The rows of the next member, with its own names of columns."""
        while (batch := self._next()) is not None:
            numbers = batch[MEMBER].to_numpy()
            if batch.num_rows and (numbers[0] < member or (np.diff(numbers) < 0).any()):
                raise WrongOrder(f"A row of member {numbers.min()} came among or after the rows of member {member}.")
            own = int(np.searchsorted(numbers, member, side="right"))
            if own < batch.num_rows:
                self._rest = batch.filter(pa.array(numbers > member))
                batch = batch.filter(pa.array(numbers == member))
            if own:
                yield pa.RecordBatch.from_arrays([batch[name] for name, _ in columns], [name for _, name in columns])
            if self._rest is not None:
                return

    def _next(self) -> pa.RecordBatch | None:
        rest, self._rest = self._rest, None
        return next(self._batches, None) if rest is None else rest


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[StageDone] = msgspec.msgpack.Decoder(StageDone)


def decode_stage(data: bytes) -> StageDone:
    return _decoder.decode(data)
