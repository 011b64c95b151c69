"""Whether stores can be read, found out by reading them.

A store is available when every one of its partitions answers. What went wrong last is kept after it went right again,
with its time, because whoever looks usually comes later than the trouble.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.words import Millis, TaskId, Version


class Reading(Protocol):
    """What came of reading one partition of a store: the version read, or the error."""

    @property
    def task(self) -> TaskId: ...

    @property
    def version(self) -> Version | None: ...

    @property
    def error(self) -> HoldfastError | None: ...


class LastError(msgspec.Struct, frozen=True):
    message: str
    at: Millis


class Partitions(msgspec.Struct, frozen=True):
    all: int
    available: int


class StoreHealth(msgspec.Struct, frozen=True):
    """One store's health. `version` is the smallest over its partitions, None while none can be read."""

    store: str
    available: bool
    partitions: Partitions
    version: int | None
    unavailable: dict[str, str]
    last_error: LastError | None


class LastErrors:
    """The newest error of each store. Whoever reads stores notes them here, from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._errors: dict[str, LastError] = {}

    def note(self, store: str, error: HoldfastError) -> None:
        with self._lock:
            self._errors[store] = LastError(str(error), self._clock.now())

    def of(self, store: str) -> LastError | None:
        with self._lock:
            return self._errors.get(store)


def judge(store: str, readings: Sequence[Reading], last_error: LastError | None) -> StoreHealth:
    """What the readings of its partitions say about a store."""
    versions = [reading.version for reading in readings if reading.version is not None]
    return StoreHealth(
        store=store,
        available=len(versions) == len(readings),
        partitions=Partitions(all=len(readings), available=len(versions)),
        version=min(versions, default=None),
        unavailable={str(reading.task): str(reading.error) for reading in readings if reading.error is not None},
        last_error=last_error,
    )


def check_stores(
    stores: Sequence[str], read: Callable[[str], Sequence[Reading]], errors: LastErrors
) -> list[StoreHealth]:
    """Reads every store. `read` answers for each partition and notes what failed in `errors`."""
    healths = []
    for store in stores:
        readings = read(store)
        healths.append(judge(store, readings, errors.of(store)))
    return healths
