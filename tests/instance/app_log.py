"""An app's log to test replicas with: writes versions of random changes and remembers what the state must be."""

import random
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from holdfast.chance import new_id
from holdfast.instance.events import Events
from holdfast.instance.log_reader import LogReader
from holdfast.instance.replica import Replica, ReplicaSettings
from holdfast.instance.state_dir import TaskDirectory
from holdfast.instance.task_engines import TaskEngines
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import Clocks, Commit, Writer
from holdfast.log.log import Log
from holdfast.log.segments import STATE, STATE_SCHEMA, SegmentRef
from holdfast.log.storage import open_storage
from holdfast.stores.engines.base import Resources
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, TaskId, Version
from tests.log.making import subtopologies_of

TASK = TaskId(0, 0)
State = dict[str, dict[bytes, bytes]]


def spec(name: str, engine: str) -> StoreSpec:
    return StoreSpec(name=name, key=Schema.of(k="binary"), codec="rows/1", engine=engine)


@dataclass
class AppLog:
    """A driver's side of a log, without Spark."""

    url: str
    engine: str = "rocksdb"
    partitions: int = 1
    stores: tuple[str, ...] = ("counts", "other")
    history: dict[tuple[TaskId, Version], State] = field(default_factory=dict)
    version: Version = NOTHING
    previous: str | None = None
    inline_limit: int = 4_096
    specs: tuple[StoreSpec, ...] = ()

    def __post_init__(self) -> None:
        specs = self.specs or tuple(spec(name, self.engine) for name in self.stores)
        self.stores = tuple(each.name for each in specs)
        self.volatile = {each.name for each in specs if not each.durable}
        app = AppSpec(
            id="app",
            partitions=self.partitions,
            stores=specs,
            subtopologies=subtopologies_of(dict.fromkeys(self.stores, 0)),
        )
        self.log = Log.create_or_open(open_storage(self.url, fsync=False), app)
        for task in self.log.app.tasks():
            self.history[task, NOTHING] = {name: {} for name in self.stores}

    def state(self, version: Version | None = None, task: TaskId = TASK) -> State:
        return self.history[task, self.version if version is None else version]

    def commit(
        self, changes: dict[TaskId, dict[str, dict[bytes, bytes | None]]], clocks: Clocks | None = None
    ) -> Version:
        """Makes the next version of these changes (None deletes)."""
        version = Version(self.version + 1)
        segments: dict[str, tuple[SegmentRef, ...]] = {}
        volatile: dict[str, tuple[SegmentRef, ...]] = {}
        for task, of_stores in changes.items():
            parts = [(STATE, store, as_table(entries)) for store, entries in of_stores.items()]
            written = self.log.write_parts(task, version, parts, volatile=self.volatile, inline_limit=self.inline_limit)
            segments[str(task)], volatile[str(task)] = written.segments, written.volatile
        commit = Commit(
            version=version,
            id=new_id(),
            previous=self.previous,
            log=self.log.id,
            app=self.log.app.number,
            clocks=clocks or Clocks(version, None, {}),
            spark=None,
            segments={task: refs for task, refs in segments.items() if refs},
            volatile={task: refs for task, refs in volatile.items() if refs},
            counts={},
            writer=Writer.here("test"),
        )
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
        self.version, self.previous = version, commit.id
        return version

    def random_commit(self, chance: random.Random, rows: int = 30, keys: int = 60) -> Version:
        """A version of random puts and deletes in every store of every task; sometimes of none."""
        changes: dict[TaskId, dict[str, dict[bytes, bytes | None]]] = {}
        for task in self.log.app.tasks():
            if chance.random() < 0.9:
                changes[task] = {
                    store: {
                        key_of(chance.randrange(keys)): None if chance.random() < 0.2 else chance.randbytes(12)
                        for _ in range(chance.randrange(1, rows))
                    }
                    for store in self.stores
                    if chance.random() < 0.8
                }
        return self.commit(changes)

    def reopened(self) -> Log:
        return Log.open(open_storage(self.url, fsync=False))


def key_of(number: int) -> bytes:
    return b"\x01" + f"key-{number:06d}".encode()


def as_table(entries: dict[bytes, bytes | None]) -> pa.Table:
    keys = sorted(entries)
    return pa.table({"key": keys, "value": [entries[key] for key in keys]}, schema=STATE_SCHEMA)


def new_url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@dataclass
class Place:
    """Where a test's replicas live; opens and closes them as an instance would."""

    folder: Path
    resources: Resources = field(default_factory=lambda: Resources(64 << 20))
    events: Events = field(default_factory=Events)

    def replica(self, app: AppLog, settings: ReplicaSettings | None = None, task: TaskId = TASK) -> Replica:
        home = TaskDirectory(self.folder, task, "test")
        source = LogReader(app.reopened())
        replica = Replica(home, source, source.log.app.stores_of(task), self.resources, self.events, settings)
        try:
            replica.open()
        except BaseException:
            home.close()
            raise
        return replica


def abandon(replica: Replica) -> None:
    """Leaves a replica as a kill would as far as one process can: nothing is flushed, the folder is let go."""
    replica.stop_moving()
    base: TaskEngines | None = replica._engines
    replica.published.clear()
    if base is not None:
        base.close()
    replica._home.close()


def shown(replica: Replica, version: Version | None = None) -> State:
    """Everything a replica shows at a version."""
    with replica.read_view(version) as view:
        return {store: dict(view.scan(store, b"", None)) for store in replica.stores}
