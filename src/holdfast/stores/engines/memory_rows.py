"""The rows of one family in memory, grouped so that a slice is dropped in one step.

Rows that are dropped together are in one group: one group per slice (see `layouts.slices`), and one per other key area.
A drop makes a new table without the groups of the range. Open views and running lookups continue to read the old table,
and its memory is freed after the last of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from sortedcontainers import SortedDict

from holdfast.stores.layouts.slices import group_of


class _Group:
    """Rows by key, and their size in bytes."""

    __slots__ = ("rows", "size")

    def __init__(self, rows: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.rows: SortedDict[bytes, bytes] = SortedDict(rows)
        self.size = sum(len(key) + len(value) for key, value in self.rows.items())


class MemoryRows:
    """A family's rows, by group. Written in place under the engine's lock; a drop makes a new `MemoryRows`."""

    def __init__(self, groups: Iterable[tuple[bytes, _Group]] = ()) -> None:
        self._groups: SortedDict[bytes, _Group] = SortedDict(groups)

    @classmethod
    def loaded(cls, keys: Sequence[bytes], values: Sequence[bytes]) -> "MemoryRows":
        """The rows of a checkpoint, which are in key order."""
        pairs = zip(keys, values, strict=True)
        return cls((group, _Group(rows)) for group, rows in groupby(pairs, lambda row: group_of(row[0])))

    def __len__(self) -> int:
        return sum(len(group.rows) for group in self._listed())

    @property
    def size(self) -> int:
        """Bytes of all keys and values."""
        return sum(group.size for group in self._listed())

    def _listed(self) -> list[_Group]:
        """The groups, in no order. One atomic step in Python, for reads without the engine's lock."""
        return list(dict.values(self._groups))

    def get(self, key: bytes) -> bytes | None:
        group = self._groups.get(group_of(key)) if key else None
        return None if group is None else group.rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        groups = self._listed()
        # A store without slices has one group, which has all keys.
        return map(groups[0].rows.get if len(groups) == 1 else self.get, keys)

    def put(self, key: bytes, value: bytes) -> None:
        name = group_of(key)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
        old = group.rows.get(key)
        group.size += len(value) + len(key) if old is None else len(value) - len(old)
        group.rows[key] = value

    def delete(self, key: bytes) -> None:
        name = group_of(key)
        group = self._groups.get(name)
        old = None if group is None else group.rows.pop(key, None)
        if group is None or old is None:
            return
        group.size -= len(key) + len(old)
        if not group.rows:
            del self._groups[name]

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        for group in self._groups.values():
            yield from group.rows.items()

    def keys_between(self, low: bytes, high: bytes | None, open_low: bool, reverse: bool) -> Iterator[bytes]:
        """Keys with low <= key < high (low < key if `open_low`), in order or in reverse."""
        if high is not None and high <= low:
            return
        for name in self._groups.irange(group_of(low), group_of(high) if high else None, reverse=reverse):
            rows = self._groups[name].rows
            yield from rows.irange(low, high, inclusive=(not open_low, False), reverse=reverse)

    def without(self, start: bytes, stop: bytes) -> "MemoryRows | None":
        """The rows without those of start <= key < stop; None if there are none in that range.

        A group inside the range, as a slice is, goes without a look at its rows. If a group is only partly in the
        range, its other rows are copied.
        """
        if stop <= start:
            return None
        left: list[tuple[bytes, _Group]] = []
        changed = False
        for name, group in self._groups.items():
            first, last = group.rows.keys()[0], group.rows.keys()[-1]
            if last < start or stop <= first:
                left.append((name, group))
                continue
            if not (start <= first and last < stop):
                rest = [row for row in group.rows.items() if not start <= row[0] < stop]
                if len(rest) == len(group.rows):
                    left.append((name, group))
                    continue
                left.append((name, _Group(rest)))
            changed = True
        return MemoryRows(left) if changed else None
