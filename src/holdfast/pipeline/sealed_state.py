"""A table's state in the version that is being computed: at `v-1`, and over it what its task has sealed in `v`."""

from bisect import bisect_left
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.task_state import TaskState
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.key_order import SortedKeys
from holdfast.stores.ranges import Ranges, expanded

FEW = 64
"""Up to how many keys are searched one by one, without a hash table of all changes."""


class SealedState(TaskState):
    """One store of a task, with changes over it."""

    def __init__(self, before: TaskState, changes: pa.Table) -> None:
        """`changes` has one row per key; a null value is a tombstone."""
        self._before = before
        self._changes = changes.sort_by("key").combine_chunks()
        self._keys, self._values = whole(self._changes["key"]), whole(self._changes["value"])

    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        at = self._places(keys)
        return pc.if_else(pc.is_null(at), self._before.get(store, keys), self._values.take(at))

    def _places(self, keys: pa.BinaryArray) -> pa.Array:
        """Where each key is among the changes, null where it isn't."""
        if len(keys) > FEW:
            return pc.index_in(keys, value_set=self._keys)
        wanted = keys.to_pylist()
        at = [bisect_left(self._keys, key, key=lambda each: each.as_py()) for key in wanted]
        found = [
            n if n < len(self._keys) and self._keys[n].as_py() == key else None
            for n, key in zip(at, wanted, strict=True)
        ]
        return pa.array(found, pa.int32())

    def scan(self, store: str, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        found, number = [], 0
        while True:
            page = self._before.scan(store, start, stop, reverse=reverse, limit=limit)
            is_last = page.num_rows < limit
            last: bytes = b"" if is_last else page["key"][-1].as_py()
            low = last if reverse and not is_last else start
            high = stop if reverse or is_last else last + b"\x00"
            found.append(self._over(page, Ranges.of([(low, high)]), reverse))
            number += found[-1].num_rows
            if is_last or number >= limit:
                return pa.concat_tables(found).slice(0, limit)
            start, stop = (start, last) if reverse else (last + b"\x00", stop)

    def scan_many(self, store: str, ranges: Ranges) -> pa.Table:
        return self._over(self._before.scan_many(store, ranges), ranges, reverse=False)

    def _over(self, entries: pa.Table, ranges: Ranges, reverse: bool) -> pa.Table:
        """All entries of ranges before this version, with the changes over them."""
        places, _ = expanded(*ranges.within(self._sorted))
        if not places.size:
            return entries
        own = self._changes.take(pa.array(places))
        kept = entries.filter(pc.invert(pc.is_in(entries["key"], value_set=whole(own["key"]))))
        merged = pa.concat_tables([kept, own.filter(pc.is_valid(own["value"])).cast(kept.schema)])
        return merged.sort_by([("key", "descending" if reverse else "ascending")])

    @cached_property
    def _sorted(self) -> SortedKeys:
        return SortedKeys(self._keys)

    def approximate_count(self, store: str) -> int:
        """Counts a changed row as a new one."""
        deleted: int = self._values.null_count
        return max(0, self._before.approximate_count(store) + len(self._values) - 2 * deleted)
