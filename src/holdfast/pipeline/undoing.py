"""Undoing a record: everything that a failed record did to the stores, the outputs and the counts of its task.

    begin ─► process ─┬─► keep
                      └─► undo

Only a processor whose `on_error` isn't "fail" pays for it: its stores are of the class `UndoableState`, which notes the
change that a key had before the record changed it. What a layout keeps in memory is restored by the layout itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.pipeline.store_state import UNKNOWN, Budget, StoreState
from holdfast.pipeline.task_state import TaskState
from holdfast.pipeline.values import output_table
from holdfast.stores.kinds.base import Store
from holdfast.topology.forwarding import Outlet


class UndoableState(StoreState):
    """One store in one task, whose changes since the last record began can be undone.

    >>> from holdfast.pipeline.task_state import EmptyState
    >>> state = UndoableState("scores", EmptyState(), Budget(1 << 20))
    >>> state.put(b"a", b"1"); state.begin_record()
    >>> state.put(b"a", b"2"); state.put(b"b", b"3"); state.changed()
    {b'a': b'2', b'b': b'3'}
    >>> state.undo_record(); state.changes
    {b'a': b'1'}
    """

    __slots__ = ("_left", "_noted")

    def __init__(self, name: str, before: TaskState, budget: Budget) -> None:
        super().__init__(name, before, budget)
        self._noted: dict[bytes, tuple[Any, bool]] = {}
        """Key → its change before the record, UNKNOWN if it had none, and whether it was perhaps new."""
        self._left = budget.left

    def begin_record(self) -> None:
        self._noted = {}
        self._left = self._budget.left

    def changed(self) -> dict[bytes, bytes | None]:
        """What the record has changed so far."""
        return {key: self.changes[key] for key in self._noted}

    def undo_record(self) -> None:
        for key, (change, perhaps_new) in self._noted.items():
            if change is not UNKNOWN:
                self.changes[key] = change
            else:
                del self.changes[key]
                if self._written is not None:
                    self._written.discard(key)
            (self._perhaps_new.add if perhaps_new else self._perhaps_new.discard)(key)
        self._noted = {}
        self._budget.left = self._left

    def put(self, key: bytes, value: bytes) -> None:
        self._note(key)
        super().put(key, value)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        for key in keys:
            self._note(key)
        super().put_many(keys, values)

    def delete(self, key: bytes) -> None:
        self._note(key)
        super().delete(key)

    def _note(self, key: bytes) -> None:
        if key not in self._noted:
            self._noted[key] = self.changes.get(key, UNKNOWN), key in self._perhaps_new


class Counting:
    """Counts that can be undone: those of the current record wait until it is kept."""

    def __init__(self, count: Callable[..., None]) -> None:
        self._count = count
        self._waiting: list[tuple[Any, ...]] = []
        self._waits = False

    def __call__(self, *counted: Any) -> None:
        if self._waits:
            self._waiting.append(counted)
        else:
            self._count(*counted)

    def begin_record(self) -> None:
        self._waits = True

    def end_record(self, *, undo: bool) -> None:
        waiting, self._waiting, self._waits = self._waiting, [], False
        if not undo:
            for counted in waiting:
                self._count(*counted)


class RecordUndo:
    """Undoes what the current record did to the stores, the outputs and the counts."""

    def __init__(
        self,
        stores: Iterable[Store[Any, Any]],
        states: Mapping[str, StoreState],
        outlets: Iterable[Outlet],
        counts: Sequence[Counting],
    ) -> None:
        self._stores: list[tuple[Store[Any, Any], UndoableState]] = []
        for store in stores:
            state = states[store.name]
            assert isinstance(state, UndoableState)
            self._stores.append((store, state))
        self._outlets = list(outlets)
        self._counts = counts
        self._forwarded: list[int] = []

    def begin(self) -> None:
        for store, state in self._stores:
            state.begin_record()
            store.begin_record()
        for count in self._counts:
            count.begin_record()
        self._forwarded = [len(outlet.rows) for outlet in self._outlets]

    def check_record(self) -> None:
        """Raises if the record has written a value that can't be read again, or forwarded one of another type.

        Otherwise both are found when the version ends, too late to undo one record.
        """
        for store, state in self._stores:
            store.check_record(state.changed())
        for outlet, before in zip(self._outlets, self._forwarded, strict=True):
            if len(outlet.rows) > before and not all(map(outlet.surely_fits, outlet.rows[before:])):
                output_table(outlet.schema, outlet.rows[before:])  # takes about 10 µs per column

    def keep(self) -> None:
        for count in self._counts:
            count.end_record(undo=False)

    def undo(self) -> None:
        for store, state in self._stores:
            state.undo_record()
            store.undo_record()
        for outlet, before in zip(self._outlets, self._forwarded, strict=True):
            del outlet.rows[before:]
            del outlet.times[before:]
        for count in self._counts:
            count.end_record(undo=True)
