"""The driver when a commit's outcome is unknown, and when another driver was there first. On a log in memory."""

from pathlib import Path

import pytest

from holdfast import faults
from holdfast.errors import StorageUnavailable
from holdfast.log.log import BrokenChain, LostRace
from holdfast.words import Version
from tests.crash.machine import Machine, _spark_batch

BATCH = [("alice", 1)]


def unavailable() -> None:
    raise StorageUnavailable("the answer was lost")


def test_a_commit_that_was_stored_and_answered_with_an_error_counts_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    spark = _spark_batch(0, BATCH)
    with faults.active({"commit.after": unavailable}), pytest.raises(StorageUnavailable):
        machine.driver.process(spark, lambda step: machine._compute(BATCH, step))
    assert machine.driver.process(spark, lambda step: machine._compute(BATCH, step)) is None
    assert machine.driver.newest is not None
    assert machine.driver.newest.version == 1
    assert machine.state() == {"alice": (1, 1)}
    assert machine.memory.versions.keys() == {Version(1)}, "and the sinks have it"


def test_a_second_driver_loses_the_race_and_is_told_who_won(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    slow = machine.driver
    machine.new_driver().process(_spark_batch(0, BATCH), lambda step: machine._compute(BATCH, step))
    with pytest.raises((LostRace, BrokenChain), match="process 1 on here"):
        slow.process(_spark_batch(0, BATCH), lambda step: machine._compute(BATCH, step))


def test_a_commit_of_unknown_outcome_that_another_driver_overtook_is_a_lost_race(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    slow = machine.driver
    with faults.active({"commit.before": unavailable}), pytest.raises(StorageUnavailable):
        slow.process(_spark_batch(0, BATCH), lambda step: machine._compute(BATCH, step))
    machine.new_driver().process(_spark_batch(0, BATCH), lambda step: machine._compute(BATCH, step))
    with pytest.raises(LostRace, match="another driver"):
        slow.process(_spark_batch(0, BATCH), lambda step: machine._compute(BATCH, step))
