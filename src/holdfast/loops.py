"""The threads on which an app watches its parts while it runs. Each ends by itself when the app is told to end."""

import logging
import threading
from collections.abc import Callable

from holdfast.ending import QUERY, Ending
from holdfast.lasting import lasting_thread

logger = logging.getLogger(__name__)


class Loops:
    def __init__(self, ending: Ending, alert: Callable[[BaseException], None]) -> None:
        """`alert` gets errors that a loop doesn't handle, while the app runs."""
        self._ending = ending
        self._alert = alert
        self._threads: list[threading.Thread] = []

    def start(self, name: str, body: Callable[[], None]) -> None:
        thread = lasting_thread(f"holdfast-{name}", body, self._report)
        self._threads.append(thread)
        thread.start()

    def _report(self, error: BaseException) -> None:
        if self._ending.asked:  # what it used may be gone
            logger.debug("a loop of an app that ends failed", exc_info=error)
            return
        name = threading.current_thread().name
        logger.error("the thread %s of the app failed and goes on", name, exc_info=error)
        self._alert(error)

    def join(self) -> None:
        """Waits until they have ended, but not for the one that calls."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(self._ending.left(QUERY))
                if thread.is_alive():
                    logger.warning("the thread %s is left: what it waits for doesn't answer", thread.name)
