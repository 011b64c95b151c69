"""One source and the sub-topologies that read it: what the streaming query selects, and each reader's records.

The streaming query applies the stateless steps that all readers share and selects the columns that they use, so that
Spark reads nothing else from the source. A source's records are counted after those steps, so a `flat_map` isn't one of
them: a record is counted once, however many records it becomes.

The clock of a source is that of what it has read, so shared steps that leave records out are applied to each batch,
after its times were read. Only a step that computes the event time anew, and those before it, come first.

A dead letter has the columns that any reader of its source uses. For the others, a reader selects its own columns.

An unusable record is reported once: of the readers that get it and can't use it, after whatever steps, the one that was
declared first reports it, and the others leave it out. Only a step whose rows are not made of one record each, such as
`mapInPandas`, hides which record a row was: its reader reports its own. A reader with a filter that may answer
otherwise when it is asked again, such as `rand() < 0.5`, leaves the reports to the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from holdfast.errors import TopologyError
from holdfast.pipeline.checking import not_row_by_row
from holdfast.pipeline.clock_columns import TimeColumns
from holdfast.pipeline.column_pruning import columns_used
from holdfast.pipeline.local_records import name_in
from holdfast.pipeline.plan_nodes import column_before, is_stateless, keeps_rows
from holdfast.pipeline.planning import Planner
from holdfast.pipeline.unusable import Expression, quoted
from holdfast.topology.frames import is_repeatable
from holdfast.topology.plain_frames import PlainFrame, spark_frame
from holdfast.topology.steps import Computed, Filter, FlatMap, PlainStep
from holdfast.topology.stream import SOURCE
from holdfast.topology.topology import OutputOf, Source, StaticRows, after_step

Origin = Source | OutputOf | StaticRows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.topology.topology import Branch, StatelessStep

Steps = tuple["StatelessStep", ...]


@dataclass(frozen=True, eq=False)
class Reader:
    """A branch of the stream that a sub-topology reads, and the sub-topology's planner."""

    planner: Planner
    branch: Branch
    computed: Steps = ()
    """What the operator computes of a record, as a step that can be checked."""
    is_merged: bool = False
    """Whether its records are merged with those of other branches."""
    timestamp: str | None = None
    """The column of its event times."""
    name: str = ""
    """The sub-topology's."""

    @property
    def steps(self) -> Steps:
        return self.branch.steps

    @cached_property
    def repeatable(self) -> bool:
        """Whether its steps give the same records each time."""
        return is_repeatable(self.branch.frame)

    @cached_property
    def columns(self) -> list[str]:
        """The columns of its records that the planner uses."""
        frame = self.branch.frame
        if isinstance(self.branch.origin, Source) and self.branch.origin.whole_dead_letters:
            return frame.columns
        if isinstance(frame, PlainFrame) or isinstance(self.branch.origin, OutputOf | StaticRows):
            names = [name_in(each) for each in self.planner.used()]
            if None not in names:
                return [name for name in frame.columns if name in names]
        return columns_used(frame.sparkSession, frame.schema, lambda df: df.select(*as_columns(self.planner.used())))

    @cached_property
    def read(self) -> Collection[str]:
        """The columns that it uses of its source's records, before its steps."""
        assert isinstance(self.branch.origin, Source)
        frame, plain = self.branch.origin.frame, [each for each in self.steps if isinstance(each, PlainStep)]
        if not isinstance(frame, PlainFrame) or len(plain) < len(self.steps):
            used = as_columns(self.planner.used())
            return columns_used(frame.sparkSession, frame.schema, lambda df: applied(df, self.steps).select(*used))
        names = set(self.columns)
        for step in reversed(plain):
            names = step.reads(names)
        return names

    @cached_property
    def _selected(self) -> list[Column]:
        return self._chosen(self.columns)

    def _chosen(self, names: Sequence[str]) -> list[Column]:
        selected = [F.col(quoted(name)) for name in names]
        # Merged records have their origin's name.
        return [*selected, F.lit(self.branch.origin.name).alias(SOURCE)] if self.is_merged else selected

    def select(self, frame: DataFrame) -> DataFrame:
        """The columns that the planner uses."""
        return frame.select(*self._selected)

    def select_for_letters(self, frame: DataFrame, used: Collection[str]) -> DataFrame:
        """The same, and those of a dead letter: `used` are the columns that the app uses of the source."""
        return frame.select(*self._chosen(self.letter_columns(used)))

    def letter_columns(self, used: Collection[str]) -> list[str]:
        return [name for name in self.branch.frame.columns if name in self.columns or name in used]


class SourceReaders:
    """A source, and all branches that read it."""

    def __init__(self, source: Source, readers: Sequence[Reader], *, checked: bool = False) -> None:
        """`checked`: the streaming query has no step that can fail, so that each can be checked in its batches."""
        self.readers, self._source = readers, source
        self._using_all: dict[Reader, bool] = {}
        shared = shared_steps([reader.steps for reader in readers])
        self._shared = in_query(source.frame, shared, checked=checked)
        clock = SourceClock.of(source.frame, self._shared, readers)
        if not checked:
            clock.check(source)
        self.times = clock.times
        """The columns with the event times by which the clock of the source moves."""
        self.witnesses = clock.witnesses
        self._late = self._shared[clock.after :]
        """The shared steps that are applied to each batch."""
        counting = min(readers, key=lambda reader: len(reader.steps))
        self.counting = counting if len(counting.steps) == len(shared) else None
        """A reader that gets all records of the source."""
        self.selected = self._selected(applied(source.frame, self._shared), whole=source.whole_dead_letters)
        """The records after the shared steps."""
        self.query = self._queried(applied(source.frame, self._shared[: clock.after])) if self._late else self.selected
        """What the streaming query reads of this source."""

    @property
    def can_be_checked(self) -> bool:
        """Whether the streaming query has steps that can fail, and could do without them."""
        kept = in_query(self._source.frame, self._shared, checked=True)
        return len(kept) < len(self._shared) and is_row_by_row(self._source.frame, self._shared)

    def time_columns(self, tag: str | None = None) -> TimeColumns:
        return TimeColumns(self.times, self._source.parse is not None, tag)

    @property
    def computes_once(self) -> bool:
        """Whether the rows of `of_batch` are kept, although a union has them: to filter it is cheaper than a copy."""
        if not all(reader.repeatable for reader in self.readers):
            return bool(self._late)
        return len(self.readers) > 1 and not all(is_filter(step) for step in self._late)

    def of_batch(self, records: DataFrame) -> DataFrame:
        """The records of a batch of `query` after the shared steps."""
        return self._chosen(applied(records, self._late)) if self._late else records

    def _queried(self, frame: DataFrame) -> DataFrame:
        """The frame with the columns that the steps of each batch, and the clock, use."""
        if self._source.whole_dead_letters:
            return frame
        used = columns_used(frame.sparkSession, frame.schema, lambda df: self._chosen(applied(df, self._late)))
        return with_nulls(frame, {*used, *self.times})

    def _selected(self, shared: DataFrame, *, whole: bool) -> DataFrame:
        """The frame with the columns that the readers use."""
        self.unread, self.used = set[str](), set(shared.columns)
        if not whole:
            self.used = {name for reader in self.readers for name in self._used(shared, reader)}
            self.unread = {name for name in shared.columns if name not in self.used}
        return self._chosen(shared)

    def _chosen(self, shared: DataFrame) -> DataFrame:
        if not self.unread:
            return shared
        if all(len(reader.steps) == len(self._shared) for reader in self.readers):
            return shared.select(*(quoted(name) for name in shared.columns if name in self.used))
        return with_nulls(shared, self.used)

    def _used(self, shared: DataFrame, reader: Reader) -> list[str]:
        own = reader.steps[len(self._shared) :]
        used = as_columns(reader.planner.used())
        return columns_used(shared.sparkSession, shared.schema, lambda df: applied(df, own).select(*used))

    def uses_all(self, reader: Reader) -> bool:
        """Whether the records of a reader have the columns that its planner uses, and no others."""
        if reader not in self._using_all:
            records = applied(self.selected, (*self.own_steps(reader), *reader.computed))
            self._using_all[reader] = not reader.is_merged and records.columns == reader.columns
        return self._using_all[reader]

    def own_steps(self, reader: Reader) -> Steps:
        """The steps of a reader after those of the streaming query."""
        return reader.steps[len(self._shared) :]


class SourceClock(NamedTuple):
    """Where the event times of a source's records are read."""

    anew: int
    """How many of the shared steps come before the times are final: none, unless one computes them anew."""
    after: int
    """The same and the steps that follow and keep all records: those of the streaming query."""
    times: list[str]
    """The columns with the times. A reader whose own steps compute its times anew moves the clock by its tasks."""
    witnesses: dict[str, Reader]
    """For each of them, a reader whose tasks see all records; none where steps leave some out."""
    columns: dict[Reader, str | None]
    """The column of each reader's times before its own steps; None if these compute it anew, or may do so."""

    @classmethod
    def of(cls, frame: DataFrame, shared: Steps, readers: Sequence[Reader]) -> SourceClock:
        """`shared` are the first steps of all readers."""
        later = frame
        for step in shared:
            later = after_step(later, step)
        timed = {reader: reader.timestamp for reader in readers if reader.timestamp is not None}
        own = {reader: reader.steps[len(shared) :] for reader in timed}
        columns = {reader: _column_before(later, own[reader], name) for reader, name in timed.items()}
        times = dict.fromkeys(name for name in columns.values() if name is not None)
        effects = _effects(frame, shared, times or {*timed.values()})
        anew = max((n for n, each in enumerate(effects, 1) if not each.can_wait), default=0) if timed else len(shared)
        after = next((n for n in range(anew, len(shared)) if not effects[n].keeps_rows), len(shared))
        witnesses = dict[str, Reader]()
        for reader, column in columns.items() if after == len(shared) else ():
            if column is not None and all(each.keeps_rows for each in _effects(later, own[reader], ())):
                witnesses.setdefault(column, reader)
        return cls(anew, after, [*times], witnesses, columns)

    def check(self, source: Source) -> None:
        """Refuses readers with different times: each would change the clock of the others."""
        if len(self.columns) < 2 or (len(found := {*self.columns.values()}) == 1 and None not in found):
            return
        reader = next((each for each, name in self.columns.items() if name != each.timestamp), next(iter(self.columns)))
        names = ", ".join(sorted({repr(each.name) for each in self.columns}))
        raise TopologyError(
            f"A step of the stream of {reader.name!r} computes the event time {reader.timestamp!r} of the source "
            f"{source.name!r} anew, or Spark doesn't show that it keeps it. A source has one clock, and "
            f"{len(self.columns)} streams of this one have event times (of {names}), so one would change when the "
            "windows of another close. Do this step in the DataFrame, as a source of its own: "
            f'app.stream(df.withColumn("{reader.timestamp}", ...), name="...").'
        )


class _Effect(NamedTuple):
    """What a step does to the records that it gets."""

    keeps_rows: bool
    """Whether it gives one record per record."""
    keeps_times: bool
    is_stateless: bool
    """Whether it does the same in a batch as in the streaming query."""

    @property
    def can_wait(self) -> bool:
        """Whether it may be applied after the times were read."""
        return self.keeps_times and self.is_stateless


def _effects(frame: DataFrame, steps: Steps, names: Collection[str]) -> list[_Effect]:
    """The effects of these steps on records with these event times."""
    found: list[_Effect] = []
    for step in steps:
        derived = after_step(frame, step)
        keeps_times = all(_before(frame, step, derived, name) == name for name in names)
        if isinstance(step, PlainStep):
            found.append(_Effect(step.keeps_records, keeps_times, is_stateless=True))
        else:
            given = spark_frame(frame)
            found.append(_Effect(keeps_rows(given, derived), keeps_times, is_stateless(given, derived)))
        frame = derived
    return found


def _column_before(frame: DataFrame, steps: Steps, name: str) -> str | None:
    """The column of the frame that has this name after the steps; None if one computes it anew."""
    frames = [frame]
    for step in steps:
        frames.append(after_step(frames[-1], step))
    found: str | None = name
    for n, step in reversed([*enumerate(steps)]):
        found = None if found is None else _before(frames[n], step, frames[n + 1], found)
    return found


def _before(frame: DataFrame, step: StatelessStep, derived: DataFrame, name: str) -> str | None:
    """The column of the frame that has this name after one step."""
    if not isinstance(step, PlainStep):
        return column_before(spark_frame(frame), derived, name)
    return step.time_before(name)


def reporting_first(readers: Sequence[Reader]) -> dict[Reader, list[Reader]]:
    """For each reader of an origin, in the order of declaration: those that report what neither of them can use."""
    in_order = sorted(readers, key=lambda reader: not reader.repeatable)
    return {reader: [other for other in in_order[:n] if other.repeatable] for n, reader in enumerate(in_order)}


def used_of(readers: Sequence[Reader], used: Mapping[Source, Collection[str]]) -> set[str]:
    """The columns that an app uses of the sources that a planner reads. Merged records all have the same columns."""
    origins = (reader.branch.origin for reader in readers)
    return {name for origin in origins if isinstance(origin, Source) for name in used[origin]}


def as_columns(expressions: Sequence[Expression]) -> list[Column]:
    return [F.expr(each) if isinstance(each, str) else each for each in expressions]


def shared_steps(chains: Sequence[Steps]) -> Steps:
    """The steps that all chains start with, up to one that makes several records of one: each is counted once.

    >>> from holdfast.topology.steps import Filter
    >>> a, b, c = Filter("a"), Filter("b"), Computed(FlatMap("c", "item"), "flat_map()", "fail")
    >>> shared_steps([(a, b, c), (a, b), (a, c)]) == (a,) == shared_steps([(a, c, b), (a, c)])
    True
    """
    shared: list[StatelessStep] = []
    for steps in zip(*chains, strict=False):
        several = isinstance(steps[0], Computed) and isinstance(steps[0].apply, FlatMap)
        if several or any(step is not steps[0] for step in steps):
            break
        shared.append(steps[0])
    return tuple(shared)


def is_filter(step: StatelessStep) -> bool:
    return isinstance(step.apply if isinstance(step, Computed) else step, Filter)


def in_query(frame: DataFrame, steps: Steps, *, checked: bool = False) -> Steps:
    """The steps that can be part of the streaming query: up to the first one that is checked record by record.

    That is one whose failures don't stop the app or, if `checked`, any that can fail.
    """
    if not any(isinstance(step, Computed) and (checked or step.on_error != "fail") for step in steps):
        return steps
    for n, step in enumerate(steps):
        derived = after_step(frame, step)
        is_checked = isinstance(step, Computed) and (checked or step.on_error != "fail")
        if is_checked and not_row_by_row(spark_frame(frame), derived) is None:
            return steps[:n]
        frame = derived
    return steps


def is_row_by_row(frame: DataFrame, steps: Steps) -> bool:
    """Whether each step computes each row from one row."""
    for step in steps:
        derived = step(frame)
        if not_row_by_row(frame, derived) is not None:
            return False
        frame = derived
    return True


def with_nulls(frame: DataFrame, used: Collection[str]) -> DataFrame:
    """The frame with null in the columns that aren't used: a later step may name one, but nothing reads it."""
    return frame.select(
        *(
            F.col(quoted(field.name)) if field.name in used else F.lit(None).cast(field.dataType).alias(field.name)
            for field in frame.schema.fields
        )
    )


def applied(frame: DataFrame, steps: Steps) -> DataFrame:
    for step in steps:
        frame = step(frame)
    return frame
