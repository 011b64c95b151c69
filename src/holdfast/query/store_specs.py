"""The spec of each store, as the newest known app file has it.

Code may change while an instance runs: a rolling deployment adds a column to a table, or changes the schema of a value,
and the log gets the next app file. An instance has read that file before it shows a version committed with it. Only a
value from another instance, which may be ahead, can have a schema that isn't known here yet: then the newest file is
read, once per such number, so that a damaged value doesn't cause a read each time.

Values are shown by the newest file. What a TTL or a retention hides is part of the version that is read, so it follows
the file that the version was committed with, on every instance.
"""

import threading
from operator import attrgetter
from typing import Protocol

import msgspec

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.appfile import AppSpec
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version


class UnknownStore(HoldfastError):
    """The app has no store of that name. `stores` has the names of those it has."""

    category = ErrorCategory.INVALID

    def __init__(self, store: str, app: str, stores: list[str]) -> None:
        self.stores = stores
        self._what = store, app
        there = f"It has {', '.join(stores)}" if stores else "It has no stores"
        super().__init__(f"{app!r} has no store {store!r}. {there}.")

    def among(self, stores: list[str]) -> "UnknownStore":
        """The same for someone who may know of these stores."""
        return UnknownStore(*self._what, stores)


class KnownApps(Protocol):
    """The app files that are known; `LogReader` of an instance has them."""

    @property
    def app(self) -> AppSpec: ...

    def look_at_app(self) -> None:
        """Reads the newest file."""

    def app_of(self, version: Version) -> AppSpec:
        """The file a version was committed with."""


class StoreSpecs:
    """The specs of the app's stores, also of those that were added while the instance runs."""

    def __init__(self, files: KnownApps) -> None:
        self._files = files
        self._met: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def __getitem__(self, store: str) -> StoreSpec:
        app = self._files.app
        found = app.store(store)
        if found is None or found.removed is not None:
            raise UnknownStore(store, app.id, sorted(spec.name for spec in app.current_stores))
        return found

    def all(self) -> list[StoreSpec]:
        """All of them, by name."""
        return sorted(self._files.app.current_stores, key=attrgetter("name"))

    def at(self, store: str, version: Version) -> StoreSpec:
        """The spec in the newest file, with TTL, retention and clock as in the file of that version.

        This may read the log, so an event loop must not call it.
        """
        then, newest = self._files.app_of(version).store(store), self[store]
        if then is None or _kept(then) == _kept(newest):
            return newest
        return msgspec.structs.replace(newest, ttl_ms=then.ttl_ms, retention_ms=then.retention_ms, clock=then.clock)

    def is_unknown_schema(self, store: str, schema: int) -> bool:
        """Whether a value's schema isn't known, and the newest file hasn't been read for it yet."""
        return schema > self[store].schema and (store, schema) not in self._met

    def load_schema(self, store: str, schema: int) -> None:
        """Reads the newest file if the schema is unknown."""
        if not self.is_unknown_schema(store, schema):
            return
        with self._lock:
            if self.is_unknown_schema(store, schema):
                self._files.look_at_app()
                self._met.add((store, schema))


def _kept(spec: StoreSpec) -> tuple[object, ...]:
    return spec.ttl_ms, spec.retention_ms, spec.clock
