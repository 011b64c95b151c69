"""Sends windows on when they are due: final results when a window has closed.

The task of version `v` sends what is due by the event clock of `v-1`, as the store had it at `v-1`. Which windows wait
is an index in the store (`stores.layouts.waiting`).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.log.segments import OUTPUT, STATE
from holdfast.pipeline.sinks.outputs import aggregate_rows
from holdfast.pipeline.task import Part
from holdfast.stores.access import StoreColumns
from holdfast.stores.layouts.base import part
from holdfast.stores.layouts.waiting import WaitingRows
from holdfast.stores.layouts.windowed_rows import Times, split_own_keys, stored_keys
from holdfast.stores.spec import StoreSpec
from holdfast.topology.windows import SessionWindows, Windows

if TYPE_CHECKING:
    from holdfast.pipeline.windowed_task import WindowedWork

WAITING_COUNT: Final = "waiting"
"""Counts the windows that wait, not those that a version adds."""


class Sender:
    """The windows of one task that wait to be sent."""

    def __init__(self, work: "WindowedWork", state: StoreColumns) -> None:
        assert work.waiting is not None
        self._spec, self._windows, self._output = work.store, work.windows, work.waiting
        self._state = state
        self.waiting = WaitingRows(state)

    def due(self, event: int) -> Iterator[list[Part]]:
        """The parts that send what is due at this event clock, page by page."""
        for rows, own in self.waiting.due(event):
            closes = closing_times(self._spec, self._windows, own)
            is_open = closes > event
            parts = [(STATE, self._spec.name, self.waiting.sent(rows))]
            if is_open.any():  # the grace has grown since: they wait on
                still = pa.array(is_open)
                parts.append((STATE, self._spec.name, self.waiting.put(closes[is_open], own.filter(still))))
                own = own.filter(pa.array(~is_open))
            stored = stored_keys(self._spec, own)
            cells = self._state.get(stored)
            there = cells.is_valid()
            sent = aggregate_rows(self._spec, part(stored.filter(there), cells.filter(there)))
            if sent.num_rows:
                parts.append((OUTPUT, self._output, sent))
            yield parts

    def changed(self, keys: pa.BinaryArray, *, is_new: pa.BooleanArray, event: int) -> list[Part]:
        """The parts that let changed windows wait: a window that is new waits until it closes."""
        new = keys.filter(is_new)
        if not len(new):
            return []
        closes = closing_times(self._spec, self._windows, new)
        return [(STATE, self._spec.name, self.waiting.put(closes, new))]

    def removed(self, keys: pa.BinaryArray) -> list[Part]:
        """The parts for windows that no longer exist."""
        closes = closing_times(self._spec, self._windows, keys)
        return [(STATE, self._spec.name, self.waiting.remove(closes, keys))] if len(keys) else []


def closing_times(spec: StoreSpec, windows: Windows, own: pa.BinaryArray) -> Times:
    """The event clocks at which windows have closed."""
    after = windows.grace_ms + (windows.gap_ms + 1 if isinstance(windows, SessionWindows) else 0)
    ends: npt.NDArray[np.int64] = split_own_keys(spec, own).ends
    return ends + np.int64(after)
