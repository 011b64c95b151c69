"""Many ranges of one store, read at once from its runs and, where these don't have all keys, from an engine.

Each run is searched for the limits of all ranges together. Entries that were found go through as columns: of a key that
several sources have, the newest source counts, and deleted keys are left out. Entries come in blocks of bounded size.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.instance.run import Rows, Run
from holdfast.stores.formats.key_order import key_order
from holdfast.stores.ranges import Ranges, expanded

IN_RANGES: Final = pa.schema(
    [pa.field("range", pa.int32()), pa.field("key", pa.binary()), pa.field("value", pa.binary())]
)
"""Entries with the positions of their ranges."""

BLOCK_ROWS: Final = 65_536
BLOCK_BYTES: Final = 16 << 20
SENT_BYTES: Final = 4 << 20
"""About how many bytes one record batch has."""

Flags = npt.NDArray[np.bool_]
ReadRange = Callable[[bytes, bytes | None], Sequence[tuple[bytes, bytes]]]


class FoundEntries(NamedTuple):
    """Entries of ranges; a null value is a deleted key."""

    numbers: Rows
    """The positions of their ranges."""
    keys: pa.BinaryArray
    values: pa.BinaryArray


class _Spans(NamedTuple):
    """Where the entries of each range begin and end in the key order of a run."""

    run: Run
    begin: Rows
    end: Rows

    def found(self, first: int, stop: int) -> FoundEntries:
        """The entries of some ranges."""
        places, numbers = expanded(self.begin[first:stop], self.end[first:stop])
        rows = pa.array(self.run.sorted.order[places])
        return FoundEntries(numbers + first, self.run.keys.take(rows), self.run.values.take(rows))


def read_ranges(runs: Sequence[Run], ranges: Ranges, below: Flags, read: ReadRange) -> Iterator[pa.RecordBatch]:
    """The entries of all ranges, by range and key, as batches of `IN_RANGES`.

    Runs are the newest first. `read` gives what is below them in a range; it is asked where `below` says so.
    """
    searched = (_Spans(run, *ranges.within(run.sorted)) for run in runs)
    spans = [each for each in searched if (each.begin < each.end).any()]
    size = sum(run.nbytes for run in runs) // max(1, sum(map(len, runs)))
    rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, size)))
    counts = sum((each.end - each.begin for each in spans), np.zeros(len(ranges), dtype=np.int64))
    blocks = chain.from_iterable(
        _with_below(first, stop, rows, ranges, below, read) for first, stop in _blocks(counts, rows)
    )
    for first, stop, others in blocks:
        found = newest([*(each.found(first, stop) for each in spans), others])
        there = found.values.is_valid()
        numbers = pa.array(found.numbers, pa.int32()).filter(there)
        columns = [numbers, found.keys.filter(there), found.values.filter(there)]
        batch = pa.record_batch(columns, schema=IN_RANGES)
        step = max(1, batch.num_rows * SENT_BYTES // max(1, batch.nbytes))
        yield from (batch.slice(at, step) for at in range(0, batch.num_rows, step))


def newest(sources: Sequence[FoundEntries]) -> FoundEntries:
    """The entries of several sources, the newest first, by range and key; of each key in a range the newest one.

    >>> old = FoundEntries(np.array([0, 0]), pa.array([b"a", b"b"]), pa.array([b"1", b"2"]))
    >>> new = FoundEntries(np.array([0]), pa.array([b"b"]), pa.array([None], pa.binary()))
    >>> newest([new, old]).values.to_pylist()
    [b'1', None]
    """
    there = [each for each in sources if len(each.keys)]
    if len(there) <= 1:
        return there[0] if there else FoundEntries(np.empty(0, np.int64), *[pa.array([], pa.binary())] * 2)
    numbers = np.concatenate([each.numbers for each in there])
    keys = pa.concat_arrays([each.keys for each in there])
    order = key_order(keys)
    if (np.diff(numbers[order]) < 0).any():  # the ranges overlap, or aren't sorted
        order = order[np.argsort(numbers[order], kind="stable")]
    keys = keys.take(pa.array(order))
    firsts = np.flatnonzero(_differ(numbers[order], keys))
    # Sources are in order, so the newest entry of a key is the first one.
    chosen = np.minimum.reduceat(order, firsts)
    values = pa.concat_arrays([each.values for each in there]).take(pa.array(chosen))
    return FoundEntries(numbers[chosen], keys.take(pa.array(firsts)), values)


def _differ(numbers: Rows, keys: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """Which entries have another range or key than the one before."""
    differ = np.ones(len(keys), dtype=bool)
    other_keys = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    differ[1:] = (numbers[1:] != numbers[:-1]) | other_keys
    return differ


def _blocks(counts: Rows, rows: int) -> Iterator[tuple[int, int]]:
    """Ranges in blocks of about so many entries; `counts` has those of each range."""
    sizes = counts + 1
    cuts = np.flatnonzero(np.diff((np.cumsum(sizes) - sizes) // rows, prepend=-1))
    return pairwise([*cuts.tolist(), len(counts)])


def _with_below(
    first: int, stop: int, rows: int, ranges: Ranges, below: Flags, read: ReadRange
) -> Iterator[tuple[int, int, FoundEntries]]:
    """A block of ranges with the entries that are below the runs, as several blocks if they are many."""
    numbers: list[int] = []
    entries: list[tuple[bytes, bytes]] = []
    size = 0
    asked = np.flatnonzero(below[first:stop]) + first
    for number, (start, end) in zip(asked.tolist(), ranges.take(asked).pairs(), strict=True):
        if len(entries) >= rows or size >= BLOCK_BYTES:
            yield first, number, _found(numbers, entries)
            first, numbers, entries, size = number, [], [], 0
        more = read(start, end)
        numbers += [number] * len(more)
        entries += more
        size += sum(len(key) + len(value) for key, value in more)
    yield first, stop, _found(numbers, entries)


def _found(numbers: list[int], entries: list[tuple[bytes, bytes]]) -> FoundEntries:
    keys, values = (pa.array([entry[n] for entry in entries], pa.binary()) for n in (0, 1))
    return FoundEntries(np.array(numbers, np.int64), keys, values)
