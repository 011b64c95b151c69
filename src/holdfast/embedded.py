"""Instances that the app starts itself, each a process of its own, watched and started again when one dies.

An instance gets its configuration on standard input and keeps reading it: when the app is gone, however it went, the
pipe closes and the instance stops. It is started again on the same port, so tasks and users find it where it was.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from holdfast import metrics
from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance import messages
from holdfast.instance.client import StateClient
from holdfast.instance.events import Event, ProblemEvent, RestoreEvent
from holdfast.instance.process import InstanceConfig
from holdfast.instances import InstanceFailed, Interrupted
from holdfast.retry import backoff
from holdfast.settings import RetrySettings, Settings
from holdfast.states import AppState
from holdfast.words import TaskId, Version

logger = logging.getLogger(__name__)

_restarts = metrics.counter("holdfast_instance_restarts", "Instances that died and were started again.")

RESTARTS = 10
"""How often in a row an instance may die young before the app gives up."""

_RESTART_RETRY = RetrySettings(first="400ms", longest="5s")
_STANDARD_ERROR = 2

LONG_LIFE = 600.0
"""An instance that lived for so many seconds died of something new."""


class EmbeddedInstances:
    """All instances of one app on this machine."""

    def __init__(
        self,
        app: str,
        settings: Settings,
        *,
        on_event: Callable[[RestoreEvent], None],
        on_failure: Callable[[BaseException], None],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._settings = settings
        self._on_event = on_event
        self._on_failure = on_failure
        self._stopped = stopped
        self._all: list[_Embedded] = []
        self._notices = ThreadPoolExecutor(settings.instances, thread_name_prefix="holdfast-notices")
        self._closing = threading.Lock()
        self._closed = False

    @property
    def rest_address(self) -> str | None:
        """Where the first instance answers queries; every one of them answers for all."""
        return self._all[0].rest_address

    def assign(self, tasks: Sequence[TaskId], everywhere: Collection[TaskId] = ()) -> None:
        for n, share in enumerate(shares(tasks, everywhere, self._settings.instances)):
            config = _config(self._app, self._settings, n, share)
            instance = _Embedded(config, self._settings, self._on_event, self._on_failure, self._stopped)
            self._all.append(instance)
            instance.start()
        if len(self._all) > 1:
            peers = {task: addresses[0] for task, addresses in self.replicas().items()}
            for instance in self._all:
                instance.meet(peers)

    def wait_until_ready(self, version: Version) -> None:
        for instance in self._all:
            instance.wait_until_ready(version)

    def replicas(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]]
        found = {task: (instance.address,) for instance in self._all for task in instance.tasks}
        for instance in self._all:
            for task in instance.copies:
                found[task] += (instance.address,)
        return found

    def committed(self, version: Version) -> None:
        """Nobody waits: an instance that doesn't get the message finds the version by looking."""
        self._notify(lambda instance: instance.committed(version))

    def set_app_state(self, state: AppState, cause: BaseException | None) -> None:
        self._notify(lambda instance: instance.set_app_state(state, cause))

    def _notify(self, tell: Callable[[_Embedded], None]) -> None:
        with self._closing:
            if not self._closed:
                for instance in self._all:
                    self._notices.submit(tell, instance)

    def stop(self) -> None:
        """Ends all processes: SIGTERM, and SIGKILL for one that does not end in time."""
        with self._closing:
            self._closed = True
        self._notices.shutdown(wait=True)
        for instance in self._all:
            instance.begin_stop()
        for instance in self._all:
            instance.finish_stop()


@dataclass(frozen=True)
class Share:
    """What one instance hosts: tasks of its own, and copies of tasks that are another's."""

    own: tuple[TaskId, ...]
    copies: tuple[TaskId, ...] = ()


def shares(tasks: Sequence[TaskId], everywhere: Collection[TaskId], instances: int) -> list[Share]:
    """The tasks dealt out to instances, one after the other; those of global stores are everywhere besides.

    >>> shares([TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)], [TaskId(1, 0)], 2)[1]
    Share(own=(TaskId(topology=0, partition=1),), copies=(TaskId(topology=1, partition=0),))
    """
    dealt = [tuple(tasks[n::instances]) for n in range(instances)]
    found = [Share(own, tuple(task for task in everywhere if task not in own)) for own in dealt]
    return [share for share in found if share.own or share.copies]


def _config(app: str, settings: Settings, number: int, share: Share) -> InstanceConfig:
    rest_port = settings.rest.port + number if settings.rest.port else 0
    return InstanceConfig(
        app=app,
        name=f"{app}-{number}",
        log_url=settings.log_url(app),
        log_options=dict(settings.log.options),
        fsync=settings.log.fsync,
        state_dir=str(settings.state_dir(app)),
        tasks=tuple(map(str, share.own)),
        copies=tuple(map(str, share.copies)),
        rest_host=settings.rest.host,
        rest_port=rest_port,
        rest_enabled=settings.rest.enabled,
        memory_bytes=settings.memory.limit,
        restore_parallel_tasks=settings.restore.parallel_tasks,
        restore_batch_bytes=settings.restore.batch_bytes,
        restore_acceptable_lag=settings.restore.acceptable_lag,
        snapshots_enabled=settings.snapshots.enabled,
        snapshots_ratio=settings.snapshots.ratio,
        snapshots_bytes=settings.snapshots.bytes,
        snapshots_age_seconds=settings.snapshots.age.total_seconds(),
        flush_seconds=settings.state.flush_interval.total_seconds(),
        flush_versions=settings.state.flush_versions,
        background_jobs=settings.state.background_jobs,
        direct_reads=settings.state.direct_reads,
        direct_writes=settings.state.direct_writes,
        retry_attempts=settings.retry.attempts,
        retry_first_seconds=settings.retry.first.total_seconds(),
        retry_longest_seconds=settings.retry.longest.total_seconds(),
        stop_seconds=settings.stop_timeout.total_seconds(),
    )


class _Embedded:
    """One instance: its process, and the threads that watch and hear it."""

    def __init__(
        self,
        config: InstanceConfig,
        settings: Settings,
        on_event: Callable[[RestoreEvent], None],
        on_failure: Callable[[BaseException], None],
        stopped: Callable[[], bool],
    ) -> None:
        self.tasks = config.tasks
        self.copies = config.copies
        self.address = ""
        self.rest_address: str | None = None
        self._config = config
        self._settings = settings
        self._on_event = on_event
        self._on_failure = on_failure
        self._stopped = stopped
        self._stopping = threading.Event()
        self._told = messages.AppStateTold(str(AppState.RESTORING))
        self._peers: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._client: StateClient | None = None
        self._gave_up: InstanceFailed | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Starts the process and waits until it listens; from then on it is watched."""
        self._launch_patiently()
        # A restart listens where this one did, so that nobody has to be told.
        self._config = msgspec.structs.replace(
            self._config, port=_port(self.address), rest_port=_port(self.rest_address) if self.rest_address else 0
        )
        self._client = StateClient(self.address, timedelta(seconds=10))
        self._tell_again()
        for body in (self._watch, self._hear):
            thread = threading.Thread(target=body, name=f"{self._config.name}-{body.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def wait_until_ready(self, version: Version) -> None:
        assert self._client is not None
        while not self._stopping.is_set():
            try:
                status = self._client.status()
            except HoldfastError as error:
                logger.debug("instance %s does not answer yet: %s", self._config.name, error)
            else:
                if status.ready and all((task.readable_to or 0) >= version for task in status.tasks):
                    return
                for task in status.tasks:
                    # What another try may cure gets as many as the settings say; the rest gets a second one.
                    tries = self._settings.retry.attempts if task.error_category == ErrorCategory.RETRY.value else 2
                    if task.failures >= tries:
                        raise InstanceFailed(f"Task {task.task} can't be restored: {task.error}")
            if self._gave_up is not None:
                raise self._gave_up
            if self._stopped():
                raise Interrupted("The app was told to stop while its stores were being restored.")
            self._stopping.wait(0.05)
        raise Interrupted(f"Instance {self._config.name} was stopped before it was ready.")

    def meet(self, peers: dict[str, str]) -> None:
        self._peers = peers
        self._tell_again()

    def committed(self, version: Version) -> None:
        assert self._client is not None
        with _unheard("committed", self._config.name):
            self._client.committed(version)

    def set_app_state(self, state: AppState, cause: BaseException | None) -> None:
        self._told = messages.AppStateTold(str(state), None if cause is None else str(cause))
        self._tell_again()

    def begin_stop(self) -> None:
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def finish_stop(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(self._settings.stop_timeout.total_seconds() + 1)
        except subprocess.TimeoutExpired:
            logger.warning("instance %s did not stop in time and is killed; nothing is lost", self._config.name)
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(self._settings.stop_timeout.total_seconds())
        if self._client is not None:
            self._client.close()

    def _launch_patiently(self) -> None:
        """The first launch. After a kill of the app its old instance may hold folder and port for a moment more."""
        ends = SYSTEM_CLOCK.monotonic() + self._settings.stop_timeout.total_seconds() + 2
        while True:
            try:
                self._launch()
                return
            except InstanceFailed:
                if self._stopped():
                    raise Interrupted("The app was told to stop while an instance was being started.") from None
                if SYSTEM_CLOCK.monotonic() >= ends or self._stopping.wait(0.5):
                    raise

    def _launch(self) -> None:
        """Starts the process and waits until it says where it listens.

        It says so on a pipe that nothing else writes to. Its standard output is the app's standard error: modules of
        the user's may print there as much as they like.
        """
        reading, writing = os.pipe()
        with open(reading, "rb") as ready:
            try:
                config = msgspec.structs.replace(self._config, ready_fd=writing)
                self._process = process = subprocess.Popen(
                    [sys.executable, "-m", "holdfast", "instance"],
                    stdin=subprocess.PIPE,
                    stdout=_STANDARD_ERROR,
                    pass_fds=(writing,),
                    # Options hooks, engines and codecs of the user's own are imported by name: modules that can be
                    # imported here can be imported there.
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    # A Ctrl-C in the terminal is for the app: it stops its instances itself, after the last version.
                    start_new_session=True,
                )
            finally:
                os.close(writing)
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(config) + b"\n")  # not in the arguments: it may hold secrets
            process.stdin.flush()
            self._listens(process, ready.readline())

    def _listens(self, process: subprocess.Popen[bytes], line: bytes) -> None:
        if not line:
            code = process.wait()
            raise InstanceFailed(
                f"Instance {self._config.name} ended with code {code} before it listened. What it said is above."
            )
        said = json.loads(line)
        if "error" in said:
            process.wait()
            raise InstanceFailed(f"Instance {self._config.name} could not start: {said['error']}")
        self.address, self.rest_address = said["flight"], said.get("rest")

    def _watch(self) -> None:
        """Starts the process again when it dies, until it has died too often."""
        deaths = 0
        while True:
            assert self._process is not None
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
                    "What it said before is above."
                )
                self._on_failure(self._gave_up)
                return
            try:
                self._launch()
            except (InstanceFailed, OSError) as error:
                logger.warning("%s", error)
                self._stopping.wait(backoff(deaths, _RESTART_RETRY))
                continue
            self._tell_again()

    def _hear(self) -> None:
        """Takes the instance's events to the listeners; in the driver, off the restore's path."""
        since, life = 0, None
        with StateClient(self.address, timedelta(seconds=10)) as client:
            while not self._stopping.is_set():
                try:
                    page = client.events(since, wait=1.0, life=life)
                except HoldfastError:
                    self._stopping.wait(0.1)
                    continue
                since, life = page.next, page.life
                for numbered in page.events:
                    self._take(numbered.event)

    def _take(self, event: Event) -> None:
        match event:
            case RestoreEvent():
                self._on_event(event)
            case ProblemEvent(severity="error"):
                logger.error("instance %s: %s", self._config.name, event.message)
            case ProblemEvent():
                logger.warning("instance %s: %s", self._config.name, event.message)

    def _tell_again(self) -> None:
        if self._client is None:
            return
        with _unheard("state", self._config.name):
            self._client.app_state(self._told.state, self._told.cause)
            if self._peers:
                self._client.peers(self._peers)


@contextlib.contextmanager
def _unheard(what: str, name: str) -> Iterator[None]:
    """What an instance doesn't hear it finds out by itself, or is told again after its restart."""
    try:
        yield
    except HoldfastError as error:
        logger.debug("instance %s did not hear of %s: %s", name, what, error)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
