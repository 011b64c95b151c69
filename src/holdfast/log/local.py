"""A local folder as storage. Data and directory entries are on disk before a create returns.

    temporary file → write → fsync → link(2) to its name → fsync of the folder

`link` fails if the name exists, so it is create-if-absent and an object is never partly visible. Before the first write
into a folder, the folder and its parents up to the root are created and fsynced, even if another process has just
created them, since its own fsync may not have happened yet. A killed process leaves at most a file in `.tmp`, which is
deleted when the storage is opened a day or more later.
"""

import contextlib
import errno
import itertools
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from holdfast.errors import StorageUnavailable
from holdfast.log.objects import Names, ObjectMissing, Put, StorageFull, StorageRefused
from holdfast.retry import DEFAULT_RETRY, WarnedRarely, retrying
from holdfast.settings.sections import RetrySettings
from holdfast.stores.folders import sync_folder

T = TypeVar("T")
_CHUNK = 8 << 20
_SWEEP_AFTER_S = 24 * 3600
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TRANSIENT = {errno.EIO, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE,
    errno.ENFILE, errno.ENOMEM, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ECONNRESET}  # fmt: skip
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}


class NoHardLinks(StorageRefused):
    """A file system on which create-if-absent is impossible."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"The file system of {place} has no hard links, so commits on it would not be safe. Put the log on another "
            "file system (ext4, xfs, btrfs, zfs, APFS, NFS all have them) or on object storage."
        )


class LocalStorage:
    """Objects as files under a root folder."""

    def __init__(
        self,
        root: Path,
        *,
        fsync: bool = True,
        retry: RetrySettings = DEFAULT_RETRY,
        retry_for: timedelta | None = None,
    ) -> None:
        """With `retry_for`, calls are retried for so long and not for so many attempts."""
        self._root = root.absolute()
        self._temporary = self._root / ".tmp"
        self._fsync = fsync
        self._retry = retry
        self._retry_for = retry_for
        self._warned = WarnedRarely()
        self._durable: set[Path] = set()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._probed = False
        if self._root.is_dir() and os.access(self._root, os.W_OK):
            # Reading must work even if nothing can be written now; the first write probes again.
            with contextlib.suppress(StorageFull, StorageUnavailable):
                self._attempt(".tmp", self._probe, writes=True)

    @property
    def place(self) -> str:
        return str(self._root)

    def __repr__(self) -> str:
        return f"LocalStorage({self.place!r})"

    def create(self, name: str, data: bytes) -> Put:
        return self._attempt(name, lambda: self._create(self._path(name), lambda: [data]), writes=True)

    def create_file(self, name: str, path: Path) -> None:
        self._attempt(name, lambda: self._create(self._path(name), lambda: _chunks(path)), writes=True)

    def replace(self, name: str, data: bytes) -> None:
        self._attempt(name, lambda: self._in_folder(lambda: self._replace(self._path(name), data)), writes=True)

    def get(self, name: str) -> bytes:
        return self._attempt(name, lambda: self._path(name).read_bytes())

    def get_range(self, name: str, start: int, length: int) -> bytes:
        return self._attempt(name, lambda: _read_range(self._file(name), start, length))

    def exists(self, name: str) -> bool:
        return self._attempt(name, lambda: _is_there(self._path(name)))

    def list(self, prefix: str, after: str | None = None, before: str | None = None) -> Names:
        names = self._attempt(prefix, lambda: list(self._walk(prefix, deep=True)))
        return sorted(name for name in names if (after is None or name > after) and (before is None or name < before))

    def list_flat(self, prefix: str) -> Names:
        return self._attempt(prefix, lambda: sorted(self._walk(prefix, deep=False)))

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._attempt(name, lambda name=name: self._path(name).unlink(missing_ok=True))  # type: ignore[misc]

    def _path(self, name: str) -> Path:
        return Path(self._file(name))

    def _file(self, name: str) -> str:
        if not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise StorageRefused(
                f"{name!r} is not the name of an object: it is outside of {self.place} or names a folder."
            )
        return f"{self._root}/{name}"

    def _create(self, path: Path, chunks: Callable[[], Iterable[bytes]]) -> Put:
        put = self._in_folder(lambda: self._linked(path, chunks()))
        # Even if another process was first: its fsync may be pending, and the caller relies on the object.
        self._sync_folder(path.parent)
        return put

    def _in_folder(self, write: Callable[[], T]) -> T:
        """The result of a write, which is repeated if the folder was deleted, or the log replaced by a backup."""
        try:
            return write()
        except FileNotFoundError:
            self._durable.clear()
            return write()

    def _linked(self, path: Path, chunks: Iterable[bytes]) -> Put:
        self._make_durable_folder(path.parent)
        with self._written(chunks) as temporary:
            return self._link(temporary, path)

    def _replace(self, path: Path, data: bytes) -> None:
        self._make_durable_folder(path.parent)
        with self._written([data], fsync=False) as temporary:
            os.replace(temporary, path)

    @contextlib.contextmanager
    def _written(self, chunks: Iterable[bytes], *, fsync: bool = True) -> Iterator[Path]:
        """A temporary file with these bytes, fsynced if that is wanted."""
        temporary = self._temporary / f"{socket.gethostname()}-{os.getpid()}-{id(self):x}-{next(self._numbers)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            try:
                for chunk in chunks:
                    _write_all(descriptor, chunk)
                if fsync and self._fsync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _link(self, temporary: Path, path: Path) -> Put:
        try:
            os.link(temporary, path)
        except OSError as error:
            # Over NFS the answer to a successful link can get lost; the repeated request then finds its own name.
            if os.stat(temporary).st_nlink > 1:
                return Put.CREATED
            if isinstance(error, FileExistsError):
                return Put.EXISTS
            if error.errno in _NO_LINKS:
                raise NoHardLinks(self.place) from error
            raise
        return Put.CREATED

    def _make_durable_folder(self, folder: Path) -> None:
        if folder in self._durable and self._probed:
            return
        with self._lock:
            made = [] if self._root.is_dir() else _missing_parents(self._root)
            folder.mkdir(parents=True, exist_ok=True)
            self._temporary.mkdir(exist_ok=True)
            within = [folder, *itertools.takewhile(lambda parent: parent != self._root, folder.parents), self._root]
            for parent in [*within, *made]:
                self._sync_folder(parent)
            if not self._probed:
                self._probe()
            self._durable.update(within)

    def _sync_folder(self, folder: Path) -> None:
        if self._fsync:
            sync_folder(folder)

    def _probe(self) -> None:
        """Rejects a file system without hard links, and deletes old temporary files of killed processes.

        Their age is measured by the file system's clock, so that clocks of different hosts don't matter.
        """
        self._temporary.mkdir(exist_ok=True)
        with self._written([]) as temporary:
            second = temporary.with_name(f"{temporary.name}-link")
            try:
                os.link(temporary, second)
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise NoHardLinks(self.place) from error
                raise
            second.unlink()
            now = temporary.stat().st_mtime
            for left in self._temporary.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if now - left.stat().st_mtime > _SWEEP_AFTER_S:
                        left.unlink()
        self._probed = True

    def _walk(self, prefix: str, *, deep: bool) -> Iterator[str]:
        folder = self._root / prefix
        try:
            entries = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            name = f"{prefix.rstrip('/')}/{entry.name}" if prefix.strip("/") else entry.name
            if entry.is_dir():
                if deep and name != ".tmp":
                    yield from self._walk(name, deep=True)
            else:
                yield name

    def _attempt(self, name: str, call: Callable[[], T], *, writes: bool = False) -> T:
        return retrying(
            lambda: self._translated(name, call, writes), self._retry, deadline=self._retry_for, warned=self._warned
        )

    def _translated(self, name: str, call: Callable[[], T], writes: bool) -> T:
        try:
            return call()
        except OSError as error:
            if not writes and isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
                raise ObjectMissing(self.place, name) from error
            what = f"{name} in {self.place}: {error.strerror or error} (errno {error.errno})"
            if error.errno in _FULL:
                raise StorageFull(
                    f"No space for {what}. Free space or raise the quota, then start again. Nothing is lost."
                ) from error
            if error.errno in _TRANSIENT:
                raise StorageUnavailable(f"The disk didn't answer for {what}. Check the disk and its mount.") from error
            raise StorageRefused(f"The file system refused {what}. Check its owner, permissions and mount.") from error


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _read_range(path: str, start: int, length: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.pread(descriptor, length, start)
        while len(found) < length and (more := os.pread(descriptor, length - len(found), start + len(found))):
            found += more
        return found
    finally:
        os.close(descriptor)


def _is_there(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _missing_parents(folder: Path) -> list[Path]:
    """The parents of `folder` to fsync after it is created: every missing one, and the first that exists."""
    parents: list[Path] = []
    for parent in folder.parents:
        parents.append(parent)
        if parent.is_dir():
            break
    return parents
