"""A running processor: an object of the user's class with bound stores, which gets record after record.

Tasks pass it chunks of their partition; `holdfast.testing.ProcessorTest` passes it single records.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from holdfast.errors import USER_ERRORS, BadKey, BadValue, ErrorCategory, HoldfastError, cut, shown
from holdfast.pipeline.store_state import StoreState
from holdfast.pipeline.undoing import Counting, RecordUndo
from holdfast.retry import is_retryable
from holdfast.stores.access import BytesAsColumns
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.base import Store
from holdfast.stores.kinds.global_store import GlobalStore
from holdfast.stores.spec import StoreSpec
from holdfast.topology.forwarding import Row
from holdfast.topology.processor import Context, OnError, Processor, globals_of, stores_of
from holdfast.topology.punctuation import Punctuation

_OWN_CODE = str(Path(__file__).parents[1])
_LONGEST = 1_000
"""The maximum length of a user's exception in a message: it may contain a whole record."""


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
        position = f", at {at}" if at else ""
        return f" for the key {shown(self.keys[place])} and the event {shown(self.events[place])}{position}"


class RunningProcessor:
    """One object of a processor, for one partition of one version."""

    def __init__(
        self,
        processor: type[Processor],
        stores: Sequence[tuple[str, StoreSpec]],
        states: Mapping[str, StoreState],
        context: Context,
        *,
        key: Schema,
        count: Callable[[str, str, int], None],
        on_error: OnError = "fail",
        tables: Mapping[str, tuple[StoreSpec, StoreState]] = MappingProxyType({}),
    ) -> None:
        """`tables` are the global tables that it reads, by the class attribute."""
        self.context = context
        counts: list[Counting] = []
        if on_error != "fail":
            counts += [Counting(context.counted), Counting(count)]
            context.counted, count = counts
        self._count = count
        self._states = states
        self._name = processor.__name__
        self._has_prefetch = processor.prefetch is not Processor.prefetch
        declared = stores_of(processor)
        self._bound: dict[str, Store[Any, Any]] = {}
        self._prefetched: list[tuple[Store[Any, Any], StoreState]] = []
        for attribute, spec in stores:
            state = states[spec.name]
            bound = declared[attribute].bind(state, context.now, partial(count, spec.name), spec=spec)
            bound.follow_records(lambda: context.timestamp)
            self._bound[attribute] = bound
            if not spec.other_key and [f.type for f in spec.key.fields] == [f.type for f in key.fields]:
                self._prefetched.append((bound, state))
        self._tables: dict[str, GlobalStore[Any, Any]] = {}
        self._read = {**states}
        """What is read in bulk and forgotten after a chunk, by the name of the store or table."""
        for attribute, (spec, state) in tables.items():
            self._tables[attribute] = globals_of(processor)[attribute].bind(spec, state, context.now)
            self._read[spec.name] = state
        self._undo = RecordUndo(self._bound.values(), states, context.outlets, counts) if counts else None
        try:
            self._object = processor()
        except USER_ERRORS as error:
            raise self._failed("__init__()", error) from error
        for attribute, given in self._attributes():
            setattr(self._object, attribute, given)

    def _attributes(self) -> Iterator[tuple[str, Store[Any, Any] | GlobalStore[Any, Any]]]:
        """The stores and global tables of the object."""
        yield from self._bound.items()
        yield from self._tables.items()

    @property
    def processor(self) -> Processor:
        """The object of the user's class."""
        return self._object

    def store(self, attribute: str) -> Any:
        """The bound store of an attribute of the class."""
        return self._bound[attribute]

    def begin(self) -> None:
        for bound in self._bound.values():
            bound.begin_version()
        try:
            self._object.init(self.context)
        except USER_ERRORS as error:
            raise self._failed("init()", error) from error

    def work(
        self,
        keys: Sequence[Any],
        events: Sequence[object],
        times: Sequence[int],
        position: Position = lambda place: "",
        failed: Mapping[int, str] = MappingProxyType({}),
    ) -> dict[int, str]:
        """Processes a chunk of records, in order.

        Returns why records failed, by their places in the chunk; `failed` has those that are known already. Unless
        `on_error` is "fail", what such a record did is undone.
        """
        for state in self._read.values():
            state.forget()
        for bound, state in self._prefetched:
            wanted = bound.prefetch(keys, times)
            state.prefetch(wanted.keys, wanted.ranges)
        records = Records(keys, events, times, position, dict(failed))
        if self._has_prefetch:
            self._prefetch_named(records)
        if self._undo is None:
            self._process_all(records)
        else:
            self._process_each(records, self._undo)
        return records.failed

    def _process_all(self, records: Records) -> None:
        place = 0
        context, process = self.context, self._object.process
        try:
            for key, event, context.timestamp, place in records:  # noqa: B007  the error names it
                process(key, event, context)
        except USER_ERRORS as error:
            raise self._failed("process()", error, records.described(place)) from error

    def _process_each(self, records: Records, undo: RecordUndo) -> None:
        """Processes records of which each can fail by itself."""
        context, process = self.context, self._object.process
        for key, event, context.timestamp, place in records:
            if place in records.failed:
                continue
            undo.begin()
            try:
                process(key, event, context)
                undo.check_record()
            except USER_ERRORS as error:
                undo.undo()
                self._note_failure("process()", error, records, place)
            else:
                undo.keep()

    def _prefetch_named(self, records: Records) -> None:
        """Prefetches the entries that the processor's own `prefetch` names."""
        named: dict[int, list[tuple[Any, int, int]]] = {}
        prefetch = self._object.prefetch
        for key, event, time, place in records:
            if place in records.failed:
                continue
            try:
                for store, other in prefetch(key, event):
                    named.setdefault(id(store), []).append((other, time, place))
            except USER_ERRORS as error:
                self._note_failure("prefetch()", error, records, place)
        for _, bound in self._attributes():
            if id(bound) in named:
                self._prefetch_keys(bound, named[id(bound)], records)

    def _prefetch_keys(
        self, bound: Store[Any, Any] | GlobalStore[Any, Any], named: list[tuple[Any, int, int]], records: Records
    ) -> None:
        try:
            known = bound.prefetch([key for key, _, _ in named], [time for _, time, _ in named])
        except USER_ERRORS:  # a key may have the wrong type for that store
            for key, time, place in named:
                try:
                    bound.prefetch([key], [time])
                except USER_ERRORS as error:
                    self._note_failure("prefetch()", error, records, place)
        else:
            self._read[bound.name].prefetch(known.keys, known.ranges)

    def _note_failure(self, what: str, error: BaseException, records: Records, place: int) -> None:
        """Notes that a record has failed. Raises if that, or this error, stops the app."""
        if self._undo is None or not concerns_record(error):
            raise self._failed(what, error, records.described(place)) from error
        records.failed[place] = self._reason(what, error)

    def punctuate(self, punctuations: Sequence[Punctuation]) -> None:
        """Calls the punctuators that fire in this version, after its records."""
        for each in punctuations:
            self.context.timestamp = each.now
            try:
                getattr(self._object, each.method)(each.now, self.context)
            except USER_ERRORS as error:
                raise self._failed(f"{each.method}()", error) from error

    def end(self) -> None:
        try:
            self._object.close()
        except USER_ERRORS as error:
            raise self._failed("close()", error) from error
        for attribute, bound in self._attributes():
            if getattr(self._object, attribute, None) is not bound:
                raise ProcessorFailed(
                    f"{self._name} has assigned something else to its store's attribute: self.{attribute} is no longer "
                    f"{bound!r}, and its entries would be lost. Nothing of the batch was committed. Write "
                    f"self.{attribute}[key] = value, or use another attribute for what isn't a store."
                )
        for bound in self._bound.values():
            bound.end_of_version()
        for bound in self._bound.values():
            state = self._states[bound.name]
            state.settle()
            try:
                bound.check_written(state.changes)
            except BadValue as error:
                raise BadValue(f"{error} Nothing of the batch was committed.") from error

    def rewritten(self, entries: int) -> Iterator[tuple[str, pa.Table]]:
        """Some entries of each store, rewritten to the newest schema, from where the last version ended."""
        for bound in self._bound.values():
            step = bound.rewriter().step(BytesAsColumns(self._states[bound.name]), entries)
            if step is None:
                continue
            if step.rewritten:
                self._count(bound.name, "rewritten", step.rewritten)
            yield bound.name, step.part

    def take_forwarded(self) -> dict[str | None, tuple[list[Row], list[int]]]:
        """The rows forwarded since the last call and their times, by output, without outputs that got none."""
        found = {}
        for output, outlet in self.context.outlets.items():
            if outlet.rows:
                found[output] = outlet.rows, outlet.times
                outlet.rows, outlet.times = [], []
        return found

    def _failed(self, what: str, error: BaseException, record: str = "") -> HoldfastError:
        if isinstance(error, HoldfastError) and is_retryable(error):
            return error
        return ProcessorFailed(
            f"{self._reason(what, error)}{record}. Nothing of the batch was committed. Fix the processor, or filter "
            'out such records before process(), or use process(..., on_error="dead_letter"). The app repeats this '
            "batch at its next start."
        )

    def _reason(self, what: str, error: BaseException) -> str:
        message = cut(traceback.format_exception_only(error)[-1].strip(), _LONGEST)
        return f"{self._name}.{what} raised {message}{_place(error)}"


def _place(error: BaseException) -> str:
    """The place in the user's own code: the innermost line that isn't Holdfast's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_OWN_CODE)]
    if not frames:
        return ""
    last = frames[-1]
    return f" at {last.filename}:{last.lineno}, in {last.name}: {last.line or '(no source)'}"
