"""Tests that every engine must pass, as a class that the author of an engine runs with pytest.

    class TestMine(EngineConformance):
        engine = "mine.engines:Mine"

An engine stores ordered bytes at a version. It must behave like a dictionary, keep views unchanged while versions are
applied, report its version correctly even after an interrupted apply, drop a range at once, and have all data after a
checkpoint is opened. The last test always passes: it prints how fast the engine is compared to RocksDB.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.chance import Random
from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import Closed, ErrorCategory, HoldfastError
from holdfast.stores.engines.base import Changes, Engine, EngineView, ForeignMark, Mark, Resources, UnknownFamily
from holdfast.stores.engines.registry import open_engine
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, Version

Model = dict[str, dict[bytes, bytes]]
FAMILIES = ("a", "b")
_KEYS = [b"\x01" + bytes([n]) * size for n in (0, 97, 255) for size in (1, 2, 3)] + [b"\x01", b"\x02ab"]


def stores(names: Iterable[str]) -> list[StoreSpec]:
    """Specs of stores with these names."""
    return [StoreSpec(name=name, key=Schema.of(key="string"), codec="bytes/1") for name in names]


def changes_of(entries: Mapping[bytes, bytes | None]) -> Changes:
    """Changes for `apply`; None deletes."""
    return Changes(pa.array(list(entries), pa.binary()), pa.array(list(entries.values()), pa.binary()))


def mark_of(version: int, log: str = "log-1") -> Mark:
    return Mark(Version(version), f"commit-{version}", log)


def everything(view: EngineView, family: str = "a") -> dict[bytes, bytes]:
    return dict(view.scan(family, b"", None))


class EngineConformance:
    """Subclass it, name the engine, and let pytest collect the subclass."""

    engine: str
    """The value of a store's `engine=`: `module:Class`."""
    memory_bytes = 64 << 20
    speed_rows = 100_000
    """Number of entries in the speed report."""

    def open(self, folder: Path, families: Sequence[str] = FAMILIES) -> Engine:
        return open_engine(self.engine, folder, stores(families), Resources(self.memory_bytes))

    @contextmanager
    def opened(self, folder: Path) -> Iterator[Engine]:
        engine = self.open(folder)
        try:
            yield engine
        finally:
            engine.close()

    def test_it_is_empty_at_first(self, tmp_path: Path) -> None:
        with self.opened(tmp_path / "state") as engine:
            assert engine.mark() is None, "a new engine is at no version"
            assert engine.get_many("a", pa.array([b"\x01"])).to_pylist() == [None]
            assert everything(engine.view()) == {}
            assert engine.approximate_count("a") == 0

    def test_it_agrees_with_a_dictionary(self, tmp_path: Path) -> None:
        for seed in range(30):
            _RandomSteps(self.open, tmp_path / str(seed), Random(seed)).run()

    def test_a_view_does_not_change(self, tmp_path: Path) -> None:
        with self.opened(tmp_path / "state") as engine:
            first: dict[bytes, bytes | None] = {b"\x01%05d" % n: b"1" for n in range(3_000)}
            engine.apply([("a", changes_of(first))], mark_of(1))
            view = engine.view()
            up, down = view.scan("a", b"", None), view.scan("a", b"", None, reverse=True)
            seen = [next(up)]
            last = next(down)
            engine.apply([("a", changes_of(dict.fromkeys(first)))], mark_of(2))
            engine.flush()
            assert dict([*seen, *up]) == first, "a scan that started before an apply must not see it"
            assert [last, *down][::-1] == list(first.items()), "a reverse scan has the same entries in reverse order"
            assert view.get("a", b"\x0100007") == b"1"
            assert everything(engine.view()) == {}

    def test_readers_never_see_half_a_version(self, tmp_path: Path) -> None:
        with self.opened(tmp_path / "state") as engine:
            keys = [b"\x01%05d" % n for n in range(4_000)]
            done, torn = threading.Event(), list[object]()

            def read() -> None:
                while not done.is_set():
                    view = engine.view()
                    seen = [set(everything(view, family).values()) for family in FAMILIES]
                    if seen[0] != seen[1] or len(seen[0]) > 1:
                        torn.append(seen)
                    view.close()

            reader = threading.Thread(target=read)
            reader.start()
            for version in range(1, 8):
                change = changes_of(dict.fromkeys(keys, b"%d" % version))
                engine.apply([("a", change), ("b", change)], mark_of(version))
            done.set()
            reader.join()
            assert not torn, f"a view showed half a version: {torn[0]}"

    def test_an_interrupted_apply_is_reported(self, tmp_path: Path) -> None:
        def interrupted() -> Iterator[tuple[str, Changes]]:
            yield "a", changes_of({b"\x01a": b"2"})
            raise _Interrupted

        with self.opened(tmp_path / "state") as engine:
            engine.apply([("a", changes_of({b"\x01a": b"1"}))], mark_of(1))
            _raises(_Interrupted, lambda: engine.apply(interrupted(), mark_of(4)))
            assert engine.mark() == Mark(Version(1), "commit-1", "log-1", Version(4), "commit-4")
            engine.apply([("a", changes_of({b"\x01a": b"3"}))], mark_of(3))
            assert engine.mark() == Mark(Version(3), "commit-3", "log-1", Version(4), "commit-4"), (
                "version 4 isn't complete yet"
            )
            engine.apply([("a", changes_of({b"\x01a": b"4"}))], mark_of(4))
            assert engine.mark() == mark_of(4)
            _raises(ForeignMark, lambda: engine.apply([], mark_of(5, "log-2")))

    def test_a_dropped_range_is_gone_at_once(self, tmp_path: Path) -> None:
        with self.opened(tmp_path / "state") as engine:
            entries: dict[bytes, bytes | None] = {b"\x02%05d" % n: b"1" for n in range(5_000)}
            engine.apply([("a", changes_of(entries)), ("b", changes_of(entries))], mark_of(1))
            view = engine.view()
            engine.drop("a", b"\x0201000", b"\x0204000")
            left = [key for key in entries if not b"\x0201000" <= key < b"\x0204000"]
            assert list(everything(engine.view())) == left
            assert everything(view) == entries, "a view from before the drop still sees the range"
            assert everything(engine.view(), "b") == entries, "the other family is unchanged"
            engine.apply([("a", changes_of({b"\x0202000": b"2"}))], mark_of(2))
            assert engine.get_many("a", pa.array([b"\x0202000", b"\x0202001"])).to_pylist() == [b"2", None]
            engine.drop("a", b"", b"\xff")
            assert engine.mark() == mark_of(2), "a drop doesn't change the mark"

    def test_a_checkpoint_opens_like_its_own_folder(self, tmp_path: Path) -> None:
        with self.opened(tmp_path / "state") as engine:
            engine.apply([("a", changes_of({b"\x01a": b"1"})), ("b", changes_of({b"\x01b": b"2"}))], mark_of(7))
            engine.checkpoint(tmp_path / "deep" / "copy")
            engine.apply([("a", changes_of({b"\x01a": b"later"}))], mark_of(8))
            with self.opened(tmp_path / "deep" / "copy") as copy:
                assert copy.mark() == mark_of(7)
                assert everything(copy.view()) == {b"\x01a": b"1"}
                assert everything(copy.view(), "b") == {b"\x01b": b"2"}

    def test_after_a_close_it_has_everything_or_reports_nothing(self, tmp_path: Path) -> None:
        with self.opened(tmp_path / "state") as engine:
            engine.apply([("a", changes_of({b"\x01a": b"1"}))], mark_of(1))
            engine.flush()
        with self.opened(tmp_path / "state") as engine:
            found = everything(engine.view())
            assert (engine.mark(), found) in [(mark_of(1), {b"\x01a": b"1"}), (None, {})]

    def test_a_new_store_makes_the_whole_engine_start_over(self, tmp_path: Path) -> None:
        with self.opened(tmp_path / "state") as engine:
            engine.apply([("a", changes_of({b"\x01a": b"1"}))], mark_of(7))
            engine.checkpoint(tmp_path / "copy")
        more = self.open(tmp_path / "copy", ("a", "b", "new"))
        mark = more.mark()
        assert mark is None or (mark.version, mark.applying) == (NOTHING, 7)
        more.close()

    def test_unknown_families_and_closed_engines_are_errors(self, tmp_path: Path) -> None:
        engine = self.open(tmp_path / "state")
        _raises(UnknownFamily, lambda: engine.get_many("c", pa.array([b"\x01"])))
        view = engine.view()
        _raises(UnknownFamily, lambda: view.get("c", b"\x01"))
        engine.close()
        engine.close()
        _raises(Closed, engine.view)
        _raises(Closed, lambda: view.get("a", b"\x01"))
        _raises(Closed, lambda: engine.apply([], mark_of(1)))
        self.open(tmp_path / "state").close()

    def test_speed_compared_to_rocksdb(self, tmp_path: Path, capsys: Any) -> None:
        """Prints a table and never fails."""
        report = speed_report(self.engine, tmp_path, self.speed_rows, self.memory_bytes)
        with capsys.disabled():
            print(f"\n{report}")  # noqa: T201  # printing is the purpose of the test


class _Interrupted(HoldfastError):
    """Interrupts a write on purpose."""

    category = ErrorCategory.BUG


def _raises(kind: type[BaseException], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected here")


class _RandomSteps:
    """Random steps on an engine and on a dictionary, which must stay equal."""

    def __init__(self, open_: Callable[[Path], Engine], folder: Path, random: Random) -> None:
        self._open, self._folder, self._random = open_, folder, random
        self._engine = open_(folder / "0")
        self._model: Model = {family: {} for family in FAMILIES}
        self._views: list[tuple[EngineView, Model]] = []
        self._version = 0
        self._opened = 0

    def run(self) -> None:
        for _ in range(11):
            self._random.choice([self._apply, self._apply, self._drop, self._look, self._reopen])()
        self._look()
        for view, wanted in self._views:
            for family in FAMILIES:
                self._compare(view, family, wanted[family])
        asked = [*_KEYS, b"\x01none"]
        for family in FAMILIES:
            found = self._engine.get_many(family, pa.array(asked)).to_pylist()
            assert found == [self._model[family].get(key) for key in asked]
        self._engine.close()

    def _apply(self) -> None:
        self._version += 1
        drawn = {
            family: {
                key: None if self._random.random() < 0.3 else self._random.randbytes(self._random.randrange(5))
                for key in self._random.sample(_KEYS, self._random.randrange(len(_KEYS)))
            }
            for family in FAMILIES
        }
        self._engine.apply([(family, changes_of(each)) for family, each in drawn.items()], mark_of(self._version))
        for family, entries in drawn.items():
            merged = self._model[family] | entries
            self._model[family] = {key: value for key, value in merged.items() if value is not None}
        assert self._engine.mark() == mark_of(self._version)

    def _drop(self) -> None:
        family, start, stop = self._random.choice(FAMILIES), *sorted(self._random.sample(_KEYS, 2))
        self._engine.drop(family, start, stop)
        self._model[family] = {k: v for k, v in self._model[family].items() if not start <= k < stop}

    def _look(self) -> None:
        self._views.append((self._engine.view(), {family: dict(each) for family, each in self._model.items()}))

    def _reopen(self) -> None:
        self._opened += 1
        folder = self._folder / str(self._opened)
        self._engine.checkpoint(folder)
        self._engine.close()
        self._views.clear()
        self._engine = self._open(folder)

    def _compare(self, view: EngineView, family: str, wanted: dict[bytes, bytes]) -> None:
        start, stop = self._random.choice([b"", *_KEYS]), self._random.choice([None, *_KEYS])
        found = sorted((k, v) for k, v in wanted.items() if k >= start and (stop is None or k < stop))
        assert list(view.scan(family, start, stop)) == found
        assert list(view.scan(family, start, stop, reverse=True)) == found[::-1]
        assert all(view.get(family, key) == wanted.get(key) for key in _KEYS)


def speed_report(engine: str, folder: Path, rows: int = 100_000, memory_bytes: int = 64 << 20) -> str:
    """A table that compares the speed of an engine with RocksDB, in one run with the same data."""
    mine, theirs = (
        measured(name, folder / f"speed-{n}", rows, memory_bytes) for n, name in enumerate((engine, "rocksdb"))
    )
    lines = [f"{rows:,} entries, per second{engine[-20:]:>24}{'rocksdb':>14}{'ratio':>8}"]
    lines += [
        f"  {what:<30}{mine[what]:>16,.0f}{theirs[what]:>14,.0f}{mine[what] / theirs[what]:>8.2f}" for what in mine
    ]
    return "\n".join(lines)


def _applied(engine: Engine, change: Changes) -> None:
    engine.apply([("a", change)], mark_of(1))
    engine.flush()


def measured(engine: str, folder: Path, rows: int, memory_bytes: int) -> dict[str, float]:
    """Entries per second: applied, read in bulk, scanned and dropped."""
    random = Random(1)
    keys = [b"\x01" + random.randbytes(12) for _ in range(rows)]
    change = Changes(pa.array(keys), pa.array([random.randbytes(60) for _ in range(rows)]))
    asked = pa.array(sorted(random.sample(keys, rows // 2)))
    open_ = open_engine(engine, folder, stores(["a"]), Resources(memory_bytes))
    try:
        steps: dict[str, tuple[int, Callable[[], object]]] = {
            "applied": (rows, lambda: _applied(open_, change)),
            "read in bulk": (len(asked), lambda: open_.get_many("a", asked)),
            "scanned": (rows, lambda: everything(open_.view())),
            "dropped": (rows, lambda: open_.drop("a", b"\x01", b"\x02")),
        }
        found: dict[str, float] = {}
        for what, (number, step) in steps.items():
            began = SYSTEM_CLOCK.monotonic()
            step()
            found[what] = number / max(1e-9, SYSTEM_CLOCK.monotonic() - began)
        return found
    except HoldfastError as error:
        raise AssertionError(f"{engine} failed in the speed report: {error}") from error
    finally:
        open_.close()
