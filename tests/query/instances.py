"""Real instances on a real log, with REST beside them, and a driver's side that commits what a test says."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pyarrow as pa

from holdfast.chance import new_id
from holdfast.clock import SystemClock
from holdfast.instance.config import InstanceConfig, Role, encode
from holdfast.instance.instance import Instance
from holdfast.instance.replica import Replica
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import Clocks, Commit, Writer
from holdfast.log.log import Log
from holdfast.log.segments import STATE, STATE_SCHEMA, SegmentRef, seal
from holdfast.log.storage import open_storage
from holdfast.observe.endpoints import endpoints
from holdfast.observe.health import LastErrors
from holdfast.query.service import RestService, not_ready, readable_version, store_reader
from holdfast.settings import LogSettings, MemorySettings, RestSettings, SnapshotSettings
from holdfast.stores.formats.cells import Cell, pack
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId, Version
from tests.query.held import payload


class Driver:
    """Makes versions, without Spark."""

    def __init__(self, url: str, app: AppSpec, *, inline_limit: int = 1 << 20) -> None:
        self._inline_limit = inline_limit
        self.log = Log.create_or_open(open_storage(url, fsync=False), app)
        newest = self.log.newest()
        self.version = Version(0 if newest is None else newest.version)
        self._previous = None if newest is None else newest.id

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
            keys = sorted(cells)
            table = pa.table({"key": keys, "value": [cells[key] for key in keys]}, schema=STATE_SCHEMA)
            sealed = seal([(STATE, store.name, table)])
            segments[str(task)] = (self.log.write_segment(task, version, sealed, inline_limit=self._inline_limit),)
        commit = Commit(
            version=version,
            id=new_id(),
            previous=self._previous,
            log=self.log.id,
            app=self.log.app.number,
            clocks=Clocks(version, None, {}),
            spark=None,
            segments=segments,
            counts={},
            writer=Writer.here("test"),
        )
        self.log.create_commit(commit)
        self.version, self._previous = version, commit.id
        return version


def config(folder: Path, name: str, tasks: list[TaskId]) -> InstanceConfig:
    return InstanceConfig(
        app="game",
        name=name,
        log_url=str(folder / "log"),
        state_dir=str(folder / name),
        tasks={str(task): Role.ACTIVE for task in tasks},
        poll_seconds=0.05,
        log=LogSettings(fsync=False),
        memory=MemorySettings(limit="128MiB"),
        snapshots=SnapshotSettings(enabled=False),
        rest=RestSettings(port=0),
    )


@contextmanager
def process(config: InstanceConfig) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """An instance as a process of its own, and the address of its REST once it is ready."""
    root = Path(__file__).parents[2]
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.query.run_instance"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"},
    )
    try:
        assert started.stdin is not None
        assert started.stdout is not None
        started.stdin.write(encode(config) + b"\n")
        started.stdin.flush()
        url = json.loads(started.stdout.readline())["rest"]
        eventually(lambda: httpx2.get(url + "/health/ready").status_code == 200)
        yield started, url
    finally:
        started.kill()
        started.communicate()


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)


def replicas_of(instance: Instance) -> list[Replica]:
    return [hosted.replica for hosted in instance.hosted()]


def rest(instance: Instance) -> RestService:
    """REST with health and metrics, put together as the `holdfast instance` command does it."""
    errors = LastErrors(SystemClock())
    reader = store_reader(instance, errors.record)
    more = endpoints(
        stores=reader.names(),
        read=reader.probe,
        errors=errors,
        not_ready=lambda: not_ready(instance),
        version=lambda: readable_version(instance),
    )
    return RestService(instance, reader, more)
