"""Logs made without Spark, for benchmarks of instances: counts per key, version after version."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rich.progress import track

from benchmarks.common import console
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import FORMAT, Clocks, Commit, Writer, new_id
from holdfast.log.log import Log
from holdfast.log.segments import STATE, STATE_SCHEMA, SegmentRef, seal
from holdfast.log.storage import open_storage
from holdfast.stores.cells import pack_many
from holdfast.stores.keys import encode_keys
from holdfast.stores.partition import partitions_of
from holdfast.stores.rows import encode_rows
from holdfast.stores.spec import StoreSpec
from holdfast.stores.types import Schema
from holdfast.words import Version

SPEC = StoreSpec(
    name="counts", key=Schema.of(key="bigint"), value=Schema.of(count="bigint"), codec="rows/1", engine="rocksdb"
)


class History:
    """A log that grows by versions of given keys."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self.url = str(folder)
        self.partitions = partitions
        spec = AppSpec(id="bench", partitions=partitions, stores=(SPEC,), topologies={"counts": 0})
        self.log = Log.create_or_open(open_storage(self.url, {}, fsync=False), spec)
        self.newest: Commit | None = None

    @property
    def version(self) -> Version:
        return Version(self.newest.version if self.newest else 0)

    def add(self, keys: npt.NDArray[np.int64]) -> Version:
        """One version that sets each key's count to the version's number."""
        version = Version(self.version + 1)
        where = partitions_of(SPEC.key, [pa.array(keys)], self.partitions)
        segments: dict[str, tuple[SegmentRef, ...]] = {}
        for task in self.log.app.tasks():
            mine = keys[where == task.partition]
            assert SPEC.value is not None
            rows = encode_rows(SPEC.value, [pa.array(np.full(len(mine), version))])
            table = pa.table([encode_keys(SPEC.key, [pa.array(mine)]), pack_many(rows)], schema=STATE_SCHEMA)
            sealed = seal([(STATE, "counts", table)])
            segments[str(task)] = (self.log.write_segment(task, version, sealed, inline_limit=0),)
        commit = Commit(
            format=FORMAT,
            version=version,
            id=new_id(),
            previous=self.newest.id if self.newest else None,
            log=self.log.id,
            app=1,
            clocks=Clocks(wall=version, event=None, sources={}),
            spark=None,
            segments=segments,
            counts={},
            writer=Writer.here("bench"),
        )
        self.log.create_commit(commit)
        self.newest = commit
        return version


def grown(folder: Path, *, partitions: int, keys: int, updates: int, versions: int) -> History:
    """A history in which every key is written at least once and `updates` entries in all."""
    history = History(folder, partitions)
    dice = np.random.default_rng(3)
    each = updates // versions
    every = np.array_split(dice.permutation(keys), versions)
    for part in track(every, description="writing the log", console=console, transient=True):
        again = dice.integers(0, keys, max(0, each - len(part)))
        history.add(np.unique(np.concatenate([part, again])))
    return history
