"""An instance: the replicas of some tasks, kept at the newest version and served. Tasks come and go while it runs."""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path

import pyarrow as pa

from holdfast import metrics
from holdfast.chance import new_id
from holdfast.errors import Closed, HoldfastError
from holdfast.group.generations import Generation
from holdfast.instance import messages, state_dir
from holdfast.instance.addresses import advertised, listening
from holdfast.instance.checking import ReplicaCheck
from holdfast.instance.config import InstanceConfig, Phase, Role
from holdfast.instance.credentials import Credentials
from holdfast.instance.events import Events, TaskEvent, report_problem, report_warning
from holdfast.instance.heavy_keys import LOOKUPS, HeavyKeys
from holdfast.instance.log_reader import LogReader
from holdfast.instance.maintenance import MaintenanceLoop, flushing
from holdfast.instance.memory import MemoryShares, divided
from holdfast.instance.replica import Replica, ReplicaSettings
from holdfast.instance.service import StateService, forget_task
from holdfast.instance.snapshotter import Snapshotter
from holdfast.instance.state_dir import InstanceDirectory, TaskDirectory
from holdfast.instance.updater import ReplicaUpdater, TaskProgress
from holdfast.lasting import lasting_thread
from holdfast.log.bandwidth import Bandwidth
from holdfast.log.log import Log
from holdfast.log.snapshot_files import FileFetcher
from holdfast.log.storage import open_storage
from holdfast.stores.engines.base import DiskUse, Resources
from holdfast.stores.engines.open_files import FileShare, databases_of, file_limit, warning_about
from holdfast.stores.layouts.due import Due
from holdfast.words import TaskId, Version

_LOG = logging.getLogger(__name__)
_FLUSH_LOOK, _CHECK_LOOK, _SNAPSHOT_LOOK, _REBALANCE_LOOK = 0.25, 0.25, 1.0, 5.0

_version = metrics.gauge("holdfast_task_version", "The version a task's replica is at.", ["task"])
_lag = metrics.gauge("holdfast_task_lag_versions", "How many committed versions a replica hasn't applied.", ["task"])
_overlay = metrics.gauge("holdfast_task_overlay_bytes", "Changes a replica holds in memory.", ["task"])


@dataclass
class HostedTask:
    """A task that is hosted here."""

    replica: Replica
    role: Role
    progress: TaskProgress
    snapshotter: Snapshotter
    check: ReplicaCheck
    reads: int = 0
    """Keys and ranges that were read from it."""
    heavy: HeavyKeys = field(default_factory=HeavyKeys)
    _lookups: int = 0

    @property
    def caught_up(self) -> bool:
        """Whether the replica is up to date, so that a key it doesn't have doesn't exist."""
        return self.progress.phase is Phase.RUNNING

    @property
    def readable(self) -> bool:
        """Whether lookups may read it: it has caught up since it was opened, and may be behind again."""
        return self.progress.readable

    def count_lookup(self, store: str, key: bytes) -> None:
        """Counts a lookup of one key. Every 64th stands for 64: the others cost 0.1 us of the 8 of a local read."""
        self._lookups += 1
        if self._lookups % LOOKUPS == 0:
            self.reads += LOOKUPS
            self.heavy.add_lookup(store, key)

    def save_if_due(self) -> None:
        if self.check.passed:
            self.snapshotter.step()


class Instance:
    """The replicas of some tasks, kept at the newest version and served."""

    def __init__(self, config: InstanceConfig) -> None:
        self.config = config
        self.credentials = Credentials.of(config.security)
        self.events = Events()
        state, retry, log = config.state, config.retry, config.log
        disk = DiskUse(
            background_jobs=state.background_jobs, direct_reads=state.direct_reads, direct_writes=state.direct_writes
        )
        self.resources = Resources(self._shares(0).engines, disk)
        self.peers: Mapping[str, tuple[str, ...]] = {}
        """The addresses of the replicas of each task, this instance's included, the active one first."""
        self.placement: Generation | None = None
        """The newest generation that this instance knows, if it is in a group."""
        self.generation = 0
        """The newest generation whose tasks are hosted here."""
        self.look_at_group: Callable[[int], None] = lambda number: None
        """Has the group looked at, because there is a generation of this number."""
        self.look_back_in_group: Callable[[], None] = lambda: None
        """Has the group looked at, because the log was set back."""
        self.app_state: messages.AppStateMessage | None = None
        """What the driver has said last."""
        self.driver_gone = False
        """Whether no driver is alive: what it has said last isn't true any more."""
        self.process = new_id()
        self.failure: HoldfastError | None = None
        """Why it ends by itself."""
        self._hosted: dict[TaskId, HostedTask] = {}
        self._changing = threading.Lock()
        self._stop_asked = threading.Event()
        self._rebuilding = threading.Lock()
        self._stopped = False
        self._service: StateService | None = None
        self._home: InstanceDirectory | None = None
        storage = open_storage(config.log_url, log.options, fsync=log.fsync, retry=retry)
        self.log = Log.open(storage, config.app_file)
        bandwidth = Bandwidth(config.restore.bandwidth)
        self.source = LogReader(self.log, FileFetcher(self._shares(0).fetches, bandwidth))
        self.updater = ReplicaUpdater(self.source, self.events, config.restore, retry, config.poll_seconds)
        self.source.on_set_back = self._log_was_set_back
        self._flushes = MaintenanceLoop("flushes", self.events, _FLUSH_LOOK)
        self._checks = MaintenanceLoop("checks", self.events, _CHECK_LOOK)
        self._snapshots = MaintenanceLoop("snapshots", self.events, _SNAPSHOT_LOOK)
        self._loops = self._flushes, self._checks, self._snapshots

    def start(self) -> None:
        """Hosts its first tasks, listens, and starts to restore. Returns before the restore is done."""
        if (warning := state_dir.warning_about(Path(self.config.state_dir))) is not None:
            report_warning(self.events, "TemporaryFileSystem", warning)
        self._divide_files()
        with contextlib.ExitStack() as undo:
            self._home = undo.enter_context(InstanceDirectory(Path(self.config.state_dir), self.config.name))
            undo.callback(self._close_replicas)
            for task, role in self.config.tasks.items():
                self.host(TaskId.parse(task), role)
            self._service = self._listening()
            undo.pop_all()
        self.updater.start()
        for loop in self._loops:
            loop.start()
        lasting_thread("memory", self._share_memory, partial(report_problem, self.events, None)).start()

    def _divide_files(self) -> None:
        """Divides them among the databases of all tasks of the app: any of them may come here."""
        app = self.source.app
        databases = [stores for task in app.tasks() for stores in databases_of(app.stores_of(task))]
        self.resources.files = FileShare.of(file_limit(), len(databases))
        if (warning := warning_about(databases)) is not None:
            report_warning(self.events, "FewOpenFiles", warning)

    @property
    def address(self) -> str:
        if self._service is None:
            raise Closed(f"instance {self.config.name!r} doesn't listen yet. Start it first.")
        port = self._service.port  # type: ignore[attr-defined]
        return self.credentials.address(*advertised(self.config, port))

    @property
    def ready(self) -> bool:
        """Every task is caught up and every store was read once."""
        return self.updater.ready

    def wait_ready(self, timeout: float | None = None) -> bool:
        return self.updater.wait_ready(timeout)

    def stop(self) -> None:
        """Ends everything; changes that aren't written yet are in the log."""
        with self._changing:
            if self._stopped:
                return
            self._stopped = True
        self._stop_asked.set()
        self.events.close()
        soon = self.config.stop_seconds * 0.2
        if self._service is not None:
            self._service.stop(soon)
        for loop in self._loops:
            loop.stop(soon)
        self.updater.stop()
        self._close_replicas()
        self.source.fetcher.close()
        if self._home is not None:
            self._home.close()

    # Tasks that come and go

    def host(self, task: TaskId, role: Role = Role.ACTIVE) -> None:
        """Hosts a task from now on. Returns before it is restored. A task that is here already gets the role."""
        with self._changing:
            if self._stopped:
                raise Closed(f"instance {self.config.name!r} is stopping. Ask another one.")
            hosted = self._hosted.get(task)
            if hosted is None:
                hosted = self._opened(task, role)
            elif hosted.role is role:
                return
            hosted.role = role
            if role is Role.ACTIVE:
                hosted.snapshotter.look_again()
                self._snapshots.add(task, hosted.save_if_due)
            else:
                self._snapshots.remove(task)

    def drop(self, task: TaskId) -> None:
        """Stops hosting a task. Its folder stays for a while.

        Updates, flushes and snapshots under way are ended. Reads that have started get an error that says to ask again.
        A task that isn't here needs no drop.
        """
        with self._changing:
            if self._stopped or (hosted := self._hosted.pop(task, None)) is None:
                return
            replica = hosted.replica
            replica.stop_moving()
            self.updater.remove(task)
            for loop in self._loops:
                loop.end(task)
            replica.close()
            self._divide_memory()
            for gauge in (_version, _lag, _overlay):
                gauge.remove(str(task))
            forget_task(task)
            self.events.append(TaskEvent(str(task), "closed", replica.version))

    def use_app(self, number: int) -> None:
        """Uses the app file of this number from now on. Tasks whose stores differ in it are dropped."""
        self.source.use_app(number)
        self._divide_files()
        for hosted in self.hosted():
            if tuple(hosted.replica.specs) != self.source.stores_of(hosted.replica.task):
                self.drop(hosted.replica.task)

    def hosted(self) -> list[HostedTask]:
        """The tasks hosted now, in order."""
        found = dict(self._hosted)
        return [found[task] for task in sorted(found)]

    def hosted_task(self, task: TaskId) -> HostedTask | None:
        return self._hosted.get(task)

    def _opened(self, task: TaskId, role: Role) -> HostedTask:
        with contextlib.ExitStack() as undo:
            home = undo.enter_context(TaskDirectory(Path(self.config.state_dir), task, self.config.name))
            specs = self.source.stores_of(task)
            if not specs:
                raise messages.InstanceRefused(f"the app has no stores in task {task}, so it can't be hosted.")
            replica = Replica(home, self.source, specs, self.resources, self.events)
            undo.pop_all()
        snapshotter = Snapshotter(replica, self.log, self.config.snapshots)
        check = ReplicaCheck(
            replica,
            self.source,
            self.events,
            is_running=partial(self.caught_up, task),
            rebuild=partial(self.damaged, task),
        )
        hosted = self._hosted[task] = HostedTask(replica, role, self.updater.progress_of(replica), snapshotter, check)
        self._divide_memory()
        hosted.progress = self.updater.add(replica)
        self._flushes.add(task, flushing(replica, self._reopened))
        self._checks.add(task, check.step)
        self._measure(replica)
        return hosted

    def _reopened(self, task: TaskId) -> None:
        """A replica was, or will be, opened again. Its folder may have been deleted together with this instance's."""
        if self._home is not None:
            self._home.keep()
        self.updater.restore_again(task)

    def _shares(self, tasks: int) -> MemoryShares:
        return divided(self.config.memory.limit, tasks=tasks, parallel=self.config.restore.parallel_tasks)

    def _divide_memory(self) -> None:
        """Overlays and restore batches share what is theirs among the tasks there are now."""
        shares = self._shares(len(self._hosted))
        settings = ReplicaSettings(
            overlay_bytes=shares.overlay_per_task,
            batch_bytes=min(self.config.restore.batch_bytes, shares.batch_per_task),
            flush_seconds=self.config.state.flush_interval.total_seconds(),
            flush_versions=self.config.state.flush_versions,
        )
        for hosted in self._hosted.values():
            hosted.replica.settings = settings

    def _close_replicas(self) -> None:
        for hosted in self.hosted():
            hosted.replica.close()

    # What the service asks

    def replica(self, task: TaskId) -> Replica:
        hosted = self._hosted.get(task)
        if hosted is None:
            here = ", ".join(str(each.replica.task) for each in self.hosted()) or "no task"
            raise messages.TaskNotHere(
                f"instance {self.config.name!r} doesn't host task {task}; it hosts {here}. Ask the one that does."
            )
        return hosted.replica

    def served(self, task: TaskId) -> tuple[Role, str]:
        """The role of the replica here, and the name of this instance: what an answer says about its source."""
        hosted = self._hosted.get(task)
        return (Role.STANDBY if hosted is None else hosted.role), self.config.name

    def caught_up(self, task: TaskId) -> bool:
        hosted = self._hosted.get(task)
        return hosted is not None and hosted.caught_up

    def damaged(self, task: TaskId, error: HoldfastError) -> None:
        """Has a replica rebuilt: its state isn't what was written, or not what the log says."""
        with self._rebuilding:
            hosted = self._hosted.get(task)
            # Many readers may find the same damage; the first one has it repaired.
            if hosted is not None and hosted.readable:
                self.updater.restore_again(task)
                hosted.replica.rebuild(error)
                self.updater.restore_again(task)

    def status(self) -> messages.InstanceStatus:
        return messages.InstanceStatus(
            name=self.config.name,
            process=self.process,
            app=self.log.app.id,
            log=self.log.id,
            pid=os.getpid(),
            host=socket.gethostname(),
            ready=self.ready,
            newest=self.source.newest_known,
            app_state=None if self.app_state is None else self.app_state.state,
            tasks=tuple(map(self._status_of, self.hosted())),
            generation=self.generation,
        )

    def count_reads(self, task: str, number: int, store: str = "", keys: pa.Array = ()) -> None:
        if (hosted := self._hosted.get(TaskId.parse(task))) is not None:
            hosted.reads += number
            hosted.heavy.add(store, keys)

    def due(
        self, version: Version, tasks: Iterable[TaskId], wait: float = 0.0, commit: str | None = None
    ) -> dict[str, Due]:
        """By store, what is due next in these tasks at a version; with `commit`, at that one of it."""
        found: dict[str, list[Due]] = {}
        for task in tasks:
            for store, due in self.replica(task).due(version, wait, commit).items():
                found.setdefault(store, []).append(due)
        return {store: Due.soonest(several) for store, several in found.items()}

    def committed(self, version: Version, commit: str | None = None) -> None:
        self.updater.committed(version, commit)

    def _log_was_set_back(self) -> None:
        """Replicas look what the log still has of them; the group's objects may be older ones, too."""
        self.updater.look()
        self.look_back_in_group()

    def request_stop(self) -> None:
        self._stop_asked.set()

    def fail(self, error: HoldfastError) -> None:
        """Ends the instance because of an error."""
        self.failure = error
        self._stop_asked.set()

    def wait_for_stop(self) -> None:
        """Waits until the instance is asked to end."""
        self._stop_asked.wait()

    def _listening(self) -> StateService:
        host, name = self.config.host, self.config.name
        self.credentials.check_host(f"instance {name!r}", host)
        with listening(self.config):
            return StateService(self, self.credentials.address(host, self.config.port), self.credentials)

    def disk_bytes(self, hosted: HostedTask) -> int:
        with contextlib.suppress(HoldfastError, OSError):  # engines that are being opened can't be asked
            return hosted.replica.disk_bytes()
        return 0

    def _status_of(self, hosted: HostedTask) -> messages.TaskStatus:
        # Nothing of the engines: the driver asks again and again while it waits, and 256 tasks took 21 ms with sizes.
        replica, progress = hosted.replica, hosted.progress
        published = replica.published.range
        task = replica.task
        return messages.TaskStatus(
            task=str(task),
            role=hosted.role,
            phase=progress.phase,
            version=replica.version,
            readable_from=None if published is None else published[0],
            readable_to=None if published is None else published[1],
            error=progress.error or next(filter(None, (loop.error(task) for loop in self._loops)), None),
            failures=progress.failures,
            error_category=progress.error_category,
            readable=progress.readable,
            commit=replica.published.commit,
        )

    def _share_memory(self) -> None:
        """Lets the stores' caches grow and shrink with their use."""
        while not self._stop_asked.wait(_REBALANCE_LOOK):
            self.resources.rebalance()

    def _measure(self, replica: Replica) -> None:
        text = str(replica.task)
        _version.labels(text).set_function(partial(attrgetter("version"), replica))
        _lag.labels(text).set_function(partial(self._lag_of, replica))
        _overlay.labels(text).set_function(replica.memory_bytes)

    def _lag_of(self, replica: Replica) -> int:
        return max(0, self.source.newest_known - replica.version)
