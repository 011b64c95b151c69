"""Jobs of one version that run at the same time, on real Spark: another driver, a cancelled query, many tasks.

Sub-topologies with keys of other types are in different stages, so each has a job of its own, and neither waits for the
other. Processors that wait for a file hold both jobs where a test wants them.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.log.leadership import Leadership, OutdatedDriver
from holdfast.pipeline.spark_errors import JobCancelled
from holdfast.words import Version
from tests.apps import NOON, entries_of, game, read, settings, write

pytestmark = pytest.mark.spark

RECORDS = [game(f"p{n % 3}", n % 4) for n in range(12)]
EXPECTED = {
    "by-player": dict(Counter(str(each["player"]) for each in RECORDS)),
    "by-points": dict(Counter(int(each["points"]) for each in RECORDS)),
}


def waiting(name: str, key: Any, folder: Path) -> type[hf.Processor]:
    """A processor that says that it runs, and goes on when the folder has the file `open`."""

    class Waiting(hf.Processor):
        counts: Any = hf.KeyValueStore(name, key=key, value=int)

        def process(self, key: Any, event: Any, ctx: hf.Context) -> None:
            (folder / name).touch()
            while not (folder / "open").exists():
                time.sleep(0.01)
            self.counts[key] = self.counts.get(key, 0) + 1

    return Waiting


def held_app(spark: SparkSession, folder: Path) -> hf.App:
    """An app of two jobs, with one task each: both have a core."""
    app = hf.App("held", settings=settings(folder, partitions=1, stop_timeout="20s"), spark=spark)
    stream = app.stream(read(spark, folder / "input"), key="player", timestamp="at")
    stream.process(waiting("by-player", str, folder), name="players")
    stream.key_by("points").process(waiting("by-points", int, folder), name="points")
    return app


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def with_both_jobs_under_way(spark: SparkSession, folder: Path) -> hf.App:
    write(folder / "input", 1, RECORDS)
    app = held_app(spark, folder)
    app.start()
    until(lambda: all((folder / name).exists() for name in EXPECTED), "both jobs run at the same time")
    return app


def check_next_start(spark: SparkSession, folder: Path) -> None:
    """The batch counts once, whatever became of the first attempt."""
    (folder / "open").touch()
    with held_app(spark, folder) as app:
        app.process_all_available()
        assert app.version == 1
        assert {name: entries_of(app, name) for name in EXPECTED} == EXPECTED


def jobs_under_way() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast-job")]


@pytest.mark.timeout(300)
def test_another_driver_takes_over_while_two_jobs_run(spark: SparkSession, tmp_path: Path) -> None:
    app = with_both_jobs_under_way(spark, tmp_path)
    assert app._running is not None
    log = app._running.log
    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(app.process_all_available)
        other = Leadership.take_over(log.storage, log.id, log.new_id(), log_time())
        until(lambda: app.state is hf.AppState.ERROR, "the outdated driver stops, though its tasks wait")
        assert isinstance(app.cause, OutdatedDriver)
        with pytest.raises(OutdatedDriver, match=r"epoch 2\) was started later"):
            caller.result()
    app.stop()
    until(lambda: not jobs_under_way(), "both jobs have ended")
    assert log.newest() is None, "nothing of them was committed"
    other.end()
    check_next_start(spark, tmp_path)


def log_time() -> Any:
    return round(NOON.timestamp() * 1000)


@pytest.mark.timeout(300)
def test_a_query_is_cancelled_while_two_jobs_run(spark: SparkSession, tmp_path: Path) -> None:
    app = with_both_jobs_under_way(spark, tmp_path)
    assert app._running is not None
    log, query = app._running.log, app._running.running_query.query
    query.stop()
    until(lambda: app.state is hf.AppState.ERROR, "the app has ended")
    assert isinstance(app.cause, JobCancelled), "and made no other attempt, for which query.stop() would have waited"
    until(lambda: not jobs_under_way(), "both jobs were cancelled")
    assert log.newest() is None, "nothing of them was committed"
    app.stop()
    check_next_start(spark, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_256_tasks_of_jobs_side_by_side_are_one_version(spark: SparkSession, tmp_path: Path) -> None:
    """Two jobs of 128 tasks each. Their segments are more than a commit has room for."""
    records = [game(f"p{n}", n) for n in range(2_000)]
    write(tmp_path / "input", 1, records)
    write(tmp_path / "input", 2, records[:500])
    log = hf.LogSettings(inline_bytes="16KiB")
    app = hf.App("many", settings=settings(tmp_path, partitions=128, log=log), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
    stream.group_by().count().store("players")
    stream.key_by("points").group_by().count().store("points")
    with app:
        app.process_all_available()
        assert app.version == 2
        for store, column in (("players", "player"), ("points", "points")):
            counted = {key: row["count"] for key, row in entries_of(app, store).items()}
            assert counted == {each[column]: 2 if n < 500 else 1 for n, each in enumerate(records)}
        assert app._running is not None
        commit = app._running.log.commit(Version(1))
    assert commit is not None
    objects = {ref.name for refs in commit.segments.values() for ref in refs}
    assert len(commit.segments) == 256 and len(objects) == 1, "one object for all tasks of both jobs"
