"""Stores whose entries expire, random writes to them, and a model that never drops an entry."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.instance.read_views import ReadView, StoreBytes
from holdfast.log.commits import Clocks
from holdfast.stores.access import DictBytes, Now, ReadableBytes
from holdfast.stores.kinds.base import Store
from holdfast.stores.kinds.keyvalue import KeyValueStore
from holdfast.stores.kinds.session import SessionStore
from holdfast.stores.kinds.versioned import VersionedKeyValueStore
from holdfast.stores.kinds.window import WindowStore
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version
from tests.instance.app_log import TASK, AppLog

KEYS = ("ann", "bob", "cleo", "dan")
TTL = KeyValueStore("ttl", value=int, ttl="20s")
SINGLE = KeyValueStore("single", value=int)
WINDOWS = WindowStore("windows", value=int, size="5s", retention="30s")
SESSIONS = SessionStore("sessions", value=int, gap="3s", retention="40s")
HISTORY = VersionedKeyValueStore("history", value=int, retention="25s")
STORES: dict[str, Store[Any, Any]] = {each.name: each for each in (TTL, SINGLE, WINDOWS, SESSIONS, HISTORY)}

Writes = Mapping[str, Sequence[tuple[str, int]]]
"""Per store: keys and the times of their writes."""


def specs(engine: str) -> tuple[StoreSpec, ...]:
    return tuple(store.spec(default_engine=engine) for store in STORES.values())


def contents_of(bytes_of: Mapping[str, ReadableBytes], now: Now) -> dict[str, Any]:
    """The contents of the typed stores at one version."""
    declared: dict[str, Any] = dict(STORES)
    bound = {name: store.bind(bytes_of[name], now).read_only() for name, store in declared.items()}
    return {
        "ttl": dict(bound["ttl"].items()) | {"one": [bound["ttl"].get(key) for key in KEYS]},
        "single": dict(bound["single"].items()),
        "windows": list(bound["windows"].fetch_all()) + [list(bound["windows"].fetch(key)) for key in KEYS],
        "sessions": [list(bound["sessions"].fetch(key)) for key in KEYS],
        "history": [list(bound["history"].history(key)) for key in KEYS],
    }


def answers(view: ReadView) -> dict[str, Any]:
    return contents_of({name: StoreBytes(view, name) for name in STORES}, view.now)


class Twin:
    """Commits versions as tasks do, and keeps every version with all entries ever written."""

    def __init__(self, app: AppLog) -> None:
        self._app = app
        self._now = Now(wall=1_000_000, event=None)
        self._history: dict[Version, tuple[dict[str, DictBytes], Now]] = {}
        self._bytes = {name: DictBytes() for name in STORES}

    def step(self, chance: random.Random) -> Version:
        """Commits a version with writes around its event time, some of them far too late."""
        wall = self._now.wall + chance.choice([0, 500, 2_000, 9_000])
        event = (self._now.event or 500_000) + chance.choice([0, 300, 1_500, 7_000, 20_000])
        writes = {
            name: [(chance.choice(KEYS), event - chance.choice([0, 0, 900, 6_000, 29_000])) for _ in range(3)]
            for name in STORES
            if chance.random() < 0.8
        }
        return self.commit(Now(wall, event), writes)

    def commit(self, now: Now, writes: Writes) -> Version:
        """Commits a version with these clocks; its task has the event clock of the version before."""
        before = {name: dict(each.entries) for name, each in self._bytes.items()}
        task = Now(now.wall, self._now.event)
        for name, store in STORES.items():
            bound: Any = store.bind(self._bytes[name], task)
            bound.begin_version()
            for number, (key, time) in enumerate(writes.get(name, ())):
                _write(bound, key, time, number)
            bound.end_of_version()
        changes = {name: _difference(before[name], dict(each.entries)) for name, each in self._bytes.items()}
        version = self._app.commit({TASK: changes}, Clocks(now.wall, now.event, {}))
        copies = {name: DictBytes() for name in STORES}
        for name, copy in copies.items():
            copy.entries.update(self._bytes[name].entries)
        self._now = now
        self._history[version] = copies, now
        return version

    def expected(self, version: Version) -> dict[str, Any]:
        return contents_of(*self._history[version])


def _write(store: Any, key: str, time: int, number: int) -> None:
    match store.name:
        case "ttl":
            store.put(key, time) if number else store.delete(key)
        case "single":
            store.put(key, time, ttl=f"{1 + number}s")
        case "windows":
            start = time - time % 5_000
            if number:
                store.put(key, number, start)
            else:
                for each in KEYS[:2]:
                    store.delete(each, start)
        case "sessions":
            store.merge(key, at=time, gap="3s", merge_values=lambda one, other: one + other, initial=1)
        case "history":
            store.put(key, number or None, time)


def _difference(old: dict[bytes, bytes], new: dict[bytes, bytes]) -> dict[bytes, bytes | None]:
    changed: dict[bytes, bytes | None] = {key: value for key, value in new.items() if old.get(key) != value}
    return changed | {key: None for key in old if key not in new}
