"""One source and the sub-topologies that read it: what the streaming query selects, and each reader's records.

The streaming query applies the stateless steps that all readers share and selects the columns that they use, so that
Spark reads nothing else from the source. A source's records are counted after those steps, so a `flat_map` isn't one of
them: a record is counted once, however many records it becomes.

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
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from holdfast.pipeline.checking import not_row_by_row
from holdfast.pipeline.column_pruning import columns_used
from holdfast.pipeline.local_records import name_in
from holdfast.pipeline.planning import Planner
from holdfast.pipeline.unusable import Expression, quoted
from holdfast.topology.frames import is_repeatable
from holdfast.topology.plain_frames import PlainFrame
from holdfast.topology.steps import Computed, FlatMap, PlainStep
from holdfast.topology.stream import SOURCE
from holdfast.topology.topology import OutputOf, Source, StaticRows

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
        counting = min(readers, key=lambda reader: len(reader.steps))
        self.counting = counting if len(counting.steps) == len(shared) else None
        """A reader that gets all records of the source."""
        self.selected = self._selected(applied(source.frame, self._shared), whole=source.whole_dead_letters)
        """What the streaming query reads of this source."""

    @property
    def can_be_checked(self) -> bool:
        """Whether the streaming query has steps that can fail, and could do without them."""
        kept = in_query(self._source.frame, self._shared, checked=True)
        return len(kept) < len(self._shared) and is_row_by_row(self._source.frame, self._shared)

    def _selected(self, shared: DataFrame, *, whole: bool) -> DataFrame:
        """The frame with the columns that the readers use."""
        self.unread, self.used = set[str](), set(shared.columns)
        if whole:
            return shared
        self.used = used = {name for reader in self.readers for name in self._used(shared, reader)}
        self.unread = {name for name in shared.columns if name not in used}
        if all(len(reader.steps) == len(self._shared) for reader in self.readers):
            return shared.select(*(quoted(name) for name in shared.columns if name in used))
        # A later step may name a column that nothing uses in the end. It is null there, and isn't read.
        return shared.select(
            *(
                F.col(quoted(field.name)) if field.name in used else F.lit(None).cast(field.dataType).alias(field.name)
                for field in shared.schema.fields
            )
        )

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


def in_query(frame: DataFrame, steps: Steps, *, checked: bool = False) -> Steps:
    """The steps that can be part of the streaming query: up to the first one that is checked record by record.

    That is one whose failures don't stop the app or, if `checked`, any that can fail.
    """
    if not any(isinstance(step, Computed) and (checked or step.on_error != "fail") for step in steps):
        return steps
    for n, step in enumerate(steps):
        derived = step(frame)
        is_checked = isinstance(step, Computed) and (checked or step.on_error != "fail")
        if is_checked and not_row_by_row(frame, derived) is None:
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


def applied(frame: DataFrame, steps: Steps) -> DataFrame:
    for step in steps:
        frame = step(frame)
    return frame
