"""Whether stores can be read, found out by reading them.

A store is available when every one of its partitions answers. The last error of a store is kept after the store has
recovered, with its time, because people usually look after the failure.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.words import Millis, TaskId, Version


class ProbeResult(Protocol):
    """The result of reading one partition of a store: the version read, or the error."""

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
    """The last error of each store. Readers of stores record their errors here, from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._errors: dict[str, LastError] = {}

    def record(self, store: str, error: HoldfastError) -> None:
        with self._lock:
            self._errors[store] = LastError(str(error), self._clock.now())

    def of(self, store: str) -> LastError | None:
        with self._lock:
            return self._errors.get(store)


def health_of(store: str, results: Sequence[ProbeResult], last_error: LastError | None) -> StoreHealth:
    """The health of a store, from the results of reading its partitions."""
    versions = [result.version for result in results if result.version is not None]
    return StoreHealth(
        store=store,
        available=len(versions) == len(results),
        partitions=Partitions(all=len(results), available=len(versions)),
        version=min(versions, default=None),
        unavailable={str(result.task): str(result.error) for result in results if result.error is not None},
        last_error=last_error,
    )


def check_stores(
    stores: Sequence[str], read: Callable[[str], Sequence[ProbeResult]], errors: LastErrors
) -> list[StoreHealth]:
    """Reads every store. `read` returns a result per partition, and records failures in `errors`."""
    results = {store: read(store) for store in stores}
    return [health_of(store, found, errors.of(store)) for store, found in results.items()]
