"""The driver when a commit's outcome is unknown, and when another driver was first. On a log in memory."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import faults
from holdfast.errors import ErrorCategory, StorageUnavailable
from holdfast.log import names
from holdfast.log.leadership import Leadership, OutdatedDriver
from holdfast.log.objects import Put
from holdfast.pipeline.driver import BatchResult, Driver, Step, TaskFailed, TaskUnavailable
from holdfast.pipeline.event_clock import EventClock
from holdfast.pipeline.protocol import OtherOffsets
from holdfast.pipeline.results import TaskDone, TaskRefused, TaskResult
from holdfast.pipeline.sinks.builtin import Memory
from holdfast.pipeline.sinks.runner import Feed, SinkRunner
from holdfast.stores.access import Now
from holdfast.words import Millis, Version
from tests.crash.machine import START, Machine, _spark_batch
from tests.log.making import Watched, alone

BATCH = [("alice", 1)]


def unavailable() -> None:
    raise StorageUnavailable("the answer was lost")


def test_a_commit_that_was_stored_although_the_answer_was_lost_counts_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    spark = _spark_batch(0, BATCH)
    with faults.active({"commit.after": unavailable}), pytest.raises(StorageUnavailable):
        machine.driver.process(spark, lambda step: machine.computed(BATCH, step))
    assert machine.driver.process(spark, lambda step: pytest.fail("it is computed again")) is None
    assert machine.driver.newest is not None
    assert machine.driver.newest.version == 1
    assert machine.state() == {"alice": (1, 1)}
    assert machine.memory.versions.keys() == {Version(1)}, "the sinks got it once"


def test_an_outdated_driver_stops_before_its_commit_and_learns_who_won(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    slow, machine.driver = machine.driver, machine.new_driver()
    for _ in range(2):  # whether or not the winner has committed anything yet
        with pytest.raises(OutdatedDriver, match=f"process {os.getpid()} on .*, epoch 2"):
            slow.process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))
        machine.driver.process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))
    assert machine.state() == {"alice": (1, 1)}


def test_a_driver_that_slept_since_its_check_loses_and_learns_who_won(tmp_path: Path) -> None:
    machine = Machine(tmp_path)

    def meanwhile() -> None:
        with faults.active({"commit.before": lambda: None}):
            machine.new_driver().process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))

    with faults.active({"commit.before": meanwhile}), pytest.raises(OutdatedDriver, match="epoch 2"):
        machine.driver.process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))


def test_a_commit_of_unknown_outcome_loses_to_a_newer_drivers_commit(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    slow = machine.driver
    with faults.active({"commit.before": unavailable}), pytest.raises(StorageUnavailable):
        slow.process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))
    machine.new_driver().process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))
    with pytest.raises(OutdatedDriver, match="has taken over"):
        slow.process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))


@pytest.mark.parametrize("same", [True, False], ids=["the same batch", "another batch"])
def test_a_put_under_way_at_the_takeover_is_accepted(tmp_path: Path, same: bool) -> None:
    """The old driver has checked that it leads; the new one takes over and finds version 0; then the put arrives."""
    machine = Machine(tmp_path)
    old, new = machine.driver, list[Driver]()
    with faults.active({"commit.before": lambda: new.append(machine.new_driver())}):
        assert old.process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step)) is not None
    (driver,) = new
    machine.driver = driver
    assert driver.newest is None
    if same:
        assert driver.process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step)) is None
    else:
        # Spark's checkpoint got another batch 0 since, which the log must not mix up with the first one.
        with pytest.raises(OtherOffsets):
            driver.process(_spark_batch(0, [("bob", 2)]), lambda step: machine.computed([("bob", 2)], step))
        following = [("bob", 2)]
        made = driver.process(_spark_batch(1, following), lambda step: machine.computed(following, step))
        assert made is not None
        assert made.version == 2
    assert machine.state() == ({"alice": (1, 1)} if same else {"alice": (1, 1), "bob": (1, 2)})
    with pytest.raises(OutdatedDriver):
        old.process(_spark_batch(1, BATCH), lambda step: machine.computed(BATCH, step))


class LatePut(Watched):
    """The first put of a commit isn't answered and arrives with the second one."""

    late: tuple[str, bytes] | None = None

    def create(self, name: str, data: bytes) -> Put:
        if name.startswith(names.COMMITS):
            if self.late is None:
                self.late = name, data
                raise StorageUnavailable("no answer")
            self.inner.create(*self.late)
        return super().create(name, data)


def test_a_late_put_of_ones_own_is_ones_own(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.log.storage = late = LatePut(machine.log.storage)
    with pytest.raises(StorageUnavailable):
        machine.driver.process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))
    assert machine.driver.process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step)) is None
    assert late.late is not None
    assert machine.driver.newest is not None
    assert machine.log.storage.get(late.late[0]) == late.late[1]
    assert machine.state() == {"alice": (1, 1)}


def test_sinks_catch_up_with_a_version_that_nobody_offered(tmp_path: Path) -> None:
    """The driver before commits after the sinks of the new one have caught up, and before its first batch."""
    machine = Machine(tmp_path)
    machine.sinks.start()
    other = Machine.__new__(Machine)
    other.__dict__.update(
        machine.__dict__, sinks=SinkRunner(machine.log, [], retry=lambda call: call(), check_leads=alone)
    )
    other.new_driver().process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))
    driver = machine.new_driver()
    with ThreadPoolExecutor() as pool:
        done = pool.submit(driver.process, _spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))
        try:
            assert done.result(timeout=30) is None
        finally:
            machine.sinks.offer(other.log.newest())  # type: ignore[arg-type]  # so that a failing test ends
    machine.sinks.stop()
    assert machine.memory.versions.keys() == {Version(1)}


def test_an_outdated_drivers_sinks_stop_with_the_winners_name(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    leadership = Leadership.take_over(machine.log.storage, machine.log.id, "slow", machine.clock.now())
    failures: list[BaseException] = []
    rows = Memory()
    sinks = SinkRunner(
        machine.log,
        [Feed("late", machine.output(), rows)],
        retry=lambda call: call(),
        check_leads=leadership.check,
        on_failure=failures.append,
    )
    driver = machine.new_driver()
    commit = driver.process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))
    assert commit is not None
    with pytest.raises(OutdatedDriver, match="epoch 3"):
        sinks.catch_up(Version(1))
    sinks.start()
    sinks.offer(commit)
    with pytest.raises(OutdatedDriver, match="epoch 3"):
        sinks.catch_up(Version(1))
    sinks.stop()
    assert [type(failure) for failure in failures] == [OutdatedDriver]
    assert rows.versions == {}
    assert sinks.positions["late"] == 0


def test_a_commit_has_a_clock_per_source_and_counts_all_records(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    driver = Driver(
        machine.log,
        machine.sinks,
        machine.clock,
        machine.leadership,
        event_clock=EventClock(["games", "chats"], 60_000),
    )
    tasks: list[TaskResult] = [
        TaskDone("0_0", records=3, event_times={"games": 70}),
        TaskDone("0_1", records=2, event_times={"games": 60}),
        TaskDone("1_0", records=5, counts={"dead": 1}, event_times={"chats": 40}),
    ]
    commit = driver.process(_spark_batch(0, BATCH), lambda step: BatchResult(tasks, {"games": 5, "chats": 5}))
    assert commit is not None
    assert (commit.clocks.event, commit.clocks.sources) == (40, {"games": 70, "chats": 40})
    assert commit.counts == {"records": 10, "dead": 1}


def test_a_permanent_error_is_reported_before_a_temporary_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    away = TaskRefused("0_0", ErrorCategory.RETRY, "InstanceUnavailable: no answer")
    bad = TaskRefused("0_1", ErrorCategory.INVALID, "Overflow: too much")
    with pytest.raises(TaskFailed, match="Task 0_1: Overflow: too much"):
        machine.driver.process(_spark_batch(0, BATCH), lambda step: BatchResult([away, bad], {}))
    with pytest.raises(TaskUnavailable, match="Task 0_0: InstanceUnavailable"):
        machine.driver.process(_spark_batch(0, BATCH), lambda step: BatchResult([away], {}))


def test_a_version_knows_the_clocks_that_the_one_before_was_computed_with(tmp_path: Path) -> None:
    """Also after a restart, and after a commit of another driver: punctuators depend on it."""
    machine = Machine(tmp_path)
    steps: list[Step] = []

    def process(driver: Driver, batch: int) -> None:
        def compute(step: Step) -> BatchResult:
            steps.append(step)
            return BatchResult([TaskDone("0_0", event_times={"main": 10 * step.version})], {"main": 1})

        machine.clock.advance(1)
        driver.process(_spark_batch(batch, BATCH), compute)

    for batch in (0, 1):
        process(machine.driver, batch)
    machine.restart()
    process(machine.driver, 2)
    old, new = machine.driver, list[Driver]()
    with faults.active({"commit.before": lambda: new.append(machine.new_driver())}):
        process(old, 3)
    process(new[0], 3)  # it loses to the put that was under way
    process(new[0], 4)
    assert steps[0].before is None
    assert [step.version for step in steps] == [1, 2, 3, 4, 4, 5]
    made = {step.version: step for step in reversed(steps)}
    assert [made[version].before for version in sorted(made)[1:]] == [
        made[version].now for version in sorted(made)[:-1]
    ]
    assert made[Version(5)].now == Now(START + 6_000, 40)
    newest = new[0].next_step
    assert newest is not None
    assert (newest.version, newest.wall, newest.event) == (Version(6), Millis(START + 6_000), Millis(50))
    assert newest.before == made[Version(5)].now
