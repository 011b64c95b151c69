"""An instance as a process: its parts put together, and how it starts and ends.

It says where it listens in one line of JSON as soon as it does, which is before its tasks are restored. It ends on SIGTERM, when asked to, and when its standard input closes, which means that whoever started it is
gone. Ending takes less than five seconds whatever is under way, because nothing under way has to be finished: the log
has it all.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa

from holdfast import faults, metrics
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance import layout, messages
from holdfast.instance.events import Events, ProblemEvent
from holdfast.instance.layout import TaskHome
from holdfast.instance.memory import divided, give_back_freed_memory
from holdfast.instance.replica import Replica, ReplicaSettings
from holdfast.instance.restore import Mover, MoveSettings, Phase
from holdfast.instance.service import StateService
from holdfast.instance.snapshotter import Keeper, SnapshotLimits, Snapshotter, folding
from holdfast.instance.source import Source
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.settings import RetrySettings
from holdfast.stores.engines.base import DamagedState, DiskUse, Resources
from holdfast.words import TaskId, Version

_LOG = logging.getLogger(__name__)
_SWITCH_SECONDS = 0.0005
"""How long a thread may keep Python's lock when another wants it. With Python's own 5 ms a lookup beside a fold waits
for many such turns."""
_FOLD_LOOK, _SNAPSHOT_LOOK, _REBALANCE_LOOK = 0.25, 1.0, 5.0

_version = metrics.gauge("holdfast_task_version", "The version a task's replica is at.", ["task"])
_lag = metrics.gauge("holdfast_task_lag_versions", "How many committed versions a replica hasn't applied.", ["task"])
_overlay = metrics.gauge("holdfast_task_overlay_bytes", "Changes a replica holds in memory.", ["task"])


class InstanceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an instance is told at its start. What stores there are stands in the log."""

    app: str
    name: str
    log_url: str
    log_options: dict[str, str] = {}
    fsync: bool = True
    state_dir: str
    tasks: tuple[str, ...]
    copies: tuple[str, ...] = ()
    """Tasks of global stores that are another instance's: hosted here too, and saved as snapshots there."""
    host: str = "127.0.0.1"
    port: int = 0
    rest_host: str = "127.0.0.1"
    rest_port: int = 0
    rest_enabled: bool = True
    memory_bytes: int = 1 << 30
    restore_parallel_tasks: int = 4
    restore_batch_bytes: int = 64 << 20
    restore_acceptable_lag: int = 10
    snapshots_enabled: bool = True
    snapshots_ratio: float = 2.0
    snapshots_bytes: int = 256 << 20
    snapshots_age_seconds: float = 600.0
    flush_seconds: float = 30.0
    flush_versions: int = 64
    background_jobs: int = 2
    direct_reads: bool = False
    direct_writes: bool = False
    poll_seconds: float = 1.0
    retry_attempts: int = 5
    retry_first_seconds: float = 0.1
    retry_longest_seconds: float = 5.0
    stop_seconds: float = 5.0
    ready_fd: int = 1
    """The file descriptor for the line that says where the instance listens: standard output unless the starter has
    a pipe of its own for it, which modules of the user's can't print to."""
    peers: dict[str, str] = {}


class CannotListen(HoldfastError):
    category = ErrorCategory.INVALID


class Companion(Protocol):
    """Something that runs beside the service for as long as it does, such as REST."""

    def addresses(self) -> Mapping[str, str]:
        """What to add to the line that says where the instance listens."""

    def stop(self) -> None: ...


class Instance:
    """The replicas of some tasks, kept at the newest version and served."""

    def __init__(self, config: InstanceConfig) -> None:
        self.config = config
        self.events = Events()
        tasks = len(config.tasks) + len(config.copies)
        self._budget = divided(config.memory_bytes, tasks=tasks, parallel=config.restore_parallel_tasks)
        disk = DiskUse(
            background_jobs=config.background_jobs,
            direct_reads=config.direct_reads,
            direct_writes=config.direct_writes,
        )
        self.resources = Resources(self._budget.engines, disk)
        self.peers: dict[str, str] = dict(config.peers)
        self.app_state: messages.AppStateTold | None = None
        self.replicas: dict[TaskId, Replica] = {}
        self._stop_asked = threading.Event()
        self._rebuilding = threading.Lock()
        self._stopped = False
        self._retry = RetrySettings(
            attempts=config.retry_attempts,
            first=timedelta(seconds=config.retry_first_seconds),
            longest=timedelta(seconds=config.retry_longest_seconds),
        )
        storage = open_storage(config.log_url, config.log_options, fsync=config.fsync, retry=self._retry)
        self.log = Log.open(storage)
        self.source = Source(self.log)

    def start(self) -> None:
        """Locks the state directory, listens, and begins to restore. Returns before the restore is done."""
        config = self.config
        if (warning := layout.warning_about(Path(config.state_dir))) is not None:
            _LOG.warning(warning)
            self.events.append(ProblemEvent("warning", None, "TemporaryFileSystem", "invalid", warning))
        with contextlib.ExitStack() as undo:
            own = Path(config.state_dir)
            for folder, names in ((own, config.tasks), (own / "everywhere" / config.name, config.copies)):
                for task in map(TaskId.parse, names):
                    home = undo.enter_context(TaskHome(folder, task, config.name))
                    self.replicas[task] = self._replica(home)
            self.service = self._listening()
            undo.pop_all()
        self.mover = Mover(
            self.replicas,
            self.source,
            self.events,
            MoveSettings(
                parallel_tasks=config.restore_parallel_tasks,
                acceptable_lag=config.restore_acceptable_lag,
                poll_seconds=config.poll_seconds,
                retry=self._retry,
            ),
        )
        folds = {task: folding(replica, self.mover.wake) for task, replica in self.replicas.items()}
        self._folder = Keeper("folder", folds, self.events, _FOLD_LOOK)
        limits = SnapshotLimits(
            enabled=config.snapshots_enabled,
            ratio=config.snapshots_ratio,
            size=config.snapshots_bytes,
            age=timedelta(seconds=config.snapshots_age_seconds),
        )
        saved = [TaskId.parse(text) for text in config.tasks]
        self.snapshotters = {task: Snapshotter(self.replicas[task], self.log, limits) for task in saved}
        steps: dict[TaskId, Callable[[], object]] = {task: each.step for task, each in self.snapshotters.items()}
        self._snapshots = Keeper("snapshots", steps, self.events, _SNAPSHOT_LOOK)
        self._measure()
        self.mover.start()
        self._folder.start()
        self._snapshots.start()
        threading.Thread(target=self._share_memory, name="memory", daemon=True).start()

    @property
    def address(self) -> str:
        return f"grpc://{self.config.host}:{self.service.port}"  # type: ignore[attr-defined]

    @property
    def ready(self) -> bool:
        """Every task is caught up and every store was read once."""
        return self.mover.ready

    def wait_ready(self, timeout: float | None = None) -> bool:
        return self.mover.wait_ready(timeout)

    def caught_up(self, task: TaskId) -> bool:
        """Whether a task's replica is up to date, so that what it doesn't have isn't there."""
        return self.mover.progress(task).phase is Phase.RUNNING

    def stop(self) -> None:
        """Ends everything; what isn't written yet is in the log."""
        if self._stopped:
            return
        self._stopped = True
        self._stop_asked.set()
        self.events.close()
        self.service.stop(self.config.stop_seconds * 0.2)
        self._folder.stop(self.config.stop_seconds * 0.2)
        self._snapshots.stop(self.config.stop_seconds * 0.2)
        self.mover.stop()
        for replica in self.replicas.values():
            replica.close()

    # What the service asks

    def replica(self, task: TaskId) -> Replica:
        try:
            return self.replicas[task]
        except KeyError:
            here = ", ".join(map(str, sorted(self.replicas)))
            raise messages.TaskNotHere(
                f"instance {self.config.name!r} doesn't host task {task}; it hosts {here}. Ask the one that does."
            ) from None

    @property
    def log_id(self) -> str:
        return self.log.id

    def damaged(self, task: TaskId, error: DamagedState) -> None:
        with self._rebuilding:
            # Many readers may meet the same damage; the first of them has it repaired.
            if task in self.replicas and self.caught_up(task):
                self.mover.wake(task)
                self.replicas[task].rebuild(error)
                self.mover.wake(task)

    def status(self) -> messages.InstanceStatus:
        return messages.InstanceStatus(
            name=self.config.name,
            app=self.log.app.id,
            log=self.log.id,
            pid=os.getpid(),
            host=socket.gethostname(),
            ready=self.ready,
            newest=self.source.newest_known,
            app_state=None if self.app_state is None else self.app_state.state,
            tasks=tuple(self._task_status(task) for task in sorted(self.replicas)),
        )

    def committed(self, version: Version) -> None:
        self.mover.tell(version)

    def told_state(self, state: messages.AppStateTold) -> None:
        self.app_state = state

    def told_peers(self, peers: messages.Peers) -> None:
        self.peers = dict(peers.addresses)

    def request_stop(self) -> None:
        self._stop_asked.set()

    def wait_for_stop(self) -> None:
        """Waits until someone asks the instance to end."""
        self._stop_asked.wait()

    def _listening(self) -> StateService:
        try:
            return StateService(self, f"grpc://{self.config.host}:{self.config.port}")
        except (pa.ArrowException, OSError) as error:
            raise CannotListen(
                f"instance {self.config.name!r} can't listen on {self.config.host}:{self.config.port}: {error}. Stop "
                "what listens there, or choose another port."
            ) from error

    def _replica(self, home: TaskHome) -> Replica:
        config = self.config
        settings = ReplicaSettings(
            overlay_bytes=self._budget.overlay_a_task,
            batch_bytes=min(config.restore_batch_bytes, self._budget.batch_a_task),
            flush_seconds=config.flush_seconds,
            flush_versions=config.flush_versions,
        )
        specs = self.log.app.stores_of(home.task)
        return Replica(home, self.source, specs, self.resources, self.events, settings)

    def _task_status(self, task: TaskId) -> messages.TaskStatus:
        replica, progress = self.replicas[task], self.mover.progress(task)
        held = replica.held.range
        counts, disk = {}, 0
        with contextlib.suppress(HoldfastError):  # an engine that is being opened anew has nothing to tell
            counts = {store: replica.approximate_count(store) for store in replica.stores}
            disk = replica.disk_bytes()
        return messages.TaskStatus(
            task=str(task),
            phase=progress.phase.value,
            version=replica.version,
            readable_from=None if held is None else held[0],
            readable_to=None if held is None else held[1],
            stores=counts,
            overlay_bytes=replica.memory_bytes(),
            disk_bytes=disk,
            error=progress.error or self._folder.error(task) or self._snapshots.error(task),
            failures=progress.failures,
            error_category=None if progress.error_category is None else progress.error_category.value,
        )

    def _share_memory(self) -> None:
        """Lets the stores' caches grow and shrink with their use."""
        while not self._stop_asked.wait(_REBALANCE_LOOK):
            self.resources.rebalance()

    def _measure(self) -> None:
        for task, replica in self.replicas.items():
            text = str(task)
            _version.labels(text).set_function(partial(attrgetter("version"), replica))
            _lag.labels(text).set_function(partial(self._lag_of, replica))
            _overlay.labels(text).set_function(replica.memory_bytes)

    def _lag_of(self, replica: Replica) -> int:
        return max(0, self.source.newest_known - replica.version)


def main(config: InstanceConfig, companion: Callable[[Instance], Companion] | None = None) -> None:
    """Runs an instance until it is told to end, then ends the process."""
    faults.load_from_environment("instance")
    give_back_freed_memory()
    sys.setswitchinterval(_SWITCH_SECONDS)
    instance = Instance(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: instance.request_stop())
    instance.start()
    beside = None
    try:
        beside = None if companion is None else companion(instance)
        line = {"flight": instance.address, "name": config.name, "pid": os.getpid()}
        line.update({} if beside is None else beside.addresses())
        say_ready(config, line)
        threading.Thread(target=_watch_parent, args=(instance,), name="parent", daemon=True).start()
        instance.wait_for_stop()
    finally:
        # Whoever hangs must not keep the process: what isn't finished is done again from the log.
        late = threading.Timer(config.stop_seconds * 0.9, os._exit, (0,))
        late.daemon = True
        late.start()
        if beside is not None:
            beside.stop()
        instance.stop()
    logging.shutdown()
    os._exit(0)


def say_ready(config: InstanceConfig, line: Mapping[str, object]) -> None:
    """Tells the process that started this one where it listens, or why it doesn't. Said once."""
    with open(config.ready_fd, "wb", closefd=config.ready_fd != sys.stdout.fileno()) as ready:
        ready.write(msgspec.json.encode(line) + b"\n")


def _watch_parent(instance: Instance) -> None:
    """Reads standard input to its end, which comes when whoever started this process is gone."""
    while sys.stdin.buffer.read(4096):
        pass
    _LOG.info("standard input closed: whoever started this instance is gone, so it ends")
    instance.request_stop()
