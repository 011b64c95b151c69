"""A global table in a task of a processor: the first lookup reads a small table as a whole, and keeps it.

A processor that looks up one key per record would otherwise ask an instance for each key, which takes about a
millisecond. Of a table with more than a page of rows, only the rows that are asked for are read.
"""

from collections.abc import Iterable

from holdfast.pipeline.store_state import FIRST_PAGE, Budget, StoreState
from holdfast.pipeline.task_state import TaskState
from holdfast.stores.layouts.base import area_of
from holdfast.stores.ranges import Range


class TableState(StoreState):
    """The rows of a table after this version's changes. Nothing is written to it.

    >>> from holdfast.pipeline.task_state import EmptyState
    >>> TableState("products", EmptyState()).get(b"a") is None
    True
    """

    __slots__ = ("_tried", "_whole")

    def __init__(self, name: str, before: TaskState) -> None:
        super().__init__(name, before, Budget(0))
        self._tried = self._whole = False

    def _fetch(self, key: bytes) -> bytes | None:
        self._try_whole(key)
        return self._read.get(key) if self._whole else super()._fetch(key)

    def prefetch(self, keys: Iterable[bytes], ranges: Iterable[Range] = ()) -> None:
        wanted = list(keys)
        if wanted:
            self._try_whole(wanted[0])
        if self._whole:
            for key in wanted:
                self._read.setdefault(key, None)
        else:
            super().prefetch(wanted, ranges)

    def forget(self) -> None:
        if not self._whole:
            super().forget()

    def _try_whole(self, key: bytes) -> None:
        """Reads the first page of the table, once. If there is no other, all rows are known."""
        if self._tried:
            return
        self._tried = True
        start, stop = area_of(key)
        page = self._page(start, stop, False, FIRST_PAGE)
        if len(page) < FIRST_PAGE:
            self._remember([(start, stop)], page)
            self._whole = True
