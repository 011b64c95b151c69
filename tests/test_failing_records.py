"""Failing records on real Spark: the app stops, skips them, or keeps them as dead letters."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.pipeline.driver import TaskFailed
from tests.apps import entries_of, game, read, settings, write

pytestmark = pytest.mark.spark


class Odd(hf.Processor):
    """Fails for odd points, after it has written and forwarded."""

    games = hf.KeyValueStore("games", value=int)
    recent = hf.KeyValueStore("recent", value=int, max_entries=2)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.games[key] = self.games.get(key, 0) + 1
        self.recent[key] = event.points
        ctx.forward(key, {"points": event.points})
        if event.points % 2:
            raise ValueError(f"{event.points} points")


BATCH = [game("ann", 2), game("bob", 3), game("ann", 4), game("ann", 5), game("cleo", 6)]


def odd_app(spark: SparkSession, folder: Path, sink: hf.Sink, **options: Any) -> hf.App:
    app = hf.App("odd", settings=settings(folder, **options.pop("settings", {})), spark=spark)
    stream = app.stream(read(spark, folder / "input"), key="player", timestamp="at", position="points")
    stream.process(Odd, output="player string, points bigint", **options).sink(sink, name="sink")
    return app


def test_failed_records_stop_the_app_are_kept_or_are_skipped(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, BATCH)
    sink = hf.memory()
    with odd_app(spark, tmp_path, sink) as app:
        with pytest.raises(TaskFailed, match=r", at points=[35], at=2026-01-01 12:00:00\+00:00\. Nothing"):
            app.process_all_available()
    assert list(sink.rows()) == []
    with odd_app(spark, tmp_path, sink, on_error="dead_letter") as app:
        assert "on_error dead_letter" in app.describe()
        app.process_all_available()
        assert entries_of(app, "games") == {"ann": 2, "cleo": 1}
        assert entries_of(app, "recent") == {"ann": 4, "cleo": 6}
        newest = app._started().log.newest()
    assert newest is not None and newest.counts["dead"] == 2
    files = (tmp_path / "base" / "odd" / "dead-letters").glob("[0-9]*.json")
    letters = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    kept = sorted((json.loads(letter["record"])["points"], letter["version"]) for letter in letters)
    assert kept == [(3, 1), (5, 1)]
    assert all("Odd.process() raised ValueError" in letter["reason"] for letter in letters)
    assert sorted((row["player"], row["points"]) for row in sink.rows()) == [("ann", 2), ("ann", 4), ("cleo", 6)]
    write(tmp_path / "input", 2, [game("bob", 7), game("bob", 8)])
    with odd_app(spark, tmp_path, sink, settings={"on_error": "skip"}) as app:
        app.process_all_available()
        assert entries_of(app, "games") == {"ann": 2, "bob": 1, "cleo": 1}
        newest = app._started().log.newest()
    assert newest is not None and newest.counts["skipped/odd"] == 1


def test_an_unknown_on_error_is_refused_where_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    with pytest.raises(TopologyError, match=r"on_error='dead' is none of fail, skip, dead_letter"):
        odd_app(spark, tmp_path, hf.memory(), on_error="dead")
