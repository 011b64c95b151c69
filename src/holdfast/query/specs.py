"""What the log knows of each store, as it is by now.

Code may change while an instance runs: a rolling deployment gives a table another column, or a value another shape, and
the app's file gets the next number. An instance has read it by the time it shows a version that was made under it. Only
where another instance answers, which may be ahead, a value can have a schema that isn't known here yet: then the file
is read, once for each such number, so that a damaged one doesn't have it read again and again.

Values are shown by the newest file. What a retention hides is another matter: it is a part of what a version shows, so
it goes by the file that the version was made under, whoever answers and whatever they have heard of since.
"""

import threading
from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from holdfast.log.appfile import AppSpec
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version


class Newest(Protocol):
    """Where the app's newest file is known; an instance's source."""

    @property
    def app(self) -> AppSpec: ...

    def look_at_app(self) -> None:
        """Reads the newest file."""

    def app_of(self, version: Version) -> AppSpec:
        """The file a version was made under."""


class Specs(Mapping[str, StoreSpec]):
    """The stores an instance was started with, each as the newest file that is known has it."""

    def __init__(self, app: AppSpec, newest: Newest | None = None) -> None:
        self._app = app
        self._newest = newest
        self._specs = {spec.name: spec for spec in app.stores}
        self._met: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def __getitem__(self, store: str) -> StoreSpec:
        if self._newest is not None and self._newest.app is not self._app:
            self._renew(self._newest.app)
        return self._specs[store]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def at(self, store: str, version: Version) -> StoreSpec:
        """The store as the newest file has it, but for what the version's own file says of how long things are kept."""
        if self._newest is None:
            return self[store]
        then, newest = self._newest.app_of(version).store(store), self[store]
        if then is None or _kept(then) == _kept(newest):
            return newest
        return msgspec.structs.replace(newest, ttl_ms=then.ttl_ms, retention_ms=then.retention_ms, clock=then.clock)

    def is_news(self, store: str, schema: int) -> bool:
        """Whether a value's schema isn't known, and nobody has looked for it yet."""
        return self._newest is not None and schema > self[store].schema and (store, schema) not in self._met

    def learn(self, store: str, schema: int) -> None:
        """Has the newest file read if it is news."""
        if self._newest is None or not self.is_news(store, schema):
            return
        with self._lock:
            if self.is_news(store, schema):
                self._newest.look_at_app()
                self._met.add((store, schema))

    def _renew(self, app: AppSpec) -> None:
        # A store that was added needs replicas of its own, which this instance was started without.
        self._specs = {name: app.store(name) or spec for name, spec in self._specs.items()}
        self._app = app


def _kept(spec: StoreSpec) -> tuple[object, ...]:
    return spec.ttl_ms, spec.retention_ms, spec.clock
