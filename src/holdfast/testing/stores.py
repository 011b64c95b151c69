"""Tests that every kind of store must pass, as a class that the author of a kind runs with pytest.

    class TestMine(StoreConformance):
        def declared(self): return MyStore("mine")
        def write(self, store, random): store.add("key", random.randrange(9))
        def content(self, store): return store.everything()

A store object lives for one version: a task binds it to the bytes of the previous version, and only the bytes it writes
remain. So its whole state must be in them, and two replicas with the same bytes must give the same answers.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.chance import Random
from holdfast.stores.access import DictBytes, Now, ReadableBytes
from holdfast.stores.engines.base import Engine, EngineView, Resources
from holdfast.stores.engines.registry import open_engine
from holdfast.stores.kinds import store_class, view_of
from holdfast.stores.kinds.base import NotBound, Store
from holdfast.stores.layouts.base import AREAS
from holdfast.stores.spec import StoreSpec
from holdfast.testing.engines import changes_of, mark_of


class EngineBytes:
    """One store of an engine's view, as ordered bytes."""

    def __init__(self, engine: Engine, view: EngineView, store: str) -> None:
        self._engine, self._view, self._store = engine, view, store

    def get(self, key: bytes) -> bytes | None:
        return self._view.get(self._store, key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._engine.get_many(self._store, pa.array(keys, pa.binary())).to_pylist()
        return found

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._view.scan(self._store, start, stop, reverse=reverse)

    def approximate_count(self) -> int:
        return self._engine.approximate_count(self._store)


class StoreConformance:
    """Subclass it, define the three methods, and let pytest collect the subclass."""

    versions = 6
    writes = 50
    engines = ("memory", "rocksdb")
    type_: Any = Any
    """The type of the store's values, if the view needs one."""

    def declared(self) -> Store[Any, Any]:
        """The store as a processor declares it."""
        raise NotImplementedError

    def write(self, store: Any, random: Random) -> None:
        """Changes a bound store at random; called many times per version."""
        raise NotImplementedError

    def content(self, store: Any) -> object:
        """Everything that can be read from a store or its read-only view, for comparison."""
        raise NotImplementedError

    def now(self, version: int) -> Now:
        """The clocks of a version."""
        return Now(wall=1_000_000 + 1_000 * version, event=900_000 + 1_000 * version)

    def test_the_log_can_name_it(self) -> None:
        store = self.declared()
        spec = store.spec()
        assert store_class(spec.kind) is type(store), (
            f"{spec.kind} names another class; define the class at the top level of a module"
        )
        assert msgspec.json.decode(msgspec.json.encode(spec), type=StoreSpec) == spec

    def test_declared_it_has_no_data_and_says_so(self) -> None:
        for use in (self.content, lambda store: self.write(store, Random(1))):
            try:
                use(self.declared())
            except NotBound:
                continue
            raise AssertionError("a store that isn't bound must raise NotBound when it is used")

    def test_all_it_knows_is_in_its_bytes(self) -> None:
        """A store that is bound again for every version writes the same bytes as one that isn't."""
        again = self._history()
        for number, (entries, content) in enumerate(self._history()):
            other_entries, other = again[number]
            assert entries == other_entries, (
                f"version {number} wrote different bytes the second time: it isn't deterministic"
            )
            assert content == other
            fresh = self._bound(_filled(entries), number)
            assert self.content(fresh) == content, "a new object with the same bytes must read the same"

    def test_its_keys_are_in_a_stores_areas(self) -> None:
        for entries, _ in self._history():
            for key in entries:
                assert key[:1] in AREAS, f"{key!r} starts with {key[:1]!r}, which isn't an area of stores"

    def test_its_read_only_view_reads_the_same_on_every_engine(self, tmp_path: Path) -> None:
        spec = self.declared().spec()
        for name in self.engines:
            engine = open_engine(name, tmp_path / name, [spec], Resources(32 << 20))
            before: dict[bytes, bytes] = {}
            for number, (entries, content) in enumerate(self._history()):
                changed: dict[bytes, bytes | None] = {k: v for k, v in entries.items() if before.get(k) != v}
                changed |= dict.fromkeys(before.keys() - entries.keys())
                engine.apply([(spec.name, changes_of(changed))], mark_of(number + 1))
                before = entries
                view = engine.view()
                bytes_: ReadableBytes = EngineBytes(engine, view, spec.name)
                typed = view_of(spec, bytes_, self.now(number), value=self.type_)
                assert self.content(typed) == content, f"the view of {name} reads something else"
                view.close()
            engine.close()

    def test_what_it_reads_ahead_are_keys_and_ranges(self) -> None:
        for entries, _ in self._history():
            wanted = self._bound(_filled(entries), self.versions).prefetch([], [])
            assert all(isinstance(key, bytes) for key in wanted.keys)
            assert all(start <= stop for start, stop in wanted.ranges)

    def _bound(self, bytes_: DictBytes, version: int) -> Any:
        return self.declared().bind(bytes_, self.now(version))

    def _history(self) -> list[tuple[dict[bytes, bytes], object]]:
        """The bytes and the content after every version. The store is bound per version, as in a task."""
        found: list[tuple[dict[bytes, bytes], object]] = []
        entries: dict[bytes, bytes] = {}
        for version in range(self.versions):
            random = Random(version)
            bytes_ = _filled(entries)
            store = self._bound(bytes_, version)
            store.begin_version()
            for _ in range(self.writes):
                self.write(store, random)
            store.end_of_version()
            entries = dict(bytes_.entries)
            found.append((entries, self.content(store)))
        return found


def _filled(entries: dict[bytes, bytes]) -> DictBytes:
    bytes_ = DictBytes()
    bytes_.entries.update(entries)
    return bytes_
