"""A running processor: an object of the user's class with bound stores, which gets record after record.

Tasks pass it chunks of their partition; `holdfast.testing.ProcessorTest` passes it single records.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.errors import USER_ERRORS, ErrorCategory, HoldfastError, cut, shown
from holdfast.pipeline.store_state import StoreState
from holdfast.retry import is_retryable
from holdfast.stores.access import BytesAsColumns
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.base import Store
from holdfast.stores.spec import StoreSpec
from holdfast.topology.forwarding import Row
from holdfast.topology.processor import Context, Processor, stores_of
from holdfast.topology.punctuation import Punctuation

_OWN_CODE = str(Path(__file__).parents[1])
_LONGEST = 1_000
"""The maximum length of a user's exception in a message: it may contain a whole record."""


class ProcessorFailed(HoldfastError):
    """A user's processor raised. Nothing of the batch was committed."""

    category = ErrorCategory.INVALID


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
    ) -> None:
        self.context = context
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
            if [f.type for f in spec.key.fields] == [f.type for f in key.fields]:
                self._prefetched.append((bound, state))
        try:
            self._object = processor()
        except USER_ERRORS as error:
            raise self._failed("__init__()", error) from error
        for attribute, bound in self._bound.items():
            setattr(self._object, attribute, bound)

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

    def work(self, keys: Sequence[Any], events: Sequence[object], times: Sequence[int]) -> None:
        """Processes a chunk of records, in order."""
        for state in self._states.values():
            state.forget()
        for bound, state in self._prefetched:
            wanted = bound.prefetch(keys, times)
            state.prefetch(wanted.keys, wanted.ranges)
        if self._has_prefetch:
            self._prefetch_named(keys, events, times)
        key: Any = None
        event: Any = None
        context, process = self.context, self._object.process
        try:
            for key, event, context.timestamp in zip(keys, events, times, strict=True):
                process(key, event, context)
        except USER_ERRORS as error:
            raise self._failed("process()", error, (key, event)) from error

    def _prefetch_named(self, keys: Sequence[Any], events: Sequence[object], times: Sequence[int]) -> None:
        """Prefetches the entries that the processor's own `prefetch` names."""
        named: dict[int, tuple[list[Any], list[int]]] = {}
        key: Any = None
        event: Any = None
        prefetch = self._object.prefetch
        try:
            for key, event, time in zip(keys, events, times, strict=True):
                for store, other in prefetch(key, event):
                    wanted, when = named.setdefault(id(store), ([], []))
                    wanted.append(other)
                    when.append(time)
        except USER_ERRORS as error:
            raise self._failed("prefetch()", error, (key, event)) from error
        for bound in self._bound.values():
            if id(bound) in named:
                try:
                    known = bound.prefetch(*named[id(bound)])
                except USER_ERRORS as error:  # the key may have the wrong type for that store
                    raise self._failed("prefetch()", error) from error
                self._states[bound.name].prefetch(known.keys, known.ranges)

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
        for attribute, bound in self._bound.items():
            if getattr(self._object, attribute, None) is not self._bound[attribute]:
                raise ProcessorFailed(
                    f"{self._name} has assigned something else to its store's attribute: self.{attribute} is no longer "
                    f"{bound!r}, and its entries would be lost. Nothing of the batch was committed. Write "
                    f"self.{attribute}[key] = value, or use another attribute for what isn't a store."
                )
            bound.end_of_version()
        for bound in self._bound.values():
            state = self._states[bound.name]
            state.settle()
            bound.check_written(state.changes)

    def rewritten(self, entries: int) -> Iterator[tuple[str, pa.Table]]:
        """Some entries of each store, rewritten to the newest schema, from where the last version ended."""
        for bound in self._bound.values():
            step = bound.rewriter().step(BytesAsColumns(self._states[bound.name]), entries)
            if step is None:
                continue
            if step.rewritten:
                self._count(bound.name, "rewritten", step.rewritten)
            yield bound.name, step.part

    def take_forwarded(self) -> dict[str | None, list[Row]]:
        """The rows forwarded since the last call by output, without outputs that got none."""
        found = {}
        for output, outlet in self.context.outlets.items():
            if outlet.rows:
                found[output], outlet.rows = outlet.rows, []
        return found

    def _failed(self, what: str, error: BaseException, record: tuple[object, object] | None = None) -> HoldfastError:
        if isinstance(error, HoldfastError) and is_retryable(error):
            return error
        message = cut(traceback.format_exception_only(error)[-1].strip(), _LONGEST)
        of = "" if record is None else f" for the key {shown(record[0])} and the event {shown(record[1])}"
        return ProcessorFailed(
            f"{self._name}.{what} raised {message}{_place(error)}{of}. Nothing of the batch was committed. Fix the "
            "processor, or filter out such records before process(). The app repeats this batch at its next start."
        )


def _place(error: BaseException) -> str:
    """The place in the user's own code: the innermost line that isn't Holdfast's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_OWN_CODE)]
    if not frames:
        return ""
    last = frames[-1]
    return f" at {last.filename}:{last.lineno}, in {last.name}: {last.line or '(no source)'}"
