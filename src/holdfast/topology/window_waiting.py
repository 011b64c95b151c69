"""Windows of a user's function that wait to be sent: until they close, or until a step of event time ends.

Both are asked twice in a version. Before its first record, `due` takes what is due by the event clock of `v-1`, as the
store had it at `v-1`. After its last record, `settle` forwards that, and lets windows wait that the version has
changed. A window that came and went within the version leaves nothing, and one that was due and went is deleted in
sinks, and isn't sent before that. `pipeline.window_sender` does the same for aggregates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.stores.kinds.reduced import ReducedStore, StoredWindow
from holdfast.stores.layouts.windowed import WINDOW_END, WINDOW_START
from holdfast.topology.outputs import DELETED, as_json
from holdfast.topology.processor import Context
from holdfast.topology.windowing import FINAL_ROWS
from holdfast.topology.windows import Window, Windows


def row_of(held: StoredWindow) -> dict[str, Any]:
    """A window as sinks get it, without its key."""
    times = {WINDOW_START: held.start * 1_000, WINDOW_END: held.end * 1_000}
    return {**times, "value": as_json(held.value), "timestamp": held.timestamp}


def changed_row(held: StoredWindow) -> dict[str, Any]:
    """A window that was set, in an output that also has deleted ones."""
    return {**row_of(held), DELETED: False}


def deleted_row(held: StoredWindow) -> dict[str, Any]:
    """A window that was deleted."""
    return {**row_of(held), "value": None, DELETED: True}


DueWindows = Mapping[bytes, StoredWindow]
"""The windows that a version sends, by their own keys."""


class WaitingWindows(Protocol):
    """When windows of a store are sent on."""

    def due(self, store: ReducedStore, event: int | None) -> DueWindows:
        """Takes the windows that are due, before the records of a version."""

    def settle(self, store: ReducedStore, due: DueWindows, ctx: Context) -> None:
        """Forwards them, and lets windows wait that were changed, after the records of a version."""


@dataclass(frozen=True)
class UntilClosed:
    """Each window is sent once, when it closes."""

    windows: Windows

    def due(self, store: ReducedStore, event: int | None) -> DueWindows:
        if event is None:
            return {}
        closed, still_open = {}, []
        for own, due, held in store.due(event):
            store.waiting.sent(due, own)
            if held is None:
                continue
            if (closes := self.windows.closes(Window(held.start, held.end))) > event:
                still_open.append((closes, own))  # the grace has grown since: it waits on
            else:
                closed[own] = held
        if still_open:
            store.waiting.graces(self.windows.grace_ms)  # notes the grace by which they wait from now on
            store.waiting.put_missing(still_open)
        return closed

    def settle(self, store: ReducedStore, due: DueWindows, ctx: Context) -> None:
        for own, held in due.items():
            _forward(ctx, store.key_of(own), row_of(held), held.timestamp, FINAL_ROWS)
        new: list[tuple[int, bytes]] = []
        gone: list[tuple[int, bytes]] = []
        for own, before in store.changed.before.items():
            if (is_there := store.is_there(own)) != (before is not None):
                (new if is_there else gone).append((self.windows.closes(Window(*store.times_of(own))), own))
        if not new and not gone:
            return
        grace = self.windows.grace_ms
        graces = store.waiting.graces(grace)
        # Since before a change of the grace, a window waits for another time.
        store.waiting.remove([(closes - grace + each, own) for closes, own in gone for each in graces])
        store.waiting.put(new)


@dataclass(frozen=True)
class UntilStepEnds:
    """A changed window is sent at the end of the step of event time that the clock is in."""

    every_ms: int

    def due(self, store: ReducedStore, event: int | None) -> DueWindows:
        found = {}
        for own, due, held in () if event is None else store.due(event):
            store.waiting.sent(due, own)
            if held is not None:
                found[own] = held  # a window may wait twice since before the first event time
        return found

    def settle(self, store: ReducedStore, due: DueWindows, ctx: Context) -> None:
        there, gone = [], []
        for own, before in store.changed.before.items():
            at = self._end_of_step(store.times_of(own)[0], ctx)
            if store.is_there(own):
                there.append((at, own))
            elif before is not None:
                gone.append((at, own))
                # Sinks may have it from an earlier step, so they get the delete at once.
                _forward(ctx, store.key_of(own), deleted_row(before), before.timestamp)
        for own, held in due.items():
            if store.is_there(own):
                _forward(ctx, store.key_of(own), changed_row(held), held.timestamp)
        store.waiting.remove(gone)
        store.waiting.put_missing(there)

    def _end_of_step(self, start: int, ctx: Context) -> int:
        """The end of the present step. Before the first event time, that of the step of the window's start."""
        return ((start if ctx.now.event is None else ctx.now.event) // self.every_ms + 1) * self.every_ms


def _forward(ctx: Context, key: Any, row: dict[str, Any], timestamp: int, to: str | None = None) -> None:
    ctx.timestamp = timestamp
    ctx.forward(key, row, to=to)
