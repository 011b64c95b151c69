"""Keeps Python from ending while a call to an instance is under way.

A call of Arrow Flight runs without Python's lock. If it returns to a thread after Python has been finalized, the
process ends with a segmentation fault: it did in 5 of 40 programs that ended beside three calls (pyarrow, Python 3.11).
The driver's threads ask instances for events all the time, and a user's program may end whenever it likes. So at exit,
before Python is finalized, new calls are refused, and those under way get a moment to return.
"""

import atexit
import contextlib
import os
import threading
from collections.abc import Iterator

from holdfast.errors import Interrupted

_SECONDS = 5.0
"""How long an exit waits. An answer comes within two seconds; a call to a frozen instance, which may take longer, does
no harm unless it ends in the very moment in which the process does."""


class CallsUnderWay:
    """The calls of all threads of this process.

    >>> calls = CallsUnderWay()
    >>> with calls.one():
    ...     calls.number
    1
    >>> calls.end(within=60.0)
    >>> with calls.one():
    ...     pass
    Traceback (most recent call last):
    holdfast.errors.Interrupted: This process ends, so it asks instances nothing more.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked process there are no calls, and nobody would release the lock."""
        self._changed = threading.Condition()
        self._ending = False
        self.number = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        with self._changed:
            if self._ending:
                raise Interrupted("This process ends, so it asks instances nothing more.")
            self.number += 1
        try:
            yield
        finally:
            with self._changed:
                self.number -= 1
                self._changed.notify_all()

    def end(self, within: float = _SECONDS) -> None:
        """Refuses new calls and waits for those under way, so many seconds at most."""
        with self._changed:
            self._ending = True
            self._changed.wait_for(lambda: self.number == 0, within)


CALLS = CallsUnderWay()
atexit.register(CALLS.end)
os.register_at_fork(after_in_child=CALLS.forget)
