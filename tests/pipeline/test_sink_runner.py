"""The thread that writes sinks: it retries, can be stopped while a sink hangs, and marks only what was written."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import DamagedObject, HoldfastError, Interrupted, TopologyError
from holdfast.pipeline.sinks.builtin import Files, FolderTaken, Foreach, with_version
from holdfast.pipeline.sinks.runner import Feed, Retry, SinkFailed, SinkRunner
from holdfast.retry import retrying
from holdfast.settings.sections import RetrySettings
from holdfast.words import Version
from tests.crash.machine import Machine
from tests.log.making import alone, overwrite

TIMEOUT = 30.0
ONE, TWO = Version(1), Version(2)


def at_once(call: Callable[[], None]) -> None:
    retrying(call, RetrySettings(attempts=3, first="0s", longest="0s"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def runner(machine: Machine, function: Callable[[int, Any], None], retry: Retry = at_once, **more: Any) -> SinkRunner:
    """A sink that has two versions to write."""
    sinks = SinkRunner(
        machine.log,
        [Feed("function", machine.output(), Foreach(function))],
        retry=retry,
        check_leads=alone,
        **more,
    )
    machine.run([[("alice", 1)], [("alice", 2)]])
    return sinks


def test_a_function_that_raises_is_called_again_with_the_same_version(machine: Machine) -> None:
    seen: list[int] = []

    def flaky(version: int, rows: Any) -> None:
        seen.append(version)
        if len(seen) < 3:
            raise ConnectionError("the database restarts")

    sinks = runner(machine, flaky)
    sinks.start()
    sinks.catch_up(TWO)
    sinks.stop(TIMEOUT)
    assert seen == [1, 1, 1, 2]


def test_rows_that_cannot_be_read_are_found_before_anything_is_written(machine: Machine) -> None:
    machine.run([[("alice", 1)], [("alice", 2)]])
    seen: list[int] = []
    feed = Feed("files", machine.output(), Foreach(lambda version, rows: seen.append(version)))

    def started() -> SinkRunner:
        return SinkRunner(machine.log, [feed], retry=at_once, check_leads=alone)

    started().check_next()
    commit = machine.log.newest()
    assert commit is not None
    for name in commit.segment_names():
        overwrite(machine.log.storage, name, b"garbage")
    with pytest.raises(DamagedObject, match="segments/"):
        started().check_next()
    assert seen == []


def test_a_function_that_keeps_raising_fails_once_with_its_name_and_error(machine: Machine) -> None:
    seen: list[int] = []
    failures: list[HoldfastError] = []

    def broken(version: int, rows: Any) -> None:
        seen.append(version)
        raise ConnectionError("the database is gone")

    sinks = runner(machine, broken, on_failure=failures.append)
    sinks.start()
    with pytest.raises(SinkFailed, match="'function' raised ConnectionError at version 1: the database is gone"):
        sinks.catch_up(TWO)
    sinks.stop(TIMEOUT)
    assert seen == [1, 1, 1]
    assert len(failures) == 1


def test_waiting_for_a_sink_that_hangs_ends_when_the_time_is_up(machine: Machine) -> None:
    called, release, up, found = threading.Event(), threading.Event(), threading.Event(), list[BaseException]()

    def hangs(version: int, rows: Any) -> None:
        called.set()
        release.wait(TIMEOUT)

    sinks = runner(machine, hangs, given_up=up.is_set)
    sinks.start()

    def waiting() -> None:
        try:
            sinks.catch_up(TWO)
        except Interrupted as error:
            found.append(error)

    thread = threading.Thread(target=waiting)
    thread.start()
    assert called.wait(TIMEOUT)
    up.set()
    thread.join(TIMEOUT)
    assert len(found) == 1
    assert not sinks.stop(0.0)
    release.set()
    assert sinks.stop(TIMEOUT)
    assert sinks.positions == {"function": 0}, "it gets the version again, since nobody waited for it"


def test_a_batch_that_was_given_up_is_not_committed_later(machine: Machine) -> None:
    machine.run([[("alice", 1)]])
    machine.sinks._given_up = lambda: True  # as the end of the app says
    with pytest.raises(Interrupted):
        machine.run([[("alice", 1)], [("alice", 2)]])
    newest = machine.log.newest()
    assert newest is not None
    assert newest.version == 1


def test_a_retry_ends_when_the_app_is_told_to_stop(machine: Machine) -> None:
    told, failures, waiting = threading.Event(), list[HoldfastError](), threading.Event()

    def pause(seconds: float) -> None:
        waiting.set()
        assert told.wait(TIMEOUT)
        raise Interrupted("told to stop")

    def broken(version: int, rows: Any) -> None:
        raise ConnectionError("the database is gone")

    settings = RetrySettings(attempts=1000, first="1h", longest="1h")
    sinks = runner(machine, broken, lambda call: retrying(call, settings, sleep=pause), on_failure=failures.append)
    sinks.start()
    newest = machine.log.newest()
    assert newest is not None
    sinks.offer(newest)
    assert waiting.wait(TIMEOUT)
    told.set()
    assert sinks.stop(TIMEOUT)
    assert failures == [], "an app that stops has not failed"


def test_rows_can_have_their_version(machine: Machine) -> None:
    seen: list[dict[str, Any]] = []
    function = Foreach(lambda version, rows: seen.extend(rows.to_pylist()), version_column=True)
    sinks = SinkRunner(machine.log, [Feed("function", machine.output(), function)], retry=at_once, check_leads=alone)
    machine.run([[("alice", 1)], [("alice", 2), ("bob", 5)]])
    sinks.catch_up(TWO)
    assert [(row["player"], row["total"], row["_version"]) for row in seen if row["player"] == "alice"] == [
        ("alice", 1, 1),
        ("alice", 3, 2),
    ]


def test_a_column_with_the_name_of_the_version_is_refused() -> None:
    with pytest.raises(TopologyError, match="'_version'"):
        with_version(pa.table({"_version": [1]}), ONE)


@pytest.mark.parametrize("garbage", [b"", b"[1]", b"{}"])
def test_a_folder_with_a_damaged_log_file_is_refused_with_the_next_step(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "_log.json").write_bytes(garbage)
    with pytest.raises(FolderTaken, match="damaged _log.json.*delete _log.json"):
        Files(str(tmp_path)).open("l0g")


def test_a_long_wait_for_a_sink_is_reported(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.pipeline.sinks.runner._LOOKS_PER_WARNING", 1)
    release = threading.Event()
    monkeypatch.setattr("holdfast.pipeline.sinks.runner.logger.warning", lambda *args: release.set())
    sinks = runner(machine, lambda version, rows: assert_set(release))
    sinks.start()
    sinks.catch_up(TWO)
    sinks.stop(TIMEOUT)


def assert_set(event: threading.Event) -> None:
    assert event.wait(TIMEOUT), "nobody was told about the wait"
