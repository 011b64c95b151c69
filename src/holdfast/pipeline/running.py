"""A running processor: an object of the user's class with bound stores, which gets record after record.

Tasks pass it chunks of their partition; `holdfast.testing.ProcessorTest` passes it single records.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from holdfast.errors import USER_ERRORS, BadKey, BadValue, ErrorCategory, HoldfastError, shown
from holdfast.pipeline.raised import raised
from holdfast.pipeline.reading_along import ReadAlong
from holdfast.pipeline.store_state import StoreState
from holdfast.pipeline.undoing import Counting, RecordUndo
from holdfast.pipeline.values import output_table
from holdfast.retry import is_retryable
from holdfast.stores.access import BytesAsColumns
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.base import Store
from holdfast.stores.kinds.global_store import GlobalStore
from holdfast.stores.spec import StoreSpec
from holdfast.topology.forwarding import Row
from holdfast.topology.processor import Context, OnError, Processor, globals_of, stores_of
from holdfast.topology.punctuation import Punctuation

Position = Callable[[int], str]
"""The position of a record in its source as text, by its place in the chunk; empty if it isn't known."""


class ProcessorFailed(HoldfastError):
    """A user's processor raised. Nothing of the batch was committed."""

    category = ErrorCategory.INVALID


def concerns_record(error: BaseException) -> bool:
    """Whether an error is about one record. Others, such as an instance that doesn't answer, are about the app."""
    if isinstance(error, HoldfastError):
        return isinstance(error, BadKey | BadValue)
    return isinstance(error, Exception) and not isinstance(error, MemoryError)


@dataclass(frozen=True)
class Records:
    """A chunk of records, and why some of them failed, by their places in the chunk."""

    keys: Sequence[Any]
    events: Sequence[Any]
    times: Sequence[int]
    position: Position
    failed: dict[int, str]

    def __iter__(self) -> Iterator[tuple[Any, Any, int, int]]:
        return zip(self.keys, self.events, self.times, range(len(self.keys)), strict=True)

    def described(self, place: int) -> str:
        """A record in a message: its key, its event and its position in the source."""
        at = self.position(place)
        position = f", with {at}" if at else ""
        return f" for the key {shown(self.keys[place])} and the event {shown(self.events[place])}{position}"

    def forwarding(self, row: Row, time: int) -> str:
        """The record for which a row was forwarded: it has the row's time and mostly its key. Several may have both."""
        of_time = [place for place, each in enumerate(self.times) if each == time]
        same_key = [place for place in of_time if _begins(row, self.keys[place])]
        if not (found := same_key or of_time):
            return ""
        others = f", or for another of {len(found)} records with the same time" if len(found) > 1 else ""
        return self.described(found[0]) + others


def _begins(row: Row, key: object) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return row[: len(parts)] == parts


@dataclass(frozen=True)
class BoundProcessor:
    """A processor, the stores of its attributes, its context, and the global tables that it reads, by attribute."""

    processor: type[Processor]
    stores: Sequence[tuple[str, StoreSpec]]
    context: Context
    tables: Mapping[str, tuple[StoreSpec, StoreState]] = field(default_factory=dict)


Given = dict[str, Store[Any, Any] | GlobalStore[Any, Any]]
"""The stores and global tables of an object, by attribute."""


class RunningProcessor:
    """One object of a processor, for one partition of one version; with those that share its stores, one of each.

    A record is passed to one after the other, in the order of their declaration, before the next record.
    """

    def __init__(
        self,
        members: Sequence[BoundProcessor],
        states: Mapping[str, StoreState],
        *,
        key: Schema,
        count: Callable[[str, str, int], None],
        on_error: OnError = "fail",
    ) -> None:
        self._members = members
        self._records: Sequence[Records] = ()
        """The chunk that was processed last, as each processor got it; empty where punctuators are called."""
        contexts = [member.context for member in members]
        counts: list[Counting] = []
        if on_error != "fail":
            counting = Counting(count)
            counts.append(counting)
            count = counting
            for context in contexts:
                context.counted = counting_user = Counting(context.counted)
                counts.append(counting_user)
        self._count = count
        self._current = contexts[0]
        """Whose time a store follows. While records are processed, all contexts have the same."""
        self._states = states
        self._bound: dict[str, Store[Any, Any]] = {}
        self._prefetched: list[tuple[Store[Any, Any], StoreState]] = []
        for member in members:
            self._bind(member, key)
        outlets = {(n, name): out for n, each in enumerate(contexts) for name, out in each.outlets.items()}
        self._undo = RecordUndo(self._bound.values(), states, outlets.values(), counts) if counts else None
        self._read = {id(bound): states[name] for name, bound in self._bound.items()}
        """What is read in bulk and forgotten after a chunk, by the store or table."""
        made = [self._object_of(member) for member in members]
        self._objects, self._given = [each for each, _ in made], [given for _, given in made]
        self._read_along()

    def _bind(self, member: BoundProcessor, key: Schema) -> None:
        """Binds the stores of a processor, except those that another one has already."""
        declared, context = stores_of(member.processor), member.context
        for attribute, spec in member.stores:
            if spec.name in self._bound:
                continue
            state = self._states[spec.name]
            bound = declared[attribute].bind(state, context.now, partial(self._count, spec.name), spec=spec)
            bound.follow_records(lambda: self._current.timestamp)
            self._bound[spec.name] = bound
            if not spec.other_key and [f.type for f in spec.key.fields] == [f.type for f in key.fields]:
                self._prefetched.append((bound, state))

    def _object_of(self, member: BoundProcessor) -> tuple[Processor, Given]:
        """An object of a processor, and the stores and global tables that it was given."""
        try:
            made = member.processor()
        except USER_ERRORS as error:
            raise self._failed(member, "__init__()", error) from error
        given: Given = {attribute: self._bound[spec.name] for attribute, spec in member.stores}
        for attribute, (spec, state) in member.tables.items():
            given[attribute] = table = globals_of(member.processor)[attribute].bind(spec, state, member.context.now)
            self._read[id(table)] = state
        for attribute, each in given.items():
            setattr(made, attribute, each)
        return made, given

    def _read_along(self) -> None:
        """A lookup in one store reads the keys along that an iteration over another one has returned."""
        read: dict[str, tuple[Store[Any, Any] | GlobalStore[Any, Any], StoreSpec, StoreState]] = {}
        for member, given in zip(self._members, self._given, strict=True):
            specs = dict(member.stores) | {attribute: spec for attribute, (spec, _) in member.tables.items()}
            read |= {spec.name: (given[name], spec, self._read[id(given[name])]) for name, spec in specs.items()}
        for bound, spec, state in read.values():
            if isinstance(bound, GlobalStore) or bound.BY_KEY:
                state.along = ReadAlong(bound, spec, [(other, there) for _, other, there in read.values()])

    @property
    def processors(self) -> Sequence[Processor]:
        """The objects of the user's classes."""
        return self._objects

    def store(self, name: str) -> Any:
        """The bound store of this name."""
        return self._bound[name]

    def begin(self) -> None:
        for bound in self._bound.values():
            bound.begin_version()
        for member, made in zip(self._members, self._objects, strict=True):
            try:
                made.init(member.context)
            except USER_ERRORS as error:
                raise self._failed(member, "init()", error) from error

    def work(
        self,
        keys: Sequence[Any],
        events: Sequence[Sequence[object]],
        times: Sequence[int],
        position: Position = lambda place: "",
        failed: Mapping[int, str] = MappingProxyType({}),
    ) -> dict[int, str]:
        """Processes a chunk of records, in order. `events` are those of each processor.

        Returns why records failed, by their places in the chunk; `failed` has those that are known already. Unless
        `on_error` is "fail", what such a record did is undone.
        """
        for state in self._read.values():
            state.forget()
        some, at = keys, times
        if failed:  # such a record may have no key
            there = [place for place in range(len(keys)) if place not in failed]
            some, at = [keys[place] for place in there], [times[place] for place in there]
        for bound, state in self._prefetched:
            wanted = bound.prefetch(some, at)
            state.prefetch(wanted.keys, wanted.ranges)
        known = dict(failed)
        self._records = records = [Records(keys, each, times, position, known) for each in events]
        for member, made, given, own in zip(self._members, self._objects, self._given, records, strict=True):
            if member.processor.prefetch is not Processor.prefetch:
                self._prefetch_named(member, made, given, own)
        if self._undo is not None:
            self._process_each(records, self._undo)
        elif len(records) == 1:
            self._process_all(records[0])
        else:
            self._process_together(records)
        return known

    def _process_all(self, records: Records) -> None:
        place, (member,), (made,) = 0, self._members, self._objects
        context, process = member.context, made.process
        try:
            for key, event, context.timestamp, place in records:  # noqa: B007  the error names it
                process(key, event, context)
        except USER_ERRORS as error:
            raise self._failed(member, "process()", error, records.described(place)) from error

    def _process_together(self, records: Sequence[Records]) -> None:
        for place in range(len(records[0].keys)):
            for member, made, own in zip(self._members, self._objects, records, strict=True):
                member.context.timestamp = own.times[place]
                try:
                    made.process(own.keys[place], own.events[place], member.context)
                except USER_ERRORS as error:
                    raise self._failed(member, "process()", error, own.described(place)) from error

    def _process_each(self, records: Sequence[Records], undo: RecordUndo) -> None:
        """Processes records of which each can fail by itself: for all processors."""
        calls = list(zip(self._members, self._objects, records, strict=True))
        for place, time in enumerate(records[0].times):
            if place in records[0].failed:
                continue
            undo.begin()
            for member, made, own in calls:
                member.context.timestamp = time
                try:
                    made.process(own.keys[place], own.events[place], member.context)
                    undo.check_record()
                except USER_ERRORS as error:
                    undo.undo()
                    self._note_failure(member, "process()", error, own, place)
                    break
            else:
                undo.keep()

    def _prefetch_named(self, member: BoundProcessor, made: Processor, given: Given, records: Records) -> None:
        """Prefetches the entries that a processor's own `prefetch` names."""
        named: dict[int, list[tuple[Any, int, int]]] = {}
        for key, event, time, place in records:
            if place in records.failed:
                continue
            try:
                for store, other in made.prefetch(key, event):
                    named.setdefault(id(store), []).append((other, time, place))
            except USER_ERRORS as error:
                self._note_failure(member, "prefetch()", error, records, place)
        for bound in given.values():
            if id(bound) in named:
                self._prefetch_keys(member, bound, named[id(bound)], records)

    def _prefetch_keys(
        self,
        member: BoundProcessor,
        bound: Store[Any, Any] | GlobalStore[Any, Any],
        named: list[tuple[Any, int, int]],
        records: Records,
    ) -> None:
        try:
            known = bound.prefetch([key for key, _, _ in named], [time for _, time, _ in named])
        except USER_ERRORS:  # a key may have the wrong type for that store
            for key, time, place in named:
                try:
                    bound.prefetch([key], [time])
                except USER_ERRORS as error:
                    self._note_failure(member, "prefetch()", error, records, place)
        else:
            self._read[id(bound)].prefetch(known.keys, known.ranges)

    def _note_failure(
        self, member: BoundProcessor, what: str, error: BaseException, records: Records, place: int
    ) -> None:
        """Notes that a record has failed. Raises if that, or this error, stops the app."""
        if self._undo is None or not concerns_record(error):
            raise self._failed(member, what, error, records.described(place)) from error
        records.failed[place] = _reason(member, what, error)

    def punctuate(self, punctuations: Sequence[Sequence[Punctuation]]) -> None:
        """Calls the punctuators of each processor that fire in this version, after its records."""
        self._records = ()
        for member, made, own in zip(self._members, self._objects, punctuations, strict=True):
            self._current = member.context
            for each in own:
                member.context.timestamp = each.now
                try:
                    getattr(made, each.method)(each.now, member.context)
                except USER_ERRORS as error:
                    raise self._failed(member, f"{each.method}()", error) from error

    def end(self) -> None:
        for member, made, given in zip(self._members, self._objects, self._given, strict=True):
            self._close(member, made, given)
        for bound in self._bound.values():
            bound.end_of_version()
        for bound in self._bound.values():
            state = self._states[bound.name]
            state.settle()
            try:
                bound.check_written(state.changes)
            except BadValue as error:
                raise BadValue(f"{error} Nothing of the batch was committed.") from error

    def _close(self, member: BoundProcessor, made: Processor, given: Given) -> None:
        try:
            made.close()
        except USER_ERRORS as error:
            raise self._failed(member, "close()", error) from error
        for attribute, bound in given.items():
            if getattr(made, attribute, None) is not bound:
                raise ProcessorFailed(
                    f"{member.processor.__name__} has assigned something else to its store's attribute: "
                    f"self.{attribute} is no longer {bound!r}, and its entries would be lost. Nothing of the batch was "
                    f"committed. Write self.{attribute}[key] = value, or use another attribute for what isn't a store."
                )

    def rewritten(self, entries: int) -> Iterator[tuple[str, pa.Table]]:
        """Some entries of each store, rewritten to the newest schema, from where the last version ended."""
        for bound in self._bound.values():
            step = bound.rewriter().step(BytesAsColumns(self._states[bound.name]), entries)
            if step is None:
                continue
            if step.rewritten:
                self._count(bound.name, "rewritten", step.rewritten)
            yield bound.name, step.part

    def take_forwarded(self) -> list[dict[str | None, tuple[list[Row], list[int]]]]:
        """Of each processor: the rows forwarded since the last call and their times, by output that got some."""
        return [_taken(member.context) for member in self._members]

    def forwarded_misfit(self, number: int, schema: Schema, rows: Sequence[Row], times: Sequence[int]) -> HoldfastError:
        """The error for rows that a processor has forwarded since the last call, and that don't fit its output."""
        member = self._members[number]
        for row, time in zip(rows, times, strict=True):
            try:
                output_table(schema, [row])
            except BadValue as error:
                if self._records:
                    return self._failed(member, "process()", error, self._records[number].forwarding(row, time))
                return self._failed(member, "forward() of a punctuator or close()", error)
        return BadValue(f"{member.processor.__name__} has forwarded rows that can't be written together as {schema}.")

    def _failed(self, member: BoundProcessor, what: str, error: BaseException, record: str = "") -> HoldfastError:
        if isinstance(error, HoldfastError) and is_retryable(error):
            return error
        written = member.processor._written
        code, operator = ("processor", "process") if written is None else ("function", written.operator)
        return ProcessorFailed(
            f"{_reason(member, what, error)}{record}. Nothing of the batch was committed. Fix the {code}, or filter "
            f'out such records before {operator}(), or use {operator}(..., on_error="dead_letter"). The app repeats '
            "this batch at its next start."
        )


def _taken(context: Context) -> dict[str | None, tuple[list[Row], list[int]]]:
    found = {}
    for output, outlet in context.outlets.items():
        if outlet.rows:
            found[output] = outlet.rows, outlet.times
            outlet.rows, outlet.times = [], []
    return found


def _reason(member: BoundProcessor, what: str, error: BaseException) -> str:
    written = member.processor._written
    place = f"{member.processor.__name__}.{what}" if written is None else str(written)
    return f"{place} raised {raised(error)}"
