"""Worlds of the property tests: where the bytes of a store are, and what happens between two versions.

    dict      one dictionary
    rocksdb   two replicas on that engine; one drops slices at every version, the other now and then, and is closed
    memory    and opened again, sometimes from a checkpoint of an older version or from nothing, to catch up from
              wherever it then is with what the versions changed

Whatever the replicas did in between, at every version both must answer alike.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from sortedcontainers import SortedDict

from holdfast.stores.access import DictBytes, Now, OrderedBytes, ReadableBytes
from holdfast.stores.engines.base import Changes, Engine, EngineView, Mark, Resources
from holdfast.stores.engines.registry import open_engine
from holdfast.stores.layouts.slices import slices_to_drop
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, Version


class Reading:
    """One store of a view, as bytes in order."""

    def __init__(self, view: EngineView, engine: Engine, store: str) -> None:
        self._view, self._engine, self._store = view, engine, store

    def get(self, key: bytes) -> bytes | None:
        return self._view.get(self._store, key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._view.scan(self._store, start, stop, reverse=reverse)

    def approximate_count(self) -> int:
        return self._engine.approximate_count(self._store)


class Writing:
    """Bytes in order under what a version has changed so far."""

    def __init__(self, before: ReadableBytes) -> None:
        self._before = before
        self.changes: SortedDict[bytes, bytes | None] = SortedDict()

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self.changes[key] if key in self.changes else self._before.get(key)
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        found = dict(self._before.scan(start, stop))
        for key in self.changes.irange(start, stop, inclusive=(True, False)):
            found[key] = self.changes[key]
        return iter([(key, found[key]) for key in sorted(found, reverse=reverse) if found[key] is not None])

    def approximate_count(self) -> int:
        return self._before.approximate_count()

    def put(self, key: bytes, value: bytes) -> None:
        self.changes[key] = value

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.changes.update(zip(keys, values, strict=True))

    def delete(self, key: bytes) -> None:
        self.changes[key] = None

    def hold(self, entries: int, size: int) -> None:
        """Does nothing: there is no limit."""


class DictWorld:
    """One dictionary. Slices are dropped at every other version."""

    def __init__(self, spec: StoreSpec) -> None:
        self._spec = spec
        self._bytes = DictBytes()
        self._version = 0

    def writing(self) -> OrderedBytes:
        return self._bytes

    def commit(self, now: Now, *, restart: bool) -> None:
        self._version += 1
        span = slices_to_drop(self._spec, now.wall, now.event)
        if span is not None and self._version % 2:
            for key, _ in list(self._bytes.scan(*span)):
                self._bytes.delete(key)

    def replicas(self) -> list[ReadableBytes]:
        return [self._bytes]

    def close(self) -> None:
        pass


class EngineWorld:
    """Two replicas of one partition, and the versions' changes from which either can be brought up to date."""

    def __init__(self, spec: StoreSpec, engine: str, folder: Path) -> None:
        self._spec, self._kind, self._folder = spec, engine, folder
        self._log: list[tuple[Changes, Now]] = []
        self._checkpoints: list[Path] = []
        self._engines = [self._open(n) for n in range(2)]
        self._views: list[EngineView] = []
        self._writing: Writing | None = None

    def writing(self) -> OrderedBytes:
        # In turns, so that a writer notices what either replica has lost.
        self._writing = Writing(self.replicas()[len(self._log) % 2])
        return self._writing

    def commit(self, now: Now, *, restart: bool) -> None:
        assert self._writing is not None
        entries = self._writing.changes
        keys, values = pa.array(list(entries.keys()), pa.binary()), pa.array(list(entries.values()), pa.binary())
        self._log.append((Changes(keys, values), now))
        self._let_go()
        if restart:
            self._restart()
        for n, engine in enumerate(self._engines):
            self._catch_up(engine)
            span = slices_to_drop(self._spec, now.wall, now.event)
            if span is not None and (n == 0 or len(self._log) % 3 == 0):
                engine.drop(self._spec.name, *span)
        if len(self._log) % 4 == 2:
            self._engines[0].flush()
            self._engines[0].checkpoint(self._saved())

    def replicas(self) -> list[ReadableBytes]:
        self._let_go()
        self._views = [engine.view() for engine in self._engines]
        return [Reading(view, engine, self._spec.name) for view, engine in zip(self._views, self._engines, strict=True)]

    def close(self) -> None:
        self._let_go()
        for engine in self._engines:
            engine.close()

    def _catch_up(self, engine: Engine) -> None:
        mark = engine.mark()
        at = NOTHING if mark is None else mark.version
        for version in range(at + 1, len(self._log) + 1):
            changes, _ = self._log[version - 1]
            engine.apply([(self._spec.name, changes)], Mark(Version(version), f"commit-{version}", "log-1"))

    def _restart(self) -> None:
        """The second replica, with what it has on disk; every other time with the newest checkpoint, or nothing."""
        self._engines[1].close()
        if len(self._log) % 2 == 0:
            shutil.rmtree(self._folder / "1")
            if self._checkpoints:
                shutil.copytree(self._checkpoints[-1], self._folder / "1")
        self._engines[1] = self._open(1)

    def _saved(self) -> Path:
        self._checkpoints.append(self._folder / f"saved-{len(self._log)}")
        return self._checkpoints[-1]

    def _let_go(self) -> None:
        for view in self._views:
            view.close()
        self._views = []

    def _open(self, number: int) -> Engine:
        return open_engine(self._kind, self._folder / str(number), [self._spec], Resources(16 << 20))
