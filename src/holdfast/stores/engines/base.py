"""The engine: ordered bytes on one machine, at a version.

An engine has one family of ordered bytes per store. `apply` moves it from version to version. It writes whole cells and
not differences, so applying a version twice is harmless. An engine knows its mark, the version it is at. While a
version is applied the mark also has `applying`: some changes of that version may be present, and the engine serves
nothing until it is complete. Applying a smaller version keeps `applying`, so a kill while the engine catches up loses
nothing.

Parts of an engine, and the engines of a task, may reach the disk separately: after a kill, one is ahead of another. Of
their marks, the smallest version counts. If any is ahead, or had started to move, the highest of these versions is
`applying`. `family_marks` combines the marks of the families of one engine so, and `instance.task_engines` those of the
engines of a task.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar, cast, runtime_checkable

import pyarrow as pa

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.stores.engines.open_files import HOW_TO_RAISE, FileShare, open_files
from holdfast.stores.engines.open_views import OPEN_VIEWS
from holdfast.stores.formats.key_order import is_sorted, key_order
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, Version

S = TypeVar("S")

CHUNK_ROWS = 1_000
"""Rows per write. Writes of 25,000 rows delayed concurrent HTTP lookups by 46 ms (p99), writes of 1,000 by 3 ms."""

CHUNK_BYTES = 4 * 1024 * 1024
"""A chunk of large values has fewer rows than CHUNK_ROWS."""

FIRST_KEY = b"\x01"
"""The smallest key a store can have."""


class StateError(HoldfastError):
    """An error of the local state in one folder."""

    category = ErrorCategory.INVALID
    message: ClassVar[str]

    def __init__(self, path: Path, cause: object) -> None:
        super().__init__(self.message.format(path=path, cause=cause))
        self.path = path


class DamagedState(StateError):
    """The bytes of local state are not those that were written."""

    category = ErrorCategory.DATA
    message = "the state in {path} is damaged: {cause}. Delete the folder; it is restored from the log."


class DiskFull(StateError):
    message = (
        "the disk of {path} is full: {cause}. Free space there, or move the state directory. Nothing is lost: the log "
        "has every version."
    )


class TooManyOpenFiles(StateError):
    """This process, or the system, has as many files open as it may. The state is unchanged."""

    def __init__(self, path: Path, cause: object) -> None:
        HoldfastError.__init__(
            self,
            f"a file in {path} can't be opened: {cause}. {open_files()} {HOW_TO_RAISE}. Nothing is lost, and it is "
            "tried again.",
        )
        self.path = path


class EngineInUse(StateError):
    """This process or another one has the folder open already."""

    message = "{path} is already open: {cause}. Close the other engine, or stop the process that has it open."


class StateUnreadable(StateError):
    """The folder exists, but this process may not use it."""

    message = "{path} can't be used: {cause}. Give this user the right to read and write it."


class EngineFailed(StateError):
    """RocksDB failed for a reason that only its message gives."""

    category = ErrorCategory.BUG
    message = "RocksDB failed in {path}: {cause}. Close the engine and open it again; the log has every version."


class UnknownFamily(HoldfastError):
    category = ErrorCategory.BUG

    def __init__(self, family: str, known: Iterable[str]) -> None:
        super().__init__(f"there is no family {family!r}. The engine has {', '.join(sorted(known)) or 'none'}.")


def family_of(families: Mapping[str, S], name: str) -> S:
    try:
        return families[name]
    except KeyError:
        raise UnknownFamily(name, families) from None


class ForeignMark(HoldfastError):
    """A version of one log was about to be applied to the state of another log."""

    category = ErrorCategory.BUG

    def __init__(self, before: "Mark", mark: "Mark") -> None:
        super().__init__(
            f"the state is at version {before.version} of log {before.log}, and version {mark.version} of log "
            f"{mark.log} can't be applied to it. Delete the state first; it is restored from the log."
        )


@dataclass(frozen=True)
class Mark:
    """The version, and the log it belongs to, that the data is at. `applying=w`: serve nothing until `w` is complete.

    `wall` and `event` are the clocks of the version's commit: readers need them to know which entries have expired.
    """

    version: Version
    commit: str
    log: str
    applying: Version | None = None
    applying_commit: str = field(default="", repr=False)
    """The commit of `applying`: without it, what is there of that version may be of a timeline that was abandoned."""
    wall: int = field(default=0, repr=False)
    event: int | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Changes:
    """The changes of a version in one family: unique keys with their cells. A null cell deletes its key."""

    keys: pa.BinaryArray
    values: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.keys)

    def in_key_order(self) -> "Changes":
        """The same changes, sorted (15M rows/s). RocksDB writes 0.15-0.3M unsorted rows/s and 0.6-2.1M sorted ones.

        >>> Changes(pa.array([b"b", b"a"]), pa.array([b"1", None])).in_key_order().keys.to_pylist()
        [b'a', b'b']
        """
        if is_sorted(self.keys):
            return self
        order = pa.array(key_order(self.keys))
        return Changes(self.keys.take(order), self.values.take(order))

    def chunks(self) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
        """The changes as Python bytes, in chunks.

        >>> changes = Changes(pa.array([b"a", b"b"]), pa.array([b"1", None]))
        >>> list(changes.chunks())
        [([b'a', b'b'], [b'1', None])]
        """
        rows = len(self.keys)
        if not rows:
            return
        row_bytes = max(1, (self.keys.nbytes + self.values.nbytes) // rows)
        step = max(1, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes))
        for start in range(0, rows, step):
            yield self.keys.slice(start, step).to_pylist(), self.values.slice(start, step).to_pylist()


class EngineView(Protocol):
    """All families at one version. A view doesn't change while versions are applied."""

    def get(self, family: str, key: bytes) -> bytes | None: ...

    def scan(
        self, family: str, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries with start <= key < stop, in key order or in reverse."""

    def close(self) -> None: ...


class Engine(Protocol):
    """Ordered bytes on one machine, at a version."""

    def mark(self) -> Mark | None:
        """The version it is at, with `applying` set if any family is ahead; None if nothing was ever applied."""

    def get_many(self, family: str, keys: pa.Array) -> pa.BinaryArray:
        """The newest values, null for keys without one. Sorted keys are about twice as fast as unsorted ones."""

    def apply(self, changes: Iterable[tuple[str, Changes]], mark: Mark) -> None:
        """Moves all families to the mark's version. The mark has `applying` until all changes are there."""

    def drop(self, family: str, start: bytes, stop: bytes) -> None:
        """Hides all keys with start <= key < stop at once. Their disk space is freed some time later.

        Called between two applies, by the same caller. Marks stay as they are: after a kill, the caller repeats a drop
        that was lost. Views taken earlier still see the range, and later applies may write into it.
        """

    def view(self) -> EngineView:
        """A view of the newest state. Waits for a running apply."""

    def flush(self) -> None:
        """Everything applied so far is on disk when this returns."""

    def checkpoint(self, folder: Path) -> None:
        """Writes a copy that opens like this engine's own folder. `folder` must not exist."""

    def close(self) -> None: ...

    def approximate_count(self, family: str) -> int: ...

    def memory_bytes(self) -> int: ...

    def disk_bytes(self) -> int: ...


@runtime_checkable
class Rebalanced(Protocol):
    """A shared part that redistributes its memory."""

    def rebalance(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class DiskUse:
    """How the engines of one process use the disk."""

    background_jobs: int = 2
    """Threads for the flushes and compactions of all stores. A quarter of them, and at least one, flush."""
    direct_reads: bool = False
    """Reads bypass the system's page cache: a block that isn't in the store's own cache is read from the disk."""
    direct_writes: bool = False
    """Flushes and compactions bypass it."""


class Resources:
    """What the engines of one process share within one memory limit: block caches, a write-buffer budget."""

    def __init__(self, memory_bytes: int, disk: DiskUse | None = None) -> None:
        self.memory_bytes = memory_bytes
        self.disk = disk or DiskUse()
        self.files = FileShare()
        """How many files a database may have open. Those that are open keep what they were given."""
        self._lock = threading.Lock()
        self._shared: dict[type, object] = {}

    def shared(self, kind: type[S], make: Callable[[int], S]) -> S:
        """This process's only object of type `kind`. The first call makes it, with the memory limit."""
        with self._lock:
            if kind not in self._shared:
                self._shared[kind] = make(self.memory_bytes)
            return cast(S, self._shared[kind])

    def rebalance(self) -> None:
        """Moves memory to where it is used, and warns about forgotten views. Instances call it every few seconds."""
        with self._lock:
            shared = list(self._shared.values())
        for part in shared:
            if isinstance(part, Rebalanced):
                part.rebalance()
        OPEN_VIEWS.warn_about_old()


class EngineFactory(Protocol):
    """Opens an engine. `holdfast.testing.EngineConformance` tests an engine of your own."""

    def __call__(self, path: Path, stores: Sequence[StoreSpec], resources: Resources) -> Engine: ...


def mark_before_changes(before: Mark | None, mark: Mark) -> Mark:
    """The mark that a family gets before the changes of `mark`; `before` is the engine's mark.

    A family that is ahead of the engine goes back to the engine's version here. It is about to get values of an older
    version, and must not count as complete once the other families have caught up.

    >>> mark_before_changes(Mark(Version(7), "c7", "log-1", applying=Version(9)), Mark(Version(8), "c8", "log-1"))
    Mark(version=7, commit='c7', log='log-1', applying=9)
    """
    if before is None:
        return Mark(NOTHING, "", mark.log, *_highest([mark]))
    if before.log != mark.log:
        raise ForeignMark(before, mark)
    smallest, (highest, commit) = min(before, mark, key=lambda each: each.version), _highest([before, mark])
    return replace(smallest, applying=highest, applying_commit=commit)


def mark_after_changes(before: Mark | None, mark: Mark) -> Mark:
    """The mark that a family gets after the changes of `mark`: still applying, if any family was ahead of it.

    >>> mark_after_changes(Mark(Version(7), "c7", "log-1", applying=Version(9)), Mark(Version(8), "c8", "log-1"))
    Mark(version=8, commit='c8', log='log-1', applying=9)
    >>> mark_after_changes(Mark(Version(8), "c8", "log-1", applying=Version(9)), Mark(Version(9), "c9", "log-1"))
    Mark(version=9, commit='c9', log='log-1', applying=None)
    """
    return applying(mark, [mark] if before is None else [before, mark])


def applying(mark: Mark, others: Iterable[Mark]) -> Mark:
    """The mark, with the version that others are ahead of it as `applying`.

    >>> applying(Mark(Version(7), "c7", "log-1"), [Mark(Version(9), "c9", "log-1")])
    Mark(version=7, commit='c7', log='log-1', applying=9)
    """
    highest, commit = _highest(others)
    if highest <= mark.version:
        return replace(mark, applying=None, applying_commit="")
    return replace(mark, applying=highest, applying_commit=commit)


def _highest(marks: Iterable[Mark]) -> tuple[Version, str]:
    """The highest version that any of the marks has a part of, and its commit."""
    reached = (
        (each.version, each.commit) if each.applying is None else (each.applying, each.applying_commit)
        for each in marks
    )
    return max(reached)


def folder_bytes(folder: Path) -> int:
    """The size of the files in a folder. What is deleted meanwhile counts as 0, be it a file or the folder."""
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                total += entry.stat().st_size
    return total
