"""The files of one snapshot, on their way from the log into the folder that is opened afterwards.

A file that is on local disk already is not fetched: it may be in the folder itself, because an earlier load was
interrupted, or in another folder (the former state of the task), from which it is linked. What counts is the hash of
its content, never its name or its date: engines reuse names, and files can be damaged. All others are fetched, several
at a time, in chunks, into `.<name>.<hash>.part` beside their place, and renamed when the hash is right. A part that an
interrupted load has left is continued.

An engine that is still open may write to a file after it was linked. `renew_changed` finds those by size and date once
the engine is closed, and fetches them.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from enum import Enum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

import msgspec
import xxhash

from holdfast.errors import DamagedObject, ErrorCategory, HoldfastError
from holdfast.log import documents
from holdfast.log.bandwidth import Bandwidth
from holdfast.log.objects import Storage
from holdfast.stores.folders import sync_folder

_logger = logging.getLogger(__name__)
CHUNK = 2 << 20
"""Bytes per request. Larger ones need more memory per thread, smaller ones more requests."""
_READ = 8 << 20
_NO_LINK = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK, errno.ENOENT}


class SnapshotFile(msgspec.Struct, frozen=True):
    """A file of a snapshot: its path in the folder, the hash of its content (its name in the log) and its size."""

    name: str
    hash: str
    bytes: int


class Origin(Enum):
    """Where the bytes of a file come from."""

    LOCAL = "local"
    LOG = "log"


class OnBytes(Protocol):
    """Is told about bytes that are here, from several threads; a negative number takes bytes of a bad file back."""

    def __call__(self, count: int, origin: Origin) -> None: ...


def ignore_bytes(count: int, origin: Origin) -> None:
    """For loads that nobody watches."""


class FileFetcher:
    """Threads and bandwidth for the files of all snapshots that a process loads. With 1, the caller's thread works."""

    def __init__(self, parallel: int = 1, bandwidth: Bandwidth | None = None) -> None:
        self.bandwidth = bandwidth or Bandwidth()
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="fetch") if parallel > 1 else None
        per_second = self.bandwidth.per_second
        self.chunk = min(CHUNK, max(64 << 10, per_second // 4)) if per_second else CHUNK
        """Bytes per request: no thread waits much longer than others for its share of a small budget."""

    def run(self, work: Sequence[Callable[[], None]], give_up: Callable[[], None]) -> None:
        """Runs all of them and raises the first error. `give_up` then has those that are under way end soon."""
        if self._pool is None:
            for each in work:
                each()
            return
        futures = [self._pool.submit(each) for each in work]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = [error for future in futures if future in done and (error := future.exception()) is not None]
        if failed:
            give_up()
            for future in futures:
                future.cancel()
            wait(futures)
            raise failed[0]

    def close(self) -> None:
        """Waits for what is under way. Nothing may be run afterwards."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


class _GivenUp(HoldfastError):
    """Another file of the snapshot has failed."""

    category = ErrorCategory.RETRY


class SnapshotLoad:
    """One load of a snapshot: `take_local`, then `fetch`, then, when the engine is closed, `renew_changed`."""

    def __init__(
        self,
        storage: Storage,
        files: Sequence[SnapshotFile],
        name_of: Callable[[str], str],
        into: Path,
        fetcher: FileFetcher,
        on_bytes: OnBytes,
        check: Callable[[], None],
    ) -> None:
        """`name_of` gives the object with a content, by its hash. `check` may raise to end the load."""
        self._storage = storage
        self._missing = {into / _safe(file.name): file for file in files}
        self._files = dict(self._missing)
        self._name_of = name_of
        self._into = into
        self._fetcher = fetcher
        self._on_bytes = on_bytes
        self._check = check
        self._linked: dict[Path, tuple[int, int]] = {}
        self._given_up = threading.Event()

    def take_local(self, folders: Iterable[Path]) -> None:
        """Keeps the files that are in place already, and links those that are in one of these folders."""
        self._into.mkdir(parents=True, exist_ok=True)
        self._remove_others()
        found: dict[int, list[Path]] = {}
        for folder in folders:
            for path in _files_in(folder):
                found.setdefault(_size_of(path), []).append(path)
        looked = [partial(self._take, path, file, found.get(file.bytes, ())) for path, file in self._missing.items()]
        self._fetcher.run(looked, self._given_up.set)
        self._missing = {path: file for path, file in self._missing.items() if not path.exists()}

    def fetch(self) -> None:
        """Fetches the files that are still missing. Everything is durable when it returns."""
        fetches = [partial(self._fetch, path, file) for path, file in self._missing.items()]
        self._fetcher.run(fetches, self._given_up.set)
        self._missing = {}
        for folder in {self._into, *(parent for path in self._files for parent in path.parents)}:
            if folder.is_relative_to(self._into):
                sync_folder(folder)

    def renew_changed(self) -> None:
        """Fetches the linked files that were written to meanwhile. Call it when nothing can write to them any more."""
        self._missing = {path: self._files[path] for path, seen in self._linked.items() if _state_of(path) != seen}
        self._linked = {}
        if self._missing:
            for path in self._missing:
                path.unlink()
            self.fetch()

    def _remove_others(self) -> None:
        """Removes what an earlier load has left and this one doesn't need."""
        needed = self._missing.keys() | {_part_of(path, file) for path, file in self._missing.items()}
        for path in sorted(self._into.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                if not any(path in file.parents for file in needed):
                    path.rmdir()
            elif path not in needed:
                path.unlink()
        for path in self._missing:
            path.parent.mkdir(parents=True, exist_ok=True)

    def _take(self, path: Path, file: SnapshotFile, candidates: Sequence[Path]) -> None:
        if path.exists():
            if path.stat().st_size == file.bytes and self._hash(path) == file.hash:
                self._on_bytes(file.bytes, Origin.LOCAL)
                return
            _logger.warning("%s isn't what an interrupted load has written, so it is fetched again", path)
            path.unlink()
        for candidate in sorted(candidates, key=lambda each: each.name != path.name):
            if self._link(candidate, path, file):
                self._on_bytes(file.bytes, Origin.LOCAL)
                return

    def _link(self, candidate: Path, path: Path, file: SnapshotFile) -> bool:
        """Links a file if it has the right content, and says whether it does. It may vanish: engines delete files."""
        try:
            os.link(candidate, path)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            return False
        seen = _state_of(path)
        if self._hash(path) != file.hash:
            path.unlink()
            return False
        self._linked[path] = seen
        return True

    def _hash(self, path: Path) -> str:
        hasher = xxhash.xxh3_128()
        with path.open("rb") as file:
            self._read(file, hasher)
        return hasher.hexdigest()

    def _read(self, file: BinaryIO, hasher: xxhash.xxh3_128) -> int:
        size = 0
        while chunk := file.read(_READ):
            self._check_on()
            hasher.update(chunk)
            size += len(chunk)
        return size

    def _fetch(self, path: Path, file: SnapshotFile) -> None:
        part = _part_of(path, file)
        begun = part.exists()
        whole = self._complete(part, file)
        if begun and not whole:
            _logger.warning("%s isn't what an interrupted load has written, so it is fetched again", part)
            part.unlink()
            whole = self._complete(part, file)
        if not whole:
            part.unlink()
            raise documents.damaged(
                self._name_of(file.hash),
                self._storage.place,
                f"expected {file.bytes} bytes with checksum {file.hash}, and found others",
            )
        part.rename(path)

    def _complete(self, part: Path, file: SnapshotFile) -> bool:
        """Fetches what a part lacks, and says whether it is the file then."""
        name = self._name_of(file.hash)
        hasher = xxhash.xxh3_128()
        with part.open("a+b") as out:
            out.seek(0)
            size = begun = self._read(out, hasher)
            self._on_bytes(begun, Origin.LOCAL)
            while size < file.bytes:
                wanted = min(self._fetcher.chunk, file.bytes - size)
                self._fetcher.bandwidth.take(wanted, self._check_on)
                self._check_on()
                chunk = self._storage.get_range(name, size, wanted)
                if not chunk:
                    break
                hasher.update(chunk)
                out.write(chunk)
                size += len(chunk)
                self._on_bytes(len(chunk), Origin.LOG)
            out.flush()
            os.fsync(out.fileno())
        if size == file.bytes and hasher.hexdigest() == file.hash:
            return True
        self._on_bytes(-begun, Origin.LOCAL)
        self._on_bytes(begun - size, Origin.LOG)
        return False

    def _check_on(self) -> None:
        """Ends the work on a file if the replica is being stopped, or if another file has failed."""
        self._check()
        if self._given_up.is_set():
            raise _GivenUp


def described(folder: Path) -> Iterable[SnapshotFile]:
    """The files of a folder, as a manifest names them."""
    for path in _files_in(folder):
        hasher = xxhash.xxh3_128()
        size = 0
        with path.open("rb") as file:
            while chunk := file.read(_READ):
                hasher.update(chunk)
                size += len(chunk)
        yield SnapshotFile(path.relative_to(folder).as_posix(), hasher.hexdigest(), size)


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _part_of(path: Path, file: SnapshotFile) -> Path:
    return path.with_name(f".{path.name}.{file.hash}.part")


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # an engine has deleted it meanwhile
        return -1


def _state_of(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _safe(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise DamagedObject(
            f"A snapshot names the file {name!r}, which is outside of its folder. Restore the manifest from a backup."
        )
    return path
