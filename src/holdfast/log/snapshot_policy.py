"""When a snapshot is due: a pure decision over what a restore would have to read, and how old the last snapshot is.

A snapshot is worth its upload once reading the tail (the segments since) costs more than reading the snapshot would:
that is the ratio. Size and age bound the tail where the ratio alone would let it grow. Age counts for a task that
changed nothing too: cleaning goes no further than the oldest snapshot of any task. The limits are a user's settings and
may change at any start.
"""

from datetime import timedelta
from enum import Enum

SMALLEST_TAIL = 1 << 20
"""Below this many bytes of tail the ratio says nothing: a small store would be snapshotted at every version."""


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

    `tail_versions` and `tail_bytes` are what the task's replica has after its last snapshot: versions, and bytes of its
    segments. `snapshot_bytes` is that snapshot's size (None without one), `since` the time passed after it (or after
    the first version, without one). The rest are the user's limits.

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
