"""RocksDB as an engine: one database a task, one column family a store.

The write-ahead log is off. The app's log is one already, and a replica that was killed reads again what it had not
flushed. What is lost in a kill is then the end of each family's writes, a different end for each, and never the middle:
a family's memtables reach the disk in the order in which they were filled, and a batch is never split over two. So a
family's mark, written among its data, is always true of it, and `engine.whole_mark` reads the families together.

Nothing else imports rocksdict. What it does not do well (0.3.29) is handled here:
- the iterators of its snapshots see the present, so a view holds an iterator a family instead, which sees its own time;
- its `items()` ends quietly at a damaged block, so scans walk an iterator and ask for its status at the end;
- a write that RocksDB makes wait would hold Python's lock for so long, so chunks wait outside, in Python;
- iterators and family handles keep a closed database open, so all of them are let go at close.
"""

import contextlib
import errno
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import rocksdict as rd

from holdfast import faults
from holdfast.errors import Closed, DamagedObject, HoldfastError
from holdfast.stores.bytecolumns import as_type, asked_in_key_order
from holdfast.stores.engine import (
    FIRST_KEY,
    MARK_KEY,
    Changes,
    DamagedState,
    DiskFull,
    EngineFailed,
    EngineInUse,
    Mark,
    Resources,
    StateUnreadable,
    UnknownFamily,
    begun,
    ended,
    folder_bytes,
    pack_mark,
    unpack_mark,
    whole_mark,
)

GET_ROWS = 1_000
"""Keys a lookup: the fastest of 100, 1,000 and 5,000, and other threads get their turn in between."""

FIRST_SCAN_ROWS, SCAN_ROWS = 32, 1_024
"""Entries a scan reads ahead, at first and in the end: a short range pays for little it doesn't need."""

_MIB = 1024 * 1024


class _Shared:
    """One block cache and one write-buffer budget for all databases of a process.

    Write buffers are charged to the cache, so the cache's capacity limits both together; so are indexes and filters.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.cache = rd.Cache(memory_bytes)
        self.write_bytes = max(_MIB, memory_bytes // 4)
        self.writes = rd.WriteBufferManager.new_write_buffer_manager_with_cache(self.write_bytes, False, self.cache)

    def options(self) -> rd.Options:
        options = rd.Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_write_buffer_manager(self.writes)
        options.set_write_buffer_size(max(_MIB, min(64 * _MIB, self.write_bytes // 2)))
        # Not more than 3: with more RocksDB slows writes down by sleeping in them.
        options.set_max_write_buffer_number(3)
        options.set_arena_block_size(256 * 1024)
        options.set_level_zero_slowdown_writes_trigger(1_000)
        options.set_level_zero_stop_writes_trigger(36)
        options.set_soft_pending_compaction_bytes_limit(0)
        options.set_max_background_jobs(2)
        options.set_max_open_files(1_000)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(_MIB)
        options.set_stats_dump_period_sec(0)
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_compression_type(rd.DBCompressionType.lz4())
        table = rd.BlockBasedOptions()
        table.set_block_cache(self.cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        table.set_bloom_filter(10, False)
        table.set_format_version(5)
        options.set_block_based_table_factory(table)
        return options


class RocksEngine:
    """An `Engine` on one RocksDB."""

    def __init__(self, path: Path, families: Sequence[str], resources: Resources) -> None:
        self._path = path
        self._shared = resources.shared(_Shared, _Shared)
        self._lock = threading.RLock()
        self._views: weakref.WeakSet[_RocksView] = weakref.WeakSet()
        self._write = rd.WriteOptions()
        self._write.memtable_insert_hint_per_batch = True  # a batch is sorted
        self._write.disable_wal = True  # type: ignore[method-assign,assignment]  # an attribute, whatever the stub says
        with translated(path, opening=True):
            path.mkdir(parents=True, exist_ok=True)
            db = self._open(families)
            self._db: rd.Rdict | None = db
            self._families = {name: db.get_column_family(name) for name in families}
            self._handles = {name: db.get_column_family_handle(name) for name in families}
            try:
                self._mark = whole_mark([self._mark_of(family) for family in self._families.values()])
            except BaseException:
                self.close()
                raise

    def _open(self, families: Sequence[str]) -> rd.Rdict:
        present: list[str] = []
        if (self._path / "CURRENT").exists():
            present = rd.Rdict.list_cf(str(self._path), self._shared.options())
        names = {*present, *families} - {"default"}
        db = rd.Rdict(str(self._path), self._shared.options(), {name: self._shared.options() for name in sorted(names)})
        for name in sorted(names - set(families)):
            # A store that the app no longer has. Left there, it would come back one day with the state of its last one.
            db.drop_column_family(name)
        return db

    @staticmethod
    def _mark_of(family: rd.Rdict) -> Mark | None:
        data = family.get(MARK_KEY)
        return None if data is None else unpack_mark(data)

    def mark(self) -> Mark | None:
        self._open_db()
        return self._mark

    def get_many(self, family: str, keys: pa.Array) -> pa.BinaryArray:
        store = self._family(family)
        keys = as_type(keys, pa.binary())
        if len(keys) <= GET_ROWS:
            return self._get_sorted(store, keys)
        return asked_in_key_order(keys, partial(self._get_sorted, store))

    def _get_sorted(self, store: rd.Rdict, keys: pa.BinaryArray) -> pa.BinaryArray:
        found: list[pa.Array] = []
        with translated(self._path):
            for start in range(0, len(keys), GET_ROWS):
                values = store.get(keys.slice(start, GET_ROWS).to_pylist())
                found.append(pa.array(values, type=pa.binary()))
        return pa.concat_arrays(found) if found else pa.array([], type=pa.binary())

    def apply(self, changes: Iterable[tuple[str, Changes]], mark: Mark) -> None:
        with self._lock, translated(self._path):
            db = self._open_db()
            faults.point("apply.before")
            before = self._mark
            self._write_marks(db, begun(before, mark))
            for family, change in changes:
                handle = self._handle(family)
                for keys, values in change.in_key_order().chunks():
                    batch = rd.WriteBatch(raw_mode=True)
                    batch.set_default_column_family(handle)
                    for key, value in zip(keys, values, strict=True):
                        if value is None:
                            del batch[key]
                        else:
                            batch[key] = value
                    self._wait_for_room(family)
                    db.write(batch, self._write)
                    faults.point("apply.middle")
            self._write_marks(db, ended(before, mark))
            faults.point("apply.after")

    def _write_marks(self, db: rd.Rdict, mark: Mark) -> None:
        batch = rd.WriteBatch(raw_mode=True)
        for handle in self._handles.values():
            batch.put(MARK_KEY, pack_mark(mark), handle)
        db.write(batch, self._write)
        self._mark = mark

    def _wait_for_room(self, family: str) -> None:
        while self._families[family].property_int_value("rocksdb.is-write-stopped"):
            time.sleep(0.002)

    def view(self) -> "_RocksView":
        with self._lock, translated(self._path):
            self._open_db()
            view = _RocksView(self._path, self._families)
            self._views.add(view)
            return view

    def flush(self) -> None:
        self._open_db()
        with translated(self._path):
            for family in list(self._families.values()):
                family.flush()

    def checkpoint(self, folder: Path) -> None:
        # Flushed before the lock is taken, so that the flush within it has little left to do.
        self.flush()
        with self._lock, translated(self._path):
            db = self._open_db()
            self.flush()
            folder.parent.mkdir(parents=True, exist_ok=True)
            rd.Checkpoint(db).create_checkpoint(str(folder))

    def close(self) -> None:
        with self._lock:
            db, self._db = self._db, None
            if db is None:
                return
            for view in list(self._views):
                view.close()
            open_ = [*self._families.values(), db]
            self._families, self._handles = {}, {}
            with contextlib.ExitStack() as closing:
                # Each flushes its family first and may fail in that; the others are closed all the same.
                for each in open_:
                    closing.enter_context(translated(self._path))
                    closing.callback(each.close)

    def approximate_count(self, family: str) -> int:
        """RocksDB's own estimate, which counts a key that was written again and not yet compacted more than once."""
        with translated(self._path):
            estimate = self._family(family).property_int_value("rocksdb.estimate-num-keys") or 0
        return max(0, estimate - 1) if self._mark else estimate

    def memory_bytes(self) -> int:
        """This database's write buffers and open files; the block cache is the process's and not counted here."""
        names = ("rocksdb.cur-size-all-mem-tables", "rocksdb.estimate-table-readers-mem")
        self._open_db()
        with translated(self._path):
            return sum(each.property_int_value(name) or 0 for each in list(self._families.values()) for name in names)

    def disk_bytes(self) -> int:
        self._open_db()
        return folder_bytes(self._path)

    def _open_db(self) -> rd.Rdict:
        if self._db is None:
            raise Closed(f"the engine of {self._path} is closed. Open it again.")
        return self._db

    def _family(self, name: str) -> rd.Rdict:
        self._open_db()
        try:
            return self._families[name]
        except KeyError:
            raise UnknownFamily(name, self._families) from None

    def _handle(self, name: str) -> rd.ColumnFamily:
        self._family(name)
        return self._handles[name]


class _Pinned:
    """One family as it was when this was made: an iterator, which several readers move about in turn."""

    def __init__(self, at: rd.RdictIter) -> None:
        self.at = at
        self.lock = threading.Lock()
        self.reader: object = None


class _RocksView:
    """A `View` on one iterator a family, all made between two writes.

    An iterator sees what was there when it was made, and goes on seeing it. rocksdict's own snapshots don't: they read
    single keys as of then, but their iterators as of now.
    """

    def __init__(self, path: Path, families: dict[str, rd.Rdict]) -> None:
        self._path = path
        self._pinned: dict[str, _Pinned] | None = {name: _Pinned(each.iter()) for name, each in families.items()}

    def get(self, family: str, key: bytes) -> bytes | None:
        pinned = self.pinned(family)
        with pinned.lock, translated(self._path):
            at = pinned.at
            pinned.reader = None
            at.seek(key)
            if at.valid():
                return at.value() if at.key() == key else None
            at.status()
            return None

    def scan(
        self, family: str, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self.pinned(family)
        return _Scan(self, self._path, family, max(start, FIRST_KEY), stop, reverse).entries()

    def close(self) -> None:
        self._pinned = None

    def pinned(self, family: str) -> _Pinned:
        families = self._pinned
        if families is None:
            raise Closed(f"a view of {self._path} was used after it, or its engine, was closed. Take a new one.")
        try:
            return families[family]
        except KeyError:
            raise UnknownFamily(family, families) from None


class _Scan:
    """A scan's place in a view. It asks the view for the iterator each time, so that closing the view lets go of it."""

    def __init__(
        self, view: _RocksView, path: Path, family: str, start: bytes, stop: bytes | None, reverse: bool
    ) -> None:
        self._view, self._path, self._family = view, path, family
        self._start, self._stop, self._reverse = start, stop, reverse
        self._last: bytes | None = None

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        rows = FIRST_SCAN_ROWS
        while batch := self._read(rows):
            yield from batch
            if len(batch) < rows:
                return
            rows = min(2 * rows, SCAN_ROWS)

    def _read(self, rows: int) -> list[tuple[bytes, bytes]]:
        pinned = self._view.pinned(self._family)
        batch: list[tuple[bytes, bytes]] = []
        with pinned.lock, translated(self._path):
            at = pinned.at
            if pinned.reader is not self:
                self._seek(at)
                pinned.reader = self
            valid, key_at, value_at = at.valid, at.key, at.value
            step: Callable[[], None] = at.prev if self._reverse else at.next
            start, stop, reverse = self._start, self._stop, self._reverse
            while len(batch) < rows:
                if not valid():
                    at.status()  # the end, or a block that can't be read: only the status tells
                    break
                key: bytes = key_at()
                if key < start if reverse else stop is not None and key >= stop:
                    break
                batch.append((key, value_at()))
                step()
        if batch:
            self._last = batch[-1][0]
        return batch

    def _seek(self, at: rd.RdictIter) -> None:
        """To the first entry, or to the one after the last that was read."""
        if not self._reverse:
            at.seek(self._start if self._last is None else self._last + b"\x00")
            return
        before = self._stop if self._last is None else self._last
        if before is None:
            at.seek_to_last()
            return
        at.seek_for_prev(before)
        if at.valid() and at.key() == before:
            at.prev()


@contextlib.contextmanager
def translated(path: Path, *, opening: bool = False) -> Iterator[None]:
    """Turns what rocksdict raises into errors that say what to do."""
    try:
        yield
    except OSError as error:
        raise _translation(path, error, opening) from error
    except DamagedObject as error:
        raise DamagedState(path, error) from error
    except rd.DbClosedError as error:
        raise Closed(f"the engine of {path} is closed. Open it again.") from error
    except Exception as error:
        if type(error) is not Exception:  # rocksdict raises plain Exceptions; all others are somebody else's
            raise
        raise _translation(path, error, opening) from error


def _translation(path: Path, error: Exception, opening: bool) -> HoldfastError:
    # RocksDB's status comes as text only. These are its own words for a status and the system's for an error number.
    text = str(error)
    if os.strerror(errno.ENOSPC) in text:
        return DiskFull(path, text)
    if os.strerror(errno.EACCES) in text or os.strerror(errno.EROFS) in text:
        return StateUnreadable(path, text)
    if opening and "LOCK" in text:
        return EngineInUse(path, text)
    if opening or "Corruption" in text:
        return DamagedState(path, text)
    return EngineFailed(path, text)
