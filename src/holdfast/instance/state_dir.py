"""The folder of an instance on disk, and in it one per task, as users of Kafka Streams know them.

    <state_dir>/.lock                  held with flock while an instance runs; its text names the holder
    <state_dir>/<task>/.lock           the same, while the instance has the task
    <state_dir>/<task>/.checkpoint     readable: which log, and each store's version at the last flush
    <state_dir>/<task>/data/<engine>/  the engine's files
    <state_dir>/<task>/volatile/       the same for stores that aren't durable; empty beside a snapshot's data
    <state_dir>/<task>/loading/        a snapshot on its way; becomes data/ when it is complete
    <state_dir>/.deleted-<task>-<n>/   a folder on its way out: its task was not hosted here for a while
    <state_dir>/<task>/former/         data that couldn't be used, until it is known which of its files a snapshot has

The engine's own mark says how far the data is. `.checkpoint` is written after a flush, and read to find folders that
another program has changed, and how long the tail was.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

import msgspec

from holdfast.errors import ErrorCategory, Held, HoldfastError
from holdfast.stores.engines.base import DiskFull, TooManyOpenFiles
from holdfast.stores.engines.open_files import is_too_many
from holdfast.stores.folders import sync_folder
from holdfast.words import TaskId, Version

_NO_SPACE = (28, 122)  # ENOSPC, EDQUOT


class Holder(msgspec.Struct, frozen=True):
    """The process that has a state directory."""

    name: str
    pid: int
    host: str


class StateDirectoryInUse(Held):
    def __init__(self, path: Path, holder: Holder | None) -> None:
        by = (
            "another process" if holder is None else f"instance {holder.name!r} (process {holder.pid} on {holder.host})"
        )
        super().__init__(f"{path} is held by {by}. Stop it, or give this one another id or another state.dir.")
        self.holder = holder


class StateDirectoryUnusable(HoldfastError):
    category = ErrorCategory.INVALID

    def __init__(self, path: Path, cause: object) -> None:
        super().__init__(
            f"the state directory {path} can't be used: {cause}. Make it a folder this user may read and write, or "
            "give this instance another state_dir; its state is restored from the log."
        )


class GarbledStateFile(HoldfastError):
    category = ErrorCategory.DATA


class FolderLost(HoldfastError):
    """Someone has deleted or replaced a folder that is in use."""

    category = ErrorCategory.DATA

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} was deleted or replaced while an instance had it. Its state is restored from the log. Keep other "
            "programs, such as those that clean temporary folders, from the state directory."
        )


class CheckpointFile(msgspec.Struct, frozen=True):
    """The contents of `.checkpoint`."""

    format: int
    log: str
    task: str
    commit: str
    stores: dict[str, int]
    applied_bytes: int
    """The bytes of the segments that led to this version."""


class InstanceDirectory:
    """The folder of an instance, locked for as long as this object is open."""

    def __init__(self, path: Path, instance: str) -> None:
        self._folder = _LockedFolder(path, instance)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keep(self) -> None:
        """Makes and locks the folder again if it was deleted."""
        self._folder.keep()

    def close(self) -> None:
        """Releases the folder."""
        self._folder.close()


class TaskDirectory:
    """One task's folder, locked for as long as this object is open."""

    def __init__(self, state_dir: Path, task: TaskId, instance: str) -> None:
        self.path = state_dir / str(task)
        self.task = task
        self.data = self.path / "data"
        self.volatile = self.path / "volatile"
        self.loading = self.path / "loading"
        self.former = self.path / "former"
        self.saving = self.path / "saving"
        self._has_leftovers = True
        self._folder = _LockedFolder(self.path, instance)
        try:
            with usable(self.path):
                remove(self.saving)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_there(self) -> bool:
        """Whether the folder is still the one that was locked."""
        return self._folder.is_there

    @property
    def is_open(self) -> bool:
        return self._folder.is_open

    def keep(self) -> None:
        """Makes and locks the folder again if it was deleted."""
        self._folder.keep()

    def close(self) -> None:
        """Releases the folder."""
        self._folder.close()

    def wipe(self) -> None:
        """Starts without local state; the log has everything. Files that a snapshot has too may still be used."""
        with usable(self.path):
            (self.path / ".checkpoint").unlink(missing_ok=True)
            for each in (self.volatile, self.saving):
                remove(each)
            if self.data.exists():
                remove(self.former)
                self.data.rename(self.former)
            self._has_leftovers = True

    def drop_leftovers(self) -> None:
        """Removes what only a load of a snapshot could still use."""
        if self._has_leftovers:
            with usable(self.path):
                for each in (self.former, self.loading):
                    remove(each)
            self._has_leftovers = False

    def drop_former(self) -> None:
        with usable(self.path):
            remove(self.former)

    def adopt_loaded(self) -> None:
        """A snapshot that was loaded and checked becomes the data."""
        with usable(self.path):
            (self.path / ".checkpoint").unlink(missing_ok=True)
            remove(self.data)
            remove(self.volatile)
            self.loading.rename(self.data)
            sync_folder(self.path)
            remove(self.former)

    def read_checkpoint(self) -> CheckpointFile | None:
        """The file as of the last flush; None if there was none."""
        path = self.path / ".checkpoint"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateDirectoryUnusable(path, error) from error
        try:
            checkpoint = msgspec.json.decode(data, type=CheckpointFile)
        except msgspec.MsgspecError as error:
            raise GarbledStateFile(
                f"{path} can't be read: {error}. The folder is emptied and restored from the log."
            ) from error
        if checkpoint.format != 1 or checkpoint.task != str(self.task):
            raise GarbledStateFile(
                f"{path} is of format {checkpoint.format} for task {checkpoint.task}, not of format 1 for task "
                f"{self.task}. The folder is emptied and restored from the log."
            )
        return checkpoint

    def write_checkpoint(self, log: str, commit: str, version: Version, stores: list[str], applied_bytes: int) -> None:
        """Writes how far the data on disk is. Call it after a flush."""
        versions = dict.fromkeys(sorted(stores), int(version))
        checkpoint = CheckpointFile(1, log, str(self.task), commit, versions, applied_bytes)
        text = msgspec.json.format(msgspec.json.encode(checkpoint), indent=2) + b"\n"
        with usable(self.path):
            draft = self.path / ".checkpoint.new"
            with draft.open("wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path / ".checkpoint")


@contextlib.contextmanager
def usable(path: Path) -> Iterator[None]:
    """Turns errors of the file system into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise DiskFull(path, error) from error
        if is_too_many(error):
            raise TooManyOpenFiles(path, error) from error
        raise StateDirectoryUnusable(path, error) from error


def check_free(folders: Iterable[Path], is_own: Callable[[str], bool]) -> None:
    """Raises if the folder of an instance can't be used, or is held by an instance of another name."""
    for folder in folders:
        with usable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / ".lock").exists():
                try:
                    os.close(_lock(folder))
                except StateDirectoryInUse as held:
                    if held.holder is not None and not is_own(held.holder.name):
                        raise


class _LockedFolder:
    """A folder that is made and locked, and locked again if someone has deleted it."""

    def __init__(self, path: Path, instance: str) -> None:
        self._path = path
        self._holder = Holder(instance, os.getpid(), socket.gethostname())
        self._changing = threading.Lock()
        self._lock: int | None = self._take()

    @property
    def is_open(self) -> bool:
        return self._lock is not None

    @property
    def is_there(self) -> bool:
        try:
            return self._lock is not None and os.path.samestat(os.stat(self._path / ".lock"), os.fstat(self._lock))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def keep(self) -> None:
        with self._changing:
            if self._lock is not None and not self.is_there:
                former, self._lock = self._lock, self._take()
                os.close(former)

    def close(self) -> None:
        with self._changing:
            lock, self._lock = self._lock, None
            if lock is not None:
                os.close(lock)

    def _take(self) -> int:
        with usable(self._path):
            self._path.mkdir(parents=True, exist_ok=True)
            return _locked(self._path, self._holder)


def _locked(folder: Path, holder: Holder) -> int:
    descriptor = _lock(folder)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, msgspec.json.encode(holder), 0)
    return descriptor


def _lock(folder: Path) -> int:
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        found = os.pread(descriptor, 4096, 0)
        os.close(descriptor)
        raise StateDirectoryInUse(folder, _holder(found)) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _holder(data: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(data, type=Holder)
    except msgspec.MsgspecError:
        return None  # the holder has the lock and hasn't written its name yet


def remove(path: Path) -> None:
    """Deletes a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def file_system_of(path: Path, mounts: str) -> str:
    """The type of the file system a path is on, from the text of /proc/mounts.

    >>> file_system_of(Path("/tmp/x"), "disk / ext4 rw 0 0\\ntmpfs /tmp tmpfs rw 0 0")
    'tmpfs'
    """
    best, kind = -1, "unknown"
    for line in mounts.splitlines():
        _, where, found, *_ = line.split()
        place = Path(where.replace("\\040", " "))
        if (path == place or place in path.parents) and len(place.parts) > best:
            best, kind = len(place.parts), found
    return kind


def warning_about(state_dir: Path) -> str | None:
    """A warning about the place of the state directory; None if there is none."""
    try:
        mounts = Path("/proc/mounts").read_text()
    except OSError:
        return None  # not Linux
    kind = file_system_of(state_dir.absolute(), mounts)
    if kind not in ("tmpfs", "ramfs"):
        return None
    return (
        f"the state directory {state_dir} is on a temporary file system ({kind}): it uses memory, and after a restart "
        "of the machine everything is restored from the log. Set state.dir to a folder on a disk."
    )
