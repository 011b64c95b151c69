"""When a snapshot is due, decided without I/O from what a restore would read and how old the last snapshot is.

A snapshot is worth its upload when reading the tail (the segments after the last one) costs more than reading the
snapshot: that is the ratio. Size and age limit the tail where the ratio alone would let it grow. Age also applies to a
task that changed nothing, since cleaning stops at the oldest snapshot of any task. The limits are settings and may
change at any start.
"""

from datetime import timedelta
from enum import Enum

SMALLEST_TAIL = 1 << 20
"""The ratio is ignored for a shorter tail (in bytes): a small store would get a snapshot per version."""


class Due(Enum):
    """Why a snapshot is due."""

    RATIO = "ratio"
    SIZE = "size"
    AGE = "age"


def snapshot_due(
    *,
    tail_versions: int,
    tail_bytes: int,
    snapshot_bytes: int | None,
    since: timedelta,
    ratio: float,
    size: int,
    age: timedelta,
) -> Due | None:
    """Why a snapshot should be taken now, or None.

    `tail_versions` and `tail_bytes` are the versions and the bytes of segments that the task's replica has applied
    since its last snapshot. `snapshot_bytes` is the size of that snapshot (None without one), `since` the time since it
    (or since the first version, without one). The others are the limits from the settings.

    >>> limits = dict(ratio=2.0, size=256 << 20, age=timedelta(minutes=10))
    >>> snapshot_due(tail_versions=3, tail_bytes=30 << 20, snapshot_bytes=10 << 20, since=timedelta(0), **limits)
    <Due.RATIO: 'ratio'>
    >>> snapshot_due(tail_versions=0, tail_bytes=0, snapshot_bytes=10 << 20, since=timedelta(hours=1), **limits) is None
    True
    """
    if tail_versions <= 0:
        return None
    if tail_bytes >= size:
        return Due.SIZE
    if snapshot_bytes is not None and tail_bytes >= SMALLEST_TAIL and tail_bytes >= ratio * snapshot_bytes:
        return Due.RATIO
    if since >= age:
        return Due.AGE
    return None
