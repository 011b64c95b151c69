"""What the processor of windows of a user's functions does with a record.

A record is added to each of its windows that is open, in the order of event times:

    hopping    value of the window ─► add(value, record) ─► value of the window
    session    values of near sessions ─► merge(one, other) ... ─► add(value, record) ─► value of the new session
    sliding    the records of the window, in the order of their event times ─► add ... ─► value of the window

A function that returns None deletes the window. Sliding windows are computed again from their records, because a record
may come before others that are in the window already. Where it is the latest one of the window, one call of `add` does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from holdfast.stores.kinds.reduced import KeptRecords, ReducedSessions, ReducedStore, StoredWindow
from holdfast.topology.processor import Context, Processor, WrittenAs
from holdfast.topology.reducing import Update
from holdfast.topology.window_waiting import WaitingWindows, changed_row, deleted_row
from holdfast.topology.windowing import LATE
from holdfast.topology.windows import SessionWindows, SlidingWindows, TimeWindows, Window, Windows

Merger = Callable[[Any, Any], Any]
"""From the values of two sessions of a key, the earlier one first, to that of the session they become."""


@dataclass(frozen=True)
class LateRow:
    """How a late record becomes a row: its columns, and which of them are in the key."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    time: str
    of_event: frozenset[str]

    def row(self, key: Any, event: Any, timestamp: int) -> dict[str, Any]:
        parts = key if isinstance(key, tuple) else (key,)
        known = dict(zip(self.key, parts, strict=True)) | {self.time: timestamp * 1_000}
        return {name: getattr(event, name) if name in self.of_event else known[name] for name in self.columns}


@dataclass(frozen=True)
class WindowRules:
    """The windows, the user's functions, and what is sent on. `own` is the processor with its bound stores."""

    windows: Windows
    update: Update
    merge: Merger | None
    updates: bool
    """Whether it forwards one row per record and window."""
    waiting: WaitingWindows | None = None
    """When windows are sent that wait; None: they don't."""
    late: LateRow | None = None
    """How it forwards late records, if anyone takes them."""

    def process(self, own: WindowProcessor, key: Any, event: Any, ctx: Context) -> None:
        match self.windows:
            case TimeWindows() as windows:
                is_used = self._in_windows(windows, own.store, key, event, ctx)
            case SessionWindows() as windows:
                assert isinstance(own.store, ReducedSessions)
                is_used = self._in_session(windows, own.store, key, event, ctx)
            case SlidingWindows() as windows:
                is_used = self._in_sliding(windows, own, key, event, ctx)
        if not is_used:
            own.store.count_late()
            if self.late is not None:
                ctx.forward(None, self.late.row(key, event, ctx.timestamp), to=LATE)

    def _is_open(self, window: Window, ctx: Context) -> bool:
        return ctx.now.event is None or self.windows.closes(window) > ctx.now.event

    def _in_windows(self, windows: TimeWindows, store: ReducedStore, key: Any, event: Any, ctx: Context) -> bool:
        """Adds a record to its open windows; false if it has none."""
        added = False
        for window in windows.windows_of(ctx.timestamp):
            if self._is_open(window, ctx):
                there = store.held(store.own(key, *window))
                value = self.update(None if there is None else there.value, event)
                latest = ctx.timestamp if there is None else max(there.timestamp, ctx.timestamp)
                self._set(store, key, StoredWindow(*window, value, latest), there, ctx)
                added = True
        return added

    def _in_session(self, windows: SessionWindows, store: ReducedSessions, key: Any, event: Any, ctx: Context) -> bool:
        """Makes one session of a record and the open sessions near it; false if that session has closed."""
        time, gap = ctx.timestamp, windows.gap_ms
        near = [each for each in store.near(key, time - gap, time + gap) if self._is_open(_window(each), ctx)]
        new = Window(min([time, *(each.start for each in near)]), max([time, *(each.end for each in near)]))
        if not self._is_open(new, ctx):
            return False
        assert self.merge is not None
        value = None
        for each in near:
            value = each.value if value is None else self.merge(value, each.value)
            if _window(each) != new:
                self._remove(store, key, each, ctx)
        latest = max([time, *(each.timestamp for each in near)])
        there = next((each for each in near if _window(each) == new), None)
        self._set(store, key, StoredWindow(*new, self.update(value, event), latest), there, ctx)
        return True

    def _in_sliding(self, windows: SlidingWindows, own: WindowProcessor, key: Any, event: Any, ctx: Context) -> bool:
        """Adds a record to its open windows, and makes the one right after it; false if it has none."""
        store, time, is_given = own.store, ctx.timestamp, False
        if not self._is_open(Window(time, time + windows.size_ms), ctx):
            return False
        event = own.records.add(key, time, event)
        near = own.records.near(key, time)
        times = [each for each, _ in near]
        for window in windows.changed_by(time, times):
            if not self._is_open(window, ctx):
                continue
            there = store.held(store.own(key, *window))
            if there is None or there.timestamp > time >= window.start:
                among = slice(bisect_left(times, window.start), bisect_right(times, window.end))
                value = self._folded([own.records.event(cell) for _, cell in near[among]])
                is_given |= time >= window.start
                self._set(store, key, StoredWindow(*window, value, times[among][-1]), there, ctx)
            elif time >= window.start:
                is_given = True
                self._set(store, key, StoredWindow(*window, self.update(there.value, event), time), there, ctx)
        if not is_given:
            # Its own windows have closed, and it is kept for those that later records make. A function that can't take
            # it raises now, for this record, and not for a later one.
            self.update(None, event)
        return True

    def _folded(self, events: Sequence[Any]) -> Any:
        value = None
        for event in events:
            value = self.update(value, event)
        return value

    def _set(self, store: ReducedStore, key: Any, new: StoredWindow, there: StoredWindow | None, ctx: Context) -> None:
        if new.value is None:
            if there is not None:
                self._remove(store, key, there._replace(timestamp=new.timestamp), ctx)
            return
        own = store.own(key, new.start, new.end)
        self._note(store, own, there)
        store.keep(own, new.value, new.timestamp)
        if self.updates:
            ctx.forward(key, changed_row(new))

    def _remove(self, store: ReducedStore, key: Any, old: StoredWindow, ctx: Context) -> None:
        own = store.own(key, old.start, old.end)
        self._note(store, own, old)
        store.drop(own)
        if self.updates:
            ctx.forward(key, deleted_row(old))

    def _note(self, store: ReducedStore, own: bytes, there: StoredWindow | None) -> None:
        if self.waiting is not None:
            store.changed.note(own, there)


def _window(held: StoredWindow) -> Window:
    return Window(held.start, held.end)


class WindowProcessor(Processor):
    """A processor by rules."""

    store: ClassVar[ReducedStore]
    records: ClassVar[KeptRecords]
    """The records that sliding windows are made of. Other windows have no such store."""
    rules: ClassVar[WindowRules]
    events: ClassVar[Any]
    """The class of its events, None for all columns."""

    def init(self, ctx: Context) -> None:
        self._ctx = ctx
        self._due = {} if self.rules.waiting is None else self.rules.waiting.due(self.store, ctx.now.event)

    def close(self) -> None:
        if self.rules.waiting is not None:
            self.rules.waiting.settle(self.store, self._due, self._ctx)


def processor_of(
    label: str, written: WrittenAs, values: ReducedStore, kept: KeptRecords | None, by: WindowRules, event: Any
) -> type[WindowProcessor]:
    """A processor with these rules. `event` is the class of its events, None for all columns."""

    class Windowing(WindowProcessor):
        _written = replace(written, store=values.name)
        store, rules, events = values, by, event

        def process(self, key: Any, event: Any, ctx: Context) -> None:
            self.rules.process(self, key, event, ctx)

    if kept is not None:
        Windowing.records = kept
    Windowing.__name__ = label
    Windowing.process.__annotations__ = {} if event is None else {"event": event}
    return Windowing
