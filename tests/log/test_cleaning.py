"""Cleaning: objects below the floor and orphans are deleted, and nothing that a replica or sink may still need."""

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import ManualClock
from holdfast.log import names
from holdfast.log.appfile import AppSpec, SubTopologySpec
from holdfast.log.changing import ChangeRules
from holdfast.log.cleaning import Cleaner, LogContents, floor_of, plan_cleaning
from holdfast.log.commits import Clocks
from holdfast.log.leadership import Leadership, OutdatedDriver, next_epoch
from holdfast.log.log import Log, WrittenSegments
from holdfast.log.objects import Storage
from holdfast.log.segments import STATE
from holdfast.words import NOTHING, Millis, TaskId, Version
from tests.log.making import (
    TASK,
    Watched,
    app_spec,
    changes,
    commits_after,
    crash_at,
    grow,
    load,
    next_commit,
    overwrite,
    replay,
    sealed,
    store_spec,
    subtopologies_of,
)

A, B = TaskId(0, 0), TaskId(0, 1)
LONG_AGO = ManualClock(Millis(10**9))


def versions(*numbers: int) -> tuple[Version, ...]:
    return tuple(Version(number) for number in numbers)


def segment(task: TaskId, version: int) -> str:
    return names.segment(task, Version(version), f"{version:032x}")


@pytest.mark.parametrize(
    ("snapshots", "sink", "expired", "floor"),
    [
        (((3, 5, 8), (4, 6, 9)), 9, 9, 5),  # the second newest snapshot of the task that is furthest behind
        (((3, 5, 8), (4, 6, 9)), 2, 9, 2),  # the slowest sink limits it
        (((3, 5, 8), (4, 6, 9)), None, 9, 0),  # a sink without a position
        (((3, 5, 8), (4, 6, 9)), 9, 4, 4),  # the retention
        (((3, 5, 8), (4,)), 9, 9, 0),  # a task with one snapshot only
        (((3, 5, 8), ()), 9, 9, 0),
    ],
)
def test_the_floor(snapshots: tuple[tuple[int, ...], ...], sink: int | None, expired: int, floor: int) -> None:
    contents = LogContents(
        newest=Version(10),
        expired=Version(expired),
        snapshots={A: versions(*snapshots[0]), B: versions(*snapshots[1])},
        sinks={"fast": Version(10), "slow": None if sink is None else Version(sink)},
    )
    assert floor_of(contents) == floor


def test_a_plan_deletes_orphans_and_objects_below_the_floor() -> None:
    committed, orphan = segment(A, 7), names.segment(A, Version(7), "99")
    unread, future = segment(A, 8), segment(A, 11)
    plan = plan_cleaning(
        LogContents(
            newest=Version(10),
            expired=Version(9),
            snapshots={A: versions(2, 5, 8)},
            sinks={"files": Version(10)},
            commits=tuple(names.commit(Version(version)) for version in (4, 3, 5, 6)),
            segments=(segment(A, 4), committed, orphan, unread, future),
            positions=(names.sink_positions(Version(4)), names.sink_positions(Version(10))),
            referenced={
                Version(7): frozenset([committed]),
                Version(11): frozenset(),
            },  # 11 was committed during the listing
            unreferenced=("snapshots/0_0/files/ab",),
        )
    )
    assert plan.floor == 5
    assert plan.names == [
        names.manifest(A, Version(2)),
        names.commit(Version(3)),
        names.commit(Version(4)),
        segment(A, 4),
        orphan,
        "snapshots/0_0/files/ab",
        names.sink_positions(Version(4)),
    ]


@given(
    newest=st.integers(1, 30),
    expired=st.integers(0, 30),
    taken=st.lists(st.lists(st.integers(1, 30), unique=True), min_size=1, max_size=3),
    sinks=st.lists(st.none() | st.integers(0, 30), max_size=2),
    read=st.sets(st.integers(1, 30)),
)
def test_no_plan_deletes_objects_that_may_still_be_needed(
    newest: int, expired: int, taken: list[list[int]], sinks: list[int | None], read: set[int]
) -> None:
    snapshots = {
        TaskId(0, number): versions(*sorted(version for version in task if version <= newest))
        for number, task in enumerate(taken)
    }
    named = {Version(version): frozenset([segment(A, version)]) for version in read if version <= newest}
    plan = plan_cleaning(
        LogContents(
            newest=Version(newest),
            expired=Version(min(expired, newest)),
            snapshots=snapshots,
            sinks={str(n): None if sink is None else Version(min(sink, newest)) for n, sink in enumerate(sinks)},
            commits=tuple(names.commit(Version(version)) for version in range(1, newest + 1)),
            segments=tuple(segment(A, version) for version in range(1, newest + 6)),
            referenced=named,
        )
    )
    gone = set(plan.names)
    for task, there in snapshots.items():
        kept = [version for version in there if names.manifest(task, version) not in gone]
        assert kept[-2:] == list(there[-2:])
        for start in (kept[-2:] or [NOTHING])[:1]:  # all is there after the second newest
            for version in range(start + 1, newest + 6):
                assert segment(A, version) not in gone
                assert names.commit(Version(version)) not in gone
    for sink in sinks:
        for version in range((sink or 0) + 1, newest + 1):
            assert segment(A, version) not in gone
    commits = [names.commit(Version(version)) in gone for version in range(1, newest + 1)]
    assert commits == sorted(commits, reverse=True), "commits are deleted oldest first, without gaps"


def snapshot(
    log: Log, folder: Path, version: int, task: TaskId = TASK, stores: Mapping[str, int] = {"counts": 0}
) -> None:
    state = replay(log, {}, commits_after(log, through=Version(version)), task) if log.commit(Version(1)) else {}
    folder.mkdir(exist_ok=True)
    (folder / "state").write_bytes(repr(sorted(state.items())).encode())
    (folder / "shared").write_bytes(b"the same in every snapshot")
    commit = log.commit(Version(version))
    assert commit is not None
    log.snapshots.write(task, folder, version=Version(version), commit=commit.id, stores=stores)


def cleaner(
    log: Log,
    clock: ManualClock = LONG_AGO,
    sinks: Iterable[str] = (),
    check_leads: Callable[[], None] = lambda: None,
) -> Cleaner:
    return Cleaner(log, retention=timedelta(seconds=10), sinks=lambda: sinks, clock=clock, check_leads=check_leads)


def kept(log: Log, prefix: str) -> list[int | None]:
    return [names.version_of(name) for name in log.storage.list(prefix)]


def test_a_snapshot_without_one_of_the_stores_does_not_count(log: Log, tmp_path: Path) -> None:
    """An instance with earlier code goes on for a while: no replica with the new store can start at its snapshots."""
    grow(log, 4)
    for version in (2, 3):
        snapshot(log, tmp_path / "checkpoint", version)
    log = Log.create_or_open(log.storage, app_spec(store_spec(), store_spec("later")))
    grow(log, 6)
    for version in (7, 8):
        snapshot(log, tmp_path / "checkpoint", version)
    plan = cleaner(log).clean()
    assert plan.floor == 2
    assert log.snapshots.versions(TASK) == [2, 3], "the others are of no use"
    assert kept(log, names.COMMITS) == list(range(2, 11))


def test_a_damaged_manifest_does_not_stop_cleaning(log: Log, tmp_path: Path) -> None:
    grow(log, 6)
    for version in (2, 3, 4, 5):
        snapshot(log, tmp_path / "checkpoint", version)
    overwrite(log.storage, names.manifest(TASK, Version(4)), b"garbage")
    assert cleaner(log).clean().floor == 3, "no replica can start at version 4"
    assert log.snapshots.versions(TASK) == [3, 5]


def test_cleaning_a_quiet_log_takes_few_requests_however_many_tasks_there_are(memory: Storage, tmp_path: Path) -> None:
    watched = Watched(memory)
    log = Log.create_or_open(watched, app_spec(partitions=64))
    tasks = log.app.tasks()
    grow(log, 3, tasks=tasks[:1])
    for task in tasks:
        for version in (1, 2):
            snapshot(log, tmp_path / "checkpoint", version, task)
    cleaning = cleaner(log)
    cleaning.clean()
    watched.calls.clear()
    cleaning.clean()
    assert len(watched.calls) < 10, watched.calls


def test_tasks_without_stores_leave_nothing(log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    apart = msgspec.structs.replace(
        app_spec(store_spec(), store_spec("late")), subtopologies=subtopologies_of({"counts": 0, "late": 1})
    )
    grow(log, 1)
    both = Log.create_or_open(log.storage, apart)
    grow(both, 1)
    former = TaskId(1, 0)
    snapshot(both, tmp_path / "checkpoint", 2)
    snapshot(both, tmp_path / "checkpoint", 2, former, stores={"late": 1})
    both.storage.create(names.volatile_segment(former, Version(2), "u"), b"")
    grow(Log.create_or_open(log.storage, app_spec()), 1)
    cleaner(log).clean()
    assert log.snapshots.versions(former) == [2], "the store is removed, and kept"
    gone = Log.create_or_open(log.storage, app_spec(), rules=ChangeRules(keep_removed=timedelta(0)))
    grow(gone, 1)
    with caplog.at_level(logging.INFO):
        cleaner(gone).clean()
    assert "the snapshots of task 1_0 are deleted: it has no stores any more" in caplog.text
    assert not [name for name in log.storage.list("") if "/1_0/" in name]
    assert log.snapshots.versions(TASK) == [2]


def test_a_log_is_cleaned_up_to_the_floor(log: Log, tmp_path: Path) -> None:
    newest = grow(log, 10, sinks={"files": 9})
    for version in (2, 4, 7):
        snapshot(log, tmp_path / "checkpoint", version)
    for version in (3, 9):  # the app stopped at these versions
        commit = log.commit(Version(version))
        assert commit is not None
        log.sinks.mark(commit, {"files": Version(version)})
    plan = cleaner(log, sinks=["files"]).clean()
    assert plan.floor == 4
    assert kept(log, names.COMMITS) == kept(log, names.SEGMENTS) == [4, 5, 6, 7, 8, 9, 10]
    assert log.snapshots.versions(TASK) == [4, 7]
    assert kept(log, names.SINKS) == [9]
    assert log.newest() == newest


def test_an_outdated_drivers_cleaner_deletes_nothing(log: Log, tmp_path: Path) -> None:
    grow(log, 10)
    for version in (2, 4, 7):
        snapshot(log, tmp_path / "checkpoint", version)
    leadership = Leadership.take_over(log.storage, log.id, "slow", Millis(0))
    outdated = cleaner(log, check_leads=leadership.check)
    Leadership.take_over(log.storage, log.id, "fast", Millis(0))
    with pytest.raises(OutdatedDriver, match="driver fast, epoch 2"):
        outdated.clean()
    assert kept(log, names.COMMITS) == list(range(1, 11))


def test_a_driver_that_is_outdated_while_it_plans_a_cleaning_deletes_nothing(log: Log, tmp_path: Path) -> None:
    grow(log, 10)
    for version in (2, 4, 7):
        snapshot(log, tmp_path / "checkpoint", version)
    leadership = Leadership.take_over(log.storage, log.id, "slow", Millis(0))

    def take_over(call: str, name: str) -> None:
        if call == "list" and name == names.COMMITS:
            Leadership.take_over(log.storage, log.id, "fast", Millis(0))

    with pytest.raises(OutdatedDriver, match="driver fast, epoch 2"):
        cleaner(Log.open(Watched(log.storage, before=take_over)), check_leads=leadership.check).clean()
    assert kept(log, names.COMMITS) == list(range(1, 11))


def test_an_app_without_stores_is_cleaned_and_found_again(storage: Storage) -> None:
    """Its tasks have segments and no snapshots."""
    stateless = (SubTopologySpec("filters", 0),)
    log = Log.create_or_open(storage, AppSpec(id="scores", partitions=2, stores=(), subtopologies=stateless))
    newest = grow(log, 33, tasks=[A, B], sinks={"files": 33})
    assert cleaner(log, sinks=["files"]).clean().floor == 32
    assert kept(log, names.COMMITS) == [32, 33]
    assert kept(log, names.SEGMENTS) == [32, 33, 32, 33]
    assert Log.open(storage).newest() == newest
    assert grow(Log.open(storage), 1).version == 34


def test_a_file_that_is_not_the_logs_is_left_alone(log: Log, tmp_path: Path) -> None:
    grow(log, 3)
    snapshot(log, tmp_path / "checkpoint", 2)
    for name in ("snapshots/.DS_Store", "volatile/.DS_Store"):
        log.storage.create(name, b"")
    cleaner(log).clean()
    assert [name for name in log.storage.list("") if name.endswith(".DS_Store")]


def test_segments_of_former_sub_topologies_go_with_their_versions(storage: Storage, tmp_path: Path) -> None:
    former = (SubTopologySpec("counts", 0, ("counts",)), SubTopologySpec("filters", 1))
    grow(
        Log.create_or_open(storage, msgspec.structs.replace(app_spec(), subtopologies=former)), 4, tasks=[TaskId(1, 0)]
    )
    log = Log.create_or_open(storage, app_spec())
    grow(log, 4)
    for version in (6, 7):
        snapshot(log, tmp_path / "checkpoint", version)
    cleaner(log).clean()
    assert kept(log, names.SEGMENTS) == [6, 7, 8]


def test_cleaning_goes_by_the_app_file_of_the_newest_commit(storage: Storage, tmp_path: Path) -> None:
    """An older driver's cleaner doesn't know the new task, and neither does a log without a snapshot of it."""
    old = Log.create_or_open(storage, app_spec())
    grow(old, 6)
    added = SubTopologySpec("more", 1, ("more",))
    spec = app_spec(store_spec(), store_spec("more"))
    log = Log.create_or_open(storage, msgspec.structs.replace(spec, subtopologies=(*app_spec().subtopologies, added)))
    for version in (3, 5):
        snapshot(log, tmp_path / "checkpoint", version)
    assert cleaner(log).clean().floor == 3
    grow(log, 2)
    assert cleaner(log).clean().floor == 3
    for version in (7, 8):
        snapshot(log, tmp_path / "checkpoint", version)
    assert cleaner(old).clean().floor == 6, "the new task has no snapshot and begins after version 6"


def test_a_snapshot_that_reuses_a_file_while_it_is_deleted_is_withdrawn(log: Log, tmp_path: Path) -> None:
    grow(log, 9)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for version, content in ((3, b"reused"), (5, b"other"), (7, b"another")):
        (folder / "state").write_bytes(content)
        commit = log.commit(Version(version))
        assert commit is not None
        log.snapshots.write(TASK, folder, version=Version(version), commit=commit.id, stores={"counts": 0})
    (folder / "state").write_bytes(b"reused")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "state").write_bytes(b"yet another")

    def save(call: str, name: str) -> None:
        if call == "delete" and name.startswith(names.snapshot_files(TASK)) and 9 not in log.snapshots.versions(TASK):
            log.snapshots.write(TASK, folder, version=Version(9), commit="c9", stores={"counts": 0})

    cleaning = cleaner(Log.open(Watched(log.storage, before=save)))
    cleaning.clean()  # deletes the manifest of version 3
    cleaning.clean()
    log.snapshots.write(TASK, tmp_path / "other", version=Version(8), commit="c8", stores={"counts": 0})
    assert len(cleaning.clean().files) == 1
    for version in log.snapshots.versions(TASK):
        manifest = log.snapshots.manifest(TASK, version)
        assert manifest is not None
        load(log, manifest, tmp_path / f"loaded-{version}")
    assert log.snapshots.versions(TASK) == [7, 8]


def test_the_newest_thousand_leaders_are_kept(memory: Storage) -> None:
    log = Log.create_or_open(memory, app_spec())
    grow(log, 1)
    for epoch in range(1, 1003):
        memory.create(names.leader(epoch), b"")
    assert cleaner(log).clean().names == [names.leader(1), names.leader(2)]
    assert next_epoch(memory.list_flat(names.LEADERS)) == 1003


def test_app_files_go_that_no_kept_commit_names(log: Log, tmp_path: Path) -> None:
    """A file above the newest commit's is a start's intention, and may take effect at any moment."""
    grow(log, 3)
    Log.create_or_open(log.storage, app_spec(store_spec(), store_spec("never-started")))
    changed = Log.create_or_open(log.storage, app_spec(store_spec(), store_spec("added")))
    grow(changed, 7)
    Log.create_or_open(log.storage, app_spec(store_spec(), store_spec("intended")))
    cleaning = cleaner(changed)
    assert cleaning.clean().apps == (), "version 1 is kept"
    for version in (5, 6):
        snapshot(changed, tmp_path / str(version), version, stores={"counts": 0, "added": 3})
    assert cleaning.clean().apps == (names.app(1), names.app(2))
    assert [names.number_of(name) for name in log.storage.list_flat(names.APPS)] == [3, 4]
    assert Log.open(log.storage).app == changed.app


def test_an_empty_log_is_left_alone(log: Log) -> None:
    assert cleaner(log).clean().names == []


def test_without_two_snapshots_only_orphans_go(log: Log, tmp_path: Path) -> None:
    log.write_segment(TASK, Version(2), sealed({b"lost": b"attempt"}), inline_limit=0)
    grow(log, 3)
    snapshot(log, tmp_path / "checkpoint", 3)
    future = log.write_segment(TASK, Version(4), sealed({b"slow": b"driver"}), inline_limit=0)
    plan = cleaner(log).clean()
    assert [names.version_of(name) for name in plan.names] == [2]
    assert kept(log, names.SEGMENTS) == [1, 2, 3, 4]
    assert future.name in log.storage.list(names.SEGMENTS)
    assert kept(log, names.COMMITS) == [1, 2, 3]


def test_a_straggling_attempt_is_found_by_a_later_cleaning(log: Log) -> None:
    grow(log, 3)
    cleaning = cleaner(log)
    assert cleaning.clean().names == []
    late = log.write_segment(TASK, Version(2), sealed({b"late": b"attempt"}), inline_limit=0)
    assert cleaning.clean().names == [], "a quiet log isn't searched again"
    grow(log, 1)
    assert cleaning.clean().names == [late.name]
    assert kept(log, names.SEGMENTS) == [1, 2, 3, 4]


def test_versions_within_the_retention_stay(log: Log, tmp_path: Path) -> None:
    grow(log, 10, wall=lambda version: version * 1000)
    for version in (8, 9, 10):
        snapshot(log, tmp_path / "checkpoint", version)
    clock = ManualClock(Millis(15_000))  # 10 s back: version 5
    cleaning = cleaner(log, clock)
    assert cleaning.clean().floor == 5
    assert kept(log, names.COMMITS) == [5, 6, 7, 8, 9, 10]
    assert log.snapshots.versions(TASK) == [8, 9, 10]
    clock.advance(seconds=2)
    assert cleaning.clean().floor == 7
    clock.advance(seconds=60)
    assert cleaning.clean().floor == 9
    assert kept(log, names.COMMITS) == kept(log, names.SEGMENTS) == [9, 10]
    assert log.snapshots.versions(TASK) == [9, 10]


def test_a_sink_without_a_position_keeps_everything(log: Log, tmp_path: Path) -> None:
    grow(log, 4)
    for version in (3, 4):
        snapshot(log, tmp_path / "checkpoint", version)
    assert cleaner(log, sinks=["new-sink"]).clean().floor == NOTHING
    assert kept(log, names.COMMITS) == [1, 2, 3, 4]


def test_a_file_without_a_manifest_is_deleted_once_its_task_has_another_snapshot(log: Log, tmp_path: Path) -> None:
    grow(log, 8)
    for version in (2, 4, 6):
        snapshot(log, tmp_path / "checkpoint", version)
    (tmp_path / "half").write_bytes(b"a snapshot that is being written")
    half = names.snapshot_file(TASK, "0123")
    log.storage.create_file(half, tmp_path / "half")
    before = log.storage.list(names.snapshot_files(TASK))
    cleaning = cleaner(log)
    for _ in range(3):
        cleaning.clean()
    assert log.storage.list(names.snapshot_files(TASK)) == before, "it may be that of a snapshot that is being written"
    snapshot(log, tmp_path / "checkpoint", 8)
    assert half in cleaning.clean().files
    # Of six files, the orphan and the one that only the snapshot of version 2 named are gone.
    assert len(log.storage.list(names.snapshot_files(TASK))) == len(before) + 1 - 2 == 4
    for version in (6, 8):
        manifest = log.snapshots.manifest(TASK, Version(version))
        assert manifest is not None
        load(log, manifest, tmp_path / f"loaded-{version}")


def test_an_app_that_is_restarted_all_the_time_leaves_no_files(log: Log, tmp_path: Path) -> None:
    """Each driver lives for two snapshots, of which the second one is given up half way."""
    for version in range(1, 31):
        grow(log, 1)
        cleaning = cleaner(log)
        cleaning.clean()
        snapshot(log, tmp_path / "checkpoint", version)
        (tmp_path / "half").write_bytes(b"%d" % version)
        log.storage.create_file(names.snapshot_file(TASK, f"{version:04d}"), tmp_path / "half")
        cleaning.clean()
    assert len(log.storage.list(names.snapshot_files(TASK))) < 10


def log_with_a_volatile_store(storage: Storage) -> Log:
    """A log with a store that isn't durable and six versions of it, ten seconds apart."""
    stores = (store_spec("counts"), msgspec.structs.replace(store_spec("recent"), durable=False))
    log = Log.create_or_open(storage, app_spec(*stores))
    previous = None
    for number in range(1, 7):
        parts = [(STATE, store.name, changes({b"k": b"%d" % number})) for store in stores]
        written = log.write_parts(TASK, Version(number), parts, volatile={"recent"}, inline_limit=0)
        clocks, volatile = Clocks(number * 10_000, None, {}), {str(TASK): written.volatile}
        previous = next_commit(log, previous, {str(TASK): written.segments}, clocks=clocks, volatile=volatile)
        log.create_commit(previous)
    return log


def test_volatile_segments_are_deleted_after_ten_minutes(storage: Storage) -> None:
    log = log_with_a_volatile_store(storage)
    attempt = log.write_segment(TASK, Version(3), sealed({b"lost": b"try"}), inline_limit=0, volatile=True)
    future = log.write_segment(TASK, Version(7), sealed({b"slow": b"driver"}), inline_limit=0, volatile=True)
    clock = ManualClock(Millis(600_000))
    cleaning = cleaner(log, clock)
    cleaning.clean()
    assert kept(log, names.VOLATILE) == [1, 2, 3, 3, 4, 5, 6, 7]
    clock.advance(seconds=30)  # ten minutes after version 3
    assert attempt.name in cleaning.clean().volatile
    assert kept(log, names.VOLATILE) == [4, 5, 6, 7]
    clock.advance(seconds=3_000)
    cleaning.clean()
    assert log.storage.list(names.VOLATILE) == [future.name]
    assert kept(log, names.SEGMENTS) == kept(log, names.COMMITS) == [1, 2, 3, 4, 5, 6]


def test_objects_with_segments_of_several_tasks_are_cleaned_like_others(storage: Storage, tmp_path: Path) -> None:
    stores = (store_spec("counts"), msgspec.structs.replace(store_spec("recent"), durable=False))
    log = Log.create_or_open(storage, app_spec(*stores))

    def together(number: int) -> WrittenSegments:
        parts = [(STATE, store.name, changes({b"k": b"%d" % number})) for store in stores]
        written = log.write_parts(TASK, Version(number), parts, volatile={"recent"}, inline_limit=9_999)
        return log.write_together(Version(number), {str(TASK): written}, inline_bytes=0)[str(TASK)]

    cleaning, previous = cleaner(log, clock := ManualClock(Millis(600_000))), None
    for number in range(1, 7):
        written = together(number)
        clocks, volatile = Clocks(number * 10_000, None, {}), {str(TASK): written.volatile}
        previous = next_commit(log, previous, {str(TASK): written.segments}, clocks=clocks, volatile=volatile)
        log.create_commit(previous)
    assert cleaning.clean().names == []
    lost, slow = together(6), together(7)
    log.create_commit(next_commit(log, previous))
    assert cleaning.clean().segments == (lost.segments[0].name, slow.segments[0].name)
    clock.advance(seconds=30)  # ten minutes after version 3
    cleaning.clean()
    assert kept(log, names.VOLATILE) == [4, 5, 6, 6, 7]
    for version in (4, 5):
        snapshot(log, tmp_path / "checkpoint", version)
    cleaning.clean()
    assert kept(log, names.SEGMENTS) == [4, 5, 6]
    after = Log.create_or_open(storage, app_spec(store_spec("counts")), rules=ChangeRules(keep_removed=timedelta(0)))
    after.create_commit(next_commit(after, after.newest()))
    cleaner(after).clean()
    assert log.storage.list(names.VOLATILE) == [], "no store of the app needs them any more"


def test_a_sink_that_is_behind_keeps_volatile_segments(storage: Storage) -> None:
    log = log_with_a_volatile_store(storage)
    log.create_commit(next_commit(log, log.newest(), sinks={"files": 2}))
    cleaner(log, ManualClock(Millis(10**9)), sinks=["files"]).clean()
    assert kept(log, names.VOLATILE) == [3, 4, 5, 6]


@pytest.mark.parametrize("point", ["clean.before", "clean.middle", "clean.after"])
def test_the_next_cleaning_completes_one_that_crashed(log: Log, tmp_path: Path, point: str) -> None:
    last = grow(log, 8)
    for version in (3, 5, 6):
        snapshot(log, tmp_path / "checkpoint", version)
    with crash_at(point):
        cleaner(log).clean()
    assert log.newest() == last
    for commit in commits_after(log, Version(6)):
        assert [list(log.state_parts(ref)) for ref in commit.of_task(TASK)]
    cleaner(log).clean()
    assert kept(log, names.COMMITS) == kept(log, names.SEGMENTS) == [5, 6, 7, 8]
    assert log.newest() == last
