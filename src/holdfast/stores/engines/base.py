"""The engine: ordered bytes on one machine, at a version.

An engine holds one family of ordered bytes a store. It is moved from version to version by `apply`, which writes whole
cells and not differences, so applying one version twice is harmless. Every family carries its own mark, because
families reach the disk apart: after a kill one may be further than another.

The order of writes in `apply`, and why it is safe:

    1. *applying w* in every family        whoever finds it knows that some of w may be there
    2. the changes, in chunks
    3. *at w* in every family

What survives a kill is, family by family, a prefix of these writes. `whole_mark` reads the families together: the
smallest version is the engine's, and if any family is further, or was on its way, the furthest version stands in
`applying`. Until that version is whole again nothing may be served. An apply of a smaller version keeps `applying`, so
a second kill during the catching up forgets nothing.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar, cast, runtime_checkable

import msgspec
import pyarrow as pa

from holdfast.errors import DamagedObject, ErrorCategory, HoldfastError
from holdfast.stores.engines.open_views import OPEN
from holdfast.stores.formats.byte_columns import is_sorted, key_order
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, Version

CHUNK_ROWS = 1_000
"""Rows a write: one of 25,000 stalled HTTP lookups beside it by 46 ms (p99), chunks of 1,000 by 3 ms."""

CHUNK_BYTES = 4 * 1024 * 1024
"""A chunk of large values is cut shorter than CHUNK_ROWS."""

MARK_KEY = b"\x00mark"
"""Where an engine keeps a family's mark. Keys of stores never begin with 0x00."""

FIRST_KEY = b"\x01"
"""The smallest key a store can have."""


class DamagedState(HoldfastError):
    """Local state that isn't what was written. The log has the truth: delete the folder, and it is restored."""

    category = ErrorCategory.DATA

    def __init__(self, path: Path, cause: object) -> None:
        super().__init__(f"the state in {path} is damaged: {cause}. Delete the folder; it is restored from the log.")
        self.path = path


class DiskFull(HoldfastError):
    """No room left where the state lives."""

    category = ErrorCategory.INVALID

    def __init__(self, path: Path, cause: object) -> None:
        super().__init__(
            f"the disk of {path} is full: {cause}. Free space there, or move the state directory; nothing is lost, "
            "the log has every version."
        )
        self.path = path


class EngineInUse(HoldfastError):
    """Another handle, in this process or another, has this folder open."""

    category = ErrorCategory.INVALID

    def __init__(self, path: Path, cause: object) -> None:
        super().__init__(f"{path} is already open: {cause}. Close the other engine, or stop the process that holds it.")
        self.path = path


class StateUnreadable(HoldfastError):
    """The folder is there, and this process may not use it."""

    category = ErrorCategory.INVALID

    def __init__(self, path: Path, cause: object) -> None:
        super().__init__(f"{path} can't be used: {cause}. Give this user the right to read and write it.")


class EngineFailed(HoldfastError):
    """RocksDB refused something, for a reason only its message has."""

    category = ErrorCategory.BUG

    def __init__(self, path: Path, cause: object) -> None:
        super().__init__(
            f"RocksDB failed in {path}: {cause}. Close the engine and open it again; the log has every version."
        )


class UnknownFamily(HoldfastError):
    category = ErrorCategory.BUG

    def __init__(self, family: str, known: Iterable[str]) -> None:
        super().__init__(f"there is no family {family!r} here; there are {', '.join(sorted(known)) or 'none'}.")


class ForeignMark(HoldfastError):
    """A version of one history was to be applied on top of another."""

    category = ErrorCategory.BUG

    def __init__(self, before: "Mark", mark: "Mark") -> None:
        super().__init__(
            f"the state is at version {before.version} of log {before.log}, and version {mark.version} of log "
            f"{mark.log} was to be applied to it. Delete the state first; it is restored from the log."
        )


@dataclass(frozen=True)
class Mark:
    """Which version of which history the data is at. `applying=w`: serve nothing until `w` is whole.

    `wall` and `event` are the clocks of the version's commit, so that whoever opens the data knows what of it has
    expired without that commit. Marks of earlier releases don't have them.
    """

    version: Version
    commit: str
    log: str
    applying: Version | None = None
    wall: int | None = field(default=None, repr=False)
    event: int | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Changes:
    """What a version changes in one family: unique keys, and whole cells; a null value deletes."""

    keys: pa.BinaryArray
    values: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.keys)

    def in_key_order(self) -> "Changes":
        """The same changes, sorted. RocksDB took 0.15-0.3M unsorted rows/s and 0.6-2.1M sorted ones; sorting does 15M.

        >>> Changes(pa.array([b"b", b"a"]), pa.array([b"1", None])).in_key_order().keys.to_pylist()
        [b'a', b'b']
        """
        if is_sorted(self.keys):
            return self
        order = pa.array(key_order(self.keys))
        return Changes(self.keys.take(order), self.values.take(order))

    def chunks(self) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
        """The changes as Python bytes, a bounded number at a time.

        >>> changes = Changes(pa.array([b"a", b"b"]), pa.array([b"1", None]))
        >>> list(changes.chunks())
        [([b'a', b'b'], [b'1', None])]
        """
        rows = len(self.keys)
        if not rows:
            return
        each = max(1, (self.keys.nbytes + self.values.nbytes) // rows)
        step = max(1, min(CHUNK_ROWS, CHUNK_BYTES // each))
        for start in range(0, rows, step):
            yield self.keys.slice(start, step).to_pylist(), self.values.slice(start, step).to_pylist()


class EngineView(Protocol):
    """An immutable picture of all families between two versions."""

    def get(self, family: str, key: bytes) -> bytes | None: ...

    def scan(
        self, family: str, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries with start <= key < stop in key order, or from the last to the first."""

    def close(self) -> None: ...


class Engine(Protocol):
    """Ordered bytes on one machine, at a version."""

    def mark(self) -> Mark | None:
        """The smallest mark over the families, `applying` set if any is further; None when nothing was ever applied."""

    def get_many(self, family: str, keys: pa.Array) -> pa.BinaryArray:
        """Live values, null where there is none. Sorted keys are about twice as fast as unsorted ones."""

    def apply(self, changes: Iterable[tuple[str, Changes]], mark: Mark) -> None:
        """Moves all families to the mark's version; see the top of this module for the order of writes."""

    def drop(self, family: str, start: bytes, stop: bytes) -> None:
        """Hides all keys with start <= key < stop at once, and frees their room some time after.

        Called by the one who applies, between two applies. Marks stay as they are: a drop that was lost in a kill is
        simply asked for again. Views taken before still see the range, and what is applied after it is there.
        """

    def view(self) -> EngineView:
        """A picture of now. Waits for an apply that is under way."""

    def flush(self) -> None:
        """What was applied so far is on disk when this returns."""

    def checkpoint(self, folder: Path) -> None:
        """Writes a folder that can be opened like this engine's own. The folder must not exist."""

    def close(self) -> None: ...

    def approximate_count(self, family: str) -> int: ...

    def memory_bytes(self) -> int: ...

    def disk_bytes(self) -> int: ...


S = TypeVar("S")


@runtime_checkable
class Rebalanced(Protocol):
    """A shared part that moves memory about."""

    def rebalance(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class DiskUse:
    """How the engines of one process use the disk."""

    background_jobs: int = 2
    """Threads for flushes and compactions, of all stores together: a quarter of them flush, and at least one."""
    direct_reads: bool = False
    """Reads go past the system's page cache: what isn't in the store's own cache is read from the disk."""
    direct_writes: bool = False
    """Flushes and compactions do."""


class Resources:
    """What the engines of one process share, within one memory limit.

    An engine type keeps its shared parts (a block cache, a write-buffer budget) here, made once by the first engine
    that asks.
    """

    def __init__(self, memory_bytes: int, disk: DiskUse | None = None) -> None:
        self.memory_bytes = memory_bytes
        self.disk = disk or DiskUse()
        self._lock = threading.Lock()
        self._shared: dict[type, object] = {}

    def shared(self, kind: type[S], make: Callable[[int], S]) -> S:
        """The one `kind` of this process, made with the memory limit when first asked for."""
        with self._lock:
            if kind not in self._shared:
                self._shared[kind] = make(self.memory_bytes)
            return cast(S, self._shared[kind])

    def rebalance(self) -> None:
        """Moves memory to where it is used, and names views left open. The instance calls this every few seconds."""
        with self._lock:
            shared = list(self._shared.values())
        for each in shared:
            if isinstance(each, Rebalanced):
                each.rebalance()
        OPEN.name_long_open()


class EngineFactory(Protocol):
    """What opens an engine. `holdfast.testing.EngineConformance` holds one of your own to all it must do."""

    def __call__(self, path: Path, stores: Sequence[StoreSpec], resources: Resources) -> Engine: ...


class _StoredMark(msgspec.Struct, frozen=True, omit_defaults=True):
    format: int
    version: int
    commit: str
    log: str
    applying: int | None = None
    wall: int | None = None
    event: int | None = None


_MARKS = msgspec.json.Decoder(_StoredMark)


def pack_mark(mark: Mark) -> bytes:
    """A mark as it is stored, readable by eye.

    >>> pack_mark(Mark(Version(7), "c7", "log-1"))
    b'{"format":1,"version":7,"commit":"c7","log":"log-1"}'
    """
    return msgspec.json.encode(
        _StoredMark(1, mark.version, mark.commit, mark.log, mark.applying, mark.wall, mark.event)
    )


def unpack_mark(data: bytes) -> Mark:
    try:
        stored = _MARKS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedObject(f"a mark can't be read: {error}. Delete the state; it is restored from the log.") from error
    if stored.format != 1:
        raise DamagedObject(
            f"a mark has format {stored.format} and this release reads 1. Use the release that wrote it, or delete the "
            "state; it is restored from the log."
        )
    applying = None if stored.applying is None else Version(stored.applying)
    return Mark(Version(stored.version), stored.commit, stored.log, applying, stored.wall, stored.event)


def whole_mark(marks: Iterable[Mark | None]) -> Mark | None:
    """What the marks of all families say together.

    >>> seven, eight = Mark(Version(7), "c7", "log-1"), Mark(Version(8), "c8", "log-1")
    >>> whole_mark([seven, seven]) == seven
    True
    >>> whole_mark([eight, seven])
    Mark(version=7, commit='c7', log='log-1', applying=8)
    """
    found = list(marks)
    known = [mark for mark in found if mark is not None]
    if not known:
        return None
    if len(known) < len(found):
        # A family that was never marked has nothing, whatever the others have.
        smallest = Mark(NOTHING, "", known[0].log)
    else:
        smallest = min(known, key=lambda mark: mark.version)
    furthest = max(max(mark.version, mark.applying or NOTHING) for mark in known)
    return replace(smallest, applying=furthest if furthest > smallest.version else None)


def begun(before: Mark | None, mark: Mark) -> Mark:
    """What every family says from the first write towards `mark` on; `before` is the whole engine's mark.

    A family that is further than the whole steps back here: half rewritten with an older version's values it must not
    pass for whole once the others have caught up with it.

    >>> begun(Mark(Version(7), "c7", "log-1", applying=Version(9)), Mark(Version(8), "c8", "log-1"))
    Mark(version=7, commit='c7', log='log-1', applying=9)
    """
    if before is None:
        return Mark(NOTHING, "", mark.log, _furthest(before, mark))
    if before.log != mark.log:
        raise ForeignMark(before, mark)
    return replace(min(before, mark, key=lambda each: each.version), applying=_furthest(before, mark))


def ended(before: Mark | None, mark: Mark) -> Mark:
    """What every family says after the last write of `mark`: still applying, if any was once further than that.

    >>> ended(Mark(Version(7), "c7", "log-1", applying=Version(9)), Mark(Version(8), "c8", "log-1"))
    Mark(version=8, commit='c8', log='log-1', applying=9)
    >>> ended(Mark(Version(8), "c8", "log-1", applying=Version(9)), Mark(Version(9), "c9", "log-1"))
    Mark(version=9, commit='c9', log='log-1', applying=None)
    """
    towards = _furthest(before, mark)
    return replace(mark, applying=towards if towards > mark.version else None)


def _furthest(before: Mark | None, mark: Mark) -> Version:
    was = NOTHING if before is None else max(before.version, before.applying or NOTHING)
    return max(mark.version, mark.applying or NOTHING, was)


def folder_bytes(folder: Path) -> int:
    """What the files of a folder take; one that goes away meanwhile takes nothing."""
    total = 0
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):
            total += entry.stat().st_size
    return total
