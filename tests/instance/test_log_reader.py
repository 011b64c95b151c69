"""Which versions an instance believes, while others are committed."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import StorageUnavailable
from holdfast.instance.events import Events
from holdfast.instance.log_reader import LogReader
from holdfast.instance.updater import ReplicaUpdater
from holdfast.log import names
from holdfast.log.commits import Commit
from holdfast.log.log import Log
from holdfast.log.objects import ObjectMissing
from holdfast.log.storage import open_storage
from holdfast.settings.sections import RestoreSettings, RetrySettings
from holdfast.words import Millis, Version
from tests.log.making import Watched, app_spec, grow, store_spec


def test_a_version_is_believed_although_the_next_one_comes_while_it_is_checked() -> None:
    storage = open_storage("memory://believed")
    log = Log.create_or_open(storage, app_spec(store_spec()))
    grow(log, 2)
    source = LogReader(Log.open(watched := Watched(storage)))
    looked = False

    def look(call: str, name: str) -> None:
        """The next commit isn't there yet, but it is before the answer arrives, and another thread learns of it."""
        nonlocal looked
        if name == names.commit(Version(3)) and not looked:
            looked = True
            grow(log, 1)
            assert source.newest() == 3
            raise ObjectMissing(storage.place, name)

    watched.before = look
    found = source.commit(Version(2))
    assert looked
    assert found is not None and found.version == 2


class Joined(Future[Commit | None]):
    """A read under way that tells when another thread waits for its answer."""

    def __init__(self, read: Future[Commit | None]) -> None:
        super().__init__()
        self.read = read
        self.is_joined = threading.Event()

    def result(self, timeout: float | None = None) -> Commit | None:
        self.is_joined.set()
        return self.read.result(timeout)


def test_a_version_is_found_although_a_read_that_began_before_it_was_there_has_missed_it() -> None:
    storage = open_storage("memory://missed")
    log = Log.create_or_open(storage, app_spec(store_spec()))
    grow(log, 1)
    source = LogReader(Log.open(watched := Watched(storage)))
    has_looked, may_answer = threading.Event(), threading.Event()

    def look(call: str, name: str) -> None:
        """The first look at version 2 finds nothing, and its answer takes a while."""
        if name == names.commit(Version(2)) and not has_looked.is_set():
            has_looked.set()
            assert may_answer.wait(30)
            raise ObjectMissing(storage.place, name)

    watched.before = look
    with ThreadPoolExecutor(2) as threads:
        early = threads.submit(source.commit, Version(2))
        assert has_looked.wait(30)
        grow(log, 1)
        source._reads[Version(2)] = read = Joined(source._reads[Version(2)])
        late = threads.submit(source.commit, Version(2))
        assert read.is_joined.wait(30)
        may_answer.set()
        assert early.result(30) is None
        found = late.result(30)
    assert found is not None and found.version == 2


def test_only_a_look_that_worked_counts_as_one() -> None:
    storage = open_storage("memory://looks")
    log = Log.create_or_open(storage, app_spec(store_spec()))
    grow(log, 1)
    clock = ManualClock(Millis(0))
    source = LogReader(Log.open(watched := Watched(storage)), clock=clock)
    looks: list[Callable[[], Version]] = [source.newest, source.follow, lambda: source.learn(Version(2))]
    assert source.looks.looked_at == -math.inf

    def fail(call: str, name: str) -> None:
        clock.advance(1)
        raise StorageUnavailable("the network is gone")

    for look in looks:
        clock.advance(10)
        before = source.looks.looked_at
        watched.before = fail
        with pytest.raises(StorageUnavailable):
            look()
        assert source.looks.looked_at == before
        watched.before = lambda call, name: None
        began = clock.monotonic()
        if look is looks[-1]:
            grow(log, 1)
        look()
        assert source.looks.looked_at == began


def test_what_it_costs_to_look_for_versions_is_what_the_docs_say() -> None:
    """docs/operations.md has the requests of a day, at one look per second."""
    log = Log.create_or_open(storage := open_storage("memory://cost-of-looks"), app_spec(store_spec()))
    grow(log, 5)
    source = LogReader(Log.open(watched := Watched(storage)))
    updater = ReplicaUpdater(source, Events(), RestoreSettings(), RetrySettings(), pool=ThreadPoolExecutor(1))
    updater.step(0.0)
    watched.calls.clear()
    for _ in range(100):
        updater.step(0.0)
    assert len(watched.calls) * 24 * 3600 / 100 == 112_320
    assert {call for call, _ in watched.calls} <= {"get", "exists"}
    for _ in range(10):
        newest = grow(log, 1)
        watched.calls.clear()
        updater.committed(Version(newest.version))
        updater.step(0.0)
        assert watched.calls == [("get", names.commit(Version(newest.version)))]
