"""Real instances with REST on a real log, and a driver that commits the entries a test gives it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import msgspec

from holdfast.instance.config import InstanceConfig, Role
from holdfast.instance.instance import Instance
from holdfast.instance.replica import Replica
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import BEGINNING, Point
from holdfast.log.log import Log
from holdfast.log.segments import STATE, SegmentRef, seal
from holdfast.log.storage import open_storage
from holdfast.query.service import RestService
from holdfast.settings.rest import RestSettings
from holdfast.settings.sections import LogSettings, MemorySettings, SnapshotSettings
from holdfast.stores.formats.cells import Cell, pack
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId, Version
from tests.instance.processes import Process, until
from tests.log.making import changes, next_commit
from tests.query.fake_tasks import payload


class Driver:
    """Commits versions, without Spark."""

    def __init__(self, url: str, app: AppSpec, *, inline_limit: int = 1 << 20) -> None:
        self._inline_limit = inline_limit
        self.log = Log.create_or_open(open_storage(url, fsync=False), app)
        self._newest = self.log.newest()

    @property
    def version(self) -> Version:
        return Version(self._newest.version if self._newest else 0)

    @property
    def point(self) -> Point:
        return self._newest.point if self._newest else BEGINNING

    def commit(
        self, store: StoreSpec, entries: Mapping[tuple[object, ...], object | None], *, schema: int = 1
    ) -> Version:
        by_task: dict[TaskId, dict[bytes, bytes | None]] = {}
        for key, value in entries.items():
            partition = partition_of(store.key, key, self.log.app.partitions)
            cell = None if value is None else pack(Cell(payload(store, value), schema=schema))
            task = TaskId(self.log.app.number_of(store.name), partition)
            by_task.setdefault(task, {})[encode_key(store.key, key)] = cell
        return self.commit_cells(store, by_task)

    def commit_cells(self, store: StoreSpec, by_task: Mapping[TaskId, Mapping[bytes, bytes | None]]) -> Version:
        version = Version(self.version + 1)
        segments: dict[str, tuple[SegmentRef, ...]] = {}
        for task, cells in by_task.items():
            sealed = seal([(STATE, store.name, changes(dict(sorted(cells.items()))))])
            ref = self.log.write_segment(
                task, version, sealed, inline_limit=self._inline_limit, volatile=not store.durable
            )
            segments[str(task)] = (ref,)
        durable, volatile = (segments, {}) if store.durable else ({}, segments)
        self._newest = next_commit(self.log, self._newest, durable, volatile=volatile)
        self.log.create_commit(self._newest)
        return version


def config(folder: Path, name: str, tasks: Sequence[TaskId], standbys: Sequence[TaskId] = ()) -> InstanceConfig:
    return InstanceConfig(
        app="game",
        name=name,
        log_url=str(folder / "log"),
        app_file=1,
        state_dir=str(folder / name),
        tasks={str(task): Role.STANDBY for task in standbys} | {str(task): Role.ACTIVE for task in tasks},
        poll_seconds=0.05,
        log=LogSettings(fsync=False),
        memory=MemorySettings(limit="128MiB"),
        snapshots=SnapshotSettings(enabled=False),
        rest=RestSettings(port=0),
    )


def process(config: InstanceConfig) -> Process:
    """An instance with REST as a process of its own."""
    return Process(config, (str(Path(__file__).with_name("run_instance.py")),), PYTHONPATH="src:.")


@dataclass
class Group:
    """Two running instances with REST that know each other; each hosts half of the tasks."""

    driver: Driver
    instances: list[Instance]
    rests: list[RestService]
    client: httpx2.Client

    def get(self, path: str, at: int = 0, /, **params: str) -> httpx2.Response:
        return self.client.get(self.rests[at].url + path, params=params or None)

    def settle(self) -> None:
        """Waits until all replicas are at the driver's newest version."""
        version = self.driver.version
        for instance in self.instances:
            assert instance.wait_ready(30)
            instance.committed(version)
        replicas = [replica for instance in self.instances for replica in replicas_of(instance)]
        until(lambda: all(replica.published.version == version for replica in replicas), f"version {version}")


@contextmanager
def started(folder: Path, app: AppSpec) -> Iterator[Group]:
    driver = Driver(str(folder / "log"), app)
    tasks = list(app.tasks())
    with ExitStack() as stack:
        instances = [Instance(config(folder, f"game-{n}", tasks[n::2])) for n in range(2)]
        for instance in instances:
            instance.start()
            stack.callback(instance.stop)
        know_each_other(instances)
        rests = [RestService(instance) for instance in instances]
        for service in rests:
            service.start()
            stack.callback(service.stop)
        yield Group(driver, instances, rests, stack.enter_context(httpx2.Client(timeout=20)))


@contextmanager
def serving(folder: Path, app: AppSpec, rest: RestSettings) -> Iterator[tuple[Driver, Instance, RestService]]:
    """One instance with all tasks, whose REST has these settings."""
    driver = Driver(str(folder / "log"), app)
    instance = Instance(msgspec.structs.replace(config(folder, "game-0", app.tasks()), rest=rest))
    with ExitStack() as stack:
        instance.start()
        stack.callback(instance.stop)
        service = RestService(instance)
        service.start()
        stack.callback(service.stop)
        assert instance.wait_ready(30)
        yield driver, instance, service


def know_each_other(instances: Sequence[Instance]) -> None:
    """Tells each instance where the replicas of all tasks are, the active ones first."""
    peers: dict[str, tuple[str, ...]] = {}
    for role in (Role.ACTIVE, Role.STANDBY):
        for instance in instances:
            for task, given in instance.config.tasks.items():
                if given is role:
                    peers[task] = (*peers.get(task, ()), instance.address)
    for instance in instances:
        instance.peers = peers


def replicas_of(instance: Instance) -> list[Replica]:
    return [hosted.replica for hosted in instance.hosted()]
