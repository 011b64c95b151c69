"""Time passes when nothing arrives: when the driver makes a version of its own, and what that costs."""

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from holdfast import faults
from holdfast.clock import ClockJumped, SteadyClock
from holdfast.ending import Ending
from holdfast.errors import StorageUnavailable
from holdfast.idle import AskWhatIsDue, IdleVersions, MakeVersion, NothingDue, decide
from holdfast.log import names
from holdfast.log.commits import Clocks, Commit
from holdfast.pipeline.driver import BatchResult, Step
from holdfast.stores.formats.keys import decode_key
from holdfast.stores.layouts.due import AT_ONCE, Due
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.spec import StoreSpec
from holdfast.words import Millis, Version
from tests.crash.machine import BOUNDED, EXPIRING, SPEC, Crash, _spark_batch, crash_at
from tests.pipeline.test_protocol import batch, commit
from tests.pipeline.test_puts import CountingMachine

SECOND = 1_000


def at(wall: int) -> Commit:
    return commit(3, batch(2), Clocks(wall=wall, event=None, sources={}))


def known(due: Mapping[str, Due]) -> tuple[Version, Mapping[str, Due]]:
    return Version(3), due


def test_nothing_is_made_before_the_first_batch() -> None:
    assert decide(None, None, Millis(0), SECOND) == NothingDue(SECOND)


def test_nothing_is_asked_while_batches_arrive() -> None:
    assert decide(at(10_000), None, Millis(10_400), SECOND) == NothingDue(600)


def test_what_is_due_by_event_time_is_due_also_with_a_clock_that_was_set_back() -> None:
    assert decide(at(10_000_000), None, Millis(0), SECOND) == AskWhatIsDue(Version(3))
    waiting = known({"windows": Due(tasks=10_000_000), "ttl": Due(tasks=10_000_001)})
    assert decide(at(10_000_000), waiting, Millis(0), SECOND) == MakeVersion(frozenset({"windows"}))
    assert decide(at(10_000_000), known({"ttl": Due(tasks=10_000_001)}), Millis(0), SECOND) == NothingDue(SECOND)


def test_a_quiet_app_asks_once_per_version() -> None:
    assert decide(at(10_000), None, Millis(11_000), SECOND) == AskWhatIsDue(Version(3))
    assert decide(at(10_000), (Version(2), {}), Millis(11_000), SECOND) == AskWhatIsDue(Version(3))
    assert decide(at(10_000), known({}), Millis(11_000), SECOND) == NothingDue(SECOND)


def test_a_version_is_made_when_the_first_thing_is_due() -> None:
    due = known({"a": Due(hidden=20_000), "b": Due(hidden=12_000, tasks=13_000), "c": Due()})
    assert decide(at(10_000), due, Millis(11_900), SECOND) == NothingDue(100)
    assert decide(at(10_000), due, Millis(12_000), SECOND) == MakeVersion()
    assert decide(at(10_000), due, Millis(13_000), SECOND) == MakeVersion(frozenset({"b"}))


class QuietMachine(CountingMachine):
    """A machine with the loop of a quiet app."""

    failures = 0

    def idle(self) -> IdleVersions:
        return IdleVersions(
            driver=self.driver,
            due=self.due,
            compute=self.removed,
            clock=self.clock,
            interval=timedelta(seconds=1),
            ending=Ending(timedelta(seconds=1), lambda cause: pytest.fail(str(cause))),
        )

    def due(self, version: Version) -> Mapping[str, Due]:
        if self.failures:
            self.failures -= 1
            raise StorageUnavailable("no answer")
        found = [replica.due(version).get("scores", Due()) for replica in self.replicas.values()]
        return {"scores": Due.soonest(found)}

    def removed(self, due: Collection[str], step: Step) -> BatchResult:
        return self.computed([], step) if due else BatchResult()

    def pass_time(self, seconds: float, idle: IdleVersions) -> int:
        """Lets time pass in the steps of the loop, and returns how many versions were made."""
        before = self.newest
        until = self.clock.now() + round(seconds * SECOND)
        while self.clock.now() < until:
            pause = idle.step()
            self.clock.advance(max(0.001, min(pause, (until - self.clock.now()) / SECOND)))
        idle.step()
        return self.newest - before

    def shown(self) -> set[object]:
        """The players that a query sees at the newest version."""
        found: set[object] = set()
        for _, view in self.views():
            for stored, cell in view.scan("scores", b"", None):
                layout = layout_of(self.spec)
                if stored[:1] in layout.entry_areas and layout.visible(cell, view.now) is not None:
                    found.add(decode_key(self.spec.key, layout.own_key(stored))[0])
        return found


def test_a_paused_app_makes_no_version_until_it_goes_on(tmp_path: Path) -> None:
    machine = QuietMachine(tmp_path, EXPIRING)
    machine.version([("alice", 1), ("bob", 2)])
    idle, paused = machine.idle(), True
    idle.is_paused = lambda: paused
    assert machine.pass_time(30, idle) == 0
    paused = False
    assert machine.pass_time(2, idle) > 0


def test_expired_keys_are_hidden_by_one_small_object(tmp_path: Path) -> None:
    machine = QuietMachine(tmp_path, EXPIRING)
    machine.version([("alice", 1), ("bob", 2)])
    idle = machine.idle()
    machine.watched.calls.clear()
    assert machine.pass_time(2.4, idle) == 0, "nothing is due before the TTL"
    assert machine.shown() == {"alice", "bob"}
    made = machine.pass_time(2, idle)
    assert 1 <= made <= 2
    assert machine.shown() == set()
    assert machine.pass_time(3600, idle) == 0, "no entry is left"
    written = [name for call, name in machine.watched.calls if call == "create"]
    assert written == [names.commit(Version(1 + n)) for n in range(1, made + 1)]


def test_a_store_without_a_ttl_is_never_due(tmp_path: Path) -> None:
    machine = QuietMachine(tmp_path, SPEC)
    machine.version([("alice", 1)])
    assert machine.pass_time(3600, machine.idle()) == 0


ONE_BY_ONE = [structs.replace(BOUNDED, ttl_ms=2_500), structs.replace(SPEC, ttl_ms=2_500)]


@pytest.mark.parametrize("spec", ONE_BY_ONE, ids=["max_entries", "ttl_to_sinks"])
def test_entries_that_are_removed_one_by_one_are_removed_by_tasks_and_sinks_are_told(
    tmp_path: Path, spec: StoreSpec
) -> None:
    machine = QuietMachine(tmp_path, spec)
    machine.version([("alice", 1)])
    assert machine.pass_time(4, machine.idle()) == 1
    assert machine.shown() == set()
    assert [(row["player"], row["_deleted"]) for row in machine.memory.rows()] == [("alice", False), ("alice", True)]


def test_what_is_due_is_known_after_a_restart(tmp_path: Path) -> None:
    machine = QuietMachine(tmp_path, EXPIRING)
    machine.version([("alice", 1)])
    machine.restart()
    assert machine.pass_time(5, machine.idle()) >= 1
    assert machine.shown() == set()


def test_an_instance_that_does_not_answer_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine = QuietMachine(tmp_path, EXPIRING)
    machine.version([("alice", 1)])
    machine.failures = 3
    machine.pass_time(8, machine.idle())
    assert machine.shown() == set()
    assert [record.getMessage() for record in caplog.records] == [
        "time stands still, and this is tried again: no answer"
    ], "it is said once"


@contextmanager
def running(idle: IdleVersions) -> Iterator[None]:
    """The loop in its thread, of an app that is never quiet for long enough."""
    idle.interval = timedelta(hours=1)
    thread = threading.Thread(target=idle.run)
    thread.start()
    yield
    idle.ending.ask()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("spec", [EXPIRING, *ONE_BY_ONE], ids=["sliced", "max_entries", "ttl_to_sinks"])
def test_catching_up_makes_what_is_due_now_and_waits_for_nothing_that_is_due_later(
    tmp_path: Path, spec: StoreSpec
) -> None:
    machine = QuietMachine(tmp_path, spec)
    idle = machine.idle()
    with running(idle):
        idle.catch_up()
        machine.version([("alice", 1)])
        idle.catch_up()
        assert machine.newest == 1
        assert machine.shown() == {"alice"}
        machine.clock.advance(60)
        idle.catch_up()
        assert machine.shown() == set()
        made = machine.newest
        idle.catch_up()
        assert machine.newest == made


def test_catching_up_makes_as_many_versions_as_event_time_asks_for(tmp_path: Path) -> None:
    machine = QuietMachine(tmp_path, SPEC)
    machine.version([("alice", 1)])
    idle = machine.idle()
    idle.due = lambda version: {"windows": Due(tasks=AT_ONCE if version < 6 else None), "tick": Due(tasks=10**15)}
    idle.compute = lambda due, step: BatchResult()
    with running(idle):
        idle.catch_up()
        assert machine.newest == 6


def test_catching_up_waits_for_a_batch_and_ends_with_the_app(tmp_path: Path) -> None:
    machine = QuietMachine(tmp_path, EXPIRING)
    machine.version([("alice", 1)])
    machine.clock.advance(60)
    idle = machine.idle()
    caught = threading.Thread(target=idle.catch_up)

    def slow(step: Step) -> BatchResult:
        caught.start()
        while not idle._goal:
            time.sleep(0.001)
        return machine.computed([("bob", 1)], step)

    with running(idle):
        machine.driver.process(_spark_batch(1, [("bob", 1)]), slow)
        caught.join(60)
        assert not caught.is_alive()
        assert machine.newest >= 2
        idle.due = lambda version: pytest.fail("paused")
        idle.is_paused = lambda: True
        caught = threading.Thread(target=idle.catch_up)
        caught.start()
    caught.join(60)
    assert not caught.is_alive()


def test_a_clock_that_jumps_ahead_lets_nothing_expire_and_alerts_once(tmp_path: Path) -> None:
    machine = QuietMachine(tmp_path, EXPIRING)
    machine.version([("alice", 1)])
    idle, alerts = machine.idle(), list[ClockJumped]()
    idle.clock = SteadyClock(machine.clock, timedelta(hours=1), on_jump=alerts.append)
    machine.clock.jump(86_400)
    assert machine.pass_time(5, idle) == 0
    with pytest.raises(ClockJumped):
        idle.clock.now()  # as a batch does
    assert len(alerts) == 1
    machine.clock.jump(-86_400)
    assert machine.pass_time(5, idle) >= 1
    assert machine.shown() == set()


def test_a_clock_that_is_behind_hides_nothing_and_holds_back_no_window(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = QuietMachine(tmp_path, EXPIRING)
    machine.version([("alice", 1)])
    idle, of_stores = machine.idle(), machine.due
    machine.clock.jump(-120)
    assert machine.pass_time(60, idle) == 0
    assert machine.shown() == {"alice"}

    def and_a_window_waits(version: Version) -> Mapping[str, Due]:
        newest = machine.driver.newest
        assert newest is not None
        return {**of_stores(version), "windows": Due(tasks=newest.clocks.wall if version == 1 else None)}

    machine.restart()  # a driver whose clock is behind from its start
    idle = machine.idle()
    idle.due = and_a_window_waits
    assert machine.pass_time(2, idle) == 1
    assert machine.shown() == {"alice"}
    assert [record.getMessage().partition(".")[0] for record in caplog.records] == [
        "the wall clock of this machine is 2m behind that of the newest version",
        "the wall clock of this machine is 1m behind that of the newest version",
    ], "each driver says it once"
    machine.pass_time(120, idle)
    assert machine.shown() == set(), "the clock has come that far"


def test_a_batch_after_versions_of_the_driver_is_the_next_version_and_counts_once(tmp_path: Path) -> None:
    machine = QuietMachine(tmp_path, EXPIRING)
    machine.version([("alice", 1)])
    made = machine.pass_time(4, machine.idle())
    repeated = _spark_batch(0, [("alice", 1)])
    assert machine.driver.process(repeated, lambda step: machine.computed([("alice", 1)], step)) is None
    machine.restart()
    assert machine.driver.process(repeated, lambda step: machine.computed([("alice", 1)], step)) is None
    machine.version([("alice", 5)])
    assert machine.newest == 1 + made + 1
    assert machine.state() == {"alice": (1, 5)}


def test_no_version_is_made_while_a_batch_is_being_computed(tmp_path: Path) -> None:
    machine = QuietMachine(tmp_path, EXPIRING)
    machine.version([("alice", 1)])
    idle = machine.idle()

    def slow(step: Step) -> BatchResult:
        assert machine.pass_time(10, idle) == 0
        return machine.computed([("bob", 1)], step)

    made = machine.driver.process(_spark_batch(1, [("bob", 1)]), slow)
    assert made is not None
    assert made.version == 2


def deleted_or_not(machine: QuietMachine) -> list[tuple[object, object]]:
    """The file sink's rows."""
    files = [data for name, data in machine.files().items() if name.endswith(".parquet")]
    rows = [row for data in files for row in pq.read_table(pa.BufferReader(data)).to_pylist()]
    return [(row["player"], row["_deleted"]) for row in rows]


POINTS = ["segment.before", "segment.after", "commit.before", "commit.after", "sink.before", "sink.after"]


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_in_a_version_of_the_driver_changes_nothing(tmp_path: Path, point: str) -> None:
    machine = QuietMachine(tmp_path, ONE_BY_ONE[1])
    machine.version([("alice", 1)])
    with faults.active(crash_at(point, 1)), pytest.raises(Crash):
        machine.pass_time(4, machine.idle())
    machine.restart()
    machine.pass_time(4, machine.idle())
    assert machine.shown() == set()
    assert machine.newest == 2
    assert deleted_or_not(machine) == [("alice", False), ("alice", True)]
