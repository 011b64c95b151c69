"""Many keys in one request: each part of a store is asked for those that it may have, some at a time."""

from collections.abc import Callable, Iterator, Sequence

from holdfast.query.opening import OpenPart, OpenStores
from holdfast.query.store_specs import StoreSpecs
from holdfast.stores.layouts.registry import layout_of
from holdfast.words import TaskId

_FIRST_KEYS = 128


def growing_pieces(keys: Sequence[int]) -> Iterator[Sequence[int]]:
    """The keys in pieces, each four times as large as the one before.

    >>> [len(piece) for piece in growing_pieces(range(1_000))]
    [128, 512, 360]
    """
    start, number = 0, _FIRST_KEYS
    while start < len(keys):
        yield keys[start : start + number]
        start, number = start + number, 4 * number


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
        for some in growing_pieces(asked):  # so that few are read before their size is known
            read = reader.find_many([keys[n] for n in some])
            cells |= {n: cell for n, cell in zip(some, read, strict=True) if cell is not None}
            check([cell for cell in read if cell is not None])
        return cells

    for cells in opened.read(find):
        found |= cells
