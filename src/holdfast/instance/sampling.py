"""A sample of a store: a few short ranges of its entries, each with their number and a checksum.

A snapshot's manifest has the sample of each store at its version. A replica at a later version compares those ranges in
which nothing was changed since. A store of up to `RANGES * ENTRIES` entries is in its sample as a whole. Which ranges
of a larger one are chosen depends on a seed, so each snapshot has others.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from itertools import islice

import xxhash

from holdfast.log.snapshots import SampledRange

RANGES = 16
ENTRIES = 64
"""How many entries a range has."""
_DIGITS = 8
_END = 1 << 8 * _DIGITS

Entry = tuple[bytes, bytes]
Entries = Generator[Entry, None, None]
Scan = Callable[[bytes, bool], Entries]
"""The entries from a key on in order; or all of them backwards."""


def summary(entries: Iterable[Entry]) -> tuple[int, str]:
    """The number of entries and the checksum of their keys and values.

    >>> summary([(b"a", b"1")]) == summary([(b"a1", b"")])
    False
    """
    count, hasher = 0, xxhash.xxh3_128()
    for key, value in entries:
        count += 1
        for each in (key, value):
            hasher.update(len(each).to_bytes(4))
            hasher.update(each)
    return count, hasher.hexdigest()


def sample(scan: Scan, seed: str) -> tuple[SampledRange, ...]:
    """The sample of a store.

    >>> entries = [(b"k%03d" % n, b"v") for n in range(100)]
    >>> found = sample(lambda start, reverse: (entry for entry in sorted(entries, reverse=reverse)), "c1")
    >>> [(each.start, each.stop, each.entries) for each in found]
    [(b'', b'k064', 64), (b'k064', None, 36)]
    """
    few = _taken(scan(b"", False), RANGES * ENTRIES + 1)
    if len(few) <= RANGES * ENTRIES:
        chunks = [few[first : first + ENTRIES] for first in range(0, len(few), ENTRIES)] or [[]]
        starts = [b"", *(chunk[0][0] for chunk in chunks[1:])]
        return tuple(map(_sampled, starts, [*starts[1:], None], chunks))
    last = _taken(scan(b"", True), 1)[0][0]
    found: list[SampledRange] = []
    for start in _starts(few[0][0], last, seed):
        if found and (found[-1].stop is None or start < found[-1].stop):
            continue  # the range before reaches beyond it
        entries = _taken(scan(start, False), ENTRIES + 1)
        stop = entries[ENTRIES][0] if len(entries) > ENTRIES else None
        found.append(_sampled(start, stop, entries[:ENTRIES]))
    return tuple(found)


def _starts(first: bytes, last: bytes, seed: str) -> list[bytes]:
    """Places between two keys, in order, as evenly spread as the keys themselves are."""
    common = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    shared = first[:common]
    low, high = (int.from_bytes(key[common:][:_DIGITS].ljust(_DIGITS, b"\0")) for key in (first, last))
    places = (xxhash.xxh3_64_intdigest(f"{seed}/{number}".encode()) for number in range(RANGES))
    return sorted(shared + (low + (high - low) * place // _END).to_bytes(_DIGITS) for place in places)


def _taken(entries: Entries, most: int) -> list[Entry]:
    with closing(entries):
        return list(islice(entries, most))


def _sampled(start: bytes, stop: bytes | None, entries: Sequence[Entry]) -> SampledRange:
    return SampledRange(start, stop, *summary(entries))
