"""A thread for calls that have no deadline of their own: a caller that waits gives up, and the call ends later."""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from holdfast.instance.calls_under_way import CALLS

T = TypeVar("T")


class SideThread:
    """Runs calls one after the other. After a call that took too long, nothing more may be asked of it.

    >>> thread = SideThread()
    >>> thread.call(lambda: 7, 60.0)
    7
    >>> thread.close()
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="holdfast-stream", daemon=True).start()

    def call(self, what: Callable[[], T], seconds: float) -> T:
        """The result of a call, or its error. Raises TimeoutError after this many seconds."""
        answers: queue.SimpleQueue[T | _Failed] = queue.SimpleQueue()

        def run() -> None:
            try:
                with CALLS.one():
                    answers.put(what())
            except Exception as error:  # noqa: BLE001  raised where it is waited for
                answers.put(_Failed(error))

        self._calls.put(run)
        try:
            answer = answers.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(answer, _Failed):
            raise answer.error
        return answer

    def close(self) -> None:
        """Does not wait."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class _Failed:
    def __init__(self, error: Exception) -> None:
        self.error = error
