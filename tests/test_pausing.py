"""A paused app starts no batch and makes no version of its own; queries go on, and a restart stays paused."""

import queue
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from holdfast.batches import BatchRunner
from holdfast.cli import app as command
from holdfast.clock import SYSTEM_CLOCK
from holdfast.ending import Ending
from holdfast.errors import DamagedObject, StorageUnavailable
from holdfast.log import names, operator_requests
from holdfast.log.local import LocalStorage
from holdfast.log.storage import open_storage
from holdfast.pausing import Pausing
from holdfast.settings.model import Settings
from holdfast.states import AppPaused, AppState, StateMachine
from tests.apps import entries_of, game, get, points_app, write
from tests.instance.processes import until
from tests.test_app import wait_for
from tests.test_lifecycle import wait_until_in

LOG = "l0g"


class Parts:
    """A driver's view of a pause, on a real folder."""

    def __init__(self, folder: Path) -> None:
        self.storage = open_storage(str(folder / "log"), fsync=False)
        self.states = StateMachine()
        self.ending = Ending(timedelta(seconds=10), on_failure=lambda cause: None)
        self.pausing = self.driver()

    def driver(self) -> Pausing:
        return Pausing("points", self.storage, LOG, self.states, self.ending)

    @property
    def state(self) -> str:
        return str(self.states.state)

    def run(self) -> None:
        self.states.move(AppState.RESTORING)
        self.states.move(AppState.RUNNING)


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_the_state_follows_the_object(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    parts.run()
    assert not parts.pausing.look()
    request = operator_requests.ask(parts.storage, names.PAUSE, LOG, "the disk is replaced")
    assert parts.pausing.look()
    assert parts.state == "paused"
    assert f"app points is paused by {request.by}: the disk is replaced. To go on: app.resume(), or" in caplog.text
    said = len(caplog.records)
    assert parts.pausing.look()
    assert len(caplog.records) == said
    operator_requests.withdraw(parts.storage, names.PAUSE)
    assert not parts.pausing.look()
    assert parts.state == "running"


def test_a_driver_that_starts_is_paused_once_it_runs(parts: Parts) -> None:
    parts.pausing.pause("at night")
    assert parts.state == "created"
    again = parts.driver()
    parts.run()
    assert again.look()
    assert parts.state == "paused"
    again.resume()
    assert parts.state == "running"


def test_tasks_that_move_leave_a_paused_app_paused(parts: Parts) -> None:
    parts.run()
    parts.states.move(AppState.REBALANCING)
    parts.pausing.pause()
    assert parts.state == "paused"
    assert not parts.states.try_move(AppState.REBALANCING)


@pytest.mark.parametrize("paused", [False, True])
def test_what_was_known_last_counts_while_the_object_cant_be_read(
    parts: Parts, paused: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts.run()
    if paused:
        parts.pausing.pause()
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "get_range", unavailable)
        for _ in range(3):
            assert parts.pausing.look() is paused
    parts.storage.replace(names.PAUSE, b"nonsense")
    assert parts.pausing.look() is paused
    with pytest.raises(DamagedObject):
        operator_requests.pause_of(parts.storage, LOG)
    stays = "stays paused" if paused else "stays not paused"
    assert len([record for record in caplog.records if stays in record.message]) == 2
    parts.pausing.resume()
    assert not parts.pausing.paused


def unavailable(*_: object) -> bytes:
    raise StorageUnavailable("The storage doesn't answer.")


def test_another_logs_pause_is_not_this_ones(parts: Parts) -> None:
    operator_requests.ask(parts.storage, names.PAUSE, "another")
    assert not parts.pausing.look()


@pytest.mark.parametrize("outcome", ["resumed", "stopped"])
def test_a_batch_waits_while_the_app_is_paused(parts: Parts, outcome: str) -> None:
    parts.run()
    parts.pausing.pause()
    done: queue.SimpleQueue[object] = queue.SimpleQueue()
    looked = threading.Event()

    def wait() -> None:
        looked.set()
        parts.pausing.wait_until_resumed()

    made: dict[str, Any] = {
        "checkpoint": SimpleNamespace(batch=lambda number: number),
        "driver": SimpleNamespace(process=lambda batch, work: done.put(batch)),
        "work": None,
        "locations": None,
    }
    runner = BatchRunner(**made, settings=Settings(), ending=parts.ending, clock=SYSTEM_CLOCK, wait_while_paused=wait)
    interrupted = threading.Event()
    runner._wait_until_interrupted = lambda frame: interrupted.set()  # type: ignore[method-assign]
    frame: Any = None

    def run() -> None:
        try:
            runner.run(frame, 7)
        except BaseException as error:  # noqa: BLE001  it is compared below
            done.put(error)

    batch = threading.Thread(target=run, daemon=True)
    batch.start()
    assert looked.wait(30)
    assert done.empty()
    if outcome == "resumed":
        parts.pausing.resume()
        assert done.get(timeout=30) == 7
    else:
        parts.ending.ask()
        assert "stopping" in str(done.get(timeout=30))
        assert interrupted.is_set()
    batch.join(30)


@pytest.mark.spark
def test_a_paused_app_answers_and_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    app = points_app(spark, tmp_path).start()
    app.process_all_available()
    app.pause("the disk is replaced")
    assert app.state is AppState.PAUSED
    version = app.version
    until(lambda: get(app, "/v1/state")[1]["state"] == "paused", "the instances are told")
    write(tmp_path / "input", 2, [game("alice", 2)])
    wait_until_in("wait_until_resumed")
    assert entries_of(app) == {"alice": {"games": 1, "points": 1}}
    assert app.version == version
    with pytest.raises(AppPaused, match=r"Call app\.resume\(\) first"):
        app.process_all_available()
    app.stop()
    assert app.cause is None
    again = points_app(spark, tmp_path).start()
    assert again.state is AppState.PAUSED
    assert again.version == version
    assert entries_of(again) == {"alice": {"games": 1, "points": 1}}
    place = ["--app", "points", "--log", again.settings.log_url("points")]
    shown = CliRunner().invoke(command, ["group", *place])
    assert "the disk is replaced" in shown.output
    resumed = CliRunner().invoke(command, ["group", "resume", *place])
    assert resumed.output == "points goes on.\n"
    wait_for(again, AppState.RUNNING)
    again.process_all_available()
    assert entries_of(again) == {"alice": {"games": 2, "points": 3}}
    again.stop()


def test_the_commands_pause_and_resume(tmp_path: Path) -> None:
    from tests.group.test_group_command import Cluster, run

    cluster = Cluster(tmp_path)
    paused = run(cluster, "pause", "--note", "at night")
    assert paused.exit_code == 0, paused.output
    found = operator_requests.pause_of(cluster.storage, cluster.log.id)
    assert found is not None
    assert (found.note, found.by) == ("at night", operator_requests.operator())
    assert "holdfast group resume --app scores" in paused.output
    assert run(cluster, "resume").output == "scores goes on.\n"
    assert operator_requests.pause_of(cluster.storage, cluster.log.id) is None
    assert run(cluster, "resume").output == "scores wasn't paused.\n"
