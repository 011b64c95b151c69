"""A replica is a function of the log: it equals the model at every version, wherever it starts."""

import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.clock import ManualClock
from holdfast.errors import DamagedObject
from holdfast.instance.events import ProblemEvent, RestoreEvent
from holdfast.instance.held_versions import HoldTerms
from holdfast.instance.log_reader import LogReader
from holdfast.instance.range_reads import IN_RANGES
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.instance.replica import Replica, ReplicaSettings, VersionUnreachable
from holdfast.instance.restore_reporter import RestoreReporter
from holdfast.instance.snapshotter import Snapshotter
from holdfast.instance.state_dir import StateDirectoryInUse, TaskDirectory
from holdfast.log import names
from holdfast.log.commits import encode
from holdfast.settings.sections import SnapshotSettings
from holdfast.stores.engines.open_views import OPEN_VIEWS
from holdfast.stores.ranges import Ranges
from holdfast.words import NOTHING, Millis, Version
from tests.instance.app_log import TASK, AppLog, Place, abandon, key_of, new_url, shown
from tests.log.making import crash_at, next_commit, overwrite, sealed

SMALL = ReplicaSettings(overlay_bytes=6_000, batch_bytes=8_000, flush_versions=5)
TINY = ReplicaSettings(overlay_bytes=200, batch_bytes=1_000, flush_versions=3)
ROOMY = ReplicaSettings()
EACH = pytest.mark.parametrize(
    "settings", [ROOMY, pytest.param(SMALL, marks=pytest.mark.slow), TINY], ids=["roomy", "small", "tiny"]
)


def check(replica: Replica, app: AppLog, version: Version) -> None:
    """Scans, bulk gets and single gets show exactly this version."""
    state = app.state(version, replica.task)
    assert shown(replica, version) == state
    with replica.read_view(version) as view:
        assert view.version == version
        for store in replica.stores:
            keys = [key_of(number) for number in range(-1, 70)]
            expected = [state[store].get(key) for key in keys]
            assert view.get_many(store, pa.array(keys, pa.binary())).to_pylist() == expected
            assert [view.get(store, key) for key in keys[:9]] == expected[:9]
            ordered = sorted(state[store].items())
            assert list(view.scan(store, key_of(5), key_of(40))) == [
                entry for entry in ordered if key_of(5) <= entry[0] < key_of(40)
            ]
            assert list(view.scan(store, b"", None, reverse=True)) == ordered[::-1]
            ranges = [
                (key_of(5), key_of(9)),
                (key_of(40), key_of(7)),
                (key_of(30), None),
                (key_of(90), None),
                (b"", b""),
            ]
            found = pa.Table.from_batches(view.scan_many(store, Ranges.of(ranges)), IN_RANGES)
            assert [tuple(row.values()) for row in found.to_pylist()] == [
                (number, key, value)
                for number, (start, stop) in enumerate(ranges)
                for key, value in ordered
                if key >= start and (stop is None or key < stop)
            ]


@EACH
def test_it_equals_the_model_at_every_version(app: AppLog, place: Place, settings: ReplicaSettings) -> None:
    chance = random.Random(1)
    replica = place.replica(app, settings)
    for _ in range(40):
        version = app.random_commit(chance)
        replica.catch_up(version)
        if replica.flush_due():
            replica.flush_overlay()
        assert replica.published.range is not None
        oldest, newest = replica.published.range
        assert newest == version
        for readable in range(oldest, version + 1):
            check(replica, app, Version(readable))


@EACH
@pytest.mark.parametrize("end", ["close", "abandon"])
def test_it_continues_from_any_version_after_a_restart(
    app: AppLog, place: Place, settings: ReplicaSettings, end: str
) -> None:
    chance = random.Random(2)
    for step in range(12):
        replica = place.replica(app, settings)
        for _ in range(chance.randrange(1, 6)):
            version = app.random_commit(chance)
            if chance.random() < 0.7:
                replica.catch_up(version)
        replica.catch_up(app.version)
        check(replica, app, app.version)
        if step % 3 == 1:
            Snapshotter(replica, app.log, SnapshotSettings()).save()
        if end == "close":
            replica.close()
        else:
            abandon(replica)


@pytest.mark.parametrize("snapshot_at", [1, 7, 20])
def test_a_snapshot_and_later_versions_equal_the_history(app: AppLog, place: Place, snapshot_at: int) -> None:
    chance = random.Random(3)
    replica = place.replica(app)
    for _ in range(20):
        version = app.random_commit(chance)
        replica.catch_up(version)
        if version == snapshot_at:
            assert Snapshotter(replica, app.log, SnapshotSettings()).save() == snapshot_at
    replica.close()
    fresh = place.beside("fresh")
    other = fresh.replica(app)
    report = RestoreReporter(fresh.events, TASK, other.stores)
    report.started(other.version, app.version)
    other.catch_up(app.version, report)
    check(other, app, app.version)
    restored = [numbered.event for numbered in fresh.events.since(0).events]
    first = next(e for e in restored if isinstance(e, RestoreEvent) and e.phase == "batch" and not e.bytes_total)
    assert first.end_version == snapshot_at


def test_only_available_versions_can_be_read(rocks: AppLog, place: Place) -> None:
    chance = random.Random(4)
    replica = place.replica(rocks)
    for _ in range(10):
        rocks.random_commit(chance)
    replica.catch_up(Version(9))
    with replica.read_view(Version(10), wait=5) as view:  # committed, so the replica catches up
        assert view.version == 10
    with pytest.raises(VersionNotAvailable, match="the log has no such version"):
        replica.read_view(Version(11))
    with pytest.raises(VersionNotAvailable, match="version 2 .* versions 7 to 10"):
        replica.read_view(Version(2))


def test_opening_it_twice_does_not_disturb_readers(rocks: AppLog, place: Place) -> None:
    """The first reader opens it; the start of the instance's tasks must not close it then."""
    rocks.grow(4, 3)
    replica = place.caught_up(rocks)
    with replica.read_view(rocks.version) as view:
        replica.open()
        assert dict(view.scan("counts", b"", None)) == rocks.state(rocks.version)["counts"]


def test_a_failed_write_does_not_disturb_readers(rocks: AppLog, place: Place) -> None:
    """The engine has part of a version: it isn't served, and the next attempt completes it."""
    rocks.grow(3, 5)
    replica = place.replica(rocks, TINY)
    replica.catch_up(Version(3))
    everything: dict[bytes, bytes | None] = {key_of(number): b"new" for number in range(3_000)}
    rocks.commit({TASK: {"counts": everything, "other": everything}})

    with crash_at("apply.middle"):
        replica.catch_up(Version(4))
    check(replica, rocks, Version(3))
    replica.catch_up(Version(4))
    check(replica, rocks, Version(4))
    check(replica, rocks, Version(3))


def test_a_partly_written_version_is_served_once_it_is_complete(rocks: AppLog, place: Place) -> None:
    chance = rocks.grow(3, 6)
    replica = place.replica(rocks, TINY)
    replica.catch_up(Version(3))
    rocks.commit({TASK: {"counts": {key_of(number): b"new" for number in range(3_000)}}})
    rocks.random_commit(chance)
    with crash_at("apply.middle"):
        replica.catch_up(Version(4))
    abandon(replica)
    again = place.replica(rocks, TINY)
    assert again.published.version is None
    with pytest.raises(VersionNotAvailable, match="nothing yet"):
        again.published.read_view()
    again.catch_up(Version(5))
    check(again, rocks, Version(5))


def test_readers_see_complete_versions_only(rocks: AppLog, place: Place) -> None:
    """Every version sets all keys of both stores to its number, in the overlay, by flushes and by direct writes."""
    keys = pa.array([key_of(number) for number in range(400)], pa.binary())
    replica = place.replica(rocks, ReplicaSettings(overlay_bytes=120_000, flush_versions=3))
    stop = threading.Event()
    wrong: list[object] = []
    reads = [0]

    def read() -> None:
        while not stop.is_set():
            try:
                with replica.read_view() as view:
                    number = b"%d" % view.version
                    seen: set[object] = set()
                    for store in replica.stores:
                        seen |= set(view.get_many(store, keys).to_pylist())
                        seen |= {value for _, value in view.scan(store, b"", key_of(400))}
                    if seen != {number}:
                        wrong.append((view.version, seen))
                    reads[0] += 1
            except VersionNotAvailable as error:
                wrong.append(error)

    def flush() -> None:
        while not stop.is_set():
            if replica.flush_due():
                replica.flush_overlay()
            stop.wait(0.001)

    rocks.commit({TASK: {s: {key_of(n): b"1" for n in range(400)} for s in rocks.stores}})
    replica.catch_up(Version(1))
    threads = [threading.Thread(target=read) for _ in range(2)] + [threading.Thread(target=flush)]
    for thread in threads:
        thread.start()
    for version in range(2, 60):
        size = 4_000 if version % 10 == 0 else 400  # every tenth is too large for the overlay
        rocks.commit({TASK: {s: {key_of(n): b"%d" % version for n in range(size)} for s in rocks.stores}})
        replica.catch_up(Version(version))
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert reads[0] > 10


def test_a_commit_on_a_cleaned_number_is_not_believed(rocks: AppLog, place: Place) -> None:
    """A driver slept before its put of version 4, while another continued to 9 and cleaned; then it was killed."""
    chance = rocks.grow(3, 5)
    behind = place.caught_up(rocks)
    waiting = LogReader(rocks.reopened())
    assert waiting.newest() == 3
    asleep = next_commit(rocks.log, rocks.previous, {str(TASK): (rocks.log.write_segment(
        TASK, Version(4), sealed({key_of(1): b"never happened"}), inline_limit=0),)})  # fmt: skip
    for _ in range(6):
        rocks.random_commit(chance)
    saved = place.beside("saving").caught_up(rocks)
    Snapshotter(saved, rocks.log, SnapshotSettings()).save()
    rocks.log.storage.delete([names.commit(Version(version)) for version in range(1, 8)])
    rocks.log.storage.create(names.commit(Version(4)), encode(asleep))
    assert waiting.follow() == 3, "a look from version 3 doesn't find it"
    assert waiting.newest() == 9
    behind.catch_up(Version(9))
    check(behind, rocks, Version(9))
    assert behind.published.range == (9, 9), "it came there by the snapshot"


def test_a_replica_of_another_log_starts_over(rocks: AppLog, place: Place) -> None:
    chance = rocks.grow(5, 7)
    replica = place.caught_up(rocks)
    replica.close()
    other = AppLog(new_url())
    for _ in range(8):
        other.random_commit(chance)
    again = place.replica(other)
    assert again.version == NOTHING
    assert "belongs to log" in problems(place)[-1].message
    again.catch_up(other.version)
    check(again, other, other.version)


def test_a_replica_ahead_of_its_log_starts_over(tmp_path: Path, place: Place) -> None:
    app = AppLog(str(tmp_path / "log"))
    chance = app.grow(3, 8)
    shutil.copytree(tmp_path / "log", tmp_path / "backup")
    for _ in range(3):
        app.random_commit(chance)
    replica = place.caught_up(app)
    replica.close()
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "backup", tmp_path / "log")
    # The same log, restored at version 3, then with other versions up to 7.
    past = AppLog(str(tmp_path / "log"))
    past.history = app.history
    past.go_back(Version(3))
    again = place.replica(past)
    assert "reaches version 6, and the log's newest is 3" in problems(place)[-1].message
    again.close()
    for _ in range(4):
        past.random_commit(chance)
    forked = place.replica(past)
    forked.catch_up(past.version)
    check(forked, past, past.version)


def test_a_replica_of_another_history_starts_over(rocks: AppLog, place: Place) -> None:
    """The log id is the same and the version exists, but its commit is another one."""
    chance = rocks.grow(5, 9)
    replica = place.caught_up(rocks)
    replica.close()
    storage = rocks.log.storage
    storage.delete([names.commit(Version(version)) for version in (4, 5)])
    rocks.go_back(Version(3))
    for _ in range(4):
        rocks.random_commit(chance)
    again = place.replica(rocks)
    assert "is commit" in problems(place)[-1].message
    again.catch_up(rocks.version)
    check(again, rocks, rocks.version)


def damage_sst(data: Path) -> None:
    for file in data.rglob("*.sst"):
        file.write_bytes(b"garbage" * 100)


def foreign_files(data: Path) -> None:
    shutil.rmtree(data)
    (data / "rocksdb").mkdir(parents=True)
    (data / "rocksdb" / "CURRENT").write_text("holiday photos")


DAMAGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "damaged table": (damage_sst, True),
    "damaged CURRENT": (lambda data: (data / "rocksdb" / "CURRENT").write_bytes(b"nonsense"), True),
    "no data": (shutil.rmtree, False),
    "other files": (foreign_files, True),
    "damaged checkpoint": (lambda data: (data.parent / ".checkpoint").write_bytes(b"{not json"), True),
    "no checkpoint": (lambda data: (data.parent / ".checkpoint").unlink(), False),
}


@pytest.mark.parametrize(("damage", "warned"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_local_state_is_rebuilt_from_the_log(
    rocks: AppLog, place: Place, damage: Callable[[Path], object], warned: bool
) -> None:
    rocks.grow(6, 10)
    replica = place.caught_up(rocks)
    replica.close()
    damage(place.folder / str(TASK) / "data")
    again = place.caught_up(rocks)
    check(again, rocks, rocks.version)
    assert bool(problems(place)) == warned


def test_a_second_replica_is_refused_with_the_holder(rocks: AppLog, place: Place) -> None:
    replica = place.replica(rocks)
    with pytest.raises(StateDirectoryInUse, match=r"instance 'test' \(process \d+ on .*another state.dir"):
        place.replica(rocks)
    replica.close()
    place.replica(rocks).close()


def test_a_damaged_snapshot_is_not_used(rocks: AppLog, place: Place) -> None:
    chance = random.Random(11)
    replica = place.replica(rocks)
    for _ in range(4):
        replica.catch_up(rocks.random_commit(chance))
    Snapshotter(replica, rocks.log, SnapshotSettings()).save()
    replica.close()
    storage = rocks.log.storage
    for name in storage.list(names.snapshot_files(TASK)):
        data = storage.get(name)
        overwrite(storage, name, data[:-1] + b"\xff" if data else b"x")
    fresh = place.beside("fresh")
    other = fresh.replica(rocks)
    other.catch_up(rocks.version)
    check(other, rocks, rocks.version)
    assert "is not used" in problems(fresh)[0].message


def test_a_snapshot_that_was_set_aside_is_tried_again_later(rocks: AppLog, place: Place) -> None:
    """A file of it could not be found, and is back: without the snapshot, nothing leads to the newest version."""
    replica = place.replica(rocks)
    for number in range(3):
        replica.catch_up(rocks.commit({TASK: {"counts": {key_of(number): b"1"}}}))
    Snapshotter(replica, rocks.log, SnapshotSettings()).save()
    storage = rocks.log.storage
    storage.delete([names.commit(Version(1))])
    files = {name: storage.get(name) for name in storage.list(names.snapshot_files(TASK))}
    storage.delete(files)
    clock = ManualClock(Millis(0))
    home, source = TaskDirectory(place.folder / "other", TASK, "test"), LogReader(rocks.reopened())
    other = Replica(home, source, source.log.app.stores_of(TASK), place.resources, place.events, None, clock)
    place.opened.append(other)
    with pytest.raises(VersionUnreachable):
        other.catch_up(rocks.version)
    for name, data in files.items():
        storage.create(name, data)
    clock.advance(59)
    with pytest.raises(VersionUnreachable):  # a damaged one isn't downloaded over and over
        other.catch_up(rocks.version)
    clock.advance(1)
    other.catch_up(rocks.version)
    check(other, rocks, rocks.version)


def test_cleaned_versions_need_a_snapshot(rocks: AppLog, place: Place) -> None:
    chance = random.Random(12)
    slow = place.beside("slow")
    behind = slow.replica(rocks)
    replica = place.replica(rocks)
    for _ in range(3):
        rocks.random_commit(chance)
    behind.catch_up(Version(3))
    for _ in range(5):
        rocks.random_commit(chance)
    replica.catch_up(rocks.version)
    rocks.log.storage.delete([names.commit(Version(version)) for version in range(1, 7)])
    behind._log_reader = behind._source._source = LogReader(rocks.reopened())  # without cached commits
    with pytest.raises(VersionUnreachable, match="version 4 isn't in the log any more"):
        behind.catch_up(Version(8))
    check(behind, rocks, Version(3))
    Snapshotter(replica, rocks.log, SnapshotSettings()).save()
    behind.catch_up(Version(8))
    check(behind, rocks, Version(8))


def test_a_damaged_segment_is_an_error_and_nothing_is_applied(rocks: AppLog, place: Place) -> None:
    rocks.inline_limit = 0
    chance = random.Random(13)
    rocks.random_commit(chance)
    rocks.commit({TASK: {"counts": {key_of(1): b"x"}}})
    replica = place.replica(rocks)
    replica.catch_up(Version(1))
    storage = rocks.log.storage
    name = storage.list(names.segments(TASK))[-1]
    data = storage.get(name)
    overwrite(storage, name, data[:-9] + bytes([data[-9] ^ 255]) + data[-8:])
    with pytest.raises(DamagedObject, match="segments/0_0"):
        replica.catch_up(Version(2))
    check(replica, rocks, Version(1))
    overwrite(storage, name, data)
    replica.catch_up(Version(2))
    check(replica, rocks, Version(2))


def problems(place: Place) -> list[ProblemEvent]:
    return [n.event for n in place.events.since(0).events if isinstance(n.event, ProblemEvent)]


def test_versions_before_a_flush_are_released_after_30_seconds(rocks: AppLog, place: Place) -> None:
    clock = ManualClock(Millis(0))
    home, source = TaskDirectory(place.folder, TASK, "test"), LogReader(rocks.reopened())
    replica = Replica(home, source, source.log.app.stores_of(TASK), place.resources, place.events, None, clock)
    for number in range(3):
        replica.catch_up(rocks.commit({TASK: {"counts": {key_of(number): b"1"}}}))
    replica.flush_overlay()
    clock.advance(29)
    replica.tidy()
    assert replica.published.range == (0, 3)
    with replica.published.read_view(Version(2)) as view:
        hold = replica.published.hold(view, HoldTerms(600.0))
    clock.advance(1)
    replica.tidy()
    assert replica.published.range == (3, 3)
    check(replica, rocks, Version(3))
    assert replica.published.held.has(Version(2))  # until its time has passed, or it is released
    replica.published.held.release(hold)
    assert not replica.published.held.has(Version(2))


def test_catching_up_keeps_no_views_of_intermediate_versions(rocks: AppLog, place: Place) -> None:
    """A pinned view keeps its write buffers: one per version would exceed any memory limit."""
    chance = rocks.grow(8, 3)
    one_by_one = ReplicaSettings(overlay_bytes=1, batch_bytes=1)
    replica = place.caught_up(rocks, one_by_one)
    assert OPEN_VIEWS.count("view", str(place.folder / "0_0" / "data" / "rocksdb")) == 2
    assert replica.published.range == (7, 8)
    rocks.random_commit(chance)
    replica.catch_up(rocks.version)
    assert replica.published.range == (7, 9), "versions that arrive one by one are kept"
    for version in (7, 8, 9):
        check(replica, rocks, Version(version))


def test_a_glance_at_the_newest_version_is_never_older_than_one_before(rocks: AppLog, place: Place) -> None:
    rocks.grow(3, 7)
    replica = place.replica(rocks)

    def glance(version: int) -> int | None:
        replica.catch_up(Version(version))
        newest = replica.published.newest
        return None if newest is None else newest.version

    assert glance(3) == 3
    replica.rebuild(DamagedObject("it is damaged"))
    assert (glance(2), replica.published.version) == (None, 2)
    assert glance(3) == 3


def test_a_damaged_segment_does_not_cost_the_state_here(tmp_path: Path, place: Place) -> None:
    """Also if it is read while its changes are applied to the engines."""
    app = AppLog(str(tmp_path / "log"), inline_limit=0, inline_bytes=0)
    app.grow(2, seed=1)
    replica = place.replica(app, ReplicaSettings(overlay_bytes=2, flush_versions=1))
    replica.catch_up(Version(2))
    before = set((tmp_path / "log" / "segments").rglob("*.arrow"))
    app.commit({TASK: {"counts": {key_of(number): b"new" for number in range(100)}}})
    (segment,) = set((tmp_path / "log" / "segments").rglob("*.arrow")) - before
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-100])
    with pytest.raises(DamagedObject):
        replica.catch_up(Version(3))
    assert replica.openings == 1
    assert shown(replica) == app.state(Version(2))
    segment.write_bytes(whole)
    replica.catch_up(Version(3))
    assert shown(replica) == app.state()
