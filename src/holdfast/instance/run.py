"""Runs: the changes of some versions to one store, as Arrow columns in which many keys are looked up at once.

A run is immutable. Beside its columns it keeps the keys' fingerprints, sorted, and where each bucket of fingerprints
starts; a lookup goes to the bucket, compares fingerprints, then keys. Rows are in the order in which they were written,
the oldest first, so the coldest half of a run is its first half.
"""

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.instance.byte_rows import ByteRows
from holdfast.instance.fingerprint import U64, fingerprint
from holdfast.stores.engines.base import Changes
from holdfast.stores.formats.key_order import SortedKeys
from holdfast.words import Version

Rows = npt.NDArray[np.int64]
_SCAN_BLOCK = 256
_CHANGES = 32_768
_AROUND = 64
"""How far from the guessed place a fingerprint is searched: four times the usual distance among 1,000 rows."""
_SMALL = 1_024
"""The fingerprints of a run of this many rows take 45 us, half of it for calls whatever the number of rows."""


@dataclass(frozen=True)
class Index:
    """Sorted fingerprints, and the row each belongs to."""

    prints: U64
    rows: npt.NDArray[np.int32]

    @classmethod
    def of(cls, prints: U64) -> "Index":
        """The index of rows with these fingerprints."""
        order = np.argsort(prints)
        return cls(prints[order], order.astype(np.int32))

    @property
    def _bucket_bits(self) -> int:
        return _bucket_bits(len(self.prints))

    @cached_property
    def _shift(self) -> np.uint64:
        """How far to shift a fingerprint to get its bucket."""
        return np.uint64(64 - self._bucket_bits)

    @cached_property
    def _starts(self) -> npt.NDArray[np.int32]:
        """Where each bucket starts, computed at the first lookup."""
        buckets = 1 << self._bucket_bits
        counts = np.bincount((self.prints >> self._shift).astype(np.int64), minlength=buckets)
        starts = np.zeros(buckets, dtype=np.int32)
        np.cumsum(counts[:-1], out=starts[1:])
        return starts

    def candidates(self, prints: U64) -> Rows:
        """The first row per fingerprint, -1 where there is none."""
        if len(self.prints) == 0:
            return np.full(len(prints), -1, dtype=np.int64)
        last = len(self.prints) - 1
        at = self._starts[(prints >> self._shift).astype(np.int64)].astype(np.int64)
        here = self.prints.take(at, mode="clip")
        # Within a bucket fingerprints ascend, so a smaller one means: look at the next.
        asking = np.flatnonzero((here < prints) & (at < last))
        while asking.size:
            at[asking] += 1
            here[asking] = beside = self.prints[at[asking]]
            asking = asking[(beside < prints[asking]) & (at[asking] < last)]
        found = self.rows.take(at, mode="clip").astype(np.int64)
        found[here != prints] = -1
        return found

    def without_rows_before(self, first: int) -> "Index":
        """The index without the first rows; the others move down."""
        stays = self.rows >= first
        return Index(self.prints[stays], self.rows[stays] - np.int32(first))


def _bucket_bits(rows: int) -> int:
    """How many of the top bits of a fingerprint are its bucket; about one key per bucket."""
    return max(1, (rows - 1).bit_length())


def _index_bytes(rows: int) -> int:
    """The bytes of an index: a fingerprint and a row number per row, and the buckets' starts."""
    return 12 * rows + 4 * (1 << _bucket_bits(rows))


class Run:
    """Keys with their newest values (null: deleted) over versions up to `high`.

    >>> run = Run(pa.array([b"a", b"b"], pa.binary()), pa.array([b"1", None], pa.binary()), Version(3))
    >>> run.find(wanted := pa.array([b"b", b"x"], pa.binary()), fingerprint(wanted)).tolist()
    [1, -1]
    """

    __slots__ = ("_bytes", "_index", "_key_rows", "_numbers", "_sorted", "_value_rows", "high", "keys", "values")

    def __init__(self, keys: pa.Array, values: pa.Array, high: Version, *, index: Index | None = None) -> None:
        self.keys = keys
        self.values = values
        self.high = high
        self._bytes: int = keys.get_total_buffer_size() + values.get_total_buffer_size() + _index_bytes(len(keys))
        self._index: Index | None = None
        self._numbers: memoryview | None = None
        """The index's fingerprints as Python's numbers: a search among 800 takes 0.5 us, numpy's with scalars 1.2."""
        self._key_rows: ByteRows | None = None
        self._value_rows: ByteRows | None = None
        self._sorted: SortedKeys | None = None
        if index is not None:
            self.index = index

    @property
    def index(self) -> Index:
        """Where each key is, computed at the first lookup unless `index_together` was called before."""
        if self._index is None:
            self.index = Index.of(fingerprint(self.keys))
        assert self._index is not None
        return self._index

    @index.setter
    def index(self, index: Index) -> None:
        self._index = index
        self._numbers = index.prints.data

    @property
    def nbytes(self) -> int:
        return self._bytes + (0 if self._sorted is None else self._sorted.nbytes)

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, keys: pa.Array, prints: U64, among: Rows | None = None) -> Rows:
        """The row of each key, -1 if this run doesn't know it; with `among`, only of the keys at those positions."""
        found = self.index.candidates(prints if among is None else prints[among])
        hit = np.flatnonzero(found >= 0)
        if hit.size:
            asked = hit if among is None else among[hit]
            wanted = keys if asked.size == len(keys) else keys.take(pa.array(asked))
            same = pc.equal(self.keys.take(pa.array(found[hit])), wanted)
            if same.true_count < hit.size:
                for place in np.flatnonzero(~same.to_numpy(zero_copy_only=False)):
                    found[hit[place]] = self.row_of(wanted[place].as_py(), int(prints[asked[place]]))
        return found

    def row_of(self, key: bytes, print_: int) -> int:
        """The row of one key, -1 if this run doesn't know it.

        Fingerprints are spread evenly, so a place is guessed and only those around it are searched: they are in few
        lines of memory, and with many tasks none is in the processor's cache.
        """
        numbers = self._numbers or self.index.prints.data
        rows = len(numbers)
        guess = print_ * rows >> 64
        low, high = max(0, guess - _AROUND), min(rows, guess + _AROUND)
        at = bisect_left(numbers, print_, low, high)
        if (at == low and low) or (at == high < rows):
            at = bisect_left(numbers, print_)
        while at < rows and numbers[at] == print_:
            row = int(self.index.rows[at])
            if self._keys[row] == key:
                return row
            at += 1
        return -1

    def value_of(self, row: int) -> bytes | None:
        if self._value_rows is None:
            self._value_rows = ByteRows(self.values)
        return self._value_rows[row]

    @property
    def _keys(self) -> ByteRows:
        if self._key_rows is None:
            self._key_rows = ByteRows(self.keys)
        return self._key_rows

    def changes(self) -> Iterator[Changes]:
        """The run as changes for an engine: in key order, a bounded number of rows at a time."""
        for start in range(0, len(self), _CHANGES):
            rows = pa.array(self.sorted.order[start : start + _CHANGES])
            yield Changes(self.keys.take(rows), self.values.take(rows))

    def newer_half(self) -> "Run":
        """The half that was written last."""
        first = len(self) // 2
        rows = pa.array(np.arange(first, len(self)))
        index = self.index.without_rows_before(first)
        return Run(self.keys.take(rows), self.values.take(rows), self.high, index=index)

    @property
    def sorted(self) -> SortedKeys:
        """The keys in order, computed at the first scan."""
        if self._sorted is None:
            self._sorted = SortedKeys(self.keys)
        return self._sorted

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes | None]]:
        """The entries with start <= key < stop, in key order."""
        low = self.sorted.first_key_at_least(start)
        high = len(self) if stop is None else self.sorted.first_key_at_least(stop)
        while low < high:
            taken = min(_SCAN_BLOCK, high - low)
            begin = high - taken if reverse else low
            rows = pa.array(self.sorted.order[begin : begin + taken])
            pairs = list(zip(self.keys.take(rows).to_pylist(), self.values.take(rows).to_pylist(), strict=True))
            yield from reversed(pairs) if reverse else pairs
            low, high = (low, begin) if reverse else (begin + taken, high)


def index_together(runs: Sequence[Run]) -> None:
    """Computes the indexes of runs, so that no reader waits for them; 128 runs of 80 rows take 0.8 ms, alone 4."""
    small = [run for run in runs if len(run) <= _SMALL]
    if small:
        prints = fingerprint(pa.concat_arrays([run.keys for run in small]))
        first = 0
        for run in small:
            run.index = Index.of(prints[first : first + len(run)])
            first += len(run)
    for run in runs:
        _ = run.index


def merged(runs: Sequence[Run]) -> Run:
    """Merges runs, the newest first: the newest value per key. Rows stay the oldest first.

    >>> old, new = (Run(pa.array([b"a"]), pa.array([value]), Version(1)) for value in (b"1", b"2"))
    >>> run = merged([new, old])
    >>> run.keys.to_pylist(), run.values.to_pylist()
    ([b'a'], [b'2'])
    """
    if len(runs) == 1:
        return runs[0]
    keys = pa.concat_arrays([run.keys for run in reversed(runs)])
    values = pa.concat_arrays([run.values for run in reversed(runs)])
    firsts = np.cumsum([0] + [len(run) for run in reversed(runs[1:])])[::-1]
    prints = np.concatenate([run.index.prints for run in runs])
    rows = np.concatenate([run.index.rows + first for run, first in zip(runs, firsts, strict=True)])
    # Each is sorted, which a stable sort makes use of: it merges them, 1.3 ms for two of 158,000 rows.
    order = np.argsort(prints, kind="stable")
    prints, rows = prints[order], rows[order]
    outdated = _outdated(prints, rows, keys)
    if not outdated.any():
        return Run(keys, values, runs[0].high, index=Index(prints, rows.astype(np.int32)))
    kept = np.ones(len(keys), dtype=bool)
    kept[rows[outdated]] = False
    stays = pa.array(kept)
    places = np.cumsum(kept, dtype=np.int32) - np.int32(1)
    index = Index(prints[~outdated], places[rows[~outdated]])
    return Run(keys.filter(stays), values.filter(stays), runs[0].high, index=index)


def _outdated(prints: U64, rows: Rows, keys: pa.Array) -> npt.NDArray[np.bool_]:
    """Which rows have a newer one before them. Equal fingerprints are mostly of one key, and the newest comes first."""
    outdated = np.zeros(len(prints), dtype=bool)
    later = np.flatnonzero(prints[1:] == prints[:-1]) + 1
    if later.size == 0:
        return outdated
    same = pc.equal(keys.take(pa.array(rows[later])), keys.take(pa.array(rows[later - 1])))
    outdated[later] = True
    if same.true_count < later.size:
        for shared in np.unique(prints[later[~same.to_numpy(zero_copy_only=False)]]):
            seen: set[bytes] = set()
            for place in np.flatnonzero(prints == shared):
                key = keys[int(rows[place])].as_py()
                outdated[place] = key in seen
                seen.add(key)
    return outdated


def runs_of(version: Version, changes: Iterable[tuple[str, Changes]]) -> dict[str, Run]:
    """What a version changes in each store, as one run. Of several changes of one store the later ones win."""
    runs: dict[str, list[Run]] = {}
    for store, part in changes:
        if len(part.keys):
            runs.setdefault(store, []).append(Run(part.keys, part.values, version))
    return {store: merged(some[::-1]) for store, some in runs.items()}


def first_wins(
    sources: list[Iterator[tuple[bytes, bytes | None]]], *, reverse: bool
) -> Iterator[tuple[bytes, bytes | None]]:
    """Merges ordered sources; where several have a key, the first source's value counts.

    >>> list(first_wins([iter([(b"b", None)]), iter([(b"a", b"1"), (b"b", b"2")])], reverse=False))
    [(b'a', b'1'), (b'b', None)]
    """
    heads = [next(source, None) for source in sources]
    choose = max if reverse else min
    while keys := [head[0] for head in heads if head is not None]:
        if len(keys) == 1:  # mostly from the start
            last = next(place for place, head in enumerate(heads) if head is not None)
            yield from itertools.chain([head for head in heads if head is not None], sources[last])
            return
        key = choose(keys)
        chosen: tuple[bytes, bytes | None] | None = None
        for place, head in enumerate(heads):
            if head is not None and head[0] == key:
                chosen = chosen or head
                heads[place] = next(sources[place], None)
        assert chosen is not None
        yield chosen
