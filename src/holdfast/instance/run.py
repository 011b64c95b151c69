"""Runs: what some versions changed in one store, as Arrow columns that can be asked for many keys at once.

A run is never changed. Beside its columns it keeps the keys' fingerprints, sorted, and where in them each bucket of
fingerprints begins; a lookup goes to the bucket, compares fingerprints, then keys. Rows stand in the order in which
they were written, the oldest first, so the coldest half of a run is its first half.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.instance.fingerprint import U64, Fingerprint, fingerprint
from holdfast.words import Version

Rows = npt.NDArray[np.int64]
_SCAN_BLOCK = 256


class Run:
    """Keys with their newest values (null: deleted) over versions up to `high`.

    >>> run = Run(pa.array([b"a", b"b"], pa.binary()), pa.array([b"1", None], pa.binary()), Version(3))
    >>> run.find(wanted := pa.array([b"b", b"x"], pa.binary()), fingerprint(wanted)).tolist()
    [1, -1]
    """

    def __init__(
        self,
        keys: pa.Array,
        values: pa.Array,
        high: Version,
        *,
        prints: U64 | None = None,
        fingerprint: Fingerprint = fingerprint,
    ) -> None:
        self.keys = keys
        self.values = values
        self.high = high
        self._fingerprint = fingerprint
        of_rows = fingerprint(keys) if prints is None else prints
        order = np.argsort(of_rows)
        self._sorted: U64 = of_rows[order]
        self._rows = order.astype(np.int32)
        # About one key a bucket: the top bits of a fingerprint say which.
        bits = max(1, (len(keys) - 1).bit_length())
        self._shift = np.uint64(64 - bits)
        counts = np.bincount((self._sorted >> self._shift).astype(np.int64), minlength=1 << bits)
        self._starts = np.zeros(len(counts) + 1, dtype=np.int32)
        np.cumsum(counts, out=self._starts[1:])
        own = self._sorted.nbytes + self._rows.nbytes + self._starts.nbytes
        self.nbytes = int(keys.nbytes + values.nbytes + own)

    def __len__(self) -> int:
        return len(self.keys)

    def prints(self) -> U64:
        """The fingerprints, row by row."""
        of_rows = np.empty_like(self._sorted)
        of_rows[self._rows] = self._sorted
        return of_rows

    def find(self, keys: pa.Array, prints: U64) -> Rows:
        """The row of each key, -1 where this run doesn't know it."""
        found = np.full(len(keys), -1, dtype=np.int64)
        if len(self) == 0 or len(keys) == 0:
            return found
        bucket = (prints >> self._shift).astype(np.int64)
        at = self._starts[bucket]
        stop = self._starts[bucket + 1]
        asking = np.flatnonzero(at < stop)
        at, stop = at[asking], stop[asking]
        while asking.size:
            here, wanted = self._sorted[at], prints[asking]
            equal = np.flatnonzero(here == wanted)
            if equal.size:
                rows, of = self._rows[at[equal]], asking[equal]
                same = pc.equal(self.keys.take(pa.array(rows)), keys.take(pa.array(of)))
                same = same.to_numpy(zero_copy_only=False)
                found[of[same]] = rows[same]
            at = at + 1
            more = np.flatnonzero((here <= wanted) & (at < stop) & (found[asking] < 0))
            asking, at, stop = asking[more], at[more], stop[more]
        return found

    def over(self, older: "Run") -> "Run":
        """This run and an older one as one: where both know a key, this one's value."""
        prints = older.prints()
        kept = np.flatnonzero(self.find(older.keys, prints) < 0)
        if kept.size == 0:
            return self
        rows = pa.array(kept)
        return Run(
            pa.concat_arrays([older.keys.take(rows), self.keys]),
            pa.concat_arrays([older.values.take(rows), self.values]),
            max(self.high, older.high),
            prints=np.concatenate([prints[kept], self.prints()]),
            fingerprint=self._fingerprint,
        )

    def newer_half(self) -> "Run":
        """The half that was written last."""
        rows = np.arange(len(self) // 2, len(self))
        taken = pa.array(rows)
        return Run(
            self.keys.take(taken),
            self.values.take(taken),
            self.high,
            prints=self.prints()[rows],
            fingerprint=self._fingerprint,
        )

    @cached_property
    def order(self) -> pa.Array:
        """The rows in the order of their keys; made when the first scan asks."""
        return pc.array_sort_indices(self.keys)

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys from `start` up to but without `stop`, in order."""
        low = self._first_at_least(start)
        high = len(self) if stop is None else self._first_at_least(stop)
        while low < high:
            taken = min(_SCAN_BLOCK, high - low)
            begin = high - taken if reverse else low
            rows = self.order.slice(begin, taken)
            pairs = list(zip(self.keys.take(rows).to_pylist(), self.values.take(rows).to_pylist(), strict=True))
            yield from reversed(pairs) if reverse else pairs
            low, high = (low, begin) if reverse else (begin + taken, high)

    def _first_at_least(self, key: bytes) -> int:
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.keys[self.order[middle].as_py()].as_py() < key:
                low = middle + 1
            else:
                high = middle
        return low


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
        key = choose(keys)
        chosen: tuple[bytes, bytes | None] | None = None
        for place, head in enumerate(heads):
            if head is not None and head[0] == key:
                chosen = chosen or head
                heads[place] = next(sources[place], None)
        assert chosen is not None
        yield chosen
