"""A range of one store as columns, in key order and in blocks of bounded size, for reads of whole stores.

A read view has its runs, the newest first, and the engine below them. All of them give their keys in order. Per block,
each source says up to which key it would fill the block alone; the smallest of these keys ends the block, and every
source gives its entries up to it. So no source is read further than the others, and each block is complete: of a key
that several sources have, the newest one counts, and deleted keys are left out.

A range of 1M small entries takes 0.16 s of processor time if a run has it (and 0.28 s once, to sort the run), 0.31 s
with four small runs above, and 0.83 s from RocksDB.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from functools import cached_property
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.instance.range_reads import BLOCK_ROWS, FoundEntries, newest
from holdfast.instance.run import Rows, Run
from holdfast.stores.access import ColumnBlock

BLOCK_BYTES: Final = 1 << 20
"""About how many bytes a block has; one entry may have more. Streams of columns wait for their readers with a block."""
FIRST_ROWS: Final = 128
"""The rows of the first block. Blocks grow: most readers want a few entries, and some want all."""

Entries = list[tuple[bytes, bytes]]


class _Source(Protocol):
    def last(self, rows: int) -> bytes | None:
        """The last key of a block of so many rows; None if there aren't more rows than that."""

    def take(self, last: bytes | None) -> FoundEntries:
        """The entries up to a key, which are not given again; None: all."""


class _RunRows:
    """The entries of a run in a range."""

    def __init__(self, run: Run, start: bytes, stop: bytes | None) -> None:
        self._run = run
        self._at = run.sorted.first_key_at_least(start)
        self._end = len(run) if stop is None else run.sorted.first_key_at_least(stop)

    def __bool__(self) -> bool:
        return self._at < self._end

    @cached_property
    def _lengths(self) -> Rows:
        """The bytes of each row's value."""
        found: Rows = pc.binary_length(self._run.values).fill_null(0).to_numpy(zero_copy_only=False)
        return found

    def last(self, rows: int) -> bytes | None:
        order = self._run.sorted.order[self._at : min(self._end, self._at + rows)]
        sizes = np.cumsum(self._lengths[order], dtype=np.int64)
        count = min(len(order), int(np.searchsorted(sizes, BLOCK_BYTES)) + 1)
        if self._at + count >= self._end:
            return None
        key: bytes = self._run.keys[int(order[count - 1])].as_py()
        return key

    def take(self, last: bytes | None) -> FoundEntries:
        end = self._end
        if last is not None:
            end = min(end, self._run.sorted.first_key_at_least(last + b"\x00"))
        rows = pa.array(self._run.sorted.order[self._at : max(self._at, end)])
        self._at = max(self._at, end)
        return _found(self._run.keys.take(rows), self._run.values.take(rows))


class _EngineRows:
    """The entries of an engine in a range, of which a block is held."""

    def __init__(self, blocks: Iterator[Entries]) -> None:
        self._blocks = blocks
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._bytes = 0
        self._ended = False

    def last(self, rows: int) -> bytes | None:
        while len(self._keys) < rows and self._bytes < BLOCK_BYTES and not self._ended:
            block = next(self._blocks, None)
            if block is None:
                self._ended = True
            elif block:
                keys, values = zip(*block, strict=True)
                self._keys += keys
                self._values += values
                self._bytes += sum(map(len, keys)) + sum(map(len, values))
        return None if self._ended else self._keys[-1]

    def take(self, last: bytes | None) -> FoundEntries:
        end = len(self._keys) if last is None else bisect_right(self._keys, last)
        found = _found(pa.array(self._keys[:end], pa.binary()), pa.array(self._values[:end], pa.binary()))
        del self._keys[:end], self._values[:end]
        self._bytes = sum(map(len, self._keys)) + sum(map(len, self._values))
        return found


class _BlockRows:
    """The entries of blocks, of which one is held."""

    def __init__(self, blocks: Iterator[ColumnBlock]) -> None:
        self._blocks = blocks
        self._held: ColumnBlock | None = None

    def last(self, rows: int) -> bytes | None:
        if self._held is None or not len(self._held.keys):
            self._held = next(self._blocks, None)
        if self._held is None:
            return None
        key: bytes = self._held.keys[-1].as_py()
        return key

    def take(self, last: bytes | None) -> FoundEntries:
        if self._held is None or last is None:
            return _found(*[pa.array([], pa.binary())] * 2)
        keys, values = self._held
        taken = pc.less_equal(keys, pa.scalar(last, pa.binary())).true_count
        self._held = ColumnBlock(keys.slice(taken), values.slice(taken))
        return _found(keys.slice(0, taken), values.slice(0, taken))


def newest_of(streams: Sequence[Generator[ColumnBlock, None, None]]) -> Generator[ColumnBlock, None, None]:
    """The entries of several streams as one, in key order; of a key that several have, the first stream counts.

    >>> pairs = (b"b", b"1"), (b"c", b"2")
    >>> old, new = (ColumnBlock(pa.array([b"a", key]), pa.array([value] * 2)) for key, value in pairs)
    >>> [block.values.to_pylist() for block in newest_of([(each for each in [new]), (each for each in [old])])]
    [[b'2', b'1'], [b'2']]
    """
    sources = [_BlockRows(stream) for stream in streams]
    try:
        while ends := [each for source in sources if (each := source.last(BLOCK_ROWS)) is not None]:
            last = min(ends)
            found = newest([source.take(last) for source in sources])
            if len(found.keys):
                yield ColumnBlock(found.keys, found.values)
    finally:
        for stream in streams:
            stream.close()


def scan_columns(
    runs: Sequence[Run], engine: Iterator[Entries] | None, start: bytes, stop: bytes | None
) -> Generator[ColumnBlock, None, None]:
    """The entries with start <= key < stop. Runs are the newest first; `engine` gives what is below them in the range.

    >>> from holdfast.words import Version
    >>> run = Run(pa.array([b"b", b"a"], pa.binary()), pa.array([None, b"2"], pa.binary()), Version(3))
    >>> [(block.keys.to_pylist(), block.values.to_pylist()) for block in
    ...     scan_columns([run], iter([[(b"b", b"1"), (b"c", b"1")]]), b"", None)]
    [([b'a', b'c'], [b'2', b'1'])]
    """
    sources: list[_Source] = [each for run in runs if (each := _RunRows(run, start, stop))]
    if engine is not None:
        sources.append(_EngineRows(engine))
    rows = FIRST_ROWS
    last: bytes | None = b""
    while sources and last is not None:
        ends = [end for source in sources if (end := source.last(rows)) is not None]
        last = min(ends) if ends else None
        found = newest([source.take(last) for source in sources])
        there = found.values.is_valid()
        if there.true_count:
            yield ColumnBlock(found.keys.filter(there), found.values.filter(there))
        rows = min(BLOCK_ROWS, 4 * rows)


def _found(keys: pa.BinaryArray, values: pa.BinaryArray) -> FoundEntries:
    return FoundEntries(np.zeros(len(keys), np.int64), keys, values)
