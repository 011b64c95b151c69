"""A paused app: while the log has a pause, the driver starts no batch and makes no version of its own.

A batch under way finishes. Instances go on, so queries and restores do too. The pause is an object in the log, so a
driver that is started again stays paused. The driver looks for it once per second and before each batch; while it can't
be read, what was known last counts.
"""

import logging
import threading

from holdfast.ending import Ending
from holdfast.errors import HoldfastError
from holdfast.log import names, operator_requests
from holdfast.log.objects import Storage
from holdfast.log.operator_requests import OperatorRequest
from holdfast.states import AppState, StateMachine

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


class Pausing:
    """The pause of one app, as its driver sees it. Any thread may look."""

    def __init__(self, app: str, storage: Storage, log: str, states: StateMachine, ending: Ending) -> None:
        self._app = app
        self._storage = storage
        self._log = log
        self._states = states
        self._ending = ending
        self._looking = threading.Lock()
        self._pause: OperatorRequest | None = None
        self._problem: str | None = None

    @property
    def paused(self) -> bool:
        """Whether the app was paused at the last look."""
        return self._pause is not None

    def look(self) -> bool:
        """Whether the app is paused now. Its state follows, once it is running."""
        with self._looking:
            found = self._read()
            if found is not None and found != self._pause:
                resume = f"app.resume(), or holdfast group resume --app {self._app} --log {self._storage.place}"
                logger.warning("app %s is paused %s. To go on: %s", self._app, found, resume)
            elif found is None and self._pause is not None:
                logger.info("app %s goes on", self._app)
            self._pause = found
            if found is not None:
                self._states.try_move(AppState.PAUSED)
            elif self._states.state is AppState.PAUSED:
                self._states.try_move(AppState.RUNNING)
            return found is not None

    def _read(self) -> OperatorRequest | None:
        try:
            found = operator_requests.pause_of(self._storage, self._log)
        except HoldfastError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                known = "paused" if self._pause else "not paused"
                logger.warning("app %s stays %s, since that can't be looked up: %s", self._app, known, error)
            return self._pause
        self._problem = None
        return found

    def wait_until_resumed(self) -> None:
        """Returns when the app isn't paused. Raises Interrupted when it stops."""
        while self.look():
            self._ending.pause(_LOOK_SECONDS)

    def watch(self) -> None:
        """Looks until the app stops."""
        while not self._ending.wait(_LOOK_SECONDS):
            self.look()

    def pause(self, note: str = "") -> None:
        operator_requests.pause(self._storage, self._log, note)
        self.look()

    def resume(self) -> None:
        operator_requests.withdraw(self._storage, names.PAUSE)
        self.look()
