"""A TTL or a retention changes while instances run: all instances show the same at a version.

The app's file of a version decides what the version shows and what is dropped when it is applied. An instance may have
started with an earlier or a later file.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import holdfast as hf
from holdfast.instance.events import Events
from holdfast.instance.log_reader import LogReader
from holdfast.instance.read_views import StoreBytes
from holdfast.instance.replica import Replica, ReplicaSettings
from holdfast.instance.state_dir import TaskDirectory
from holdfast.log import appfile, names
from holdfast.log.appfile import AppChanged
from holdfast.log.commits import Clocks
from holdfast.query.store_specs import StoreSpecs
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.engines.base import Resources
from holdfast.stores.kinds.base import Store
from holdfast.stores.spec import StoreSpec, differences
from holdfast.words import Version
from tests.instance.app_log import TASK, AppLog, new_url

Clock = Literal["event", "wall"]
EAGER = ReplicaSettings(overlay_bytes=20, batch_bytes=1, flush_versions=1)  # every version is written at once
KINDS: dict[str, Callable[[str], Store[Any, Any]]] = {
    "window": lambda kept: hf.WindowStore("kept", value=int, size="1s", retention=kept),
    "session": lambda kept: hf.SessionStore("kept", value=int, gap="1s", retention=kept),
    "versioned": lambda kept: hf.VersionedKeyValueStore("kept", value=int, retention=kept),
}


class Code:
    """A release of the app. It continues the versions of the release before."""

    def __init__(
        self, store: Store[Any, Any], engine: str, before: "Code | None" = None, clock: Clock = "event"
    ) -> None:
        self.store = store
        own = msgspec.structs.replace(store.spec(default_engine=engine), clock=clock)
        self.app: AppLog = AppLog(new_url(), specs=(own,)) if before is None else replace(before.app, specs=(own,))
        self.spec = appfile.effective(self.app.log.app, own)

    def commit(self, at: Now | int, *puts: tuple[Any, ...]) -> Version:
        now = Now(at, at) if isinstance(at, int) else at
        bytes_ = DictBytes()
        before = self.app.state()["kept"]
        bytes_.entries.update(before)
        bound: Any = self.store.bind(bytes_, now, spec=self.spec)
        for put in puts:
            bound.put(*put)
        changes: dict[bytes, bytes | None] = {k: v for k, v in bytes_.entries.items() if before.get(k) != v}
        return self.app.commit({TASK: {"kept": changes}}, Clocks(now.wall, now.event, {}))

    def expected(self, version: Version, at: Now | int) -> list[Any]:
        """The entries that a version shows, of all that were ever written, by this release's spec."""
        now = Now(at, at) if isinstance(at, int) else at
        bytes_ = DictBytes()
        bytes_.entries.update(self.app.state(version)["kept"])
        return everything(self.store.bind(bytes_, now, spec=self.spec))


class Instance:
    """A replica, and the specs by which queries hide expired entries."""

    def __init__(self, folder: Path, code: Code) -> None:
        self.source = LogReader(code.app.reopened())
        specs = self.source.log.app.stores_of(TASK)
        home = TaskDirectory(folder, TASK, "test")
        self.replica = Replica(home, self.source, specs, Resources(64 << 20), Events(), EAGER)
        self.replica.open()
        self.specs = StoreSpecs(self.source)
        self.declared = code.store

    def catch_up(self, version: Version) -> None:
        self.replica.catch_up(version)
        self.replica.flush_overlay()

    def shown(self, version: Version) -> list[Any]:
        with self.replica.read_view(version) as view:
            bytes_: Any = StoreBytes(view, "kept")
            return everything(self.declared.bind(bytes_, view.now, spec=self.specs.at("kept", version)))

    def versions(self) -> range:
        assert self.replica.published.range is not None
        oldest, newest = self.replica.published.range
        return range(max(oldest, 1), newest + 1)


def everything(bound: Any) -> list[Any]:
    match bound:
        case hf.WindowStore():
            return list(bound.fetch_all())
        case hf.SessionStore():
            return list(bound.fetch("ann"))
        case hf.VersionedKeyValueStore():
            return list(bound.history("ann"))
        case _:
            return sorted(bound.items())


def written(store: Store[Any, Any], time: int) -> tuple[Any, ...]:
    match store:
        case hf.WindowStore():
            return ("ann", time, time)
        case hf.SessionStore():
            return (hf.Session("ann", time, time), time)
        case hf.VersionedKeyValueStore():
            return ("ann", time, time)
        case _:
            return (f"at-{time}", time)


def live(code: Code, after: Code, folder: Path, *, first: int = 12, more: int = 18) -> None:
    """Commits versions of both releases and compares instances that started before, at and after the change."""
    expected: dict[Version, list[Any]] = {}

    def commit(release: Code, number: int) -> Version:
        time = 1_000_000 + 1_000 * number
        version = release.commit(time, written(release.store, time))
        expected[version] = release.expected(version, time)
        return version

    def look(*instances: Instance) -> None:
        for each in instances:
            each.catch_up(release.app.version)
            for version in map(Version, each.versions()):
                assert each.shown(version) == expected[version], f"version {version}"

    release = code
    old = Instance(folder / "old", code)
    for number in range(first):
        commit(release, number)
        look(old)
    release = Code(after.store, code.spec.engine, code)
    between = Instance(folder / "between", release)
    look(old, between)
    for number in range(first, first + more):
        commit(release, number)
        look(old, between)
    look(Instance(folder / "fresh", release))
    assert expected[Version(first)] != []
    assert expected[release.app.version] != []


@pytest.mark.parametrize("engine", ["rocksdb", "memory"])
def test_replicas_that_started_before_follow_a_longer_ttl(engine: str, tmp_path: Path) -> None:
    short, long = (hf.KeyValueStore("kept", value=int, ttl=ttl) for ttl in ("4s", "15s"))
    live(Code(short, engine), Code(long, engine), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shorter_retention_applies_from_its_first_version_on(kind: str, tmp_path: Path) -> None:
    live(Code(KINDS[kind]("10s"), "memory"), Code(KINDS[kind]("4s"), "memory"), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_longer_retention_is_refused_with_both_numbers(kind: str) -> None:
    """Replicas have dropped entries that it would show again."""
    code = Code(KINDS[kind]("4s"), "memory")
    code.commit(1_000_000, written(code.store, 1_000_000))
    with pytest.raises(AppChanged, match=r"retention 4s in the log and 10s in the code.*a new name"):
        Code(KINDS[kind]("10s"), "memory", code)
    shorter = Code(KINDS[kind]("2s"), "memory", code)
    shorter.commit(1_001_000)
    with pytest.raises(AppChanged, match=r"retention 2s in the log and 4s in the code"):
        Code(KINDS[kind]("4s"), "memory", shorter)


def test_the_length_of_slices_does_not_change_with_the_retention() -> None:
    """An entry's place depends on the length of slices."""
    code = Code(KINDS["window"]("80s"), "memory")
    code.commit(1_000_000, ("ann", 1, 995_000))
    shorter = Code(KINDS["window"]("16s"), "memory", code)
    assert (shorter.store.spec().slice_ms, shorter.spec.slice_ms, shorter.spec.retention_ms) == (2_000, 10_000, 16_000)
    version = shorter.commit(1_001_000, ("ann", 2, 1_000_000))
    assert [value for _, value in shorter.expected(version, 1_001_000)] == [1, 2]


def test_nothing_is_dropped_while_the_app_file_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    short, long = (hf.KeyValueStore("kept", value=int, ttl=ttl) for ttl in ("4s", "15s"))
    code = Code(short, "memory")
    instance = Instance(tmp_path, code)
    instance.catch_up(code.commit(1_000_000, ("ann", 1)))
    later = Code(long, "memory", code)
    storage = later.app.log.storage
    file = storage.get(names.app(2))
    storage.delete([names.app(2)])
    storage.create(names.app(2), b"no file")
    later.commit(1_001_000, ("bob", 2))
    version = later.commit(1_014_000)
    instance.catch_up(version)
    assert "the app's file of number 2 can't be read" in caplog.text
    storage.delete([names.app(2)])
    storage.create(names.app(2), file)
    version = later.commit(1_014_500)
    instance.catch_up(version)
    assert instance.shown(version) == [("bob", 2)]


def test_adding_a_retention_is_refused() -> None:
    old = StoreSpec(name="own", kind="shop:Own", key=hf.KeyValueStore("a", value=int).spec().key, codec="bytes/1")
    new = msgspec.structs.replace(old, retention_ms=5, slice_ms=1)
    [line] = differences(old, new)
    assert line.startswith("store 'own' has no retention in the log and 5ms in the code. Not possible in place")
