"""Leadership: every start takes over, and every driver before it finds out. On a local folder, in memory and on S3."""

import os
import subprocess
import sys
import threading
import traceback

import pytest

from holdfast.errors import StorageUnavailable
from holdfast.log import documents, names
from holdfast.log.commits import Writer
from holdfast.log.leadership import Leader, Leadership, OutdatedDriver, accepts, may_be_led
from holdfast.log.log import Log
from holdfast.log.objects import Put, Storage
from holdfast.words import Millis
from tests.log.making import Watched, app_spec, overwrite

NOON = Millis(43_200_000)


def take_over(storage: Storage, driver: str) -> Leadership:
    return Leadership.take_over(storage, "l0g", driver, NOON)


def test_every_start_takes_over_and_the_others_learn_who_won(storage: Storage) -> None:
    first = take_over(storage, "a")
    first.check()
    second = take_over(storage, "b")
    third = take_over(storage, "c")
    assert [each.driver.epoch for each in (first, second, third)] == [1, 2, 3]
    third.check()
    for loser in (first, second):
        with pytest.raises(OutdatedDriver, match=r"outdated: process \d+ on .* \(driver c, epoch 3\) was started"):
            loser.check()


def test_epochs_go_on_from_the_newest_commit_where_the_records_are_lost(storage: Storage) -> None:
    take_over(storage, "a")
    running = take_over(storage, "b")
    storage.delete(storage.list_flat(names.LEADERS))
    new = Leadership.take_over(storage, "l0g", "c", NOON, after=running.driver)
    with pytest.raises(OutdatedDriver, match="driver c, epoch 3"):
        running.check()
    assert accepts(new.driver, running.driver)


def test_a_driver_may_be_running_unless_its_process_on_this_host_has_ended(memory: Storage) -> None:
    assert not may_be_led(memory, "l0g")
    first = take_over(memory, "a")
    assert may_be_led(memory, "l0g")
    second = take_over(memory, "b")
    first.end()
    assert may_be_led(memory, "l0g")
    second.end()
    assert not may_be_led(memory, "l0g")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = second.driver
    for epoch, (host, pid, may_run) in enumerate(
        [(here.host, ended.pid, False), ("elsewhere", here.pid, True), (here.host, os.getppid(), True)], 3
    ):
        driver = Writer(f"driver-{epoch}", host, pid, epoch)
        memory.create(names.leader(epoch), documents.encode(Leader(log="l0g", driver=driver, started=NOON)))
        assert may_be_led(memory, "l0g") is may_run
    overwrite(memory, names.leader(5), b"garbage")
    assert may_be_led(memory, "l0g"), "it isn't known"


def test_the_writer_of_the_newest_commit_may_be_running_although_its_record_was_deleted(memory: Storage) -> None:
    take_over(memory, "a").end()
    running = take_over(memory, "b")
    memory.delete([names.leader(running.driver.epoch)])
    assert may_be_led(memory, "l0g", after=running.driver), "not the driver of the epoch before, which has ended"
    memory.delete(memory.list_flat(names.LEADERS))
    assert may_be_led(memory, "l0g", after=running.driver)
    running.end()
    assert not may_be_led(memory, "l0g", after=running.driver)


def test_starts_at_the_same_time_get_different_epochs(storage: Storage) -> None:
    gate = threading.Barrier(4)
    won: list[int] = []

    def start(driver: str) -> None:
        gate.wait()
        won.append(take_over(storage, driver).driver.epoch)

    threads = [threading.Thread(target=start, args=(driver,)) for driver in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [1, 2, 3, 4]


def test_a_record_whose_answer_was_lost_is_ones_own(storage: Storage) -> None:
    class AnswerLost(Watched):
        def create(self, name: str, data: bytes) -> Put:
            super().create(name, data)
            return super().create(name, data)  # as a storage repeats it

    assert take_over(AnswerLost(storage), "a").driver.epoch == 1
    assert storage.list_flat(names.LEADERS) == [names.leader(1)]


def test_a_start_that_fails_while_it_takes_over_leaves_at_most_an_epoch(storage: Storage) -> None:
    def stored_but_no_answer(call: str, name: str) -> None:
        raise StorageUnavailable("no answer")

    before = take_over(storage, "a")
    with pytest.raises(StorageUnavailable):
        take_over(Watched(storage, after=stored_but_no_answer), "b")
    with pytest.raises(OutdatedDriver, match="driver b, epoch 2"):
        before.check()
    assert take_over(storage, "c").driver.epoch == 3


def test_a_check_is_two_requests_without_a_put(storage: Storage) -> None:
    watched = Watched(storage)
    leader = take_over(watched, "a")
    watched.calls.clear()
    leader.check()
    assert watched.calls == [("exists", names.leader(2)), ("get", names.leader(1))]


def set_back(storage: Storage, epoch: int) -> None:
    """The log goes back to a backup from before the drivers of this epoch and later ones."""
    storage.delete([name for name in storage.list_flat(names.LEADERS) if (names.number_of(name) or 0) >= epoch])


def test_a_driver_of_before_a_set_back_finds_out_although_its_epoch_is_given_again(storage: Storage) -> None:
    log = Log.create_or_open(storage, app_spec()).id
    for driver in "abc":
        sleeping = Leadership.take_over(storage, log, driver, NOON)
    set_back(storage, 2)
    with pytest.raises(OutdatedDriver, match="driver c, epoch 3.* no longer has its record leader/0+3.json"):
        sleeping.check()
    for driver in "xy":
        new = Leadership.take_over(storage, log, driver, NOON)
        with pytest.raises(OutdatedDriver):
            sleeping.check()
    assert new.driver.epoch == sleeping.driver.epoch
    with pytest.raises(OutdatedDriver, match="driver c, epoch 3.*driver y, epoch 3.* was started later"):
        sleeping.check()
    assert sleeping.is_outdated
    new.check()


def test_a_log_that_is_not_there_outdates_nobody(storage: Storage) -> None:
    leader = Leadership.take_over(storage, Log.create_or_open(storage, app_spec()).id, "a", NOON)
    kept = {name: storage.get(name) for name in (names.leader(1), names.LOG)}
    storage.delete([*kept])
    with pytest.raises(StorageUnavailable, match="There is no log at"):
        leader.check()
    for name, data in kept.items():
        storage.create(name, data)
    leader.check()


def test_a_failure_of_an_outdated_driver_is_explained_by_one_error(storage: Storage) -> None:
    """A trace of the failure, or the same error twice, would hide it."""
    leader = take_over(storage, "a")
    other = ValueError("a part failed")
    assert leader.explain(other) is other
    take_over(storage, "b")
    with pytest.raises(OutdatedDriver) as found:
        leader.check()
    assert leader.explain(found.value) is found.value
    try:
        raise found.value
    except OutdatedDriver:
        explained = leader.explain(other)
    assert isinstance(explained, OutdatedDriver)
    assert "".join(traceback.format_exception(explained)).count("was started later") == 1


def test_a_damaged_record_outdates_as_well_and_is_named(storage: Storage) -> None:
    leader = take_over(storage, "a")
    take_over(storage, "b")
    overwrite(storage, names.leader(2), b"garbage")
    with pytest.raises(OutdatedDriver, match="a driver whose record can't be read .*leader/0+2.json"):
        leader.check()
    assert take_over(storage, "c").driver.epoch == 3, "the next start doesn't need it"


@pytest.mark.parametrize(
    ("found", "goes_on"),
    [
        (Writer("a", "host", 1, 4), True),  # a put of the driver before, under way at the takeover
        (Writer("b", "host", 2, 5), True),  # its own put, late
        (Writer("c", "host", 3, 6), False),
        (Writer("x", "host", 9, 5), False),  # can't happen: an epoch has one driver
    ],
)
def test_which_commits_of_others_a_driver_accepts(found: Writer, goes_on: bool) -> None:
    assert accepts(Writer("b", "host", 2, 5), found) is goes_on
