"""Sub-topologies of one stage in one Spark job, on real Spark."""

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from tests.apps import NOON, entries_of, game, read, settings, write

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled_plans")]


def shop(spark: SparkSession, folder: Path, dead: hf.Sink) -> hf.App:
    """A table, an aggregate over merged branches, a join with the table, and an aggregate over the join's rows."""
    app = hf.App("shop", settings=settings(folder), spark=spark)
    buyers = app.table(read(spark, folder / "buyers"), "buyers", key="player", timestamp="at")
    stream = app.stream(read(spark, folder / "orders"), key="player", timestamp="at", name="orders")
    orders = stream.where("points >= 0").with_column("tax", "100 / points")
    small, _ = orders.branch("points < 50")
    merged = small.where("tax > 4").merge(orders.where("points >= 50"))
    merged.group_by().aggregate(n=hf.count(), total=hf.sum("points")).store("totals")
    joined = small.join(buyers, name="joined", prefix="b_")
    joined.to_stream().group_by().aggregate(n=hf.count(), last=hf.last("b_points")).store("small")
    app.dead_letters(dead)
    return app


def batch(dice: random.Random, number: int) -> list[dict[str, Any]]:
    names = [f"p{n}" for n in range(12)]
    at = [NOON + timedelta(seconds=60 * number + n) for n in range(40)]
    return [game(dice.choice(names), dice.randrange(1, 100), moment) for moment in at]


def jobs_of(spark: SparkSession) -> int:
    """How many jobs Spark has run so far."""
    jobs: int = spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()
    return jobs


class Expected:
    """The stores, computed record by record."""

    def __init__(self) -> None:
        self.buyers: dict[str, int] = {}
        self.totals: dict[str, dict[str, int]] = {}
        self.small: dict[str, dict[str, int]] = {}

    def add(self, buyers: list[dict[str, Any]], orders: list[dict[str, Any]]) -> None:
        self.buyers |= {each["player"]: each["points"] for each in buyers}
        for each in orders:
            player, points = each["player"], each["points"]
            if points >= 50 or 100 / points > 4:
                row = self.totals.setdefault(player, {"n": 0, "total": 0})
                row["n"], row["total"] = row["n"] + 1, row["total"] + points
            if points < 50 and player in self.buyers:
                own = self.small.setdefault(player, {"n": 0, "last": 0})
                own["n"], own["last"] = own["n"] + 1, self.buyers[player]

    def check(self, app: hf.App) -> None:
        assert entries_of(app, "totals") == self.totals
        assert entries_of(app, "small") == self.small
        assert {key: row["points"] for key, row in entries_of(app, "buyers").items()} == self.buyers


BROKEN = {2: [game(None, 30), game(None, 60)], 3: [game(None, 10), game("p1", 5, None)]}


def test_a_version_of_four_sub_topologies_is_one_job_and_reports_each_record_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two versions without unusable records, two with some, and one without."""
    dice, expected, dead = random.Random(5), Expected(), hf.memory()

    def write_one(number: int) -> None:
        buyers, orders = batch(dice, number)[:7], batch(dice, number)
        expected.add(buyers, orders)
        write(tmp_path / "buyers", number, [*buyers, *([game(None)] if number == 3 else [])])
        write(tmp_path / "orders", number, [*orders, *BROKEN.get(number, [])])

    write_one(0)
    write_one(1)
    before = jobs_of(spark)
    with shop(spark, tmp_path, dead) as app:
        app.process_all_available()
        expected.check(app)
        assert (app.version, jobs_of(spark) - before) == (2, 2)
        newest = app._started().driver.newest
        assert newest is not None and newest.counts["records"] == 7 + 40
        assert newest.clocks.sources.keys() == {"buyers", "orders"}
        tasks = {f"{number}_{partition}" for number in range(4) for partition in range(2)}
        assert newest.segments.keys() <= tasks, "each sub-topology has tasks and segments of its own"
        assert {task.partition("_")[0] for task in newest.segments} == {"0", "1", "2", "3"}
    for number in (2, 3, 4):
        write_one(number)
    with shop(spark, tmp_path, dead) as app:
        app.process_all_available()
        expected.check(app)
        assert app.version == 5
    letters = [(json.loads(str(row["record"]))["points"], row["times"]) for row in dead.rows()]
    assert sorted(letters) == [(1, 1), (5, 1), (10, 1), (30, 1), (60, 1)]
