"""An app on real Spark: its results, its restarts, and what stops it."""

import json
import os
import re
import shutil
import socket
import sqlite3
import threading
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast import faults
from holdfast.errors import StorageUnavailable, TopologyError
from holdfast.instance.state_dir import InstanceDirectory, StateDirectoryInUse
from holdfast.instances import InstanceFailed
from holdfast.log.appfile import AppChanged
from holdfast.log.leadership import OutdatedDriver
from holdfast.pipeline.driver import TaskFailed
from holdfast.pipeline.protocol import MissingVersions, NewCheckpoint
from holdfast.pipeline.sinks.builtin import FolderTaken
from holdfast.pipeline.sinks.runner import SinkFailed
from holdfast.pipeline.spark_errors import SparkRefused
from holdfast.pipeline.trial_query import QueryRefused
from holdfast.query.listening import AddressTaken
from holdfast.states import AppState
from holdfast.taken_names import AppNameTaken
from holdfast.words import Version
from tests.apps import ENGINES, NOON, Twice, entries_of, finish, game, get, points_app, read, settings, write
from tests.log.making import timeline
from tests.test_docs import blocks

pytestmark = pytest.mark.spark


WRONG_QUERIES: dict[Callable[[SparkSession, Path], DataFrame], str] = {
    lambda spark, folder: (
        read(spark, folder).groupBy("player", "at").agg(F.sum("points").alias("points"))
    ): "output mode",
    lambda spark, folder: (
        spark.readStream.schema("player string, points long, at timestamp")
        .option("maxFilesPerTrigger", "many")
        .parquet(str(folder))
    ): "'many' for option 'maxFilesPerTrigger'",
}
"""Queries that Spark refuses when they start, or a moment later."""


def wait_for(app: hf.App, *states: AppState) -> None:
    assert app._states.wait_for(*states, timeout=60), (app.state, app.cause)


def test_counts_are_correct_queryable_and_delivered(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 100), game("bob", 200)])
    write(tmp_path / "input", 2, [game("alice", 150), game("alice", None)])
    sink = hf.memory()
    moves: list[tuple[str, str]] = []
    app = points_app(spark, tmp_path, sink=sink)
    app.on_state(lambda old, new: moves.append((str(old), str(new))))
    with app:
        app.process_all_available()
        assert entries_of(app) == {"alice": {"games": 3, "points": 250}, "bob": {"games": 1, "points": 200}}
        status, answer = get(app, "/v1/stores/points/keys/alice")
        assert (status, answer["version"], answer["value"]) == (200, 2, {"games": 3, "points": 250})
        assert get(app, "/v1/stores/points/keys/nobody")[0] == 404
        assert get(app, "/v1/stores/nothing/keys/alice")[0] == 404
        assert get(app, "/v1/state")[1]["state"] == "running"
        assert get(app, "/health/ready")[0] == 200
        with urllib.request.urlopen(app.metrics_address or "") as answer:
            assert b"holdfast_versions_total" in answer.read()
    assert app.version == 2
    assert [sorted(str(row["player"]) for row in sink.versions[Version(v)]) for v in (1, 2)] == [
        ["alice", "bob"],
        ["alice"],
    ]
    assert moves == [
        ("created", "restoring"),
        ("restoring", "running"),
        ("running", "stopping"),
        ("stopping", "stopped"),
    ]


def test_a_restart_continues_from_the_last_version(spark: SparkSession, tmp_path: Path) -> None:
    """Also if Spark's checkpoint has lost its last commit: nothing is counted twice."""
    write(tmp_path / "input", 1, [game("alice", 1)])
    finish(points_app(spark, tmp_path))
    write(tmp_path / "input", 2, [game("alice", 2)])
    app = points_app(spark, tmp_path)
    assert finish(app) == {"alice": {"games": 2, "points": 3}}
    assert app.version == 2
    for path in (tmp_path / "base" / "points" / "checkpoint" / "commits").glob("*1*"):
        path.unlink()
    app = points_app(spark, tmp_path)
    assert finish(app) == {"alice": {"games": 2, "points": 3}}
    assert app.version == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lost_state_directory_is_restored_and_reported(engine: str, spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1), game("bob", 2), game("carol", 3)])

    def build() -> hf.App:
        app = hf.App("points", settings=settings(tmp_path), spark=spark)
        stream = app.stream(read(spark, tmp_path / "input"), key="player")
        stream.group_by().count().store("points", engine=engine)
        return app

    finish(build())
    shutil.rmtree(tmp_path / "base" / "points" / "state")
    events: list[hf.RestoreEvent] = []
    app = build()
    app.on_restore(events.append)

    def broken(event: hf.RestoreEvent) -> None:
        raise RuntimeError("a user's listener")

    app.on_restore(broken)
    with app:
        assert entries_of(app) == {name: {"count": 1} for name in ("alice", "bob", "carol")}
    phases = [event.phase.value for event in events if event.store == "points"]
    assert phases.count("start") == phases.count("end") == 2
    assert all(event.start_version == 0 for event in events)
    assert sum(event.count for event in events if event.phase is hf.RestorePhase.BATCH) == 3


def test_invalid_records_become_dead_letters(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = datetime.now(UTC) + timedelta(days=2)
    records = [game("alice", 1), game(None, 7), game(None, 7), game("bob", 2, None), game("carol", 3, ahead)]
    write(tmp_path / "input", 1, [*records, game("x" * 70_000, 4)])
    assert finish(points_app(spark, tmp_path)) == {"alice": {"games": 1, "points": 1}}
    files = (tmp_path / "base" / "points" / "dead-letters").glob("[0-9]*.json")
    letters = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    found = sorted((letter["reason"].split()[0:2], letter["times"]) for letter in letters)
    assert found == [(["event", "time"], 1), (["no", "event"], 1), (["no", "key:"], 2), (["the", "key"], 1)]
    place = tmp_path / "base" / "points" / "dead-letters"
    assert f"5 record(s) went to the dead letters: files({str(place)!r})" in caplog.text


def test_a_deleted_checkpoint_is_refused_until_a_setting_allows_it(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    finish(points_app(spark, tmp_path))
    shutil.rmtree(tmp_path / "base" / "points" / "checkpoint")
    app = points_app(spark, tmp_path, sink=hf.memory())
    planned = app.plan()
    assert "sink 'sink' is new: it gets the versions after version 1" in planned.warnings
    [refusal] = planned.refusals
    with pytest.raises(NewCheckpoint, match="logOffset") as refused:
        app.start()
    assert str(refused.value) == refusal
    assert app.state is AppState.ERROR
    again = points_app(spark, tmp_path, on_new_checkpoint="restart_sources")
    assert finish(again) == {"alice": {"games": 2, "points": 2}}


def test_a_driver_that_starts_takes_over_from_one_that_runs(spark: SparkSession, tmp_path: Path) -> None:
    """Log, state directory, ports and Spark's checkpoint are the same, as with a restart that comes too early."""
    write(tmp_path / "input", 1, [game("alice", 1)])
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        rest = hf.RestSettings(port=a.getsockname()[1], driver_metrics_port=b.getsockname()[1])
    one = points_app(spark, tmp_path, rest=rest).start()  # as in a notebook: nothing calls its stop()
    one.process_all_available()
    write(tmp_path / "input", 2, [game("bob", 2)])
    two = points_app(spark.newSession(), tmp_path, rest=rest)  # a query's name is unique per session
    assert finish(two) == {"alice": {"games": 1, "points": 1}, "bob": {"games": 1, "points": 2}}
    wait_for(one, AppState.ERROR)
    assert isinstance(one.cause, OutdatedDriver), one.cause
    assert f"process {os.getpid()} " in str(one.cause)
    assert "epoch 2) was started later" in str(one.cause)
    one.stop()
    assert (two.version, two.state) == (2, AppState.STOPPED)


def test_a_second_app_with_the_same_name_on_one_spark_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Its folders are different, so only Spark's name of the query is the same."""
    write(tmp_path / "a" / "input", 1, [game("alice", 1)])
    write(tmp_path / "b" / "input", 1, [game("bob", 1)])
    with points_app(spark, tmp_path / "a") as first:
        with pytest.raises(AppNameTaken, match="An app named 'points' runs on this Spark session already") as raised:
            points_app(spark, tmp_path / "b").start()
        assert first.query.id in str(raised.value)
        assert not (tmp_path / "b" / "base" / "points" / "log").exists()
        first.process_all_available()
        assert entries_of(first) == {"alice": {"games": 1, "points": 1}}
        with pytest.raises(AppChanged, match="partitions"):
            points_app(spark.newSession(), tmp_path / "a", partitions=3).start()
        hf.files(str(tmp_path / "out")).open(timeline("another log"))
        with pytest.raises(FolderTaken, match="another log"):
            points_app(spark.newSession(), tmp_path / "a", sink=hf.files(str(tmp_path / "out"))).start()
        for change, why in WRONG_QUERIES.items():
            other = hf.App("points", settings=settings(tmp_path / "a"), spark=(session := spark.newSession()))
            stream = other.stream(change(session, tmp_path / "a" / "input"), key="player", timestamp="at")
            stream.group_by().aggregate(games=hf.count(), points=hf.sum("points")).store("points")
            with pytest.raises(QueryRefused, match=why):
                other.start()
            assert session.streams.active == []
        leaders = tmp_path / "a" / "base" / "points" / "log" / "leader"
        assert len(list(leaders.iterdir())) == 1, "a start that is refused takes nothing over"
        write(tmp_path / "a" / "input", 2, [game("alice", 1)])
        first.process_all_available()
        assert (first.state, entries_of(first)) == (AppState.RUNNING, {"alice": {"games": 2, "points": 2}})
    assert finish(points_app(spark, tmp_path / "b")) == {"bob": {"games": 1, "points": 1}}


def test_two_file_sinks_in_one_folder_are_refused(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    app = hf.App("points", settings=settings(tmp_path), spark=spark)
    table = app.stream(read(spark, tmp_path / "input"), key="player").group_by().count().store("points")
    table.sink(hf.files(str(tmp_path / "out")), name="one")
    table.sink(hf.files(f"file://{tmp_path}/input/../out/"), name="two")
    with pytest.raises(TopologyError, match=f"The sinks 'one' and 'two' write to one folder, {tmp_path}/out,"):
        app.start()
    assert not (tmp_path / "base").exists()
    assert "write to one folder" not in caplog.text, "the caller has the error"


def test_a_sink_that_would_have_two_version_columns_is_refused_at_the_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    app = hf.App("points", settings=settings(tmp_path), spark=spark)
    frame = read(spark, tmp_path / "input").withColumnRenamed("player", "_version")
    table = app.stream(frame, key="_version").group_by().count().store("points")
    table.sink(hf.foreach(print, version_column=True))
    with pytest.raises(TopologyError, match="version_column=True adds the column '_version'"):
        app.start()
    assert not (tmp_path / "base").exists()


def test_relative_folders_are_those_of_the_start(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's workers have the working directory in which the JVM was started."""
    name = f"relative-{tmp_path.name}"
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "input", 1, [game("alice", 1)])
    jvm = Path.cwd()
    monkeypatch.chdir(tmp_path)
    app = points_app(spark, tmp_path, base_dir=name, log=hf.LogSettings(inline_bytes=0))
    with app:
        monkeypatch.chdir(tmp_path / "elsewhere")
        app.process_all_available()
        assert entries_of(app) == {"alice": {"games": 1, "points": 1}}
    assert list((tmp_path / name / "points" / "log" / "segments").glob("*/*.arrow"))
    assert not (tmp_path / "elsewhere" / name).exists()
    assert not (jvm / name).exists()


def test_a_changed_store_and_a_lost_log_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Without log and checkpoint, the folder with the files of the lost log is refused."""
    write(tmp_path / "input", 1, [game("alice", 1)])
    finish(points_app(spark, tmp_path, sink=hf.files(str(tmp_path / "out"))))
    app = hf.App("points", settings=settings(tmp_path), spark=spark)
    app.stream(read(spark, tmp_path / "input"), key="points").group_by().count().store("points")
    with pytest.raises(AppChanged, match="points"):
        app.start()
    with pytest.raises(AppChanged, match="partitions"):
        points_app(spark, tmp_path, partitions=3).start()
    shutil.rmtree(tmp_path / "base" / "points" / "log")
    with pytest.raises(MissingVersions, match="versions are missing"):
        points_app(spark, tmp_path).start()
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(FolderTaken, match="another log"):
        points_app(spark, tmp_path, sink=hf.files(str(tmp_path / "out"))).start()


def test_an_overflow_stops_the_app_with_the_key_and_calls_the_alert_hook(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 2**63 - 1)])
    write(tmp_path / "input", 2, [game("alice", 1), game("bob", 1)])
    alerts: list[BaseException] = []
    app = points_app(spark, tmp_path)
    app.on_alert(alerts.append)
    app.start()
    with pytest.raises(TaskFailed, match="'alice'"):
        app.process_all_available()
    wait_for(app, AppState.ERROR)
    assert isinstance(app.cause, TaskFailed)
    assert entries_of(app) == {"alice": {"games": 1, "points": 2**63 - 1}}, "committed versions can still be read"
    app.stop()
    assert alerts == [app.cause]
    assert app.version == 1


def test_an_overflow_within_a_batch_is_an_error_even_without_ansi(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 2**63 - 1), game("alice", 1)])
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        app = points_app(spark, tmp_path).start()
        wait_for(app, AppState.ERROR)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert isinstance(app.cause, SparkRefused), app.cause
    app.stop()


def test_a_users_python_function_runs_and_ansi_stays_off(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1), game("12", 2)])
    write(tmp_path / "input", 2, [game("bob", 1), game("12", 2)])
    double = F.udf(lambda points: points * 2, "long")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        app = points_app(
            spark,
            tmp_path,
            lambda s: s.with_column("number", "cast(player as int)").with_column("points", double("points")),
        )
        with app:
            app.process_all_available()
            assert app.state is AppState.RUNNING, "a bad cast is null without ANSI, in the second batch too"
            assert entries_of(app)["12"] == {"games": 2, "points": 8}
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def test_an_app_without_versions_may_change_its_partitions(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    finish(points_app(spark, tmp_path, partitions=3))
    app = points_app(spark, tmp_path)
    assert finish(app) == {}
    assert app.settings.partitions == 2


def test_a_start_that_lacks_a_port_or_folder_leaves_the_running_driver_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    leaders = tmp_path / "base" / "points" / "log" / "leader"
    with points_app(spark, tmp_path) as first, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for rest in (hf.RestSettings(port=port), hf.RestSettings(port=0, driver_metrics_port=port)):
            second = points_app(spark.newSession(), tmp_path, rest=rest)
            with pytest.raises(AddressTaken, match=rf"port {port}.*set rest\.\w*port to another") as refused:
                second.start()
            assert refused.value.category is hf.ErrorCategory.INVALID
        elsewhere = hf.StateSettings(dir=str(tmp_path / "elsewhere"))
        with InstanceDirectory(tmp_path / "elsewhere" / "points-0", "another-0"):
            with pytest.raises(StateDirectoryInUse, match="held by instance 'another-0'"):
                points_app(spark.newSession(), tmp_path, state=elsewhere).start()
        first.process_all_available()
        assert len(list(leaders.iterdir())) == 1
        assert entries_of(first) == {"alice": {"games": 1, "points": 1}}


def test_stop_from_another_thread_ends_a_running_start(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    app = points_app(spark, tmp_path, stop_timeout="30s")
    starting = threading.Thread(target=app.start)
    with InstanceDirectory(tmp_path / "base" / "points" / "state" / "points-0", "points-0"):
        starting.start()  # it waits, since the directory is in use
        wait_for(app, AppState.RESTORING)
        app.stop()
        starting.join(60)
    assert not starting.is_alive()
    assert app.state is AppState.STOPPED


def test_an_app_reads_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_PARTITIONS", "9")
    assert hf.App("anything").settings.partitions == 9


def test_a_damaged_segment_fails_the_start_with_its_name(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1), game("bob", 1)])
    changes: dict[str, Any] = {"log": hf.LogSettings(inline_bytes=0), "snapshots": hf.SnapshotSettings(enabled=False)}
    finish(points_app(spark, tmp_path, **changes))
    shutil.rmtree(tmp_path / "base" / "points" / "state")
    segment = next((tmp_path / "base" / "points" / "log" / "segments").glob("*/*.arrow"))
    segment.write_bytes(segment.read_bytes()[:-8] + b"garbage!")
    app = points_app(spark, tmp_path, **changes)
    with pytest.raises(InstanceFailed, match=segment.name):
        app.start()
    assert app.state is AppState.ERROR


def test_commits_are_retried_until_storage_stays_unavailable(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    left = [StorageUnavailable("away"), StorageUnavailable("still away")]

    def away() -> None:
        if left:
            raise left.pop()

    def gone() -> None:
        raise StorageUnavailable("the bucket is gone")

    app = points_app(spark, tmp_path)
    with faults.active({"commit.before": away}):
        app.start()
        app.process_all_available()
        assert entries_of(app) == {"alice": {"games": 1, "points": 1}}
    assert (app.version, left) == (1, [])
    with faults.active({"commit.before": gone}):
        write(tmp_path / "input", 2, [game("alice", 1)])
        wait_for(app, AppState.ERROR)
    assert isinstance(app.cause, StorageUnavailable)
    app.stop()
    assert (app.state, app.version) == (AppState.ERROR, 1)


def test_a_sink_that_raises_stops_the_app_and_gets_its_version_again(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])

    def broken(version: int, commit: str, rows: Any) -> None:
        raise ValueError("no room at the inn")

    app = points_app(spark, tmp_path, sink=hf.foreach(broken)).start()
    wait_for(app, AppState.ERROR)
    assert isinstance(app.cause, SinkFailed)
    assert "no room at the inn" in str(app.cause)
    app.stop()
    seen: list[int] = []
    finish(points_app(spark, tmp_path, sink=hf.foreach(lambda version, commit, rows: seen.append(version))))
    assert seen == [1]


def test_files_contain_each_version_once(spark: SparkSession, tmp_path: Path) -> None:
    """In both formats. With a column for the version, a reader of the folder finds the newest row per key."""
    for number in (1, 2, 3):
        write(tmp_path / "input", number, [game("alice", number), game(f"player-{number}", 1)])
    app = hf.App("points", settings=settings(tmp_path), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
    table = stream.group_by().aggregate(games=hf.count(), points=hf.sum("points")).store("points")
    table.sink(hf.files(str(tmp_path / "json"), format="json"), name="json")
    table.sink(hf.files(str(tmp_path / "out"), version_column=True), name="parquet")
    finish(app)
    for folder in (tmp_path / "json", tmp_path / "out"):
        marks = sorted((folder / "_versions").glob("*.json"))
        assert [json.loads(path.read_text())["version"] for path in marks] == [1, 2, 3]
        rows: list[dict[str, Any]] = []
        for mark in marks:
            for entry in json.loads(mark.read_text())["files"]:
                path = folder / entry["file"]
                rows += (
                    pq.read_table(path).to_pylist()
                    if folder.name == "out"
                    else [json.loads(line) for line in path.read_text().splitlines()]
                )
        assert len(rows) == 6
        assert [row["points"] for row in rows if row["player"] == "alice"] == [1, 3, 6]
    (query,) = [block.text for block in blocks("sql") if "_version" in block.text]
    newest = spark.sql(query.replace("out/", str(tmp_path / "out")))
    found = {row["player"]: (row["points"], row["_version"]) for row in newest.collect()}
    assert found == {"alice": (6, 3), "player-1": (1, 1), "player-2": (1, 2), "player-3": (1, 3)}


def test_a_database_applies_each_version_once_although_it_is_sent_twice(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    write(tmp_path / "input", 2, [game("alice", 2), game("bob", 5)])
    sink = Twice(tmp_path / "players.db", ["player", "games", "total"])
    finish(points_app(spark, tmp_path, sink=sink))
    sink.write_again()
    with sqlite3.connect(tmp_path / "players.db") as database:
        assert sorted(database.execute("SELECT * FROM players")) == [("alice", 3, 2), ("bob", 5, 2)]


def test_several_stores_and_composite_keys_on_one_stream(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1), game("alice", 2), game("bob", 1)])
    app = hf.App("several", settings=settings(tmp_path), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
    stream.group_by().count().store("by-player")
    stream.where(F.col("points") > 1).with_column("half", "points / 2").group_by("player", "points").aggregate(
        half=hf.max("half"), when=hf.max("at")
    ).store("by-both")
    with app:
        app.process_all_available()
        assert entries_of(app, "by-player") == {"alice": {"count": 2}, "bob": {"count": 1}}
        both = entries_of(app, "by-both")
    assert list(both) == [("alice", 2)]
    assert both["alice", 2]["half"] == 1.0


@pytest.mark.slow
def test_the_result_does_not_depend_on_batches(spark: SparkSession, tmp_path: Path) -> None:
    records = [game(f"player-{n % 7}", n, NOON + timedelta(seconds=n % 5)) for n in range(60)]
    found = []
    for files in (1, 4):
        folder = tmp_path / str(files)
        for number in range(files):
            write(folder / "input", number, records[number::files])
        app = hf.App("cuts", settings=settings(folder, batch=hf.BatchSettings(commit_interval="10ms")), spark=spark)
        app.stream(read(spark, folder / "input"), key="player", timestamp="at").group_by().aggregate(
            n=hf.count(),
            total=hf.sum("points"),
            mean=hf.mean("points"),
            first=hf.first("points"),
            last=hf.last("points"),
        ).store("points")
        found.append(finish(app))
        assert app.version == files
    assert found[0] == found[1]


def test_an_invalid_app_is_refused_where_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    app = hf.App("refused", settings=settings(tmp_path), spark=spark)
    write(tmp_path / "input", 1, [game("alice", 1)])
    frame = read(spark, tmp_path / "input")
    with pytest.raises(TopologyError, match="did you mean 'player'|Did you mean 'player'"):
        app.stream(frame, key="playr")
    with pytest.raises(TopologyError, match="streaming"):
        app.stream(spark.range(3), key="id")
    with pytest.raises(TopologyError, match="must be a timestamp"):
        app.stream(read(spark, tmp_path / "input"), key="player", timestamp="points")  # its frame is not a source
    stream = app.stream(frame, key="player")
    with pytest.raises(TopologyError, match="event time"):
        stream.group_by().aggregate(last=hf.last("points"))
    with pytest.raises(TopologyError, match="needs numbers"):
        stream.group_by().aggregate(total=hf.sum("player")).store("x")
    with pytest.raises(TopologyError, match="at least one"):
        stream.group_by().aggregate()
    with pytest.raises(TopologyError):
        stream.group_by().count().store("Bad Name")
    with pytest.raises(TopologyError, match="memory, rocksdb"):
        stream.group_by().count().store("fine", engine="rocks")
    with pytest.raises(TopologyError, match="no column 'plyer'"):
        stream.group_by("plyer")
    with pytest.raises(TopologyError, match="has no store yet"):
        app.start()
    fine = stream.group_by().count().store("fine").sink(hf.memory())
    with pytest.raises(TopologyError, match="is not a sink"):
        fine.sink("folder/")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="two stores"):
        stream.group_by().count().store("fine")
    with pytest.raises(TopologyError, match="this is another DataFrame. Name it"):
        app.stream(read(spark, tmp_path / "input"), key="player")


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (lambda stream: stream.where("pionts > 1"), "where('pionts > 1')"),
        (lambda stream: stream.where(F.col("pionts") > 1), "where(Column"),
        (lambda stream: stream.select("player", "pionts"), "select('player', 'pionts')"),
        (lambda stream: stream.with_column("x", "pionts + 1"), "with_column('x', 'pionts + 1')"),
        (lambda stream: stream.transform(lambda df: df.orderBy("pionts")), "transform()"),
        (lambda stream: stream.group_by().aggregate(best=hf.max("pionts")), "best=max(pionts)"),
        (lambda stream: stream.group_by().aggregate(best=hf.max(F.col("pionts"))), "best=max(Column"),
    ],
)
def test_a_wrong_column_is_named_on_its_own_line(
    wrong: Callable[[hf.Stream], object],
    where: str,
    spark: SparkSession,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "input").mkdir()
    stream = hf.App("wrong", spark=spark).stream(read(spark, tmp_path / "input"), key="player")
    with pytest.raises(TopologyError) as found:
        wrong(stream)
    printed = capfd.readouterr()
    assert "at org.apache.spark" not in printed.err + printed.out
    message = "The stream has no column 'pionts'. Did you mean 'points'? It has player, points, at."
    assert str(found.value).startswith(where)
    assert str(found.value).endswith(message)
    shown = None if found.value.__suppress_context__ else found.value.__context__
    assert found.value.__cause__ is None and shown is None, "Spark's trace isn't shown"


def test_another_error_of_an_expression_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    stream = hf.App("wrong", spark=spark).stream(read(spark, tmp_path / "input"), key="player")
    for wrong in ("points >", "nothing(points)", "points"):
        with pytest.raises(TopologyError) as found:
            stream.where(wrong)
        assert re.fullmatch(r"where\('.+'\): [A-Z][^\n]+[^.]\.", str(found.value)), str(found.value)
        assert "SQLSTATE" not in str(found.value)


def test_an_app_and_its_parts_are_shown_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    app = hf.App("shown", spark=spark)
    stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
    table = stream.group_by().aggregate(games=hf.count(), typical=hf.avg("points")).store("typical")
    assert [repr(each) for each in (app, stream, table)] == [
        "App('shown', state='created', version=0, stores=['typical'])",
        "Stream('main', key=['player'], timestamp='at', columns=['player', 'points', 'at'])",
        "Table('typical', key='player string', columns='games bigint, typical double')",
    ]
    assert "\n" not in repr(stream.group_by().count())


def test_describe_shows_stores_aggregates_and_sinks(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    text = points_app(spark, tmp_path, sink=hf.memory()).describe()
    assert "store points (key-value on rocksdb), key (player string)" in text
    assert "points bigint = sum(points)" in text
    assert "sink sink (memory)" in text
