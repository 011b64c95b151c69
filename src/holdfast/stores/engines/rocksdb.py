"""RocksDB as an engine: one database per task, one column family per store.

The write-ahead log is off: the app's log replaces it, and a replica that was killed reads again what it had not
flushed. A kill loses the last writes of each family, a different number for each, but never earlier ones: a family's
memtables reach the disk in the order in which they were filled, and a batch is never split over two. So a family's
mark, written among its data, always matches that data, and `family_marks` combines the marks of all families. The
engine's own mark is in RocksDB's default family.

Only this module and its neighbours (`rocksdb_views`, `rocksdb_errors`, `tuning`) import rocksdict. They work around the
limits of its release 0.3.29:
- iterators of its snapshots read the newest state, so a view has one iterator per family instead;
- its `items()` ends without an error at a damaged block, so scans check an iterator's status at the end;
- a write that RocksDB delays would hold Python's GIL meanwhile, and after a full disk for ever: RocksDB's recovery
  wants to flush and queues behind the write that waits for a flush. So RocksDB refuses such a write (`no_slowdown`),
  and Python tries it again;
- iterators and family handles keep a closed database open, so `close` releases all of them. An error keeps the local
  variables of the functions it came through, and an engine that failed is opened again while its error is handled. So
  no function that an error leaves has an iterator or a family handle: `translated` clears those that it calls, and
  those that use `translated` have names of families and `Rdict`s, which `close` closes wherever they are.
"""

import contextlib
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import rocksdict as rd

from holdfast import faults
from holdfast.backoff import backoff
from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import Closed, HoldfastError
from holdfast.settings.sections import RetrySettings
from holdfast.stores.engines import rocksdb_families, rocksdb_metrics
from holdfast.stores.engines.base import (
    FIRST_KEY,
    Changes,
    Mark,
    Resources,
    family_of,
    folder_bytes,
    mark_after_changes,
    mark_before_changes,
)
from holdfast.stores.engines.family_marks import FamilyMark, combined, pack_mark, unpack_mark
from holdfast.stores.engines.open_views import OPEN_VIEWS
from holdfast.stores.engines.profiles import MIB
from holdfast.stores.engines.reclaim import Range, Reclaimer
from holdfast.stores.engines.rocksdb_errors import BadOptions, is_write_stall, translated
from holdfast.stores.engines.rocksdb_options import rejected_options, written_options
from holdfast.stores.engines.rocksdb_views import RocksView, is_empty
from holdfast.stores.engines.tuning import Tuning
from holdfast.stores.formats.byte_columns import as_type
from holdfast.stores.formats.key_order import read_in_key_order
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, Version

_LOG = logging.getLogger(__name__)

MARK_KEY, ENGINE_MARK_KEY = b"\x00mark", b"\x00engine"
"""The keys of a family's mark, and of the engine's in the default family. Keys of stores never begin with 0x00."""

GET_ROWS = 1_000
"""Keys per call to RocksDB: the fastest of 100, 1,000 and 5,000. Other threads run between two calls."""

_STALL_RETRY = RetrySettings(first="1ms", longest="1m")


class RocksEngine:
    """An `Engine` on one RocksDB."""

    def __init__(self, path: Path, stores: Sequence[StoreSpec], resources: Resources) -> None:
        families = tuple(spec.name for spec in stores)
        self._path = path
        self._stores = families
        self._tuning = resources.shared(Tuning, lambda memory: Tuning(memory, resources.disk, lambda: resources.files))
        self._database = self._tuning.database(stores)
        self._lock = threading.RLock()
        self._views: weakref.WeakSet[RocksView] = weakref.WeakSet()
        self._write = rd.WriteOptions()
        self._write.memtable_insert_hint_per_batch = True  # a batch is sorted
        self._write.disable_wal = True  # type: ignore[method-assign,assignment]  # the stub is wrong: an attribute
        self._write.no_slowdown = True
        with translated(path, opening=True):
            path.mkdir(parents=True, exist_ok=True)
            self._tuning.caches.hold(families)
            try:
                db = self._open(stores)
            except BaseException:
                self._tuning.caches.release(families)
                raise
            self._db: rd.Rdict | None = db
            self._families = {name: db.get_column_family(name) for name in families}
            self._handles = {name: db.get_column_family_handle(name) for name in families}
            # Separate handles: a handle that is compacting can't be closed, and the others must be.
            self._compacted = {name: db.get_column_family(name) for name in families}
            self._reclaimer = Reclaimer(self._compact)
            self._marks_counted = dict.fromkeys(families, 0)
            """How many marks RocksDB counts among the keys of a family: those since its flush, and one in files."""
            try:
                self._marks = self._found_marks(db)
            except BaseException:
                self.close()
                raise
        rocksdb_metrics.ENGINES.add(self)

    def _open(self, stores: Sequence[StoreSpec]) -> rd.Rdict:
        families = self._tuning.families(stores)
        present: list[str] = []
        if (self._path / "CURRENT").exists():
            present = rd.Rdict.list_cf(str(self._path), self._database)
        gone = {*present} - {*families, "default"}
        others = {"default": self._tuning.marks} | {name: self._tuning.plain() for name in gone}
        db = rd.Rdict(str(self._path), self._database, others | families)
        if self._tuning.files().is_scarce and not families.keys() <= set(present):
            # A family keeps its folder open for as long as the database that has created it.
            db.close()
            db = rd.Rdict(str(self._path), self._database, others | families)
        has_hook = any(spec.options_hook is not None for spec in stores)
        if has_hook and (rejected := rejected_options(written_options(self._path), families)):
            db.close()
            raise BadOptions(self._path, "; ".join(rejected))
        for name in sorted(gone):
            # The app no longer has this store. If it ever gets it again, it must not find this outdated state.
            db.drop_column_family(name)
        return db

    def _found_marks(self, db: rd.Rdict) -> FamilyMark | None:
        def mark_in(family: rd.Rdict, key: bytes) -> FamilyMark | None:
            data = family.get(key)
            return None if data is None else unpack_mark(data)

        own = {name: mark_in(family, MARK_KEY) for name, family in self._families.items()}
        self._marks_counted |= {name: 1 for name, mark in own.items() if mark is not None}
        return combined(own, mark_in(db, ENGINE_MARK_KEY))

    def mark(self) -> Mark | None:
        self._open_db()
        return None if self._marks is None else self._marks.mark

    def _last_changes(self) -> dict[str, Version]:
        return dict.fromkeys(self._stores, NOTHING) if self._marks is None else dict(self._marks.changed)

    def get_many(self, family: str, keys: pa.Array) -> pa.BinaryArray:
        store = self._family(family)
        self._tuning.caches.read(family, len(keys))
        keys = as_type(keys, pa.binary())
        if len(keys) <= GET_ROWS:
            return self._get_sorted(store, keys)
        return read_in_key_order(keys, partial(self._get_sorted, store))

    def _get_sorted(self, store: rd.Rdict, keys: pa.BinaryArray) -> pa.BinaryArray:
        found: list[pa.Array] = []
        with translated(self._path):
            for start in range(0, len(keys), GET_ROWS):
                values = store.get(keys.slice(start, GET_ROWS).to_pylist())
                found.append(pa.array(values, type=pa.binary()))
        return pa.concat_arrays(found) if found else pa.array([], type=pa.binary())

    def apply(self, changes: Iterable[tuple[str, Changes]], mark: Mark) -> None:
        with self._lock:
            db = self._open_db()
            self._outdate_views()
            faults.point("apply.before")
            before, last_changes = self.mark(), self._last_changes()
            changed: list[str] = []
            self._marks = FamilyMark(mark_before_changes(before, mark), last_changes)
            for family, change in changes:  # which may read the log: its errors aren't those of this engine
                with translated(self._path):
                    self._family(family)
                    if family not in changed:
                        changed.append(family)
                        self._marks_counted[family] += 2
                        self._write_batch(db, partial(self._mark_batch, [family], self._marks))
                    for keys, values in change.in_key_order().chunks():
                        self._write_batch(db, partial(self._chunk, family, keys, values))
                        faults.point("apply.middle")
            now_changed = dict.fromkeys(changed, mark.version)
            with translated(self._path):
                after = FamilyMark(mark_after_changes(before, mark), last_changes | now_changed)
                self._write_batch(db, partial(self._mark_batch, changed, after, engine=True))
                self._marks = after
                faults.point("apply.after")
        self._flush_large_buffers()

    def _flush_large_buffers(self) -> None:
        """Flushes large write buffers if those of all stores exceed their budget.

        RocksDB would flush them later, but the next view would keep them in memory until the view after it. With 4
        tasks of 4 stores, views kept 140 MiB instead of 60, and a restore took 710 and 750 MiB of resident memory
        instead of 600 and 630, in the same time.
        """
        if self._tuning.writes.get_usage() <= self._tuning.write_bytes:
            return
        with translated(self._path):
            for family in list(self._families.values()):
                if (family.property_int_value("rocksdb.cur-size-all-mem-tables") or 0) > MIB:
                    family.flush()

    def _write_batch(self, db: rd.Rdict, batch: Callable[[], rd.WriteBatch]) -> None:
        """Writes a batch, again and again while RocksDB would delay it. Each attempt needs a batch of its own.

        The waits grow, since RocksDB counts every refused write into its limit of bytes per second.
        """
        for failures in itertools.count(1):
            try:
                db.write(batch(), self._write)
                return
            except Exception as error:
                if not is_write_stall(error):
                    raise
            SYSTEM_CLOCK.sleep(backoff(failures, _STALL_RETRY))

    def drop(self, family: str, start: bytes, stop: bytes) -> None:
        start = max(start, FIRST_KEY)
        with self._lock, translated(self._path):
            db, store = self._open_db(), self._family(family)
            if is_empty(store, start, stop):
                return  # it costs one seek, and no range delete that slows readers down
            self._outdate_views()
            self._write_batch(db, partial(self._range_deletion, family, start, stop))
        self._reclaimer.add((family, start, stop))

    def _compact(self, range_: Range) -> None:
        family, start, stop = range_
        try:
            with translated(self._path):
                self._compacted[family].compact_range(start, stop)
        except HoldfastError as error:
            _LOG.warning("the disk space of entries dropped from %s isn't free yet: %s", family, error)

    def wait_until_reclaimed(self, timeout: float | None = None) -> bool:
        """Waits until the disk space of dropped ranges is free; False after the timeout."""
        return self._reclaimer.wait(timeout)

    def view(self) -> "RocksView":
        with self._lock, translated(self._path):
            db = self._open_db()
            view = RocksView(self._path, self._families, self._tuning.caches.read, db.latest_sequence_number)
            self._views.add(view)
            return view

    def _outdate_views(self) -> None:
        OPEN_VIEWS.mark_outdated([view.opened for view in self._views])

    def flush(self) -> None:
        db = self._open_db()
        with translated(self._path):
            for name, family in list(self._families.items()):  # RocksDB writes no file for one without new entries
                self._marks_counted[name] = min(1, self._marks_counted[name])
                family.flush()
            db.flush()

    def checkpoint(self, folder: Path) -> None:
        # The first flush runs without the lock, so that the second one is short.
        self.flush()
        with self._lock, translated(self._path):
            db = self._open_db()
            self.flush()
            folder.parent.mkdir(parents=True, exist_ok=True)
            rd.Checkpoint(db).create_checkpoint(str(folder))

    def close(self) -> None:
        with self._lock:
            if self._db is None:
                return
            rocksdb_metrics.ENGINES.remove(self)
            db, self._db = self._db, None
            for view in list(self._views):
                view.close()
            families, compacted = list(self._families.values()), list(self._compacted.values())
            self._families, self._handles = {}, {}
            is_compacting = self._reclaimer.end()
            with contextlib.ExitStack() as closing:
                closing.callback(self._tuning.caches.release, self._stores)
                closing.callback(self._compacted.clear)
                # Closing a handle flushes its family and may fail; the other handles are closed nevertheless.
                for handle in [*families, *compacted, db]:
                    closing.enter_context(translated(self._path))
                    closing.callback(self._close_flushed if is_compacting else rd.Rdict.close, handle)
                if is_compacting:
                    closing.callback(self._stop_compacting, db)
                    for family in [db, *families]:
                        closing.enter_context(translated(self._path))
                        closing.callback(family.flush)

    def _stop_compacting(self, db: rd.Rdict) -> None:
        """Stops the running compaction, in about a millisecond. After this nothing can be flushed."""
        db.cancel_all_background(False)
        self._reclaimer.wait()

    @staticmethod
    def _close_flushed(handle: rd.Rdict) -> None:
        """Closes a handle after its flush. RocksDB reports an error, as it can't flush once more."""
        with contextlib.suppress(Exception):
            handle.close()

    def approximate_count(self, family: str) -> int:
        """RocksDB's own estimate: keys that were overwritten and not yet compacted count more than once.

        Marks are not entries, and it counts each of them until the next flush.
        """
        with translated(self._path):
            estimate = self._family(family).property_int_value("rocksdb.estimate-num-keys") or 0
        return max(0, estimate - self._marks_counted[family])

    def memory_bytes(self) -> int:
        """The memory of write buffers and open files; block caches belong to the process and aren't included."""
        names = ("rocksdb.cur-size-all-mem-tables", "rocksdb.estimate-table-readers-mem")
        self._open_db()
        with translated(self._path):
            return sum(store.property_int_value(name) or 0 for store in list(self._families.values()) for name in names)

    def stores(self) -> Sequence[str]:
        return self._stores

    def properties(self, family: str) -> dict[str, int]:
        """RocksDB's properties of one store, by RocksDB's names. All tasks of a store share its cache."""
        store = self._family(family)
        with translated(self._path):
            names = (*rocksdb_metrics.PROPERTIES, *rocksdb_metrics.CACHE_PROPERTIES)
            return {name: store.property_int_value(f"rocksdb.{name}") or 0 for name in names}

    def counts(self, family: str) -> dict[str, float]:
        """RocksDB's counters of one store since this database was opened."""
        store = self._family(family)
        with translated(self._path):
            return rocksdb_families.parse_counters(store.property_value(rocksdb_families.PROPERTY) or "")

    def statistics(self) -> dict[str, int]:
        """RocksDB's counters of this database's stores, over all tasks of this process that have the same stores."""
        self._open_db()
        with translated(self._path):
            return rocksdb_metrics.parse_statistics(self._database.get_statistics() or "")

    def disk_bytes(self) -> int:
        self._open_db()
        return folder_bytes(self._path)

    def _open_db(self) -> rd.Rdict:
        if self._db is None:
            raise Closed(f"the engine of {self._path} is closed. Open it again.")
        return self._db

    def _family(self, name: str) -> rd.Rdict:
        self._open_db()
        return family_of(self._families, name)

    def _chunk(self, family: str, keys: Sequence[bytes], values: Sequence[bytes | None]) -> rd.WriteBatch:
        batch = rd.WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._handles[family])
        for key, value in zip(keys, values, strict=True):
            if value is None:
                del batch[key]
            else:
                batch[key] = value
        return batch

    def _mark_batch(self, families: Iterable[str], mark: FamilyMark, *, engine: bool = False) -> rd.WriteBatch:
        """Writes a mark to some families and, with `engine`, as the engine's own."""
        batch, data = rd.WriteBatch(raw_mode=True), pack_mark(mark)
        for family in families:
            batch.put(MARK_KEY, data, self._handles[family])
        if engine:
            batch.put(ENGINE_MARK_KEY, data)
        return batch

    def _range_deletion(self, family: str, start: bytes, stop: bytes) -> rd.WriteBatch:
        batch = rd.WriteBatch(raw_mode=True)
        batch.delete_range(start, stop, self._handles[family])
        return batch
