"""The sizing calculator against a real instance with 5 million keys of 200 bytes.

    make sizes

The instance is a process with the estimated memory limit. Its memory and disk are measured while it restores and
answers bulk reads, and every figure is printed with its estimate.
"""

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import rocksdict as rd

from holdfast.instance.client import StateClient
from holdfast.instance.config import InstanceConfig, Role
from holdfast.log.log import Log
from holdfast.log.segments import STATE, STATE_SCHEMA, SegmentRef, seal
from holdfast.log.storage import open_storage
from holdfast.settings.rest import RestSettings
from holdfast.settings.sections import LogSettings, MemorySettings, SnapshotSettings
from holdfast.settings.units import shown_size
from holdfast.sizing import SNAPSHOTS, Load, estimate
from holdfast.stores.formats.byte_columns import from_matrix
from holdfast.stores.formats.cells import pack_many
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.partition import partitions_of
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version
from tests.instance.processes import Process, until
from tests.log.making import app_spec, next_commit

LOAD = Load(keys=5e6, value_bytes=200, key_bytes=16, partitions=8, stores=1)
VERSIONS = 10
SPEC = StoreSpec(name="profiles", key=Schema.of(k="string"), codec="bytes/1", engine="rocksdb")


def names_of(number: int) -> pa.Array:
    """A version's keys: 16 hexadecimal digits each."""
    drawn = np.random.default_rng(number).integers(0, 256, (round(LOAD.keys) // VERSIONS, 8), dtype=np.uint8)
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    texts = np.empty((len(drawn), 16), dtype=np.uint8)
    texts[:, 0::2], texts[:, 1::2] = digits[drawn >> 4], digits[drawn & 15]
    return from_matrix(texts).cast(pa.string())


def values_of(number: int) -> pa.Array:
    """Values that can't be compressed."""
    rows = round(LOAD.keys) // VERSIONS
    drawn = np.random.default_rng(100 + number).bytes(rows * LOAD.value_bytes)
    return from_matrix(np.frombuffer(drawn, dtype=np.uint8).reshape(rows, LOAD.value_bytes))


def write_log(folder: Path) -> Log:
    """Every key written once, in ten versions."""
    log = Log.create_or_open(open_storage(str(folder), fsync=False), app_spec(SPEC, partitions=LOAD.partitions))
    previous = None
    for number in range(1, VERSIONS + 1):
        version, names = Version(number), names_of(number)
        entries = pa.table([encode_keys(SPEC.key, [names]), pack_many(values_of(number))], schema=STATE_SCHEMA)
        where = partitions_of(SPEC.key, [names], LOAD.partitions)
        segments: dict[str, tuple[SegmentRef, ...]] = {}
        for task in log.app.tasks():
            sealed = seal([(STATE, SPEC.name, entries.filter(pa.array(where == task.partition)))])
            segments[str(task)] = (log.write_segment(task, version, sealed, inline_limit=0),)
        previous = next_commit(log, previous, segments)
        log.create_commit(previous)
    return log


class Watch(threading.Thread):
    """The peak memory of a process and the peak size of a folder."""

    def __init__(self, pid: int, folder: Path) -> None:
        super().__init__(daemon=True)
        self.resident = self.disk = 0
        self.done = threading.Event()
        self._pid, self._folder = pid, folder

    def run(self) -> None:
        while not self.done.wait(0.1):
            status = Path(f"/proc/{self._pid}/status").read_text()
            found = re.search(r"VmRSS:\s+(\d+)", status)
            self.resident = max(self.resident, int(found[1]) << 10 if found else 0)
            self.disk = max(self.disk, sum(sizes(self._folder)))


def sizes(folder: Path, pattern: str = "*") -> Iterator[int]:
    """Bytes of each file; compactions may delete files meanwhile."""
    for path in folder.rglob(pattern):
        try:
            yield path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue


def lookup_bytes(folder: Path) -> int:
    """Bytes of filters and indexes in a task's tables, as RocksDB reports them."""
    families = [name for name in rd.Rdict.list_cf(str(folder)) if name != "default"]
    db = rd.Rdict(str(folder), rd.Options(raw_mode=True), {name: rd.Options(raw_mode=True) for name in families})
    texts = [
        db.get_column_family(each).property_value("rocksdb.aggregated-table-properties") or "" for each in families
    ]
    db.close()
    return sum(int(size) for text in texts for size in re.findall(r"(?:index|filter) block size[^=]*=(\d+)", text))


def run_instance(log: Log, folder: Path, memory: int) -> Watch:
    """Restores all tasks in an instance with this limit, reads some entries of each version, and stops it."""
    config = InstanceConfig(
        app="scores",
        name="estimate-0",
        log_url=str(folder / "log"),
        app_file=log.app.number,
        state_dir=str(folder / "state"),
        tasks={str(task): Role.ACTIVE for task in log.app.tasks()},
        log=LogSettings(fsync=False),
        memory=MemorySettings(limit=memory),
        snapshots=SnapshotSettings(enabled=False),
        rest=RestSettings(enabled=False),
    )
    with Process(config, ("-m", "holdfast", "instance")) as process:
        watch = Watch(process.pid, folder / "state")
        watch.start()
        with StateClient(process.addresses()["flight"], 120) as client:
            until(lambda: client.status().ready, "restored", seconds=300)
            for number in range(1, VERSIONS + 1):
                read_back(client, log, number)
        watch.done.set()
        watch.join()
        process.terminate()
        assert process.wait()[0] == 0
    return watch


def read_back(client: StateClient, log: Log, number: int) -> None:
    names = names_of(number)
    values, where = values_of(number), partitions_of(SPEC.key, [names], LOAD.partitions)
    for task in log.app.tasks():
        mine = pa.array(np.flatnonzero(where == task.partition)[::8])
        found = client.get_many(task, SPEC.name, Version(VERSIONS), encode_keys(SPEC.key, [names.take(mine)]))
        assert found.equals(pack_many(values.take(mine)))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_instance_with_5_million_keys_is_as_estimated(tmp_path: Path) -> None:
    size = estimate(LOAD)
    log = write_log(tmp_path / "log")
    watch = run_instance(log, tmp_path, round(size.memory.bytes))
    state = sum(sizes(tmp_path / "state", "*.sst"))
    lookup = sum(lookup_bytes(path.parent) for path in (tmp_path / "state").rglob("CURRENT"))
    segments = sum(sizes(tmp_path / "log" / "segments"))
    figures = (
        ("state", state, size.state.bytes, 1.15),
        ("disk, at most", watch.disk, size.disk.bytes, 1.0),
        ("filters and indexes", lookup, estimate(replace(LOAD, hot=0.0)).in_cache.bytes, 1.3),
        ("memory, at most", watch.resident, size.memory.bytes, 1.15),
        ("log, without snapshots", segments, size.log.bytes - SNAPSHOTS * size.state.bytes, 1.15),
    )
    for what, found, expected, _ in figures:
        print(f"{what:24} {shown_size(found):>12} of {shown_size(expected):>12} estimated: {found / expected:.3f}")
    for what, found, expected, most in figures:
        assert found <= most * expected, what
        assert "at most" in what or found >= (2 - most) * expected, what
