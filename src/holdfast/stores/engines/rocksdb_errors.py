"""rocksdict's exceptions as Holdfast's errors, which say what to do."""

import contextlib
import errno
import os
import traceback
from collections.abc import Iterator
from pathlib import Path

import rocksdict as rd

from holdfast.errors import Closed, DamagedObject, HoldfastError
from holdfast.stores.engines.base import (
    DamagedState,
    DiskFull,
    EngineFailed,
    EngineInUse,
    StateError,
    StateUnreadable,
    TooManyOpenFiles,
)
from holdfast.stores.engines.open_files import is_too_many


class BadOptions(StateError):
    """Options that contradict each other or break an engine. The state is unchanged."""

    message = (
        "{path} can't be opened with these options: {cause}. Fix the hook that sets them (rocksdb_options=), or remove "
        "it."
    )


class NoDirectIO(StateError):
    message = (
        "the file system of {path} has no direct I/O: {cause} Set state.direct_reads and state.direct_writes to false "
        "(or fix the hook that sets direct I/O), or move state.dir to a disk."
    )


@contextlib.contextmanager
def translated(path: Path, *, opening: bool = False) -> Iterator[None]:
    """Raises Holdfast's error instead of rocksdict's exception.

    The local variables of functions that the block called are cleared: an iterator among them would keep the database
    open for as long as the error exists.
    """
    try:
        yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        if (translation := _translation(path, error, opening)) is None:
            raise
        raise translation from error


def is_write_stall(error: Exception) -> bool:
    """Whether RocksDB refused a write that it would have delayed."""
    return str(error).startswith("Result incomplete: Write stall")


def _translation(path: Path, error: BaseException, opening: bool) -> HoldfastError | None:
    if isinstance(error, DamagedObject):
        return DamagedState(path, error)
    if isinstance(error, rd.DbClosedError):
        return Closed(f"the engine of {path} is closed. Open it again.")
    if isinstance(error, OSError) or type(error) is Exception:  # rocksdict raises plain Exceptions, and no others
        return _from_text(path, error, opening)
    return None


def _from_text(path: Path, error: Exception, opening: bool) -> HoldfastError:
    # RocksDB's status is available only as text: RocksDB's own words, and the system's texts of error numbers.
    text = str(error)
    if is_too_many(error):
        return TooManyOpenFiles(path, text)
    if os.strerror(errno.ENOSPC) in text:
        return DiskFull(path, text)
    if os.strerror(errno.EACCES) in text or os.strerror(errno.EROFS) in text:
        return StateUnreadable(path, text)
    if opening and "LOCK" in text:
        return EngineInUse(path, text)
    if opening and "Direct I/O is not supported" in text:
        return NoDirectIO(path, text)
    if opening and text.startswith(("Invalid argument", "Not implemented")):
        return BadOptions(path, text)
    if opening or "Corruption" in text:
        return DamagedState(path, text)
    return EngineFailed(path, text)
