"""Failing records on real Spark: the app stops, skips them, or keeps them as dead letters."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.pipeline.driver import TaskFailed
from holdfast.pipeline.failing import RecordFailed
from holdfast.pipeline.spark_errors import UnreadableFile
from holdfast.states import AppState
from holdfast.testing import TestDriver, records
from holdfast.topology.processor import OnError
from holdfast.words import Version
from tests.apps import NOON, entries_of, finish, game, points_app, read, settings, write

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
        with pytest.raises(TaskFailed, match=r", with points=[35], at=2026-01-01 12:00:00\+00:00\. Nothing"):
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


TEXT = pa.schema([("player", pa.string()), ("text", pa.string()), ("at", pa.timestamp("us", "UTC"))])


def text(player: str, value: str) -> dict[str, Any]:
    return {"player": player, "text": value, "at": NOON}


def text_app(
    spark: SparkSession, folder: Path, timestamp: str | None = "at", **chosen: Any
) -> tuple[hf.App, hf.Stream]:
    app = hf.App("texts", settings=settings(folder, **chosen), spark=spark)
    source = read(spark, folder / "input", "player string, text string, at timestamp")
    return app, app.stream(source, key="player", timestamp=timestamp, position="text")


def letters_of(folder: Path) -> list[tuple[str, str]]:
    files = sorted((folder / "base" / "texts" / "dead-letters").glob("[0-9]*.json"))
    found = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return sorted((letter["reason"], json.loads(letter["record"])["text"]) for letter in found)


@pytest.mark.parametrize(
    "chosen",
    [
        ("sums", "items", "rest"),
        pytest.param(("sums", "filtered", "items", "branched", "rest"), marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
def test_an_expression_that_fails_for_a_record(spark: SparkSession, tmp_path: Path, chosen: tuple[str, ...]) -> None:
    """In steps and in an aggregate: the app stops with the record, or the record is kept, once.

    tests/pipeline/test_checking.py has each kind of step.
    """
    write(tmp_path / "input", 1, [text("ann", "1"), text("bob", "2"), text("ann", "x"), text("cleo", "3")], TEXT)
    app, stream = text_app(spark, tmp_path)
    stream.group_by().aggregate(n=hf.sum("CAST(text AS int)")).store("sums")
    with app, pytest.raises(RecordFailed, match=r"an expression of sums failed.*\"text\":\"x\".*Nothing of the batch"):
        app.process_all_available()
    app, stream = text_app(spark, tmp_path, on_error="dead_letter")
    number = "CAST(text AS int)"
    shapes = {
        "sums": stream,
        "filtered": stream.where(f"{number} > 0"),
        "items": stream.flat_map(f"array({number}, 7)", "n"),
        "branched": stream.branch(f"{number} > 1")[0],
        "rest": stream.branch(f"{number} > 1", "player = 'zoe'")[2],
    }
    for name in chosen:
        of = "n" if name == "items" else number
        shapes[name].group_by().aggregate(n=hf.sum(of)).store(name)
    strict = stream.on_error("skip").with_column("n", number).group_by().aggregate(n=hf.sum("n")).store("skipping")
    with app:
        app.process_all_available()
        found = {name: {key: row["n"] for key, row in entries_of(app, name).items()} for name in chosen}
        assert {key: row["n"] for key, row in entries_of(app, strict.name).items()} == {"ann": 1, "bob": 2, "cleo": 3}
        newest = app._started().log.newest()
    every = {"ann": 1, "bob": 2, "cleo": 3}
    others = {
        "items": {"ann": 8, "bob": 9, "cleo": 10},
        "branched": {"bob": 2, "cleo": 3},
        "rest": {"ann": 1},
    }
    assert found == {name: others.get(name, every) for name in chosen}
    ((reason, record),) = letters_of(tmp_path)  # the first that runs reports it
    assert record == "x"
    assert re.match(r"an expression of sums failed: \[CAST_INVALID_INPUT\] The value 'x' of the type [^\n]*$", reason)
    assert "SQLSTATE" not in reason
    assert newest is not None
    assert (newest.counts["records"], newest.counts["dead"]) == (4, 1)


@pytest.mark.usefixtures("compiled_plans")
def test_a_record_that_is_skipped_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [text("ann", '{"n": 1}'), text("bob", "garbage")], TEXT)
    write(tmp_path / "input", 2, [text("ann", '{"n": 2}'), text("bob", "garbage")], TEXT)
    app, stream = text_app(spark, tmp_path)
    parsed = "from_json(text, 'n int', map('mode', 'FAILFAST'))"
    stream.on_error("skip").with_column("event", parsed).group_by().aggregate(n=hf.sum("event.n")).store("sums")
    with app:
        app.process_all_available()
        assert {key: row["n"] for key, row in entries_of(app, "sums").items()} == {"ann": 3}
        log = app._started().log
        commits = [log.commit(Version(n)) for n in (1, 2)]
    counts = [each.counts for each in commits if each is not None]
    assert [(each["records"], each["skipped/sums"]) for each in counts] == [(2, 1), (2, 1)]


@pytest.mark.usefixtures("compiled_plans")
def test_a_test_driver_sets_failed_records_apart(spark: SparkSession) -> None:
    """As an app on Spark does, in a step and in an aggregate."""

    def driver_of(on_error: OnError) -> TestDriver:
        app = hf.App("local", settings=hf.Settings(on_error=on_error))
        stream = app.stream(records("player string, text string"), key="player", name="texts")
        stream.with_column("n", "CAST(text AS int)").group_by().aggregate(n=hf.sum("n")).store("steps")
        stream.group_by().aggregate(n=hf.sum("CAST(text AS int)")).store("sums")
        return TestDriver(app)

    batch = [{"player": "ann", "text": "1"}, {"player": "ann", "text": "x"}, {"player": "bob", "text": "2"}]
    driver = driver_of("dead_letter")
    driver.pipe("texts", batch)
    assert (
        dict(driver.store("steps").items()) == dict(driver.store("sums").items()) == {"ann": {"n": 1}, "bob": {"n": 2}}
    )
    (letter,) = driver.dead_letters()
    assert letter["reason"].startswith(
        "with_column('n', 'CAST(text AS int)') failed: [CAST_INVALID_INPUT] The value 'x'"
    )
    assert letter["record"] == {"player": "ann", "text": "x"}
    assert (driver.counts["records"], driver.counts["dead"]) == (3, 1)
    driver = driver_of("skip")
    driver.pipe("texts", batch)
    assert driver.counts["skipped/steps"] == 1
    assert driver.dead_letters() == []
    app = hf.App("one")
    stream = app.stream(records("player string, text string"), key="player", name="texts").on_error("skip")
    stream.with_column("n", "CAST(text AS int)").group_by().aggregate(n=hf.sum("n")).store("steps")
    driver = TestDriver(app)
    driver.pipe("texts", batch)
    assert (driver.counts["records"], driver.counts["skipped/steps"]) == (3, 1)
    with pytest.raises(RecordFailed, match=r'with_column.*failed.*"text":"x"'):
        driver_of("fail").pipe("texts", batch)


def sums_of(stream: hf.Stream, modes: dict[str, OnError]) -> None:
    for name, on_error in modes.items():
        stream.on_error(on_error).group_by().aggregate(n=hf.sum("CAST(text AS int)")).store(name)


MODES: dict[str, OnError] = {"a": "skip", "b": "dead_letter", "c": "skip", "d": "dead_letter"}
OF_ONE_RECORD = {"skipped/a": 1, "dead": 1, "skipped/c": 1}
"""Each store that skips counts the record, and of those that keep it, the first does."""


@pytest.mark.usefixtures("compiled_plans")
def test_each_store_decides_about_a_record_that_fails_in_several(spark: SparkSession) -> None:
    batch = [{"player": "ann", "text": "1"}, {"player": "ann", "text": "x"}]

    def driver_of(modes: dict[str, OnError]) -> TestDriver:
        app = hf.App("local")
        sums_of(app.stream(records("player string, text string"), key="player", name="texts"), modes)
        return TestDriver(app)

    driver = driver_of(MODES)
    driver.pipe("texts", batch)
    assert [dict(driver.store(name).items()) for name in MODES] == [{"ann": {"n": 1}}] * 4
    assert {name: n for name, n in driver.counts.items() if name not in ("records", "keys")} == OF_ONE_RECORD
    (letter,) = driver.dead_letters()
    assert letter["reason"].startswith("an expression of b failed")
    for earlier in ("skip", "dead_letter"):
        with pytest.raises(RecordFailed, match="an expression of b failed"):
            driver_of({"a": earlier, "b": "fail"}).pipe("texts", batch)


def test_each_store_decides_about_a_record_on_spark_too(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "input", 1, [text("ann", "1"), text("ann", "x")], TEXT)
    app, stream = text_app(spark, tmp_path)
    sums_of(stream, MODES)
    with app:
        app.process_all_available()
        assert [entries_of(app, name) for name in MODES] == [{"ann": {"n": 1}}] * 4
        newest = app._started().log.newest()
    assert newest is not None
    assert newest.counts == OF_ONE_RECORD | {"records": 2, "keys": 4}
    assert "a step of a has failed for a record" in caplog.text, "Spark has logged traces"
    assert not [each.name for each in caplog.records if "QueryContextLogger" in each.name]
    ((reason, _),) = letters_of(tmp_path)
    assert reason.startswith("an expression of b failed")
    write(tmp_path / "input", 2, [text("ann", "y")], TEXT)
    app, stream = text_app(spark, tmp_path)
    sums_of(stream, {**MODES, "strict": "fail"})
    with app, pytest.raises(RecordFailed, match='an expression of strict failed.*"text":"y"'):
        app.process_all_available()


TEXTS = pa.schema([("player", pa.string()), ("points", pa.string()), ("at", pa.timestamp("us", "UTC"))])


@pytest.mark.parametrize("odd", ["another type", "garbage"])
def test_a_file_that_spark_cannot_read_stops_the_app_with_its_name_and_the_next_step(
    spark: SparkSession, tmp_path: Path, odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch isn't tried again. The next start reads the file that was written again, or leaves it out."""
    write(tmp_path / "input", 1, [game("alice", 1)])
    write(tmp_path / "input", 2, [{"player": "bob", "points": "x", "at": NOON}], TEXTS)
    path = tmp_path / "input" / "0002.parquet"
    if odd == "garbage":
        path.write_bytes(b"PAR1, or so")
    write(tmp_path / "input", 3, [game("bob", 3)])
    said = {"another type": r"column \[points\]. Expected Spark type bigint", "garbage": "is not a Parquet file"}
    app = points_app(spark, tmp_path).start()
    with pytest.raises(UnreadableFile, match=rf"the file \S+/input/0002.parquet .*{said[odd]}.*under its name"):
        app.process_all_available()
    assert app._states.wait_for(AppState.ERROR, timeout=60)
    app.stop()
    assert "attempt 1 failed" not in caplog.text
    assert "at org.apache" not in str(app.cause) and len(str(app.cause)) < 1000
    if odd == "another type":
        skipping = hf.App("points", settings=settings(tmp_path), spark=spark)
        reader = spark.readStream.schema("player string, points long, at timestamp")
        frame = reader.option("ignoreCorruptFiles", "true").parquet(str(tmp_path / "input"))
        stream = skipping.stream(frame, key="player", timestamp="at")
        stream.group_by().aggregate(games=hf.count(), points=hf.sum("points")).store("points")
        assert finish(skipping) == {"alice": {"games": 1, "points": 1}, "bob": {"games": 1, "points": 3}}
        return
    write(tmp_path / "input", 2, [game("bob", 2)])
    assert finish(points_app(spark, tmp_path)) == {
        "alice": {"games": 1, "points": 1},
        "bob": {"games": 2, "points": 5},
    }
