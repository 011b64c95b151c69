"""The thread that writes sinks: it retries, can be stopped while a sink hangs, and marks only what was written."""

import json
import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.sqlite_upsert import SqliteUpsert
from holdfast import faults
from holdfast.errors import DamagedObject, HoldfastError, Interrupted, TopologyError
from holdfast.log.objects import Storage
from holdfast.log.storage import open_storage
from holdfast.pipeline.sinks.builtin import Files, FolderTaken, Foreach, with_version
from holdfast.pipeline.sinks.runner import Feed, Retry, SinkFailed, SinkRunner, opened
from holdfast.retry import retrying
from holdfast.settings.sections import RetrySettings
from holdfast.topology.sink import OtherTimeline
from holdfast.words import Version
from tests.crash.machine import Crash, Machine, crash_at, expected
from tests.log.making import alone, overwrite, timeline

TIMEOUT = 30.0
ONE, TWO = Version(1), Version(2)


def at_once(call: Callable[[], None]) -> None:
    retrying(call, RetrySettings(attempts=3, first="0s", longest="0s"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def runner(
    machine: Machine, function: Callable[[int, str, Any], None], retry: Retry = at_once, **more: Any
) -> SinkRunner:
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

    def flaky(version: int, commit: str, rows: Any) -> None:
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
    feed = Feed("files", machine.output(), Foreach(lambda version, commit, rows: seen.append(version)))

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

    def broken(version: int, commit: str, rows: Any) -> None:
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

    def hangs(version: int, commit: str, rows: Any) -> None:
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

    def broken(version: int, commit: str, rows: Any) -> None:
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
    function = Foreach(lambda version, commit, rows: seen.extend(rows.to_pylist()), version_column=True)
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
        Files(str(tmp_path)).open(timeline())


def test_a_long_wait_for_a_sink_is_reported(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.pipeline.sinks.runner._LOOKS_PER_WARNING", 1)
    release = threading.Event()
    monkeypatch.setattr("holdfast.pipeline.sinks.runner.logger.warning", lambda *args: release.set())
    sinks = runner(machine, lambda version, commit, rows: assert_set(release))
    sinks.start()
    sinks.catch_up(TWO)
    sinks.stop(TIMEOUT)


def assert_set(event: threading.Event) -> None:
    assert event.wait(TIMEOUT), "nobody was told about the wait"


BEFORE = [[("alice", 1)], [("bob", 1)], [("alice", 1)]]
LOST = [[("alice", 40)], [("bob", 40)], [("carol", 40)]]
AFTER = [[("dave", 5)], [("alice", 5)], [("dave", 5)]]


def set_back(storage: Storage, to: Mapping[str, bytes]) -> None:
    """Restores a log from a backup."""
    storage.delete(storage.list(""))
    for name, data in to.items():
        storage.create(name, data)


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("lost", [1, 3])
def test_the_files_of_a_log_that_was_set_back_are_those_of_its_versions(
    machine: Machine, tmp_path: Path, lost: int, marked: bool
) -> None:
    """Also if a crash came between the files of a version and their mark."""
    machine.run(BEFORE)
    backup = {name: machine.log.storage.get(name) for name in machine.log.storage.list("")}
    machine.run([*BEFORE, *LOST[:lost]])
    set_back(machine.log.storage, backup)
    files = open_storage(f"memory://{machine.name}-files")
    if not marked:
        files.delete([f"_versions/{3 + lost:020d}.json"])
    machine.done = 3
    with pytest.raises(OtherTimeline, match=f"versions 4 to {3 + lost} .* is at version 3 .* Delete these") as refused:
        machine.beside(tmp_path / "again")
    files.delete([name for name in files.list("") if name in str(refused.value)])
    again = machine.beside(tmp_path / "again")
    again.run([*BEFORE, *AFTER])
    again.restart()
    assert again.state() == expected([*BEFORE, *AFTER])
    for version in range(1, 7):
        mark = json.loads(files.get(f"_versions/{version:020d}.json"))
        rows = [row for file in mark["files"] for row in pq.read_table(BytesIO(files.get(file["file"]))).to_pylist()]
        totals = expected([*BEFORE, *AFTER][:version])
        [(player, _)] = [*BEFORE, *AFTER][version - 1]
        assert [(row["player"], row["n"], row["total"]) for row in rows] == [(player, *totals[player])]
        if (commit := again.log.commit(Version(version))) is not None:
            assert mark["commit"] == commit.id
    listed = {f"_versions/{version:020d}.json" for version in range(1, 7)}
    listed |= {each["file"] for name in listed for each in json.loads(files.get(name))["files"]}
    assert set(files.list("")) - {"_log.json"} == listed, "a reader of the whole folder sees the same"


def test_the_log_knows_each_folder_that_a_sink_has_had(
    machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After the log was set back the sink gets another folder, as it is told, and much later the old one again."""
    machine.run(BEFORE)
    machine.sinks.stop()
    backup = {name: machine.log.storage.get(name) for name in machine.log.storage.list("")}
    machine.run([*BEFORE, *LOST])
    set_back(machine.log.storage, backup)
    machine.done = 3
    with pytest.raises(OtherTimeline, match="versions 4 to 6 "):
        machine.beside(tmp_path / "refused")
    machine.out = "other"
    again = machine.beside(tmp_path / "again")
    assert [said for said in caplog.messages if "Versions up to 3 aren't sent to it" in said]
    caplog.clear()
    again.run([*BEFORE, *AFTER, *AFTER])
    again.restart()
    assert not [said for said in caplog.messages if "aren't sent to it" in said], "nothing is said of its own folder"
    again.out = "files"
    with pytest.raises(OtherTimeline, match="versions [45] to 6 .* is at version 9 .* Delete these files"):
        again.restart()


def test_a_commit_that_was_lost_before_its_files_were_complete_is_refused(machine: Machine, tmp_path: Path) -> None:
    machine.run(BEFORE)
    backup = {name: machine.log.storage.get(name) for name in machine.log.storage.list("")}
    with faults.active(crash_at("sink.after", 1)), pytest.raises(Crash):  # before the next sink gets the version
        machine.run([*BEFORE, *LOST])
    set_back(machine.log.storage, backup)
    machine.done = 3
    with pytest.raises(OtherTimeline, match="versions 4 to 4 "):
        machine.beside(tmp_path / "again")


def test_a_database_that_has_versions_of_another_timeline_is_refused(machine: Machine, tmp_path: Path) -> None:
    """The example's sink. The log is set back, and then makes other versions without it."""
    path = tmp_path / "players.sqlite"

    def started(machine: Machine) -> SinkRunner:
        feeds = opened([Feed("sqlite", machine.output(), SqliteUpsert(path))], machine.log)
        return SinkRunner(machine.log, feeds, retry=at_once, check_leads=alone)

    machine.sinks = started(machine)
    machine.driver = machine.new_driver()
    machine.run(BEFORE)
    backup = {name: machine.log.storage.get(name) for name in machine.log.storage.list("")}
    machine.run([*BEFORE, *LOST])
    with closing(sqlite3.connect(path)) as database:
        found = list(database.execute("SELECT * FROM players ORDER BY player"))
    assert found == [("alice", 42, 4), ("bob", 41, 5), ("carol", 40, 6)]
    started(machine)
    set_back(machine.log.storage, backup)
    with pytest.raises(
        OtherTimeline, match=r"sqlite has version 6 .* is at version 3, .* Set .* back to version 2 too"
    ):
        started(machine)
    machine.done = 3
    machine.beside(tmp_path / "other").run([*BEFORE, *AFTER, *AFTER])
    with pytest.raises(OtherTimeline, match=r"has version 6 .* is at version 9, has no such commit.* to version 2 too"):
        started(machine)
