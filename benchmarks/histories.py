"""Logs written without Spark, for benchmarks of instances: counts per key, in many versions."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs
from rich.progress import track

from benchmarks.common import console
from holdfast.chance import new_id
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import FORMAT, Clocks, Commit, Writer
from holdfast.log.log import Log
from holdfast.log.segments import STATE, STATE_SCHEMA, SegmentRef, seal
from holdfast.log.storage import open_storage
from holdfast.stores.formats.cells import pack_many
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.partition import partitions_of
from holdfast.stores.formats.rows import encode_rows
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.slices import sliced_keys
from holdfast.stores.spec import SESSION, VERSIONED, WINDOW, RowValues, StoreSpec
from holdfast.words import Version
from tests.log.making import subtopologies_of

SPEC = StoreSpec(
    name="counts",
    key=Schema.of(key="bigint"),
    value=RowValues(Schema.of(count="bigint")),
    codec="rows/1",
    engine="rocksdb",
)
BLOBS = structs.replace(SPEC, name="blobs", value=RowValues(Schema.of(count="bigint", blob="binary")))


STEP_MS = 1_000
"""How far the clocks advance from one version to the next."""


def _other(name: str, kind: str) -> StoreSpec:
    return structs.replace(SPEC, name=name, kind=kind, retention_ms=8 * STEP_MS, slice_ms=STEP_MS, clock="wall")


OTHER_KINDS = (_other("visits", WINDOW), _other("sittings", SESSION), _other("prices", VERSIONED))
"""Stores of other kinds. Each gets an entry for every fourth key, and drops one slice per version."""


class History:
    """A log that grows by versions of given keys. With `blob_bytes`, each value has so many random bytes too."""

    def __init__(self, folder: Path, partitions: int, others: Sequence[StoreSpec] = (), *, blob_bytes: int = 0) -> None:
        self.url = str(folder)
        self.spec = BLOBS if blob_bytes else SPEC
        self._blob_bytes = blob_bytes
        self._dice = np.random.default_rng(11)
        self.partitions = partitions
        self.others = tuple(others)
        stores = (self.spec, *self.others)
        topologies = {store.name: 0 for store in stores}
        spec = AppSpec(id="bench", partitions=partitions, stores=stores, subtopologies=subtopologies_of(topologies))
        self.log = Log.create_or_open(open_storage(self.url, {}, fsync=False), spec)
        self.newest: Commit | None = None

    @property
    def version(self) -> Version:
        return Version(self.newest.version if self.newest else 0)

    def add(self, keys: npt.NDArray[np.int64]) -> Version:
        """Adds a version that sets the count of each key to the version's number."""
        version = Version(self.version + 1)
        where = partitions_of(SPEC.key, [pa.array(keys)], self.partitions)
        segments: dict[str, tuple[SegmentRef, ...]] = {}
        for task in self.log.app.tasks():
            mine = keys[where == task.partition]
            parts = [(STATE, self.spec.name, self._blobs(mine, version) if self._blob_bytes else _table(mine, version))]
            parts += [(STATE, store.name, _in_slices(store, mine[::4], version)) for store in self.others]
            sealed = seal(parts)
            segments[str(task)] = (self.log.write_segment(task, version, sealed, inline_limit=0),)
        commit = Commit(
            format=FORMAT,
            version=version,
            id=new_id(),
            previous=self.newest.id if self.newest else None,
            log=self.log.id,
            app=1,
            clocks=Clocks(wall=version * STEP_MS, event=None, sources={}),
            spark=None,
            segments=segments,
            counts={},
            writer=Writer.here("bench", 1),
        )
        self.log.create_commit(commit)
        self.newest = commit
        return version

    def _blobs(self, keys: npt.NDArray[np.int64], version: int) -> pa.Table:
        data = pa.py_buffer(self._dice.bytes(len(keys) * self._blob_bytes))
        offsets = pa.py_buffer(np.arange(len(keys) + 1, dtype=np.int32) * np.int32(self._blob_bytes))
        blobs = pa.Array.from_buffers(pa.binary(), len(keys), [None, offsets, data])
        rows = encode_rows(BLOBS.columns, [pa.array(np.full(len(keys), version)), blobs])
        return pa.table([encode_keys(BLOBS.key, [pa.array(keys)]), pack_many(rows)], schema=STATE_SCHEMA)


def _table(keys: npt.NDArray[np.int64], version: int) -> pa.Table:
    rows = encode_rows(SPEC.columns, [pa.array(np.full(len(keys), version))])
    return pa.table([encode_keys(SPEC.key, [pa.array(keys)]), pack_many(rows)], schema=STATE_SCHEMA)


def _in_slices(store: StoreSpec, keys: npt.NDArray[np.int64], version: int) -> pa.Table:
    """The counts as timed entries: in the slice of the version, with the time after the key.

    A versioned store has the latest value of a key under the plain key too.
    """
    plain = _table(keys, version)
    time = pa.scalar((version * STEP_MS).to_bytes(8, "big"), pa.binary())
    timed = pc.binary_join_element_wise(plain["key"].combine_chunks(), time, pa.scalar(b"", pa.binary()))
    sliced = pa.table([sliced_keys(version * STEP_MS // store.slice_ms, timed), plain["value"]], schema=STATE_SCHEMA)
    return pa.concat_tables([plain, sliced]) if store.kind == VERSIONED else sliced


def grown(
    folder: Path, *, partitions: int, keys: int, updates: int, versions: int, others: Sequence[StoreSpec] = ()
) -> History:
    """A history with `updates` entries in total, in which every key is written at least once."""
    history = History(folder, partitions, others)
    dice = np.random.default_rng(3)
    per_version = updates // versions
    parts = np.array_split(dice.permutation(keys), versions)
    for part in track(parts, description="writing the log", console=console, transient=True):
        again = dice.integers(0, keys, max(0, per_version - len(part)))
        history.add(np.unique(np.concatenate([part, again])))
    return history
