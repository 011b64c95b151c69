"""What a test gives to the driver and asks it for: records, the names of outputs, and columns that aren't there."""

import os
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import BadValue, TopologyError
from holdfast.testing import TestDriver, records
from tests.testing.test_driver import GAMES, game, games_app, without_spark

__all__ = ["without_spark"]  # a fixture for all tests here


def add(value: int, event: Any) -> int:
    return value + int(event.points)


def test_outputs_of_functions_have_the_names_that_those_of_aggregates_have() -> None:
    app, games = games_app()
    minutes = games.group_by().window(hf.tumbling("1m"))
    for table in (minutes.count().store("counted"), minutes.aggregate_with(int, add, value=int).store("added")):
        table.final()
        _ = table.late
    games.group_by().reduce(max, of="points").store("best")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 3, 1), game("zoe", 1, 120)])
    driver.pipe("games", [game("ann", 5, 2)])
    for name in ("counted", "added"):
        assert sorted(row["player"] for row in driver.output(name)) == ["ann", "zoe"]
        assert [row["player"] for row in driver.output(f"{name}/final")] == ["ann"]
        assert [row["points"] for row in driver.output(f"{name}/late")] == [5]
    assert sorted(row["value"] for row in driver.output("best")) == ["1", "3", "5"]
    with pytest.raises(TopologyError, match="several outputs have this name.*added/final.*counted/final"):
        driver.output("final")
    with pytest.raises(TopologyError, match="no output has this name. Did you mean 'best'"):
        driver.output("bset")


class Seen(hf.Processor):
    """Has an output and a store of one name."""

    seen = hf.KeyValueStore("seen", value=int)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.seen[key] = event.points
        ctx.forward(key, {"points": event.points}, to="alerts")


def test_outputs_and_stores_of_a_processor() -> None:
    app, games = games_app()
    games.process(Seen, outputs={"alerts": "player string, points bigint"}, name="visits")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 3, 1)])
    assert [row["points"] for row in driver.output("visits/alerts")] == [3]
    assert [row["value"] for row in driver.output("visits/seen")] == ["3"]
    driver.pipe("games", [game("ann", 4, 2)])
    assert [row["points"] for row in driver.output("alerts")] == [4]
    assert [row["value"] for row in driver.output("seen")] == ["4"]


@dataclass
class Game:
    player: str
    points: int
    at: int


@pytest.mark.parametrize("record", [{"player": "ann", "points": 3, "at": 0}, Game("ann", 3, 0)], ids=["dict", "object"])
def test_a_single_record_needs_no_list(record: Any) -> None:
    app, games = games_app()
    games.group_by().count().store("counts")
    driver = TestDriver(app)
    driver.pipe("games", record)
    driver.pipe_all({"games": record})
    assert driver.store("counts").get("ann") == {"count": 2}


@pytest.mark.parametrize("given", ["ann", 3, ["ann"], [("ann", 3)], None])
def test_what_is_no_record_is_named(given: Any) -> None:
    app, games = games_app()
    games.group_by().count().store("counts")
    with pytest.raises(
        TopologyError, match=r"pipe\('games'\): .* is not a record. Pass mappings, dataclasses or Structs"
    ):
        TestDriver(app).pipe("games", given)


def test_a_misspelt_column_is_named_without_spark() -> None:
    app, games = games_app()
    with pytest.raises(
        TopologyError, match=r"total=sum\(pionts\): The stream has no column 'pionts'. Did you mean 'points"
    ):
        games.group_by().aggregate(total=hf.sum("pionts")).store("totals")
    with pytest.raises(TopologyError, match="no column 'pionts'"):
        games.group_by().window(hf.tumbling("1m")).aggregate(total=hf.max("pionts")).store("totals")
    with pytest.raises(TopologyError, match="no column 'gnoe'"):
        app.table(records(f"{GAMES}, gone boolean"), "players", key="player", deleted="gnoe")
    places = app.global_table(records("id bigint, name string"), "places", key="id")
    with pytest.raises(TopologyError, match="no column 'pionts'"):
        games.join(places, on="pionts", name="placed")


def test_decimals_may_be_texts() -> None:
    app = hf.App("money")
    app.stream(records("player string, spent decimal(10,2)"), key="player", name="games").group_by().aggregate(
        spent=hf.sum("spent")
    ).store("spent")
    driver = TestDriver(app)
    driver.pipe("games", [{"player": "ann", "spent": "12.50"}, {"player": "ann", "spent": Decimal("0.25")}])
    assert driver.store("spent").get("ann") == {"spent": Decimal("12.75")}
    with pytest.raises(BadValue, match="column 'spent' can't be decimal.*: 'much' is not a decimal number"):
        driver.pipe("games", {"player": "ann", "spent": "much"})
    with pytest.raises(BadValue, match=r'0.1 is a float, which is not exact. Write Decimal\("0.1"\) or "0.1"'):
        driver.pipe("games", {"player": "ann", "spent": 0.1})


def test_final_rows_that_nobody_has_asked_for_are_an_error_that_says_how() -> None:
    app = hf.App("minutes")
    stream = app.stream(records("player string, at timestamp"), key="player", timestamp="at", name="games")
    stream.group_by().window(hf.tumbling("1m")).count().store("minutes")
    with pytest.raises(TopologyError, match=r"no table sends final rows. .*: table.final\(\)"):
        TestDriver(app).output("minutes/final")


STEP = """
import holdfast as hf
from holdfast.testing import records
stream = hf.App("steps").stream(records("player string, points bigint"), key="player")
stream.with_column("double", "points * 2")
"""


def test_a_step_that_needs_spark_says_so_before_it_starts_it() -> None:
    """Here there is no Java: what is said comes before the attempt."""
    environment = {**os.environ, "PATH": "", "JAVA_HOME": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", STEP], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "Spark is started on this machine, which takes some seconds: a step or an expression" in done.stderr
