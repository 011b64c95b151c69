"""Real instances on a real log, with REST beside them, and a driver's side that commits what a test says."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from holdfast.clock import SystemClock
from holdfast.instance.process import Instance, InstanceConfig
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import Clocks, Commit, Writer, new_id
from holdfast.log.log import Log
from holdfast.log.segments import STATE, STATE_SCHEMA, SegmentRef, seal
from holdfast.log.storage import open_storage
from holdfast.observe.endpoints import endpoints
from holdfast.observe.health import LastErrors
from holdfast.query.beside import RestBeside, not_ready, readable_version, reader_of
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
        version = Version(self.version + 1)
        by_task: dict[TaskId, dict[bytes, bytes | None]] = {}
        for key, value in entries.items():
            partition = partition_of(store.key, key, self.log.app.partitions)
            cell = None if value is None else pack(Cell(payload(store, value), schema=schema))
            task = TaskId(self.log.app.topologies[store.name], partition)
            by_task.setdefault(task, {})[encode_key(store.key, key)] = cell
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
        fsync=False,
        state_dir=str(folder / name),
        tasks=tuple(map(str, tasks)),
        memory_bytes=128 << 20,
        snapshots_enabled=False,
        poll_seconds=0.05,
    )


def rest(instance: Instance) -> RestBeside:
    """REST with health and metrics, put together as the `holdfast instance` command does it."""
    errors = LastErrors(SystemClock())
    reader = reader_of(instance, errors.note)
    more = endpoints(
        stores=reader.names(),
        read=reader.probe,
        errors=errors,
        not_ready=lambda: not_ready(instance),
        version=lambda: readable_version(instance),
    )
    return RestBeside(instance, reader, more)
