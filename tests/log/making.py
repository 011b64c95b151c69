"""Helpers for tests of the log: an app, segments, commits, and a storage that fails on purpose."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import faults
from holdfast.chance import new_id
from holdfast.log.appfile import AppSpec, SubTopologySpec
from holdfast.log.commits import Clocks, Commit, SparkBatch, Writer
from holdfast.log.log import Log
from holdfast.log.objects import Names, Put, Storage
from holdfast.log.segments import STATE, STATE_SCHEMA, Sealed, SegmentRef, seal
from holdfast.log.snapshot_files import FileFetcher, OnBytes, ignore_bytes
from holdfast.log.snapshots import Manifest
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.topology.sink import Timeline
from holdfast.words import NOTHING, TaskId, Version

TASK = TaskId(0, 0)
WRITER = Writer("driver-a", "host-a", 41, 1)


def alone() -> None:
    """`check_leads` of a driver that is the only one."""


def store_spec(name: str = "counts", key: str = "string") -> StoreSpec:
    return StoreSpec(name=name, key=Schema.of(player=key), value=RowValues(Schema.of(n="bigint")), codec="rows/1")


def subtopologies_of(numbers: Mapping[str, int]) -> tuple[SubTopologySpec, ...]:
    """Sub-topologies with these stores, by number; each is named after its first store."""
    stores: dict[int, list[str]] = {}
    for store, number in numbers.items():
        stores.setdefault(number, []).append(store)
    return tuple(SubTopologySpec(min(own), number, tuple(sorted(own))) for number, own in stores.items())


def app_spec(*stores: StoreSpec, partitions: int = 1) -> AppSpec:
    chosen = stores or (store_spec(),)
    return AppSpec(
        id="scores",
        partitions=partitions,
        stores=chosen,
        subtopologies=subtopologies_of({store.name: 0 for store in chosen}),
    )


def changes(values: Mapping[bytes, bytes | None]) -> pa.Table:
    return pa.table({"key": sorted(values), "value": [values[key] for key in sorted(values)]}, schema=STATE_SCHEMA)


def sealed(values: Mapping[bytes, bytes | None], store: str = "counts") -> Sealed:
    return seal([(STATE, store, changes(values))])


def next_commit(
    log: Log,
    previous: Commit | None,
    segments: Mapping[str, tuple[SegmentRef, ...]] = {},
    *,
    clocks: Clocks | None = None,
    volatile: Mapping[str, tuple[SegmentRef, ...]] = {},
    sinks: Mapping[str, int] = {},
    writer: Writer = WRITER,
) -> Commit:
    version = previous.version + 1 if previous else 1
    return Commit(
        version=version,
        id=new_id(),
        previous=previous.id if previous else None,
        log=log.id,
        app=log.app.number,
        clocks=clocks or Clocks(wall=version, event=None, sources={}),
        spark=SparkBatch("query", version, '{"offset":1}'),
        segments=dict(segments),
        volatile=dict(volatile),
        sinks=dict(sinks),
        counts={"records": 1},
        writer=writer,
    )


def grow(
    log: Log,
    count: int,
    *,
    values: Callable[[int], Mapping[bytes, bytes | None]] = lambda version: {b"k": str(version).encode()},
    inline_limit: int = 0,
    tasks: Iterable[TaskId] = (TASK,),
    wall: Callable[[int], int] = lambda version: version,
    sinks: Mapping[str, int] = {},
) -> Commit:
    """Adds versions to a log, each with one segment per task. Returns the newest commit."""
    previous = log.newest()
    for _ in range(count):
        version = Version((previous.version if previous else 0) + 1)
        refs = {
            str(task): (log.write_segment(task, version, sealed(values(version)), inline_limit=inline_limit),)
            for task in tasks
        }
        commit = next_commit(log, previous, refs, clocks=Clocks(wall(version), None, {}), sinks=sinks)
        log.create_commit(commit)
        previous = commit
    assert previous is not None
    return previous


def replay(log: Log, state: dict[bytes, bytes], commits: Iterable[Commit], task: TaskId = TASK) -> dict[bytes, bytes]:
    """Applies commits to a state, as a replica does."""
    for commit in commits:
        for ref in commit.of_task(task):
            for _, table in log.state_parts(ref):
                for row in table.to_pylist():
                    if row["value"] is None:
                        state.pop(row["key"], None)
                    else:
                        state[row["key"]] = row["value"]
    return state


def commits_after(log: Log, version: Version = NOTHING, through: Version | None = None) -> Iterator[Commit]:
    """The commits that follow a version, as a replica reads them."""
    while (through is None or version < through) and (commit := log.commit(Version(version + 1))) is not None:
        yield commit
        version = Version(commit.version)


def overwrite(storage: Storage, name: str, data: bytes) -> None:
    """Replaces an object, which Holdfast itself never does."""
    storage.delete([name])
    storage.create(name, data)


@contextmanager
def crash_at(point: str) -> Iterator[None]:
    """Runs the block, which a fault at this point has to end."""

    def crash() -> None:
        raise faults.InjectedFault(point)

    with faults.active({point: crash}), pytest.raises(faults.InjectedFault):
        yield


def load(log: Log, manifest: Manifest, into: Path, on_bytes: OnBytes = ignore_bytes) -> None:
    """Loads a snapshot into a folder, with nothing but what the folder has."""
    loading = log.snapshots.loading(manifest, into, FileFetcher(), on_bytes)
    loading.take_local([])
    loading.fetch()


class Watched:
    """A real storage that records its calls and runs a hook before or after each, to fail or to write meanwhile."""

    def __init__(
        self,
        inner: Storage,
        *,
        before: Callable[[str, str], None] = lambda call, name: None,
        after: Callable[[str, str], None] = lambda call, name: None,
    ) -> None:
        self.inner = inner
        self.before = before
        self.after = after
        self.calls: list[tuple[str, str]] = []

    @property
    def place(self) -> str:
        return self.inner.place

    def create(self, name: str, data: bytes) -> Put:
        self._record("create", name)
        put = self.inner.create(name, data)
        self.after("create", name)
        return put

    def create_file(self, name: str, path: Path) -> None:
        self._record("create_file", name)
        self.inner.create_file(name, path)
        self.after("create_file", name)

    def replace(self, name: str, data: bytes) -> None:
        self._record("replace", name)
        self.inner.replace(name, data)
        self.after("replace", name)

    def get(self, name: str) -> bytes:
        self._record("get", name)
        return self.inner.get(name)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        self._record("get_range", name)
        return self.inner.get_range(name, start, length)

    def exists(self, name: str) -> bool:
        self._record("exists", name)
        return self.inner.exists(name)

    def list(self, prefix: str, after: str | None = None, before: str | None = None) -> Names:
        self._record("list", prefix)
        return self.inner.list(prefix, after, before)

    def list_flat(self, prefix: str) -> Names:
        self._record("list_flat", prefix)
        return self.inner.list_flat(prefix)

    def delete(self, names: Iterable[str]) -> None:
        deleted = list(names)
        for name in deleted:
            self._record("delete", name)
        self.inner.delete(deleted)

    def _record(self, call: str, name: str) -> None:
        self.calls.append((call, name))
        self.before(call, name)


def timeline(
    log: str = "l0g",
    *,
    newest: int = 0,
    position: int | None = None,
    commits: Mapping[int, str] = {},
    folders: Mapping[str, int] = {},
) -> Timeline:
    """The versions of a log as a sink finds them, with the ids of the commits that the log has."""
    return Timeline(
        log=log,
        newest=Version(newest),
        position=None if position is None else Version(position),
        commit_of=dict[Version, str]((Version(version), commit) for version, commit in commits.items()).get,
        folders={folder: Version(at) for folder, at in folders.items()},
    )
