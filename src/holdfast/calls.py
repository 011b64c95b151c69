"""Calls to members of the group, side by side, until the app ends.

A call that waits for its turn when the app ends is not cancelled, since the thread that waits for it would not be
woken: it raises Interrupted as soon as it has its turn, and so does every later one.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from holdfast.errors import Interrupted

T = TypeVar("T")


class Calls:
    def __init__(self, most: int) -> None:
        """At most so many are under way at a time."""
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="holdfast-asks")
        self._closing = threading.Lock()
        self._closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        with self._closing:
            self._check_open()
            return self._pool.submit(self._make, call)

    def close(self) -> None:
        """Doesn't wait: those under way end by their own deadlines."""
        with self._closing:
            self._closed = True
        self._pool.shutdown(wait=False)

    def _make(self, call: Callable[[], T]) -> T:
        self._check_open()
        return call()

    def _check_open(self) -> None:
        if self._closed:
            raise Interrupted("The app was told to stop before its instances were asked.")
