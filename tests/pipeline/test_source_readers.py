"""Several sub-topologies on one stream, on real Spark: a record counts once, and declarations may move."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.metrics import REGISTRY
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


def batches_by(store: str, plan: str) -> float:
    return REGISTRY.get_sample_value("holdfast_table_batches_total", {"store": store, "plan": plan}) or 0.0


def dead_letters(folder: Path, app: str) -> list[dict[str, Any]]:
    files = (folder / "base" / app / "dead-letters").glob("[0-9]*.json")
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ((same, same, same), (9, 9, 9)),
        ((where("points < 100"), where("points >= 0"), same), (9, 9, 9)),
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
    before, fast = counted(), batches_by("points", "grouped")
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
    assert batches_by("points", "grouped") - fast == 1, "a dead letter of another sub-topology rejects no fast plan"


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
