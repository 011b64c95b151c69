"""One memory limit per instance, divided among its parts, and an allocator that gives back what is freed.

    32 %    RocksDB: its block caches, with indexes and filters in them, and its write buffers (`engines/tuning.py`)
    12 %    overlays, shared by the tasks; 36 % of what the limit has beyond 512 MiB
    8 %     restore batches, shared by the tasks that restore at once
    4 %     chunks of the snapshot files that are being fetched
    rest    Python, requests under way, and memory that the allocator can't use

An overlay with room for a few versions and for the keys that change often is flushed rarely. In the count benchmark's
workload `real`, two tasks with 158,000 changed rows per version each, 1 GiB gave 61 MiB per task at 12 %, and every
third version was flushed; with 123 MiB none is for lack of room. What Python needs grows little with the limit.

A limit is only kept if freed memory goes back. With glibc's defaults it doesn't here: many threads get arenas of their
own, and RocksDB's blocks leave holes in all of them. Measured with 512 MiB and 5M keys under load: 850 MiB resident
with the defaults, 625 with `give_back_freed_memory`. Smaller thresholds (1 MiB) make it 560 and every bulk read a
quarter more expensive, because numpy's columns of a batch then come from the system and go back to it each time.
"""

import ctypes
import logging
from dataclasses import dataclass

from holdfast.log.snapshot_files import CHUNK

_LOG = logging.getLogger(__name__)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MIB = 1 << 20
_MOST = 1024 * _MIB
"""Runs are merged into one binary column, which can't hold 2 GiB."""
_SMALL = 512 * _MIB
_MOST_FETCHES = 16


@dataclass(frozen=True)
class MemoryShares:
    """How many bytes each part may use."""

    engines: int
    overlay_per_task: int
    batch_per_task: int
    fetches: int
    """How many files of snapshots are fetched at once."""


def divided(limit: int, *, tasks: int, parallel: int) -> MemoryShares:
    """The shares of one limit.

    >>> divided(1000, tasks=3, parallel=2)
    MemoryShares(engines=320, overlay_per_task=40, batch_per_task=40, fetches=2)
    >>> divided(1 << 40, tasks=1, parallel=1).overlay_per_task >> 20
    1024
    >>> divided(1 << 30, tasks=2, parallel=2).overlay_per_task >> 20
    122
    >>> divided(1 << 30, tasks=2, parallel=2).fetches
    10
    """
    overlays = min(limit, _SMALL) * 12 // 100 + max(0, limit - _SMALL) * 36 // 100
    return MemoryShares(
        engines=limit * 32 // 100,
        overlay_per_task=min(_MOST, overlays // max(1, tasks)),
        batch_per_task=min(_MOST, limit * 8 // 100 // max(1, min(tasks, parallel))),
        fetches=min(_MOST_FETCHES, max(2, limit * 4 // 100 // (2 * CHUNK))),
    )


def give_back_freed_memory() -> None:
    """Two arenas for all threads, and large blocks straight from and back to the system. Call it before any thread."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        _LOG.info("this C library has no mallopt, so freed memory is kept as that library does by default")
        return
    mallopt(_M_ARENA_MAX, 2)
    mallopt(_M_MMAP_THRESHOLD, 32 * _MIB)
    mallopt(_M_TRIM_THRESHOLD, 64 * _MIB)
