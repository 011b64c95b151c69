"""The contract of every engine in the registry: it agrees with a dictionary, views don't change, marks are right."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import faults
from holdfast.errors import Closed, TopologyError
from holdfast.faults import InjectedFault
from holdfast.stores.engines.base import Changes, Engine, EngineView, ForeignMark, Mark, Resources, UnknownFamily
from holdfast.stores.engines.registry import ENGINES, open_engine
from holdfast.words import NOTHING, Version
from tests.stores import history
from tests.stores.making import specs

Open = Callable[..., Engine]
MEMORY = 32 * 1024 * 1024


@pytest.fixture(params=sorted(ENGINES))
def open_(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens engines of each type and closes them at the end."""
    opened: list[Engine] = []
    resources = Resources(MEMORY)

    def opener(folder: str = "state", families: tuple[str, ...] = ("a", "b")) -> Engine:
        opened.append(open_engine(request.param, tmp_path / folder, specs(families), resources))
        return opened[-1]

    yield opener
    for engine in opened:
        engine.close()


def change(entries: dict[bytes, bytes | None]) -> Changes:
    return Changes(pa.array(list(entries), pa.binary()), pa.array(list(entries.values()), pa.binary()))


def at(version: int, log: str = "log-1") -> Mark:
    return Mark(Version(version), f"c{version}", log)


def everything(view: EngineView, family: str = "a") -> dict[bytes, bytes]:
    return dict(view.scan(family, b"", None))


_TAILS = (b"", b"\x00", b"a", b"aa", b"ab", b"b", b"\xff", b"\xff\xff")
_SLICED = [b"\x02slice-%02d" % n + tail for n in (1, 2, 3) for tail in (b"", b"\x01a", b"\x01b")]
_KEYS = st.sampled_from([*(b"\x01" + tail for tail in _TAILS), *_SLICED, b"\x02", b"\x02slice", b"\x03a"])
_FAMILY = st.sampled_from(["a", "b"])
_VERSION = st.dictionaries(_FAMILY, st.dictionaries(_KEYS, st.none() | st.binary(max_size=4), max_size=6))
_EDGES = st.one_of(_KEYS, st.just(b""), st.just(b"\x01ab\x00"))
_DROP = st.tuples(_FAMILY, _EDGES, _EDGES)
_STEPS = st.lists(st.one_of(_VERSION, _DROP, st.just("view"), st.just("reopen"), st.just("flush")), max_size=12)


@pytest.mark.parametrize("name", sorted(ENGINES))
@given(steps=_STEPS, start=_EDGES, stop=st.none() | _EDGES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_an_engine_agrees_with_a_dictionary(
    name: str, tmp_path_factory: pytest.TempPathFactory, steps: list[object], start: bytes, stop: bytes | None
) -> None:
    folder = tmp_path_factory.mktemp("engine")
    resources = Resources(MEMORY)
    engine = open_engine(name, folder / "0", specs(["a", "b"]), resources)
    model: dict[str, dict[bytes, bytes]] = {"a": {}, "b": {}}
    views: list[tuple[EngineView, dict[str, dict[bytes, bytes]]]] = []
    version = 0
    for n, step in enumerate(steps, start=1):
        if isinstance(step, dict):
            version += 1
            engine.apply([(family, change(entries)) for family, entries in step.items()], at(version))
            for family, entries in step.items():
                model[family] = {k: v for k, v in (model[family] | entries).items() if v is not None}
        elif isinstance(step, tuple):
            family, low, high = step
            engine.drop(family, low, high)
            model[family] = {k: v for k, v in model[family].items() if not low <= k < high}
        elif step == "view":
            views.append((engine.view(), {family: dict(entries) for family, entries in model.items()}))
        elif step == "flush":
            engine.flush()
        else:
            engine.checkpoint(folder / str(n))
            engine.close()
            views.clear()
            engine = open_engine(name, folder / str(n), specs(["a", "b"]), resources)
        assert engine.mark() == (at(version) if version else None)
    views.append((engine.view(), model))
    for view, wanted in views:
        for family, entries in wanted.items():
            within = sorted(key for key in entries if key >= start and (stop is None or key < stop))
            found = [(key, entries[key]) for key in within]
            assert list(view.scan(family, start, stop)) == found
            assert list(view.scan(family, start, stop, reverse=True)) == found[::-1]
            assert all(
                view.get(family, key) == entries.get(key) for key in [*entries, b"\x01none", b"\x01\xff\xff\xff"]
            )
    asked = [b"\x01none", *model["a"], b"\x01ab"]
    assert engine.get_many("a", pa.array(asked, pa.binary())).to_pylist() == [model["a"].get(key) for key in asked]
    engine.close()


def test_a_new_engine_is_empty(open_: Open) -> None:
    engine = open_()
    assert engine.mark() is None
    assert engine.get_many("a", pa.array([], pa.binary())).to_pylist() == []
    assert engine.get_many("a", pa.array([b"\x01x"])).to_pylist() == [None]
    assert everything(engine.view()) == {}
    assert engine.approximate_count("a") == 0


def test_many_keys_are_written_and_read_in_chunks(open_: Open) -> None:
    engine = open_()
    entries: dict[bytes, bytes | None] = {b"\x01%06d" % n: b"v%d" % n for n in range(0, 7_001, 2)}
    engine.apply([("a", change(dict(reversed(entries.items()))))], at(1))
    asked = [b"\x01%06d" % n for n in range(7_001)]
    assert engine.get_many("a", pa.array(asked)).to_pylist() == [entries.get(key) for key in asked]
    random.Random(1).shuffle(asked)
    asked += asked[:10]
    assert engine.get_many("a", pa.array(asked)).to_pylist() == [entries.get(key) for key in asked]
    assert list(everything(engine.view()).items()) == list(entries.items())
    assert abs(engine.approximate_count("a") - len(entries)) <= 5
    engine.flush()
    assert engine.memory_bytes() >= 0
    assert engine.disk_bytes() >= 0


def test_large_values_are_applied_in_small_chunks(open_: Open) -> None:
    engine = open_()
    reached: list[None] = []
    with faults.active({"apply.middle": lambda: reached.append(None)}):
        engine.apply([("a", change({b"\x01%d" % n: bytes(3 * 1024 * 1024) for n in range(4)}))], at(1))
    assert len(reached) == 4


def test_a_view_does_not_change_and_several_scans_share_it(open_: Open) -> None:
    engine = open_()
    first = {b"\x01%05d" % n: b"1" for n in range(3_000)}
    engine.apply([("a", change(dict(first)))], at(1))
    view = engine.view()
    up, down = view.scan("a", b"", None), view.scan("a", b"", None, reverse=True)
    seen_up, seen_down = [next(up)], [next(down)]
    engine.apply([("a", change({key: None if n % 2 else b"2" for n, key in enumerate(first)}))], at(2))
    engine.flush()
    for _ in range(1_499):
        seen_up.append(next(up))
        seen_down.append(next(down))
        assert view.get("a", b"\x0100007") == b"1"
    seen_up += up
    seen_down += down
    assert dict(seen_up) == first
    assert seen_down == seen_up[::-1]
    assert len(everything(engine.view())) == 1_500
    view.close()
    with pytest.raises(Closed):
        view.get("a", b"\x01")


def numbered(numbers: range, value: bytes = b"1") -> dict[bytes, bytes | None]:
    return {b"\x02%05d" % n: value for n in numbers}


def test_a_drop_hides_its_range_at_once_and_no_other_keys(open_: Open) -> None:
    engine = open_()
    engine.apply([("a", change(numbered(range(5_000)))), ("b", change(numbered(range(10))))], at(1))
    engine.drop("a", b"\x0201000", b"\x0204000")
    left = [*numbered(range(1_000)), *numbered(range(4_000, 5_000))]
    assert list(everything(engine.view())) == left
    assert engine.get_many("a", pa.array([b"\x0200999", b"\x0201000", b"\x0203999", b"\x0204000"])).to_pylist() == [
        b"1",
        None,
        None,
        b"1",
    ]
    assert len(everything(engine.view(), "b")) == 10
    assert engine.mark() == at(1)
    engine.drop("a", b"\x0201000", b"\x0204000")  # an empty range
    engine.drop("a", b"\x03", b"\x02")  # stop before start
    assert list(everything(engine.view())) == left


def test_a_drop_never_changes_the_mark(open_: Open) -> None:
    engine = open_()
    engine.apply([("a", change(numbered(range(10))))], at(1))
    engine.drop("a", b"", b"\xff")
    assert everything(engine.view()) == {}
    engine.flush()
    assert engine.mark() == at(1)


def test_a_view_taken_before_a_drop_still_sees_the_range(open_: Open) -> None:
    engine = open_()
    entries = numbered(range(5_000))
    engine.apply([("a", change(entries))], at(1))
    engine.flush()
    view = engine.view()
    scan = view.scan("a", b"", None)
    first = next(scan)
    engine.drop("a", b"\x02", b"\x03")
    engine.apply([("a", change(numbered(range(7), b"2")))], at(2))
    engine.flush()
    assert dict([first, *scan]) == entries
    assert dict(view.scan("a", b"\x02", b"\x03", reverse=True)) == entries
    assert view.get("a", b"\x0200003") == b"1"
    assert everything(engine.view()) == numbered(range(7), b"2")


def test_entries_applied_into_a_dropped_range_are_kept(open_: Open, tmp_path: Path) -> None:
    engine = open_()
    engine.apply([("a", change(numbered(range(3_000)))), ("b", change({}))], at(1))
    for version in range(2, 6):
        engine.drop("a", b"\x02", b"\x03")
        engine.apply([("a", change(numbered(range(version, 20), b"%d" % version)))], at(version))
        assert everything(engine.view()) == numbered(range(version, 20), b"%d" % version)
    engine.checkpoint(tmp_path / "copy")
    copy = open_("copy")
    assert copy.mark() == at(5)
    assert everything(copy.view()) == numbered(range(5, 20), b"5")


def test_a_scan_never_shows_the_engines_own_keys(open_: Open) -> None:
    engine = open_()
    engine.apply([("a", change({b"\x01a": b"1"}))], at(1))
    assert list(engine.view().scan("a", b"", None, reverse=True)) == [(b"\x01a", b"1")]
    assert list(engine.view().scan("a", b"\x00", b"\x01")) == []


def test_readers_never_see_half_a_version(open_: Open) -> None:
    engine = open_()
    keys = [b"\x01%05d" % n for n in range(5_000)]
    done = threading.Event()
    failures: list[object] = []

    def read() -> None:
        while not done.is_set():
            view = engine.view()
            seen = {family: set(everything(view, family).values()) for family in ("a", "b")}
            if seen["a"] != seen["b"] or len(seen["a"]) > 1:
                failures.append(seen)
            view.close()

    reader = threading.Thread(target=read)
    reader.start()
    for version in range(1, 9):
        entries: dict[bytes, bytes | None] = dict.fromkeys(keys, b"%d" % version)
        engine.apply([("a", change(entries)), ("b", change(entries))], at(version))
    done.set()
    reader.join()
    assert not failures


def test_the_mark_shows_an_apply_that_was_interrupted(open_: Open) -> None:
    engine = open_()
    engine.apply([("a", change({b"\x01a": b"1"}))], at(1))
    for point, mark in (
        ("apply.before", at(1)),
        ("apply.middle", Mark(Version(1), "c1", "log-1", Version(2), "c2")),
        ("apply.after", at(2)),
    ):
        with faults.active({point: _fail}), pytest.raises(InjectedFault):
            engine.apply([("a", change({b"\x01a": b"2"}))], at(2))
        assert engine.mark() == mark
    engine.apply([], at(3))
    assert engine.mark() == at(3)


def _fail() -> None:
    raise InjectedFault("on purpose")


def test_catching_up_stays_applying_until_the_highest_version_is_complete(open_: Open) -> None:
    engine = open_()
    engine.apply([], at(1))
    with faults.active({"apply.middle": _fail}), pytest.raises(InjectedFault):
        engine.apply([("a", change({b"\x01a": b"5"}))], at(5))
    for version in (2, 3, 4):
        engine.apply([("a", change({b"\x01a": b"%d" % version}))], at(version))
        assert engine.mark() == Mark(Version(version), f"c{version}", "log-1", Version(5), "c5")
    engine.apply([("a", change({b"\x01a": b"5"}))], at(5))
    assert engine.mark() == at(5)


def test_a_version_of_another_log_is_rejected(open_: Open) -> None:
    engine = open_()
    engine.apply([], at(1))
    with pytest.raises(ForeignMark, match="log-2"):
        engine.apply([], at(2, log="log-2"))
    assert engine.mark() == at(1)


def test_a_checkpoint_opens_like_the_engines_own_folder(open_: Open, tmp_path: Path) -> None:
    engine = open_()
    engine.apply([("a", change({b"\x01a": b"1"})), ("b", change({b"\x01b": b"2"}))], at(7))
    engine.checkpoint(tmp_path / "deep" / "copy")
    engine.apply([("a", change({b"\x01a": b"later"}))], at(8))
    copy = open_("deep/copy")
    assert copy.mark() == at(7)
    assert everything(copy.view()) == {b"\x01a": b"1"}
    assert copy.get_many("b", pa.array([b"\x01b"])).to_pylist() == [b"2"]
    copy.apply([("a", change({b"\x01c": b"3"}))], at(8))
    assert everything(engine.view()) == {b"\x01a": b"later"}


def test_with_a_new_family_the_engine_has_no_version(open_: Open, tmp_path: Path) -> None:
    engine = open_()
    engine.apply([("a", change({b"\x01a": b"1"}))], at(7))
    engine.checkpoint(tmp_path / "copy")
    more = open_("copy", ("a", "b", "new"))
    mark = more.mark()
    assert mark is None or (mark.version, mark.applying) == (NOTHING, 7)


def test_an_unknown_family_or_engine_is_named(open_: Open) -> None:
    engine = open_()
    with pytest.raises(UnknownFamily, match="'c'"):
        engine.get_many("c", pa.array([b"\x01"]))
    with pytest.raises(UnknownFamily, match="'c'"):
        engine.view().get("c", b"\x01")
    with pytest.raises(UnknownFamily, match="'c'"):
        engine.view().scan("c", b"", None)
    with pytest.raises(TopologyError, match="memory, rocksdb"):
        open_engine("cassandra", Path("/nowhere"), [], Resources(MEMORY))


def test_a_closed_engine_says_so_and_releases_its_folder(open_: Open) -> None:
    engine = open_()
    engine.apply([("a", change({b"\x01%d" % n: b"1" for n in range(2_000)}))], at(1))
    view = engine.view()
    scan = view.scan("a", b"", None)
    next(scan)
    engine.close()
    engine.close()
    for use in (engine.mark, engine.view, engine.flush, engine.memory_bytes, engine.disk_bytes):
        with pytest.raises(Closed):
            use()
    with pytest.raises(Closed):
        engine.apply([], at(2))
    with pytest.raises(Closed):
        engine.drop("a", b"\x01", b"\x02")
    with pytest.raises(Closed):
        view.get("a", b"\x01")
    with pytest.raises(Closed):
        list(scan)
    open_()


def test_engines_agree_with_each_other(tmp_path: Path) -> None:
    states = []
    for name in sorted(ENGINES):
        engine = open_engine(name, tmp_path / name, specs(history.FAMILIES), Resources(MEMORY))
        history.catch_up(engine, 4)
        states.append(history.state_of(engine))
        engine.close()
    assert all(state == history.state_at(4) for state in states)


def in_slice(slice_: int, rows: int, value: bytes) -> Changes:
    keys = [b"\x02%08d\x01%06d" % (slice_, n) for n in range(rows)]
    return Changes(pa.array(keys), pa.array([value] * rows))


def test_a_large_slice_is_dropped_in_one_step_while_others_read(open_: Open) -> None:
    """Of 100,000 rows, a reader finds both the first and the last or neither; views still have all of them."""
    engine, rows = open_(families=("a",)), 100_000
    for slice_ in (1, 2, 3):
        engine.apply([("a", in_slice(slice_, rows if slice_ == 2 else 1_000, b"old"))], at(slice_))
    before = engine.view()
    engine.apply([("a", in_slice(2, 1_000, b"new"))], at(4))
    between = engine.view()
    scan = between.scan("a", b"\x0200000002", b"\x0200000003")
    first = next(scan)
    ends = pa.array([b"\x0200000002\x01%06d" % n for n in (0, rows - 1)])
    torn: list[list[bytes | None]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            found = engine.get_many("a", ends).to_pylist()
            if found not in ([b"new", b"old"], [None, None]):
                torn.append(found)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    began = time.thread_time()
    engine.drop("a", b"\x0200000000", b"\x0200000003")
    seconds = time.thread_time() - began
    stop.set()
    for reader in readers:
        reader.join()
    assert torn == []
    assert seconds < 0.05
    engine.apply([("a", in_slice(2, 3, b"again"))], at(5))
    # The views are unchanged, also for keys that were written again.
    assert [first, *scan][:: rows - 1] == list(zip(ends.to_pylist(), [b"new", b"old"], strict=True))
    assert [before.get("a", key) for key in ends.to_pylist()] == [b"old", b"old"]
    backwards = [value for _, value in before.scan("a", b"\x02", None, reverse=True)]
    assert backwards == [b"old"] * (rows + 2_000)
    now = everything(engine.view())
    assert Counter(key[:9] for key in now) == {b"\x0200000002": 3, b"\x0200000003": 1_000}
