"""Embedded instances: processes that the app starts, watches, and starts again when they die.

An instance keeps reading its standard input: when the app ends, even by a kill, that pipe closes and the instance
stops. A restart uses the same ports, so that tasks and users find the instance at the same address.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import msgspec

from holdfast import metrics
from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import ErrorCategory, HoldfastError, Interrupted
from holdfast.instance import messages
from holdfast.instance.client import StateClient
from holdfast.instance.config import InstanceConfig, Role
from holdfast.instance.credentials import Credentials
from holdfast.instance.events import Event, ProblemEvent, RestoreEvent
from holdfast.instance.messages import InstanceUnavailable
from holdfast.instances import Assignment, InstanceFailed, assignments
from holdfast.launching import InstanceNotStarted, Launched, launch
from holdfast.occupied import START_RETRY, freed_within
from holdfast.retry import backoff, retrying
from holdfast.settings.model import Settings
from holdfast.settings.sections import RetrySettings
from holdfast.states import AppState
from holdfast.stores.layouts.due import Due
from holdfast.words import TaskId, Version

logger = logging.getLogger(__name__)

_restarts = metrics.counter("holdfast_instance_restarts", "Instances that died and were started again.")

RESTARTS = 10
"""How often in a row an instance may die early before the app gives up."""

_RESTART_RETRY = RetrySettings(first="400ms", longest="5s")
_DEADLINE = timedelta(seconds=10)
_STATUS_SECONDS = 2.0
"""How long an instance may take to say how far it is, where others may have its tasks too."""

LONG_LIFE = 600.0
"""After this many seconds, the death of an instance has a new cause and is counted from 1."""


class EmbeddedInstances:
    """All instances of one app on this machine."""

    def __init__(
        self,
        app: str,
        settings: Settings,
        *,
        app_file: int,
        on_event: Callable[[RestoreEvent], None],
        on_failure: Callable[[BaseException], None],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._settings = settings
        self._app_file = app_file
        self.credentials = Credentials.of(settings.security)
        self._on_event = on_event
        self._on_failure = on_failure
        self._stopped = stopped
        self._all: list[_Embedded] = []
        self._notices = ThreadPoolExecutor(settings.instances, thread_name_prefix="holdfast-notices")
        self._closing = threading.Lock()
        self._closed = False

    @property
    def rest_addresses(self) -> tuple[str, ...]:
        return tuple(instance.rest_address for instance in self._all if instance.rest_address is not None)

    def assign(self, tasks: Sequence[TaskId], everywhere: Collection[TaskId] = ()) -> None:
        new = assignments(tasks, everywhere, self._settings.instances, self._settings.standbys)
        for instance in self._all[len(new) :]:
            instance.assign({})
        for instance, assignment in zip(self._all, new, strict=False):
            instance.drop_all_but(assignment)  # before another instance needs the state directory
        for number, assignment in enumerate(new):
            if number < len(self._all):
                self._all[number].assign(assignment)
            else:
                self._start(number, assignment)
        if len(self._all) > 1:
            for instance in self._all:
                instance.set_peers(self.replicas())

    def _start(self, number: int, assignment: Assignment) -> None:
        config = _config(self._app, self._app_file, self._settings, number, assignment)
        # An instance of an app that was killed, or whose driver is outdated now, ends within the stop timeout, and then
        # frees its folder and its port.
        launched = retrying(
            lambda: launch(config, self._stopped),
            START_RETRY,
            deadline=freed_within(self._settings),
            sleep=self._pause,
            may_pass=lambda error: isinstance(error, InstanceNotStarted),
        )
        self._all.append(_Embedded(config, launched, self._settings, self._on_event, self._on_failure, self._stopped))

    def _pause(self, seconds: float) -> None:
        SYSTEM_CLOCK.sleep(seconds)
        if self._stopped():
            raise Interrupted("The app was stopped while an instance was being started.")

    def wait_until_ready(self, version: Version) -> None:
        for instance in self._all:
            instance.wait_until_ready(version)

    def wait_until_visible(self, version: Version) -> None:
        while True:
            readable = [instance.readable(version) for instance in self._all]
            seen = {task for found in readable if found is not None for task in found}
            if all(
                {*instance.tasks} <= (seen if found is None else found)
                for instance, found in zip(self._all, readable, strict=True)
            ):
                return
            self._pause(0.02)

    def replicas(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for role in (Role.ACTIVE, Role.STANDBY):
            for instance in self._all:
                for task, given in instance.tasks.items():
                    if given is role:
                        found[task] = (*found.get(task, ()), instance.address)
        return found

    def committed(self, version: Version) -> None:
        """Does not wait: an instance that misses the message finds the version in the log."""
        self._notify(lambda instance: instance.committed(version))

    def due(self, version: Version) -> Mapping[str, Due]:
        answers = [instance.due(version) for instance in self._all if instance.tasks]
        stores = {store for answer in answers for store in answer}
        return {store: Due.soonest(answer[store] for answer in answers if store in answer) for store in stores}

    def set_app_state(self, state: AppState, cause: BaseException | None) -> None:
        self._notify(lambda instance: instance.set_app_state(state, cause))

    def _notify(self, call: Callable[[_Embedded], None]) -> None:
        with self._closing:
            if not self._closed:
                for instance in self._all:
                    self._notices.submit(call, instance)

    def stop(self, seconds: float) -> None:
        """Ends all processes: SIGTERM, and SIGKILL for one that does not end in time."""
        deadline = SYSTEM_CLOCK.monotonic() + seconds
        with self._closing:
            self._closed = True
        self._notices.shutdown(wait=False, cancel_futures=True)
        for instance in self._all:
            instance.begin_stop()
        for instance in self._all:
            instance.finish_stop(deadline)


def _config(app: str, app_file: int, settings: Settings, number: int, assignment: Assignment) -> InstanceConfig:
    rest = settings.rest
    return InstanceConfig(
        app=app,
        name=f"{app}-{number}",
        log_url=settings.log_url(app),
        app_file=app_file,
        state_dir=str(settings.state_dir(app)),
        tasks=_named(assignment),
        stop_seconds=settings.stop_timeout.total_seconds() / 2,
        log=settings.log,
        memory=settings.memory,
        state=settings.state,
        restore=settings.restore,
        snapshots=settings.snapshots,
        rest=replace(rest, port=rest.port + number) if rest.port else rest,
        retry=settings.retry,
        security=settings.security,
    )


def _named(assignment: Assignment) -> dict[str, Role]:
    return {str(task): role for task, role in assignment.items()}


class _Embedded:
    """One instance: its process, and the threads that watch the process and read its events."""

    def __init__(
        self,
        config: InstanceConfig,
        launched: Launched,
        settings: Settings,
        on_event: Callable[[RestoreEvent], None],
        on_failure: Callable[[BaseException], None],
        stopped: Callable[[], bool],
    ) -> None:
        self.address, self.rest_address = launched.address, launched.rest_address
        rest = replace(config.rest, port=_port(launched.rest_address or ":0"))
        self._config = msgspec.structs.replace(config, port=_port(launched.address), rest=rest)
        self._process = launched.process
        self._settings = settings
        self._on_event = on_event
        self._on_failure = on_failure
        self._stopped = stopped
        self._stopping = threading.Event()
        self._app_state = messages.AppStateMessage(str(AppState.RESTORING))
        self._peers: Mapping[str, tuple[str, ...]] = {}
        self._credentials = Credentials.of(config.security)
        self._client = StateClient(self.address, _DEADLINE, credentials=self._credentials)
        self._gave_up: InstanceFailed | None = None
        self._threads = [
            threading.Thread(target=body, name=f"{config.name}-{body.__name__}", daemon=True)
            for body in (self._watch, self._read_events)
        ]
        self._send_app_state()
        for thread in self._threads:
            thread.start()

    def wait_until_ready(self, version: Version) -> None:
        while not self._stopping.is_set():
            try:
                status = self._client.status()
            except InstanceUnavailable as error:
                logger.debug("instance %s does not answer yet: %s", self._config.name, error)
            else:
                readable = {task.task for task in status.tasks if (task.readable_to or 0) >= version}
                if status.ready and readable >= set(self.tasks):
                    return
                for task in status.tasks:
                    # A retryable error gets as many attempts as in the settings; any other error gets two.
                    tries = self._settings.retry.attempts if task.error_category is ErrorCategory.RETRY else 2
                    if task.failures >= tries:
                        raise InstanceFailed(f"Task {task.task} can't be restored: {task.error}")
            if self._gave_up is not None:
                raise self._gave_up
            if self._stopped():
                raise Interrupted("The app was told to stop while its stores were being restored.")
            self._stopping.wait(0.02)
        raise Interrupted(f"Instance {self._config.name} was stopped before it was ready.")

    def readable(self, version: Version) -> set[str] | None:
        """The tasks that can be read at a version; None if the instance doesn't answer."""
        if self._gave_up is not None:
            raise self._gave_up
        try:
            status = self._client.within(_STATUS_SECONDS).status()
        except InstanceUnavailable as error:
            logger.debug("instance %s doesn't answer: %s", self._config.name, error)
            return None
        return {task.task for task in status.tasks if (task.readable_to or 0) >= version}

    @property
    def tasks(self) -> Mapping[str, Role]:
        return self._config.tasks

    def drop_all_but(self, assignment: Assignment) -> None:
        """Drops the tasks that aren't in the assignment."""
        named = _named(assignment)
        self._change_tasks({task: role for task, role in self.tasks.items() if task in named})

    def assign(self, assignment: Assignment) -> None:
        """Drops and hosts tasks so that the instance has those of the assignment, in their roles."""
        self._change_tasks(_named(assignment))

    def _change_tasks(self, tasks: dict[str, Role]) -> None:
        # The configuration first: a process that is restarted meanwhile gets the new tasks with it.
        before, self._config = self._config.tasks, msgspec.structs.replace(self._config, tasks=tasks)
        try:
            for task in before.keys() - tasks.keys():
                self._client.drop(TaskId.parse(task))
            for task, role in tasks.items():
                if before.get(task) is not role:
                    self._client.host(TaskId.parse(task), role)
        except InstanceUnavailable as error:
            logger.warning("instance %s gets its tasks when it is started again: %s", self._config.name, error)
        except HoldfastError as error:
            raise InstanceFailed(f"Instance {self._config.name} can't host its tasks: {error}") from error

    def set_peers(self, peers: Mapping[str, tuple[str, ...]]) -> None:
        self._peers = peers
        # A process that is started again asks them while it restores.
        self._config = msgspec.structs.replace(self._config, peers=dict(peers))
        self._send_app_state()

    def due(self, version: Version) -> Mapping[str, Due]:
        return self._client.due(version)

    def committed(self, version: Version) -> None:
        with self._may_fail("committed"):
            self._client.committed(version)

    def set_app_state(self, state: AppState, cause: BaseException | None) -> None:
        self._app_state = messages.AppStateMessage(str(state), None if cause is None else str(cause))
        self._send_app_state()

    def begin_stop(self) -> None:
        self._stopping.set()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def finish_stop(self, deadline: float) -> None:
        """Waits for the end until the deadline, by the monotonic clock."""
        try:
            self._process.wait(_left(deadline))
        except subprocess.TimeoutExpired:
            logger.warning("instance %s did not stop in time and is killed; nothing is lost", self._config.name)
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(_left(deadline))
        self._client.close()

    def _watch(self) -> None:
        """Starts the process again when it dies, until it has died too often."""
        deaths = 0
        while True:
            began = SYSTEM_CLOCK.monotonic()
            code = self._process.wait()
            if self._stopping.is_set():
                return
            deaths = 1 if SYSTEM_CLOCK.monotonic() - began > LONG_LIFE else deaths + 1
            logger.warning("instance %s ended with code %s and is started again", self._config.name, code)
            _restarts.inc()
            if deaths > RESTARTS:
                self._gave_up = InstanceFailed(
                    f"Instance {self._config.name} died {deaths} times in a row, each time within {LONG_LIFE:g} s. "
                    "Its own messages are above."
                )
                self._on_failure(self._gave_up)
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
            self._send_app_state()

    def _read_events(self) -> None:
        """Passes the instance's events on to the listeners in the driver."""
        since, life, failures = 0, None, 0
        with StateClient(self.address, _DEADLINE, credentials=self._credentials) as client:
            while not self._stopping.is_set():
                try:
                    page = client.events(since, wait=1.0, life=life)
                except HoldfastError:
                    failures += 1
                    self._stopping.wait(backoff(failures, START_RETRY))
                    continue
                since, life, failures = page.next, page.life, 0
                for numbered in page.events:
                    self._take(numbered.event)

    def _take(self, event: Event) -> None:
        match event:
            case RestoreEvent():
                self._on_event(event)
            case ProblemEvent():
                level = logging.ERROR if event.severity == "error" else logging.WARNING
                logger.log(level, "instance %s: %s", self._config.name, event.message)

    def _send_app_state(self) -> None:
        """Sends the app's state and the peers, which a restarted process doesn't know."""
        with self._may_fail("the app's state"):
            self._client.app_state(self._app_state.state, self._app_state.cause)
            if self._peers:
                self._client.peers(self._peers)

    @contextlib.contextmanager
    def _may_fail(self, what: str) -> Iterator[None]:
        """A lost message does no harm: the instance finds out by itself, or gets it again after a restart."""
        try:
            yield
        except HoldfastError as error:
            logger.debug("instance %s did not get %s: %s", self._config.name, what, error)


def _left(deadline: float) -> float:
    """The seconds until a deadline, and a moment after it: what has ended can be seen to have ended."""
    return max(0.1, deadline - SYSTEM_CLOCK.monotonic())


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
