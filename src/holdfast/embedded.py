"""Embedded instances: processes that the app starts, watches, and starts again when they die.

An instance keeps reading its standard input: when the app ends, even by a kill, that pipe closes and the instance
stops. A restart uses the same id, folder and ports, so that it finds its local state, and tasks and users find it.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec

from holdfast import metrics
from holdfast.backoff import backoff
from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import Interrupted
from holdfast.instance.config import InstanceConfig
from holdfast.instances import InstanceFailed
from holdfast.lasting import lasting_thread
from holdfast.launching import InstanceNotStarted, Launched, config_of, launch
from holdfast.occupied import START_RETRY, freed_within
from holdfast.retry import retrying
from holdfast.settings.model import Settings
from holdfast.settings.sections import RetrySettings

logger = logging.getLogger(__name__)

_restarts = metrics.counter("holdfast_instance_restarts", "Instances that died and were started again.")

RESTARTS = 10
"""How often in a row an instance may die early before the app gives up."""

_RESTART_RETRY = RetrySettings(first="400ms", longest="5s")

LONG_LIFE = 600.0
"""After this many seconds, the death of an instance has a new cause and is counted from 1."""


class EmbeddedProcesses:
    """The instances of one app on this machine. `on_end` and `on_start` are called with the id of one."""

    def __init__(
        self,
        app: str,
        settings: Settings,
        *,
        app_file: int,
        on_start: Callable[[str], None],
        on_end: Callable[[str], None],
        on_failure: Callable[[InstanceFailed], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._app = app
        self._settings = settings
        self._app_file = app_file
        self._on_start = on_start
        self._on_end = on_end
        self._on_failure = on_failure
        self._stopped = stopped
        self._all: list[_Embedded] = []

    def start(self, number: int) -> None:
        """Starts the missing ones of this many, side by side, and waits until they have joined the group."""
        missing = range(len(self._all), number)
        with ThreadPoolExecutor(max(1, len(missing)), thread_name_prefix="holdfast-launch") as pool:
            launches = [pool.submit(self._launched, number) for number in missing]
        failures = [failure for each in launches if (failure := each.exception()) is not None]
        self._all += [each.result() for each in launches if each.exception() is None]
        if failures:
            raise failures[0]
        for each in self._all:
            self._on_start(each.id)

    def _launched(self, number: int) -> _Embedded:
        rest = self._settings.rest
        config = msgspec.structs.replace(
            config_of(self._app, f"{self._app}-{number}", self._settings),
            app_file=self._app_file,
            rest=replace(rest, port=rest.port + number) if rest.port else rest,
        )
        # An instance of an app that was killed, or whose driver is outdated now, ends within the stop timeout, and then
        # frees its folder and its port.
        launched = retrying(
            lambda: launch(config, self._stopped),
            START_RETRY,
            deadline=freed_within(self._settings),
            sleep=self._pause,
            may_pass=lambda error: isinstance(error, InstanceNotStarted),
        )
        return _Embedded(config, launched, self._on_start, self._on_end, self._on_failure)

    def _pause(self, seconds: float) -> None:
        SYSTEM_CLOCK.sleep(seconds)
        if self._stopped():
            raise Interrupted("The app was stopped while an instance was being started.")

    def stop(self, seconds: float) -> None:
        """Ends all processes: SIGTERM, and SIGKILL for one that does not end in time."""
        deadline = SYSTEM_CLOCK.monotonic() + seconds
        for instance in self._all:
            instance.begin_stop()
        for instance in self._all:
            instance.finish_stop(deadline)


class _Embedded:
    """One instance: its process, and the thread that watches it."""

    def __init__(
        self,
        config: InstanceConfig,
        launched: Launched,
        on_start: Callable[[str], None],
        on_end: Callable[[str], None],
        on_failure: Callable[[InstanceFailed], None],
    ) -> None:
        self.id = config.name
        rest = replace(config.rest, port=_port(launched.rest_address or ":0"))
        self._config = msgspec.structs.replace(config, port=_port(launched.address), rest=rest)
        self._process = launched.process
        self._on_start = on_start
        self._on_end = on_end
        self._on_failure = on_failure
        self._stopping = threading.Event()
        self._thread = lasting_thread(f"{config.name}-watch", self._watch)
        self._thread.start()

    def begin_stop(self) -> None:
        self._stopping.set()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def finish_stop(self, deadline: float) -> None:
        """Waits for the end until the deadline, by the monotonic clock."""
        try:
            self._process.wait(_left(deadline))
        except subprocess.TimeoutExpired:
            logger.warning("instance %s did not stop in time and is killed; nothing is lost", self.id)
            self._process.kill()
            self._process.wait()
        self._thread.join(_left(deadline))

    def _watch(self) -> None:
        """Starts the process again when it dies, until it has died too often."""
        deaths = 0
        while True:
            began = SYSTEM_CLOCK.monotonic()
            code = self._process.wait()
            if self._stopping.is_set():
                return
            self._on_end(self.id)
            deaths = 1 if SYSTEM_CLOCK.monotonic() - began > LONG_LIFE else deaths + 1
            logger.warning("instance %s ended with code %s and is started again", self.id, code)
            _restarts.inc()
            if deaths > RESTARTS:
                self._on_failure(
                    InstanceFailed(
                        f"Instance {self.id} died {deaths} times in a row, each time within {LONG_LIFE:g} s. "
                        "Its own messages are above."
                    )
                )
                return
            try:
                self._process = launch(self._config, self._stopping.is_set).process
            except Interrupted:
                return
            except (InstanceFailed, OSError) as error:
                logger.warning("%s", error)
                self._stopping.wait(backoff(deaths, _RESTART_RETRY))
                continue
            if self._stopping.is_set():
                self._process.terminate()
            self._on_start(self.id)


def _left(deadline: float) -> float:
    """The seconds until a deadline, and a moment after it: what has ended can be seen to have ended."""
    return max(0.1, deadline - SYSTEM_CLOCK.monotonic())


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
