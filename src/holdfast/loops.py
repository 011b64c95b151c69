"""The threads on which an app watches its parts while it runs. Each ends by itself when the app is told to end."""

import logging
import threading
from collections.abc import Callable

from holdfast.ending import QUERY, Ending

logger = logging.getLogger(__name__)


class Loops:
    def __init__(self, ending: Ending) -> None:
        self._ending = ending
        self._threads: list[threading.Thread] = []

    def start(self, name: str, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, name=f"holdfast-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        """Waits until they have ended, but not for the one that calls."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(self._ending.left(QUERY))
                if thread.is_alive():
                    logger.warning("the thread %s is left: what it waits for doesn't answer", thread.name)
