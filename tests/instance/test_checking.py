"""A replica that isn't what the log says is found, reported and rebuilt; one that is stays as it is."""

import random
from collections.abc import Generator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from holdfast import metrics
from holdfast.contacts import Contact, News
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.group.generations import Address
from holdfast.instance import replica_check
from holdfast.instance.checking import ReplicaCheck
from holdfast.instance.client import StateClient
from holdfast.instance.config import unchecked
from holdfast.instance.credentials import NO_CREDENTIALS
from holdfast.instance.events import Events, ProblemEvent
from holdfast.instance.replica import Replica
from holdfast.instance.replica_check import Checked, ReplicaDiffers, check_replica
from holdfast.instance.sampling import ENTRIES, RANGES, sample, summary
from holdfast.instance.snapshotter import Snapshotter
from holdfast.instance.state_dir import TaskDirectory
from holdfast.instance.task_engines import TaskEngines
from holdfast.settings.sections import SnapshotSettings
from holdfast.stores.engines.base import Changes, Resources
from holdfast.words import TaskId
from tests.instance.app_log import TASK, AppLog, Place, key_of, shown
from tests.instance.processes import Process, until
from tests.instance.test_process import FLUSH_OFTEN, NO_SNAPSHOTS, check, config_of
from tests.instance.timed import Twin, specs

OFTEN = unchecked(SnapshotSettings, age=timedelta(milliseconds=1))
MANY = 3_000
"""Keys of a store that is too large to be in a sample as a whole."""


def put(app: AppLog, numbers: range, value: bytes = b"right") -> None:
    app.commit({TASK: {"counts": {key_of(number): value for number in numbers}}})


def altered(app: AppLog, folder: Path, *changes: tuple[bytes, bytes | None], task: TaskId = TASK) -> None:
    """Writes other values into a task's engines behind the back of the instance, which is down. The mark stays."""
    with TaskDirectory(folder, task, "altering") as home:
        engines = TaskEngines.open(home.data, home.volatile, app.log.app.stores_of(task), Resources(64 << 20))
        overwrite(engines, *changes)
        engines.close()


def overwrite(engines: TaskEngines, *changes: tuple[bytes, bytes | None]) -> None:
    mark = engines.mark()
    assert mark is not None
    keys, values = zip(*changes, strict=True)
    engines.apply([("counts", Changes(pa.array(keys, pa.binary()), pa.array(values, pa.binary())))], mark)
    engines.flush()
    assert engines.mark() == mark


def saved(replica: Replica, app: AppLog) -> None:
    Snapshotter(replica, app.log, SnapshotSettings()).save()


def checked(replica: Replica) -> Checked | None:
    return check_replica(replica, replica._log_reader)


def reopened(place: Place, app: AppLog, replica: Replica, *changes: tuple[bytes, bytes | None]) -> Replica:
    """The replica after a restart, at the newest version, with these changes made behind its back."""
    replica.close()
    altered(app, place.folder, *changes)
    return place.caught_up(app)


def test_changed_keys_have_what_the_last_segment_says(rocks: AppLog, place: Place) -> None:
    for value in (b"one", b"two"):
        put(rocks, range(5), value)
    rocks.commit({TASK: {"counts": {key_of(1): None}}})
    replica = place.caught_up(rocks)
    assert checked(replica) == Checked(rocks.version, keys=5, ranges=0)
    for change in ((key_of(2), b"one"), (key_of(3), None), (key_of(1), b"two")):
        replica = reopened(place, rocks, replica, change)
        with pytest.raises(ReplicaDiffers, match=f"1 of 5 keys .* versions 1 to 3 .* such as {change[0].hex()}"):
            checked(replica)
        replica = reopened(place, rocks, replica, (change[0], rocks.state()["counts"].get(change[0])))


ALTERATIONS: dict[str, tuple[bytes, bytes | None]] = {
    "value": (key_of(7), b"wrong"),
    "deleted": (key_of(7), None),
    "added": (key_of(7) + b"x", b"right"),
    "added behind the last": (key_of(900), b"right"),
    "added before the first": (b"\x01a", b"right"),
}


@pytest.mark.parametrize("change", ALTERATIONS.values(), ids=ALTERATIONS)
def test_entries_that_did_not_change_are_those_of_the_snapshot(
    rocks: AppLog, place: Place, change: tuple[bytes, bytes | None]
) -> None:
    put(rocks, range(500))
    replica = place.caught_up(rocks)
    saved(replica, rocks)
    put(rocks, range(200, 210), b"newer")
    replica.catch_up(rocks.version)
    assert checked(replica) == Checked(rocks.version, keys=10, ranges=500 // ENTRIES + 1)  # of 8 + 1, one changed
    replica = reopened(place, rocks, replica, change)
    with pytest.raises(ReplicaDiffers, match="the snapshot of version 1 had"):
        checked(replica)


def test_a_large_store_is_compared_by_a_sample(rocks: AppLog, place: Place) -> None:
    put(rocks, range(MANY))
    replica = place.caught_up(rocks)
    saved(replica, rocks)
    manifest = rocks.log.snapshots.newest(TASK)
    assert manifest is not None
    ranges = manifest.samples["counts"]
    assert 1 < len(ranges) <= RANGES
    found = checked(replica)
    assert found is not None
    assert found.ranges == len(ranges) + 1  # the other store is empty
    replica = reopened(place, rocks, replica, *((key_of(number), b"wrong") for number in range(0, MANY, ENTRIES)))
    with pytest.raises(ReplicaDiffers, match="checksum"):
        checked(replica)


def test_a_tail_that_is_too_long_is_compared_in_part(
    rocks: AppLog, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_check, "VERSIONS", 2)
    put(rocks, range(5))
    replica = place.caught_up(rocks)
    saved(replica, rocks)
    for number in range(10, 14):
        put(rocks, range(number, number + 1))
    replica.catch_up(rocks.version)
    assert checked(replica) == Checked(rocks.version, keys=2, ranges=0)


def test_another_commit_of_the_version_is_a_difference(rocks: AppLog, place: Place) -> None:
    put(rocks, range(5))
    replica = place.caught_up(rocks)
    replica._commit = "another"
    with pytest.raises(ReplicaDiffers, match="built on commit another, and the log has"):
        checked(replica)


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_are_never_different(app: AppLog, place: Place, seed: int) -> None:
    chance = random.Random(seed)
    replica = place.caught_up(app)
    for _ in range(30):
        app.random_commit(chance, rows=60, keys=400)
        replica.catch_up(app.version)
        if chance.random() < 0.2:
            saved(replica, app)
        assert checked(replica) is not None
    late = place.beside("late").caught_up(app)
    assert checked(late) is not None
    assert shown(late) == app.state()


def test_what_the_clocks_hide_is_left_out(tmp_path: Path, place: Place) -> None:
    """Replicas drop what has expired, each at its own time; a snapshot may still have it."""
    app = AppLog(str(tmp_path / "log"), specs=specs("rocksdb"))
    twin, replica = Twin(app), place.replica(app)
    seen, chance = 0, random.Random(1)
    for number in range(40):
        twin.step(chance)
        replica.catch_up(app.version)
        if number % 7 == 0:
            saved(replica, app)
        found = checked(replica)
        seen += 0 if found is None else found.ranges
    assert seen


def test_a_sample_notices_every_kind_of_change() -> None:
    entries = [(b"k%05d" % number, b"v") for number in range(5_000)]

    def scan(start: bytes, reverse: bool) -> Generator[tuple[bytes, bytes], None, None]:
        yield from sorted((entry for entry in entries if entry[0] >= start), reverse=reverse)

    found = sample(scan, "seed")
    assert found == sample(scan, "seed") != sample(scan, "other")
    assert all(each.entries <= ENTRIES for each in found)
    for before, after in pairwise(found):
        assert before.stop is not None
        assert before.stop <= after.start
    inside = [entry for entry in entries if found[0].start <= entry[0] < (found[0].stop or b"")]
    assert summary(inside) == (found[0].entries, found[0].checksum)


def test_a_replica_that_differs_again_is_not_rebuilt_again(rocks: AppLog, place: Place) -> None:
    put(rocks, range(5))
    replica = reopened(place, rocks, place.caught_up(rocks), (key_of(2), b"wrong"))
    events, rebuilt = Events(), list[str]()

    def rebuild(error: Exception) -> None:
        """As if the log itself led to the same state again."""
        rebuilt.append(str(error))
        replica.open(again=True)

    found = ReplicaCheck(replica, replica._log_reader, events, is_running=lambda: True, rebuild=rebuild)
    for _ in range(4):
        found.step()
    assert len(rebuilt) == 1
    assert not found.passed
    problems = [numbered.event for numbered in events.since(0).events]
    assert [(each.severity, each.error) for each in problems if isinstance(each, ProblemEvent)] == [
        ("error", "Repaired"),
        ("error", "DiffersAgain"),
    ]


def test_a_replica_is_rebuilt_once_more_if_it_differs_after_a_check_that_passed(rocks: AppLog, place: Place) -> None:
    put(rocks, range(5))
    replica = reopened(place, rocks, place.caught_up(rocks), (key_of(2), b"wrong"))
    events, rebuilt = Events(), list[str]()

    def rebuild(error: HoldfastError) -> None:
        rebuilt.append(str(error))
        replica.rebuild(error)
        replica.catch_up(rocks.version)

    found = ReplicaCheck(replica, replica._log_reader, events, is_running=lambda: True, rebuild=rebuild)
    for times in (1, 2):
        for _ in range(3):
            found.step()
        assert len(rebuilt) == times and found.passed
        replica.flush_overlay()
        assert replica._disk is not None
        overwrite(replica._disk.engines, (key_of(times), b"wrong"))
        replica.open(again=True)
        replica.catch_up(rocks.version)
    said = [numbered.event for numbered in events.since(0).events]
    assert [each.error for each in said if isinstance(each, ProblemEvent)] == ["Repaired", "Repaired"]


def problems(client: StateClient) -> list[ProblemEvent]:
    found = [numbered.event for numbered in client.events(0).events]
    return [event for event in found if isinstance(event, ProblemEvent) and event.task is not None]


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_an_instance_finds_and_repairs_state_that_was_altered_while_it_was_down(
    tmp_path: Path, with_snapshot: bool
) -> None:
    app = AppLog(str(tmp_path / "log"), partitions=3)
    snapshots = OFTEN if with_snapshot else NO_SNAPSHOTS
    config = config_of(app, tmp_path, state=FLUSH_OFTEN, snapshots=snapshots)
    app.grow(6, seed=3)
    with Process(config) as process, process.listening() as client:
        until(lambda: client.status().ready, "ready")
        if with_snapshot:
            until(lambda: all(app.log.snapshots.versions(task) for task in app.log.app.tasks()), "snapshots")
        process.terminate()
    state = app.state()["counts"]
    wrong = [(key, b"wrong") for key in state]
    altered(app, tmp_path / "state", *wrong)
    with Process(msgspec.structs.replace(config, snapshots=NO_SNAPSHOTS)) as process, process.listening() as client:
        until(lambda: bool(problems(client)), "the difference to be reported")
        (first, *_) = problems(client)
        assert (first.severity, first.task, first.category) == ("error", "0_0", ErrorCategory.DATA)
        assert "differs from the log" in first.message
        until(lambda: client.status().ready and len(problems(client)) > 1, "the repair")
        check(client, app)
        assert {each.task for each in problems(client)} == {"0_0"}


def test_a_replica_that_differs_is_in_no_snapshot(tmp_path: Path) -> None:
    app = AppLog(str(tmp_path / "log"), partitions=1)
    config = config_of(app, tmp_path, state=FLUSH_OFTEN, snapshots=NO_SNAPSHOTS)
    app.grow(6, seed=3)
    with Process(config) as process, process.listening() as client:
        until(lambda: client.status().ready, "ready")
        process.terminate()
    altered(app, tmp_path / "state", *((key, b"wrong") for key in app.state()["counts"]))
    with Process(msgspec.structs.replace(config, snapshots=OFTEN)) as process:
        with process.listening():
            until(lambda: bool(app.log.snapshots.versions(TASK)), "a snapshot")
        process.terminate()
    fresh = Place(tmp_path / "fresh").caught_up(app)
    assert shown(fresh) == app.state()
    fresh.close()


def test_checks_are_counted(rocks: AppLog, place: Place) -> None:
    put(rocks, range(5))
    replica = place.caught_up(rocks)
    before = passed()
    found = ReplicaCheck(replica, replica._log_reader, Events(), is_running=lambda: True, rebuild=lambda error: None)
    for _ in range(3):
        found.step()
    assert found.passed
    assert passed() == before + 1


def passed() -> float:
    return metrics.value("holdfast_replica_checks_total", result="passed")


def test_the_driver_passes_a_difference_to_the_alert_hook(tmp_path: Path) -> None:
    app = AppLog(str(tmp_path / "log"), partitions=1)
    app.grow(6, seed=3)
    config = config_of(app, tmp_path, state=FLUSH_OFTEN, snapshots=NO_SNAPSHOTS)
    with Process(config) as process, process.listening() as client:
        until(lambda: client.status().ready, "ready")
        process.terminate()
    altered(app, tmp_path / "state", *((key, b"wrong") for key in app.state()["counts"]))
    alerts: list[BaseException] = []
    with Process(config) as process:
        contact = Contact(
            "one",
            Address(incarnation=1, flight=process.addresses()["flight"]),
            News(),
            NO_CREDENTIALS,
            on_event=lambda event: None,
            on_lost=lambda id: None,
            on_hangs=lambda id: None,
            on_back=lambda id: None,
            alert=alerts.append,
        )
        until(lambda: bool(alerts), "the alert")
        contact.close()
    assert str(alerts[0]).startswith("instance one: task 0_0: the replica at version 6 differs from the log")
