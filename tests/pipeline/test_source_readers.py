"""Several sub-topologies on one stream, on real Spark: a record counts once, and declarations may move."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.metrics import REGISTRY
from holdfast.testing import TestDriver
from holdfast.testing import records as columns_of
from tests.apps import entries_of, game, read, settings, write

pytestmark = pytest.mark.spark

Change = Callable[[hf.Stream], hf.Stream]


class Seen(hf.Processor):
    seen = hf.KeyValueStore("seen", value=int)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.seen[key] = self.seen.get(key, 0) + 1


def same(stream: hf.Stream) -> hf.Stream:
    return stream


def where(condition: str) -> Change:
    return lambda stream: stream.where(condition)


def counted() -> dict[str, float]:
    names = ("holdfast_records_total", "holdfast_dead_letters_total")
    return {name: REGISTRY.get_sample_value(name) or 0.0 for name in names}


def dead_letters(folder: Path, app: str) -> list[dict[str, Any]]:
    files = (folder / "base" / app / "dead-letters").glob("[0-9]*.json")
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        pytest.param((same, same, same), (9, 9, 9), marks=pytest.mark.slow),
        pytest.param((where("points < 100"), where("points >= 0"), same), (9, 9, 9), marks=pytest.mark.slow),
        ((where("points < 5"), where("points > 2"), where("points <> 4")), (4, 6, 8)),
    ],
)
def test_a_record_and_a_dead_letter_count_once(
    spark: SparkSession, tmp_path: Path, changes: tuple[Change, Change, Change], counts: tuple[int, int, int]
) -> None:
    """In the last case no sub-topology reads all records; the one without event time passes all filters."""
    records = [game(f"p{n % 4}", n) for n in range(10)]
    records[3]["at"] = None
    write(tmp_path / "input", 1, records)
    app = hf.App("once", settings=settings(tmp_path), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
    changes[0](stream).group_by().count().store("players")
    changes[1](stream).group_by("points").count().store("points")
    changes[2](stream).process(Seen)
    before = counted()
    with app:
        app.process_all_available()
        found = [sum(row["count"] for row in entries_of(app, store).values()) for store in ("players", "points")]
        assert (*found, sum(entries_of(app, "seen").values())) == counts
    assert {name: number - before[name] for name, number in counted().items()} == {
        "holdfast_records_total": 10,
        "holdfast_dead_letters_total": 1,
    }
    letters = [(letter["reason"], letter["times"]) for letter in dead_letters(tmp_path, "once")]
    assert letters == [("no event time: at is null", 1)]


class Named(msgspec.Struct):
    player: str


class Scored(msgspec.Struct):
    points: int


class Games(hf.Processor):
    games = hf.KeyValueStore("games", value=int)

    def process(self, key: str, event: Named, ctx: hf.Context) -> None:
        self.games[key] = self.games.get(key, 0) + 1


class Points(hf.Processor):
    best = hf.KeyValueStore("best", value=int)

    def process(self, key: str, event: Scored, ctx: hf.Context) -> None:
        self.best[key] = max(self.best.get(key, 0), event.points)


@pytest.mark.parametrize("first", ["aggregate", "processor", "merged"])
def test_a_dead_letter_has_the_columns_that_later_readers_use(spark: SparkSession, tmp_path: Path, first: str) -> None:
    """In the first batch with one, and in the next, where they are expected."""
    (tmp_path / "input").mkdir()
    app = hf.App("whole", settings=settings(tmp_path), spark=spark)
    frame = read(spark, tmp_path / "input").withColumn("unused", F.lit(1)).withColumn("day", F.to_date("at"))
    stream = app.stream(frame, key="player", timestamp="at")
    match first:
        case "aggregate":
            stream.group_by().count().store("first")
        case "processor":
            stream.process(Games)
        case _:
            low, rest = stream.branch("points < 5")
            low.merge(rest).group_by().count().store("first")
    stream.process(Points)
    stream.with_column("later", "date_add(day, 1)").group_by().aggregate(day=hf.max("later")).store("days")
    with app:
        for batch in (1, 2):
            write(tmp_path / "input", batch, [game("ann", batch), {**game("bob", batch), "at": None}])
            app.process_all_available()
    found = [json.loads(letter["record"]) for letter in dead_letters(tmp_path, "whole")]
    source = {"_source": "main"} if first == "merged" else {}
    wanted = [{"player": "bob", "at": None, "points": batch, "day": None, **source} for batch in (1, 2)]
    assert sorted(found, key=lambda record: record["points"]) == wanted


class Scores(hf.Processor):
    """Forwards each record, under a key that it may not have."""

    def process(self, key: int, event: Any, ctx: hf.Context) -> None:
        ctx.forward(None, {"name": event.player if event.points != 7 else None, "points": event.points})


@pytest.mark.parametrize(
    "chosen",
    [
        ("selected", "items", "twice"),
        pytest.param(("computed", "selected", "transformed", "shuffled", "items"), marks=pytest.mark.slow),
        pytest.param(("keyed", "low", "merged", "twice"), marks=pytest.mark.slow),
    ],
    ids=["some", "steps", "branches"],
)
def test_steps_of_any_kind_report_a_record_once(spark: SparkSession, tmp_path: Path, chosen: tuple[str, ...]) -> None:
    """One record has no event time, and one row of an output no key: two dead letters, whoever reads them after which
    steps."""
    records = [{**game(f"p{n % 4}", n)} for n in range(10)]
    records[3]["at"] = None
    write(tmp_path / "input", 1, records)
    app = hf.App("shapes", settings=settings(tmp_path), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
    low, rest = stream.branch("points < 5")
    shapes = {
        "computed": stream.with_column("points", "points * 2"),
        "selected": stream.select("player", "at", F.expr("points + 1").alias("more")),
        "transformed": stream.transform(lambda df: df.select("at", "player").withColumn("day", F.to_date("at"))),
        "shuffled": stream.transform(lambda df: df.select("player", "at", "points").repartition(3)),
        "items": stream.flat_map("array(points, points)", "item"),
        "keyed": stream.drop("player").key_by("points"),
        "low": low,
        "merged": low.merge(rest),
        "twice": stream.where("points > 0").merge(stream.where("points < 100")),
    }
    for name in chosen:
        shapes[name].group_by().count().store(name)
    processed = stream.key_by("points").process(Scores, output="name string, points bigint")
    processed.to_stream(key="name").group_by().count().store("names")
    processed.to_stream(key="name").where("points > 6").group_by().count().store("more-names")
    before = counted()
    with app:
        app.process_all_available()
        found = {name: sum(row["count"] for row in entries_of(app, name).values()) for name in chosen}
        names = [sum(row["count"] for row in entries_of(app, name).values()) for name in ("names", "more-names")]
    assert found == {name: {"items": 18, "low": 4, "twice": 17}.get(name, 9) for name in chosen}
    assert names == [8, 2]
    letters = sorted((letter["reason"], letter["times"]) for letter in dead_letters(tmp_path, "shapes"))
    assert letters == [("no event time: at is null", 1), ("no key: name is null", 1)]
    assert {name: number - before[name] for name, number in counted().items()} == {
        "holdfast_records_total": 10,
        "holdfast_dead_letters_total": 2,
    }


@pytest.mark.parametrize("readers", [1, 2])
def test_a_record_is_counted_once_however_many_a_shared_flat_map_makes_of_it(
    spark: SparkSession, tmp_path: Path, readers: int
) -> None:
    def build(app: hf.App, games: Any) -> None:
        stream = app.stream(games, key="player", timestamp="at", name="games").where("points < 9")
        items = stream.flat_map("sequence(1, points)", "item")
        for n in range(readers):
            items.group_by().count().store(f"items-{n}")

    records = [game(f"p{n % 4}", n + 1) for n in range(10)]
    write(tmp_path / "input", 1, records)
    app = hf.App("items", settings=settings(tmp_path), spark=spark)
    build(app, read(spark, tmp_path / "input"))
    before = counted()
    with app:
        app.process_all_available()
        assert sum(row["count"] for row in entries_of(app, "items-0").values()) == 36
    assert counted()["holdfast_records_total"] - before["holdfast_records_total"] == 8
    tested = hf.App("tested")
    build(tested, columns_of("player string, points bigint, at timestamp"))
    driver = TestDriver(tested)
    driver.pipe("games", records)
    assert driver.counts["records"] == 8


def test_a_step_that_makes_other_rows_reports_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody can say which record a row of mapInPandas was."""
    write(tmp_path / "input", 1, [game("ann", 1), game(None, 2)])
    app = hf.App("opaque", settings=settings(tmp_path), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input"), key="player")
    stream.group_by().count().store("plain")
    stream.transform(lambda df: df.mapInArrow(lambda batches: batches, df.schema)).group_by().count().store("mapped")
    with app:
        app.process_all_available()
        assert entries_of(app, "plain") == entries_of(app, "mapped") == {"ann": {"count": 1}}
    assert len(dead_letters(tmp_path, "opaque")) == 2


def test_a_random_filter_loses_no_dead_letter(spark: SparkSession, tmp_path: Path) -> None:
    """Whether the random reader reports a record can't be asked a second time."""
    write(tmp_path / "input", 1, [{**game("p", n), "player": None} for n in range(200)])
    app = hf.App("random", settings=settings(tmp_path), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
    stream.where("rand() < 0.5").group_by().count().store("some")
    stream.where("points >= 0").group_by().count().store("all")
    with app:
        app.process_all_available()
    assert sum(letter["times"] for letter in dead_letters(tmp_path, "random")) == 200


def test_adding_or_moving_operators_changes_no_task(spark: SparkSession, tmp_path: Path) -> None:
    def start(*declared: str) -> dict[str, int]:
        app = hf.App("moved", settings=settings(tmp_path), spark=spark)
        stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
        for name in declared:
            if name == "seen":
                stream.process(Seen)
            else:
                stream.group_by().count().store(name)
        with app:
            app.process_all_available()
            assert app.describe().count("tasks ") == len(declared)
            totals = {
                name: sum(row["count"] for row in entries_of(app, name).values()) for name in declared if name != "seen"
            }
            return {**totals, "seen": sum(entries_of(app, "seen").values())} | {
                f"number of {each.name}": each.number for each in app._topology.subtopologies
            }

    write(tmp_path / "input", 1, [game(f"p{n % 4}", n) for n in range(10)])
    first = start("players", "seen")
    assert first == {"players": 10, "seen": 10, "number of players": 0, "number of seen": 1}
    write(tmp_path / "input", 2, [game(f"p{n % 5}", n) for n in range(5)])
    second = start("more", "seen", "players")
    numbers = {"number of more": 2, "number of seen": 1, "number of players": 0}
    assert second == {"players": 15, "seen": 15, "more": 5, **numbers}
