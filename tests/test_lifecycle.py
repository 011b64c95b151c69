"""The life of an app in one process, on real Spark: started twice, stopped in every state, started again."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.instance.client import StateClient
from holdfast.log import names
from holdfast.log.appfile import AppChanged
from holdfast.log.storage import open_storage
from holdfast.pipeline.sinks.builtin import Memory
from holdfast.pipeline.sinks.runner import SinkFailed
from holdfast.states import AlreadyStarted, AppState
from holdfast.taken_names import AppNameTaken, NotRunning
from tests import s3
from tests.apps import entries_of, finish, game, get, points_app, read, write
from tests.cluster.processes import free_port
from tests.freezing import freeze, frozen, wake
from tests.test_app import wait_for

pytestmark = pytest.mark.spark

TIMEOUT = 60.0


class HangingOpen(Memory):
    """A sink whose `open` hangs until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.released = threading.Event(), threading.Event()

    def open(self, timeline: hf.Timeline) -> None:
        self.called.set()
        self.released.wait(TIMEOUT)


class Hanging:
    """A sink's function that hangs until it is released."""

    def __init__(self) -> None:
        self.called, self.released = threading.Event(), threading.Event()
        self.versions: list[int] = []

    def __call__(self, version: int, commit: str, rows: Any) -> None:
        self.versions.append(version)
        self.called.set()
        self.released.wait(TIMEOUT)


def instance_of(app: hf.App) -> int:
    """The process id of the app's instance."""
    [address] = {address for (address,) in app._started().instances.replicas().values()}
    with StateClient(address) as client:
        return client.status().pid


def wait_until_in(function: str) -> None:
    """Waits until a thread of this process is in a function of this name."""
    deadline = time.monotonic() + TIMEOUT
    while not any(function in names_of(frame) for frame in sys._current_frames().values()):
        assert time.monotonic() < deadline, f"no thread calls {function}"
        time.sleep(0.01)


def names_of(frame: FrameType | None) -> set[str]:
    found = set()
    while frame is not None:
        found.add(frame.f_code.co_name)
        frame = frame.f_back
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_second_start_is_refused_and_touches_nothing(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    app = points_app(spark, tmp_path)
    alerts: list[BaseException] = []
    app.on_alert(alerts.append)
    app.start()
    with pytest.raises(AlreadyStarted, match="'points' is already running"):
        app.start()
    assert str(app.state) == "running"
    write(tmp_path / "input", 2, [game("alice", 2)])
    app.process_all_available()
    assert entries_of(app) == {"alice": {"games": 2, "points": 3}}
    app.stop()
    assert app.state is AppState.STOPPED
    assert alerts == []
    assert spark.streams.active == []
    with pytest.raises(AlreadyStarted, match=r"has the state stopped.* Start a new hf\.App\('points'\)"):
        app.start()
    with pytest.raises(hf.HoldfastError, match=r"'points' is stopped\. Start a new hf\.App\('points'\)") as refused:
        app.process_all_available()
    assert refused.value.category is hf.ErrorCategory.CLOSED
    assert finish(points_app(spark, tmp_path)) == {"alice": {"games": 2, "points": 3}}


def test_stop_ends_everything_in_time_although_a_sink_hangs(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    hanging = Hanging()
    app = points_app(spark, tmp_path, sink=hf.foreach(hanging), stop_timeout="4s").start()
    assert hanging.called.wait(TIMEOUT)
    write(tmp_path / "input", 2, [game("alice", 2)])  # its batch waits for the sink
    wait_until_in("catch_up")
    pid, begun = instance_of(app), time.monotonic()
    app.stop()
    assert time.monotonic() - begun < 10, "it hung for ever before"
    assert app.state is AppState.STOPPED
    assert spark.streams.active == []
    assert not is_alive(pid)
    seen: list[int] = []
    again = points_app(spark, tmp_path, sink=hf.foreach(lambda version, commit, rows: seen.append(version)))
    assert finish(again) == {"alice": {"games": 2, "points": 3}}
    hanging.released.set()
    assert seen == [1, 2]
    assert hanging.versions == [1]


def test_stop_ends_a_start_whose_sink_hangs(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    first = Hanging()
    app = points_app(spark, tmp_path, sink=hf.foreach(first), stop_timeout="1s").start()
    assert first.called.wait(TIMEOUT)
    app.stop()
    hanging = Hanging()
    app = points_app(spark, tmp_path, sink=hf.foreach(hanging), stop_timeout="1s")
    starting = threading.Thread(target=app.start)
    starting.start()
    assert hanging.called.wait(TIMEOUT), "at the start the sink gets the version that it has not written"
    app.stop()
    starting.join(TIMEOUT)
    assert not starting.is_alive()
    assert app.state is AppState.STOPPED
    first.released.set()
    hanging.released.set()


def test_stop_ends_a_start_in_which_a_sink_hangs_before_it_has_taken_over(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    sink = HangingOpen()
    app = points_app(spark, tmp_path, sink=sink, stop_timeout="1s")
    starting = threading.Thread(target=app.start)
    starting.start()
    assert sink.called.wait(TIMEOUT)
    begun = time.monotonic()
    app.stop()
    starting.join(TIMEOUT)
    assert not starting.is_alive()
    assert time.monotonic() - begun < 10, "open() hangs for a minute"
    assert app.state is AppState.STOPPED
    sink.released.set()
    log = open_storage(app.settings.log_url(app.id))
    assert log.list_flat(names.LEADERS) == []


def test_a_name_is_taken_while_its_app_is_still_being_started(spark: SparkSession, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(tmp_path / folder / "input", 1, [game("alice", 1)])
    sink = HangingOpen()
    first = points_app(spark, tmp_path / "a", sink=sink, stop_timeout="1s")
    starting = threading.Thread(target=first.start)
    starting.start()
    assert sink.called.wait(TIMEOUT)
    with pytest.raises(AppNameTaken, match="An app named 'points' is being started on this Spark session already"):
        points_app(spark, tmp_path / "b").start()
    assert not (tmp_path / "b" / "base" / "points" / "log").exists()
    first.stop()
    assert finish(points_app(spark, tmp_path / "b")) == {"alice": {"games": 1, "points": 1}}
    sink.released.set()
    starting.join(TIMEOUT)


def test_a_new_app_replaces_the_running_one_of_its_name(spark: SparkSession, tmp_path: Path) -> None:
    """As a cell of a notebook does that is run again, with changed code."""
    write(tmp_path / "input", 1, [game("alice", 1)])
    rest = hf.RestSettings(port=free_port())
    first = points_app(spark, tmp_path, rest=rest).start(replace=True)
    first.process_all_available()
    assert hf.running("points") is first
    again = points_app(spark, tmp_path, rest=rest)
    with pytest.raises(AppNameTaken, match=r"app\.start\(replace=True\).*hf\.running\('points'\)\.stop\(\)"):
        again.start()
    assert again.state is AppState.CREATED, "it can be started as the error says"
    mistaken = points_app(spark, tmp_path, rest=rest, partitions=3)
    with pytest.raises(AppChanged, match="partitions"):
        mistaken.start(replace=True)
    assert (first.state, hf.running("points")) == (AppState.RUNNING, first), "a mistake leaves the running one"
    with pytest.raises(AlreadyStarted):
        first.start(replace=True)
    twice = points_app(spark, tmp_path, lambda stream: stream.with_column("points", "points * 100"), rest=rest)
    write(tmp_path / "input", 2, [game("alice", 2)])
    again.start(replace=True)
    assert (first.state, hf.running("points")) == (AppState.STOPPED, again)
    again.process_all_available()
    with pytest.raises(NotRunning, match=r"No app 'point' runs in this process. Those that do: 'points'"):
        hf.running("point")
    twice.start(replace=True)
    assert (again.state, twice.state) == (AppState.STOPPED, AppState.RUNNING)
    write(tmp_path / "input", 3, [game("alice", 3)])
    twice.process_all_available()
    assert entries_of(twice) == {"alice": {"games": 3, "points": 303}}
    twice.stop()
    with pytest.raises(NotRunning, match="Those that do: none"):
        hf.running("points")


def test_an_app_that_ends_or_has_failed_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    hanging = Hanging()
    rest = hf.RestSettings(port=free_port())
    first = points_app(spark, tmp_path, sink=hf.foreach(hanging), stop_timeout="20s", rest=rest).start()
    assert hanging.called.wait(TIMEOUT)
    stopping = threading.Thread(target=first.stop)
    stopping.start()
    while first.state is not AppState.STOPPING:
        time.sleep(0.001)
    second = points_app(spark, tmp_path, sink=hf.foreach(lambda version, commit, rows: None), rest=rest)
    if any(query.name == "points" for query in spark.streams.active):
        with pytest.raises(AppNameTaken, match="An app named 'points' is ending on this Spark session"):
            second.start()
    hanging.released.set()
    second.start(replace=True)
    stopping.join(TIMEOUT)
    assert (first.state, second.state) == (AppState.STOPPED, AppState.RUNNING)
    second.query.stop()
    wait_for(second, AppState.ERROR)
    assert hf.running("points") is second, "its cause can be seen"
    third = points_app(spark, tmp_path, sink=hf.foreach(lambda version, commit, rows: None), rest=rest)
    third.start(replace=True)
    third.process_all_available()
    assert entries_of(third) == {"alice": {"games": 1, "points": 1}}
    assert [query.name for query in spark.streams.active] == ["points"]
    third.stop()


def test_a_query_that_is_no_app_is_not_replaced(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    query = read(spark, tmp_path / "input").writeStream.queryName("points").format("noop").start()
    try:
        with pytest.raises(AppNameTaken, match="A streaming query named 'points' .* isn't that of an hf.App"):
            points_app(spark, tmp_path).start(replace=True)
    finally:
        query.stop()


def test_a_name_is_free_again_when_its_app_has_failed(spark: SparkSession, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(tmp_path / folder / "input", 1, [game("alice", 1)])
    first = points_app(spark, tmp_path / "a").start()
    first.process_all_available()
    for query in spark.streams.active:
        if query.name == first.id:
            query.stop()
    wait_for(first, AppState.ERROR)
    assert finish(points_app(spark, tmp_path / "b")) == {"alice": {"games": 1, "points": 1}}
    first.stop()


@pytest.mark.skipif(s3.binary() is None, reason=s3.MISSING)
def test_stop_ends_in_time_although_the_log_does_not_answer(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    server = s3.start(tmp_path / "s3")
    try:
        log = hf.LogSettings(url=f"{server.url}/log", options=server.options)
        app = points_app(spark, tmp_path, sink=Memory(), log=log, stop_timeout="4s").start()
        app.process_all_available()
        pid = instance_of(app)
        with frozen(server.process.pid):
            begun = time.monotonic()
            app.stop()
            took = time.monotonic() - begun
        assert took < 8, "one call to the log takes half a minute"
        assert app.state is AppState.STOPPED
        assert not is_alive(pid)
        assert spark.streams.active == []
        assert "the log doesn't answer" in caplog.text.lower()
    finally:
        server.stop()


def test_a_sink_that_raises_is_retried_and_alerts_once(spark: SparkSession, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write(tmp_path / "input", number, [game("alice", 1)])
    seen: list[int] = []
    alerts: list[BaseException] = []

    def broken(version: int, commit: str, rows: Any) -> None:
        seen.append(version)
        if version == 2 or len(seen) == 1:
            raise ConnectionError("no answer")

    app = points_app(spark, tmp_path, sink=hf.foreach(broken))
    app.on_alert(alerts.append)
    app.start()
    wait_for(app, AppState.ERROR)
    while app.query.isActive:  # its end reports the error a second time
        time.sleep(0.01)
    app.stop()
    assert seen == [1, 1, 2, 2, 2], "3 attempts, as in the settings"
    assert alerts == [app.cause]
    assert isinstance(app.cause, SinkFailed)


def test_data_can_be_queried_when_process_all_available_returns(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    with points_app(spark, tmp_path) as app:
        pid = instance_of(app)
        freeze(pid)
        write(tmp_path / "input", 1, [game("alice", 1), game("bob", 1)])
        processing = threading.Thread(target=app.process_all_available)
        processing.start()
        wait_until_in("wait_until_visible")
        assert app.version == 1
        wake(pid)
        processing.join(TIMEOUT)
        for player in ("alice", "bob"):
            assert get(app, f"/v1/stores/points/keys/{player}")[0] == 200


class Running:
    """A program whose app runs until Ctrl-C, with a batch under way until the test lets it finish."""

    def __init__(self, folder: Path) -> None:
        write(folder / "input", 1, [game("alice", 1), game("bob", 2)])
        self.folder = folder
        command = [sys.executable, "-m", "tests.interrupted", str(folder)]
        # A session of its own, so that Ctrl-C reaches the JVM and its workers too, as in a terminal.
        self.process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.errors = self.process.stderr
        while "is running" not in (line := self.errors.readline()):
            assert line, "the program has ended"
        self.address = line.split("Query it: ")[1].split()[0].rstrip(".,;")
        while not (folder / "busy").exists():
            time.sleep(0.01)

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def wait_until_stopping(self) -> None:
        """Asks the instance, which must not end before the app does."""
        while json.load(urllib.request.urlopen(self.address))["state"] != "stopping":
            time.sleep(0.01)


def test_ctrl_c_finishes_the_batch_and_prints_one_line(tmp_path: Path) -> None:
    program = Running(tmp_path)
    program.press_ctrl_c()
    program.wait_until_stopping()
    (tmp_path / "go").touch()
    assert program.process.wait(TIMEOUT) == 0
    assert program.errors.read() == "holdfast: points stopped at version 1.\n"


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    program = Running(tmp_path)
    program.press_ctrl_c()
    program.wait_until_stopping()
    program.press_ctrl_c()
    begun = time.monotonic()
    assert program.process.wait(TIMEOUT) == -signal.SIGINT
    assert time.monotonic() - begun < 5, "its stop_timeout is 60s, and the batch never ends"
    assert "holdfast: points ended at once" in program.errors.read()


FAILING = """
import holdfast as hf

class Strict(hf.Processor):
    def process(self, key, event, ctx):
        raise ValueError("no points")

app = hf.App("strict")
games = app.reader("parquet").schema("player string, points long, at timestamp").load(INPUT)
app.stream(games, key="player", timestamp="at").process(Strict)
app.run()
"""


def test_a_program_that_fails_prints_one_message_and_a_quiet_spark_nothing(tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    program = FAILING.replace("INPUT", repr(str(tmp_path / "input")))
    environment = {**os.environ, "HOLDFAST_REST__PORT": "0", "HOLDFAST_PARTITIONS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("Strict.process() raised ValueError: no points") == 1, done.stderr
    assert "holdfast: strict stopped: Task 0_0: ProcessorFailed: Strict" in done.stderr
    assert "The driver's metrics: http://127.0.0.1:" in done.stderr
    for noise in ("Traceback", " WARN ", "[Stage ", "log4j", "setLogLevel"):
        assert noise not in done.stderr, done.stderr
