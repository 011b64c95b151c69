"""Punctuators on real Spark: they fire by both clocks, with batches and when nothing arrives."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.states import AppState
from tests.apps import NOON, finish, game, read, settings, write

pytestmark = pytest.mark.spark

NOON_MS = round(NOON.timestamp() * 1000)


class Pulse(hf.Processor):
    """Says when time has passed, by each clock."""

    seen = hf.KeyValueStore("seen", value=int)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.seen[key] = event.points
        ctx.forward("record", {"at": ctx.timestamp, "partition": ctx.partition})

    @hf.punctuate(every="1m", time="stream")
    def minute(self, now: int, ctx: hf.Context) -> None:
        ctx.forward("minute", {"at": now, "partition": ctx.partition})

    @hf.punctuate(every="300ms", time="wall")
    def tick(self, now: int, ctx: hf.Context) -> None:
        assert now == ctx.timestamp == ctx.now.wall
        ctx.forward("tick", {"at": now, "partition": ctx.partition}, to="ticks")


def pulse_app(spark: SparkSession, folder: Path, sink: hf.Sink, ticks: hf.Sink, idle: str = "100ms") -> hf.App:
    quick = settings(folder, batch=hf.BatchSettings(idle_interval=idle))
    app = hf.App("pulse", settings=quick, spark=spark)
    stream = app.stream(read(spark, folder / "input"), key="player", timestamp="at")
    columns = "what string, at bigint, partition int"
    processed = stream.process(Pulse, output=columns, outputs={"ticks": columns}).sink(sink, name="pulse")
    processed.output("ticks").sink(ticks, name="ticks")
    return app


def wait_until(condition: Callable[[], bool], app: hf.App) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert app.state is AppState.RUNNING, app.cause
        assert time.monotonic() < deadline, "not within a minute"
        time.sleep(0.05)


def test_punctuators_fire_when_nothing_arrives_and_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    sink, ticks = hf.memory(), hf.memory()

    def rows(what: str) -> list[tuple[Any, Any]]:
        found: list[Any] = [
            (row["at"], row["partition"]) for row in (*sink.rows(), *ticks.rows()) if row["what"] == what
        ]
        return sorted(found)

    write(tmp_path / "input", 1, [game("ann")])
    with pulse_app(spark, tmp_path, sink, ticks) as app:
        text = app.describe()
        assert "punctuator minute, every 1m of stream time" in text
        assert "punctuator tick, every 300ms of wall time" in text
        app.process_all_available()
        wait_until(lambda: len({at for at, _ in rows("tick")}) >= 2, app)
        assert rows("minute") == [(NOON_MS, 0), (NOON_MS, 1)], "stream time has come to noon, once per partition"
        write(tmp_path / "input", 2, [game("ann", 2, NOON + timedelta(minutes=7))])
        wait_until(lambda: len(rows("minute")) > 2, app)
    later = NOON_MS + 7 * 60_000
    assert rows("minute") == [(NOON_MS, 0), (NOON_MS, 1), (later, 0), (later, 1)], "missed minutes are skipped"
    walls = [at for at, _ in rows("tick")]
    assert len({at // 300 for at in walls}) == len(walls) / 2, "once per interval and partition"
    assert {row["what"] for row in ticks.rows()} == {"tick"}, "each output has its own rows"
    assert {row["what"] for row in sink.rows()} == {"minute", "record"}
    before = len(walls)
    with pulse_app(spark, tmp_path, sink, ticks) as app:
        wait_until(lambda: len(rows("tick")) > before, app)
    assert len(rows("minute")) == 4, "stream time stands still"


def test_rows_of_punctuators_that_are_due_are_in_sinks_when_process_all_available_returns(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink, ticks = hf.memory(), hf.memory()
    write(tmp_path / "input", 1, [game("ann")])
    with pulse_app(spark, tmp_path, sink, ticks, idle="1h") as app:
        app.process_all_available()
        minutes = [(row["at"], row["partition"]) for row in sink.rows() if row["what"] == "minute"]
        assert sorted(minutes) == [(NOON_MS, 0), (NOON_MS, 1)]
        first, before = app.version, time.time() * 1000
        while time.time() * 1000 < before // 300 * 300 + 300:
            time.sleep(0.01)
        app.process_all_available()
        rows: list[Any] = list(ticks.rows())
        assert max(row["at"] for row in rows) >= before, "a tick was due at the time of the call"
        assert app.version > first


def test_stop_cancels_a_punctuator_and_the_next_app_on_the_session_runs(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "hang").touch()

    class Hangs(hf.Processor):
        seen = hf.KeyValueStore("seen", value=int)

        def process(self, key: str, event: Any, ctx: hf.Context) -> None:
            self.seen[key] = event.points

        @hf.punctuate(every="100ms", time="wall")
        def tick(self, now: int, ctx: hf.Context) -> None:
            if (tmp_path / "hang").exists():
                (tmp_path / f"busy-{ctx.partition}").touch()
                time.sleep(600)

    def hanging_app() -> hf.App:
        quick = settings(tmp_path, batch=hf.BatchSettings(idle_interval="50ms"), stop_timeout="6s")
        app = hf.App("hangs", settings=quick, spark=spark)
        app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at").process(Hangs)
        return app

    write(tmp_path / "input", 1, [game("ann")])
    app = hanging_app().start()
    wait_until(lambda: len(list(tmp_path.glob("busy-*"))) == 2, app)
    app.stop()
    assert app.state is AppState.STOPPED
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []
    (tmp_path / "hang").unlink()
    write(tmp_path / "input", 2, [game("bob", 2)])
    assert finish(hanging_app(), "seen") == {"ann": 1, "bob": 2}


def test_a_punctuator_by_stream_time_needs_event_times(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    app = hf.App("pulse", settings=settings(tmp_path), spark=spark)
    with pytest.raises(TopologyError, match=r"Pulse.minute is called by stream time.*no event time.*timestamp="):
        app.stream(read(spark, tmp_path / "input"), key="player").process(Pulse)


def test_an_unknown_output_is_refused_where_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    app = hf.App("pulse", settings=settings(tmp_path), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
    with pytest.raises(TopologyError, match="'Alerts' can't be the name of .* an output"):
        stream.process(Pulse, outputs={"Alerts": "n int"})
    with pytest.raises(TopologyError, match="can't be read at 'n'"):
        stream.process(Pulse, outputs={"alerts": "n"})
    processed = stream.process(Pulse, outputs={"alerts": "n int"})
    with pytest.raises(TopologyError, match=r"no such output. Did you mean 'alerts'\? Its named outputs are: alerts"):
        processed.output("alert")
    with pytest.raises(TopologyError, match="Pulse has no output yet"):
        processed.sink(hf.memory())
    processed.output("alerts").sink(hf.memory()).sink(hf.memory(), name="second")
    assert [node.name for node in app._topology.sinks] == ["pulse.alerts.memory", "second"]
    assert "forwards to alerts: n int" in app.describe()
