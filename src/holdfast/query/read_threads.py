"""The threads of reads. Those that may wait for another instance have their own, so they delay no other read.

A request that demands a version waits for replicas of this process on the event loop (`waiting`). A replica of another
instance is asked by a call that waits there until it has the version, and takes a thread here for as long. With the
usual threads, eight such requests of one client would stop all ranges, statements and routed lookups.

The usual threads are those of the event loop. `peers` ask several other instances for one read at the same time.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

from holdfast.query.freshness import Freshness

T = TypeVar("T")

_WAITING: Final = 8
_PEERS: Final = 16


class ReadThreads:
    """Where reads run, by how fresh they have to be."""

    def __init__(self) -> None:
        self._waiting = ThreadPoolExecutor(_WAITING, thread_name_prefix="holdfast-waiting")
        self._peers = ThreadPoolExecutor(_PEERS, thread_name_prefix="holdfast-peers")
        self._waiting_peers = ThreadPoolExecutor(_PEERS, thread_name_prefix="holdfast-waiting-peers")

    async def run(self, freshness: Freshness, read: Callable[[], T]) -> T:
        """The result of a read, which the caller has `awaited` first."""
        if not freshness.elsewhere:
            return await asyncio.to_thread(read)
        return await asyncio.get_running_loop().run_in_executor(self._waiting, copy_context().run, read)

    def peers(self, freshness: Freshness) -> ThreadPoolExecutor:
        return self._waiting_peers if freshness.elsewhere else self._peers

    def close(self) -> None:
        for each in (self._waiting, self._peers, self._waiting_peers):
            each.shutdown(wait=False, cancel_futures=True)
