"""An app's log for tests of replicas: it commits random changes and keeps the expected state."""

import random
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from holdfast.instance.events import Events
from holdfast.instance.log_reader import LogReader
from holdfast.instance.replica import Replica, ReplicaSettings
from holdfast.instance.state_dir import TaskDirectory
from holdfast.instance.task_engines import TaskEngines
from holdfast.log.changing import ChangeRules
from holdfast.log.commits import BEGINNING, Clocks, Commit, Point
from holdfast.log.log import Log, WrittenSegments
from holdfast.log.segments import STATE
from holdfast.log.storage import open_storage
from holdfast.stores.engines.base import Resources
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, TaskId, Version
from tests.log import making

TASK = TaskId(0, 0)
State = dict[str, dict[bytes, bytes]]


def spec(name: str, engine: str) -> StoreSpec:
    return StoreSpec(name=name, key=Schema.of(k="binary"), codec="rows/1", engine=engine)


@dataclass
class AppLog:
    """The log of an app, written without Spark."""

    url: str
    engine: str = "rocksdb"
    partitions: int = 1
    stores: tuple[str, ...] = ("counts", "other")
    history: dict[tuple[TaskId, Version], State] = field(default_factory=dict)
    version: Version = NOTHING
    previous: Commit | None = None
    inline_limit: int = 4_096
    inline_bytes: int = 1 << 20
    """If the inline segments of a version have more bytes than this, they become one object."""
    specs: tuple[StoreSpec, ...] = ()
    apart: tuple[str, ...] = ()
    rules: ChangeRules | None = None

    def __post_init__(self) -> None:
        specs = self.specs or tuple(spec(name, self.engine) for name in self.stores)
        self.stores = tuple(each.name for each in specs)
        self.volatile = {each.name for each in specs if not each.durable}
        app = making.app_spec(*specs, partitions=self.partitions)
        numbers = {name: self.apart.index(name) + 1 if name in self.apart else 0 for name in self.stores}
        app = msgspec.structs.replace(app, subtopologies=making.subtopologies_of(numbers))
        self.log = Log.create_or_open(open_storage(self.url, fsync=False), app, rules=self.rules)
        for task in self.log.app.tasks():
            before = self.history.get((task, self.version), {})
            self.history[task, self.version] = {
                each.name: {} if each.after == self.version else before.get(each.name, {})
                for each in self.log.app.stores_of(task)
            }

    @property
    def point(self) -> Point:
        return BEGINNING if self.previous is None else self.previous.point

    def changed(self, *specs: StoreSpec, apart: tuple[str, ...] = (), rules: ChangeRules | None = None) -> "AppLog":
        """The app with other stores, started again. Those named by `apart` have a sub-topology of their own."""
        return replace(self, specs=specs, apart=apart, rules=rules, history=dict(self.history))

    def state(self, version: Version | None = None, task: TaskId = TASK) -> State:
        return self.history[task, self.version if version is None else version]

    def commit(
        self, changes: dict[TaskId, dict[str, dict[bytes, bytes | None]]], clocks: Clocks | None = None
    ) -> Version:
        """Commits these changes as the next version (None deletes)."""
        version = Version(self.version + 1)
        written: dict[str, WrittenSegments] = {}
        for task, of_stores in changes.items():
            parts = [(STATE, store, making.changes(entries)) for store, entries in of_stores.items()]
            written[str(task)] = self.log.write_parts(
                task, version, parts, volatile=self.volatile, inline_limit=self.inline_limit
            )
        written = self.log.write_together(version, written, inline_bytes=self.inline_bytes)
        durable = {task: each.segments for task, each in written.items() if each.segments}
        lost = {task: each.volatile for task, each in written.items() if each.volatile}
        commit = making.next_commit(self.log, self.previous, durable, clocks=clocks, volatile=lost)
        self.log.create_commit(commit)
        for task in self.log.app.tasks():
            state = {name: dict(entries) for name, entries in self.history[task, self.version].items()}
            for store, entries in changes.get(task, {}).items():
                for key, value in entries.items():
                    if value is None:
                        state[store].pop(key, None)
                    else:
                        state[store][key] = value
            self.history[task, version] = state
        self.version, self.previous = version, commit
        return version

    def random_commit(self, chance: random.Random, rows: int = 30, keys: int = 60) -> Version:
        """Commits random puts and deletes in most stores of most tasks."""
        changes: dict[TaskId, dict[str, dict[bytes, bytes | None]]] = {}
        for task in self.log.app.tasks():
            if chance.random() < 0.9:
                changes[task] = {
                    store: {
                        key_of(chance.randrange(keys)): None if chance.random() < 0.2 else chance.randbytes(12)
                        for _ in range(chance.randrange(1, rows))
                    }
                    for store in self.state(task=task)
                    if store in self.stores and chance.random() < 0.8
                }
        return self.commit(changes)

    def grow(self, count: int, seed: int) -> random.Random:
        """Commits this many random versions. Returns the source of randomness, for more."""
        chance = random.Random(seed)
        for _ in range(count):
            self.random_commit(chance)
        return chance

    def go_back(self, version: Version) -> None:
        """Continues from an earlier version."""
        self.previous = self.log.commit(version)
        self.version = version
        self.history = {key: state for key, state in self.history.items() if key[1] <= version}

    def reopened(self) -> Log:
        return Log.open(open_storage(self.url, fsync=False), self.log.app.number)


def key_of(number: int) -> bytes:
    return b"\x01" + f"key-{number:06d}".encode()


def new_url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@dataclass
class Place:
    """A state directory with replicas. `close` closes those that are still open."""

    folder: Path
    resources: Resources = field(default_factory=lambda: Resources(64 << 20))
    events: Events = field(default_factory=Events)
    opened: list[Replica] = field(default_factory=list)

    def beside(self, name: str) -> "Place":
        """Another state directory, which is closed with this one."""
        return Place(self.folder.parent / name, opened=self.opened)

    def close(self) -> None:
        for replica in self.opened:
            if replica._home.is_open:
                replica.close()

    def replica(
        self, app: AppLog, settings: ReplicaSettings | None = None, task: TaskId = TASK, log: Log | None = None
    ) -> Replica:
        return self.replica_of(log or app.reopened(), task, settings)

    def replica_of(self, log: Log, task: TaskId = TASK, settings: ReplicaSettings | None = None) -> Replica:
        home = TaskDirectory(self.folder, task, "test")
        source = LogReader(log)
        replica = Replica(home, source, source.log.app.stores_of(task), self.resources, self.events, settings)
        try:
            replica.open()
        except BaseException:
            home.close()
            raise
        self.opened.append(replica)
        return replica

    def caught_up(self, app: AppLog, settings: ReplicaSettings | None = None) -> Replica:
        """A replica at the newest version."""
        replica = self.replica(app, settings)
        replica.catch_up(app.version)
        return replica


def abandon(replica: Replica) -> None:
    """Leaves a replica as a kill does, as far as one process can: nothing is flushed, the lock is released."""
    replica.stop_moving()
    base: TaskEngines | None = replica._engines
    replica.published.clear()
    if base is not None:
        base.close()
    replica._home.close()


def shown(replica: Replica, version: Version | None = None) -> State:
    """All entries of a replica at a version."""
    with replica.read_view(version) as view:
        return {store: dict(view.scan(store, b"", None)) for store in replica.stores}
