"""The driver when a commit's outcome is unknown, and when another driver was first. On a log in memory."""

from pathlib import Path

import pytest

from holdfast import faults
from holdfast.errors import ErrorCategory, StorageUnavailable
from holdfast.log.commits import Writer
from holdfast.log.log import BrokenChain, LostRace
from holdfast.pipeline.driver import BatchResult, Driver, TaskFailed, TaskUnavailable
from holdfast.pipeline.results import TaskDone, TaskRefused, TaskResult
from holdfast.words import Version
from tests.crash.machine import Machine, _spark_batch

BATCH = [("alice", 1)]


def unavailable() -> None:
    raise StorageUnavailable("the answer was lost")


def test_a_commit_that_was_stored_although_the_answer_was_lost_counts_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    spark = _spark_batch(0, BATCH)
    with faults.active({"commit.after": unavailable}), pytest.raises(StorageUnavailable):
        machine.driver.process(spark, lambda step: machine.computed(BATCH, step))
    assert machine.driver.process(spark, lambda step: machine.computed(BATCH, step)) is None
    assert machine.driver.newest is not None
    assert machine.driver.newest.version == 1
    assert machine.state() == {"alice": (1, 1)}
    assert machine.memory.versions.keys() == {Version(1)}, "the sinks got it once"


def test_the_driver_that_loses_the_race_learns_who_won(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    slow = machine.driver
    machine.new_driver().process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))
    with pytest.raises((LostRace, BrokenChain), match="process 1 on here"):
        slow.process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))


def test_a_commit_of_unknown_outcome_loses_to_another_drivers_commit(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    slow = machine.driver
    with faults.active({"commit.before": unavailable}), pytest.raises(StorageUnavailable):
        slow.process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))
    machine.new_driver().process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))
    with pytest.raises(LostRace, match="another driver"):
        slow.process(_spark_batch(0, BATCH), lambda step: machine.computed(BATCH, step))


def test_a_commit_has_a_clock_per_source_and_counts_all_records(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    writer = Writer(id="two", host="here", pid=1)
    driver = Driver(machine.log, machine.sinks, machine.clock, writer, sources=["games", "chats"])
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
