"""Sends windows on when they are due: when a window has closed, or at most once in a while.

Event time is divided into steps of the length that the user gave. A window that was changed waits for the end of the
step that the event clock is in, so it is sent once per step at most.

The task of version `v` sends what is due by the event clock of `v-1`, as the store had it at `v-1`. It does so after
the records of `v`: a window that they have removed is deleted in sinks, and isn't sent before that. Which windows wait
is an index in the store (`stores.layouts.waiting`).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.segments import OUTPUT, STATE
from holdfast.pipeline.sinks.outputs import aggregate_rows
from holdfast.pipeline.task import Part
from holdfast.stores.access import BEGINNING, StoreColumns
from holdfast.stores.layouts.base import part
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.layouts.waiting import EVERY, WaitingRows
from holdfast.stores.layouts.windowed_rows import Times, split_own_keys, stored_keys
from holdfast.topology.derived import TIME
from holdfast.topology.outputs import DELETED

if TYPE_CHECKING:
    from holdfast.pipeline.windowed_task import WindowedWork


class Sender:
    """The windows of one task that wait to be sent."""

    def __init__(self, work: "WindowedWork", state: StoreColumns) -> None:
        assert work.waiting is not None
        self._spec, self._windows, self._output = work.store, work.windows, work.waiting
        self._every: int = work.store.option(EVERY) or 0
        self._state = state
        self.waiting = WaitingRows(state)
        self._removed: list[pa.BinaryArray] = [pa.array([], pa.binary())]
        """Own keys of windows that records of the version have removed."""

    def due(self, event: int) -> Iterator[list[Part]]:
        """The parts that send what is due at this event clock, page by page."""
        removed = pa.chunked_array(self._removed)
        for rows, own in self.waiting.due(event):
            parts = [(STATE, self._spec.name, self.waiting.sent(rows))]
            if self._every:
                own = own.unique()  # a window may wait twice since before the first event time
                own = own.filter(pc.invert(pc.is_in(own, value_set=removed)))
            else:
                closes = self._closing_times(own)
                if (is_open := closes > event).any():  # the grace has grown since: they wait on
                    still = self.waiting.put(closes[is_open], own.filter(pa.array(is_open)))
                    parts.append((STATE, self._spec.name, still))
                    own = own.filter(pa.array(~is_open))
            stored = stored_keys(self._spec, own)
            cells = self._state.get(stored)
            there = cells.is_valid()
            yield parts + self._rows(part(stored.filter(there), cells.filter(there)))

    def _rows(self, table: pa.Table) -> list[Part]:
        """Stored windows as rows of the output, with their event times for derived streams."""
        if not table.num_rows:
            return []
        rows = aggregate_rows(self._spec, table)
        if not self._every and DELETED in rows.column_names:
            rows = rows.drop_columns(DELETED)  # final rows are never taken back
        times = layout_of(self._spec).changed(table).cells.timestamps
        return [(OUTPUT, self._output, rows.append_column(TIME, times))]

    def changed(self, keys: pa.BinaryArray, *, is_new: pa.BooleanArray, event: int) -> list[Part]:
        """The parts that let changed windows wait: of final results, those that are new."""
        if self._every:
            return self._in_this_step(keys, event)
        new = keys.filter(is_new)
        if not len(new):
            return []
        closes = self._closing_times(new)
        return [(STATE, self._spec.name, self.waiting.put(closes, new))]

    def changed_again(self, keys: pa.BinaryArray, *, event: int) -> list[Part]:
        """The same for windows of which it isn't known whether they are new.

        The store says so, not the index: since before a change of the grace, a stored window waits for another time.
        """
        if self._every:
            return self._in_this_step(keys, event)
        is_new = self._state.get(stored_keys(self._spec, keys)).is_null()
        return self.changed(keys, is_new=is_new, event=event)

    def _in_this_step(self, keys: pa.BinaryArray, event: int) -> list[Part]:
        return [(STATE, self._spec.name, self.waiting.put_missing(self._ends_of_steps(keys, event), keys))]

    def removed(self, keys: pa.BinaryArray, *, event: int) -> list[Part]:
        """The parts for windows that no longer exist: they don't wait, and sinks that may have them get a delete."""
        if not len(keys):
            return []
        if not self._every:
            closes = self._closing_times(keys)
            return [(STATE, self._spec.name, self.waiting.remove(closes, keys))]
        self._removed.append(keys)
        # A row that isn't due yet was put in the step that the clock is still in.
        gone = self.waiting.remove(self._ends_of_steps(keys, event), keys)
        deleted = part(stored_keys(self._spec, keys), pa.nulls(len(keys), pa.binary()))
        return [(STATE, self._spec.name, gone), *self._rows(deleted)]

    def _ends_of_steps(self, keys: pa.BinaryArray, event: int) -> Times:
        """When changed windows are due. Before the first event time, that is the end of the step of their start."""
        every = np.int64(self._every)
        if event == BEGINNING:
            return (split_own_keys(self._spec, keys).starts // every + 1) * every
        return np.full(len(keys), (np.int64(event) // every + 1) * every)

    def _closing_times(self, keys: pa.BinaryArray) -> Times:
        """The event clocks at which windows have closed."""
        return self._windows.closing_times(split_own_keys(self._spec, keys).ends)
