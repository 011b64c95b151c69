"""Which keys an engine may have that the runs over it don't.

The runs that are given up first are the oldest, and stored keys of windows, sessions, histories and entries with a TTL
begin with a time. So for each area, the first byte of a stored key, the last key that may be below the runs is enough:
a later key is in the runs or nowhere. In a store of windows, the engine is asked about no window that began later than
the oldest run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.ranges import Ranges

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class KeysBelow:
    """By area, the last key that an engine may have and the runs don't. An area that isn't there has none.

    >>> below = KeysBelow().adding(pa.array([b"\\x02a", b"\\x02c", b"\\x05newest"], pa.binary()))
    >>> below.may_have(pa.array([b"\\x02b", b"\\x02d", b"\\x03a"], pa.binary())).tolist()
    [True, False, False]
    """

    last: Mapping[bytes, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, last_before: Callable[[bytes | None], bytes | None]) -> "KeysBelow":
        """All keys of an engine. `last_before` gives its last key before another one, or the last of all."""
        found: dict[bytes, bytes] = {}
        area: bytes | None = None
        while area != b"" and (key := last_before(area)) is not None:
            area = key[:1]
            found[area] = key
        return cls(found)

    def adding(self, keys: pa.BinaryArray) -> "KeysBelow":
        """With keys that the runs lose."""
        last = dict(self.last)
        areas = pc.binary_slice(keys, 0, 1)
        for area in areas.unique().to_pylist():
            lost: bytes = pc.max(keys.filter(pc.equal(areas, pa.scalar(area, pa.binary())))).as_py()
            last[area] = max(lost, last.get(area, lost))
        return KeysBelow(last)

    def __bool__(self) -> bool:
        return bool(self.last)

    def may_have_key(self, key: bytes) -> bool:
        last = self.last.get(key[:1])
        return last is not None and key <= last

    def may_have(self, keys: pa.BinaryArray) -> Flags:
        """Which of these keys the engine may have, if the runs don't know them."""
        found = np.zeros(len(keys), dtype=bool)
        for area, last in self.last.items():
            found |= _flags(pc.and_(pc.starts_with(keys, area), pc.less_equal(keys, pa.scalar(last, pa.binary()))))
        return found

    def may_have_in(self, ranges: Ranges) -> Flags:
        """Within which of these ranges the engine may have keys that the runs don't know."""
        found = np.zeros(len(ranges), dtype=bool)
        if not self.last:
            return found
        for area, last in self.last.items():
            reached = pc.fill_null(pc.greater(ranges.stops, pa.scalar(area, pa.binary())), True)
            found |= _flags(pc.and_(reached, pc.less_equal(ranges.starts, pa.scalar(last, pa.binary()))))
        return found & _flags(pc.fill_null(pc.less(ranges.starts, ranges.stops), True))


def _flags(column: pa.BooleanArray) -> Flags:
    flags: Flags = column.to_numpy(zero_copy_only=False)
    return flags
