"""Many keys in one request: each part of a store is asked for those that it may have, some at a time.

How large values are is known when they are read. So the memory of a read is that of the answer, which is refused once
it is too large, and of one piece per part: 128 values at most, and fewer where the values before them were large.
Larger pieces are not faster: 10,000 keys took 0.8 s with pieces of 128 and 1.0 s with pieces of up to 8,192.
"""

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.query.opening import OpenPart, OpenStores
from holdfast.query.store_specs import StoreSpecs
from holdfast.stores.layouts.registry import layout_of
from holdfast.words import TaskId

_FIRST_KEYS: Final = 16
_MOST_KEYS: Final = 128
_PIECE_BYTES: Final = 8 << 20
"""What a piece has if its values are as large as the largest one of the piece before."""


def next_piece(keys: int, largest: int) -> int:
    """How many keys to read after a piece of so many whose largest value has so many bytes.

    >>> next_piece(16, 100), next_piece(128, 100), next_piece(128, 1 << 20), next_piece(8, 1 << 30)
    (32, 128, 8, 1)
    """
    return max(1, min(2 * keys, _MOST_KEYS, _PIECE_BYTES // max(1, largest)))


def find_many(
    opened: OpenStores,
    specs: StoreSpecs,
    keys: Sequence[bytes],
    asks: Callable[[int, TaskId], bool],
    found: dict[int, bytes],
    check: Callable[[Sequence[bytes]], None],
) -> None:
    """Looks in each part for those of the keys that it is asked for, by their positions."""

    def find(part: OpenPart) -> dict[int, bytes]:
        asked = [n for n in range(len(keys)) if asks(n, part.place.task)]
        if not asked:
            return {}
        spec = specs.at(part.place.store, part.store.version)
        cells: dict[int, bytes] = {}
        reader = layout_of(spec).reader(part.store.bytes, part.store.now)
        start, number = 0, _FIRST_KEYS
        while start < len(asked):
            some = asked[start : start + number]
            read = reader.find_many([keys[n] for n in some])
            there = [cell for cell in read if cell is not None]
            check(there)
            cells |= {n: cell for n, cell in zip(some, read, strict=True) if cell is not None}
            start, number = start + number, next_piece(number, max(map(len, there), default=0))
        return cells

    for cells in opened.read(find):
        found |= cells
