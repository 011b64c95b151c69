"""Leaderboards on real Spark: the best rows of a table, per group and of all, from version to version."""

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.pipeline.sinks.builtin import Memory
from tests.apps import NOON, entries_of, game, get, read, settings, write

pytestmark = pytest.mark.spark


def leaderboards(spark: SparkSession, folder: Path, memory: Memory) -> hf.App:
    app = hf.App("games", settings=settings(folder), spark=spark)
    frame = read(spark, folder / "input")
    players = app.table(frame, "players", key="player", timestamp="at", deleted="points < 0")
    players.top(2, by="points", name="best").sink(memory)
    games = app.stream(frame, key="player", timestamp="at").where("points >= 0").with_column("game", "points % 2")
    totals = games.group_by("game", "player").aggregate(total=hf.sum("points")).store("totals")
    totals.top(1, by="total", per="game", name="champions")
    return app


def test_the_best_rows_follow_the_table(spark: SparkSession, tmp_path: Path) -> None:
    memory = hf.memory()
    write(tmp_path / "input", 1, [game("ann", 5), game("bob", 4), game("cleo", 3)])
    with leaderboards(spark, tmp_path, memory) as app:
        app.process_all_available()
        assert entries_of(app, "best") == {"all": [rated("ann", 5), rated("bob", 4)]}
        assert entries_of(app, "champions") == {0: [champion("bob", 4)], 1: [champion("ann", 5)]}
    shutil.rmtree(tmp_path / "base" / "games" / "state")
    write(tmp_path / "input", 2, [game("ann", -1), game("cleo", 7)])
    with leaderboards(spark, tmp_path, memory) as app:
        app.process_all_available()
        assert entries_of(app, "best") == {"all": [rated("cleo", 7), rated("bob", 4)]}, "ann is gone, bob moves up"
        assert entries_of(app, "champions") == {0: [champion("bob", 4)], 1: [champion("cleo", 10)]}
        assert [rank(app, "best", "all", player) for player in ("cleo", "bob", "ann")] == [1, 2, None]
        assert rank(app, "champions", 1, "ann") == 2
        status, top = get(app, "/v1/stores/champions/top/1?limit=5")
        assert status == 200, top
        assert [(row["rank"], row["value"]["player"]) for row in top["top"]] == [(1, "cleo"), (2, "ann")]
        for name in top["top"][0]["value"]:  # of the ranking's key, its score and its other columns
            status, some = get(app, f"/v1/stores/champions/top/1?fields={name}")
            assert [row["value"] for row in some["top"]] == [{name: row["value"][name]} for row in top["top"]]
    assert [row["_deleted"] for row in memory.rows()] == [False, False], "one row per version"


def rank(app: hf.App, name: str, *row: object) -> int | None:
    status, found = get(app, f"/v1/stores/{name}/rank/{quote(json.dumps(row))}")
    assert status == 200, found
    places: list[int] = [each["rank"] for each in found["rank"]]
    return places[0] if places else None


def rated(player: str, points: int) -> dict[str, Any]:
    return {"player": player, "points": points, "at": NOON.isoformat().replace("+00:00", "Z")}


def champion(player: str, total: int) -> dict[str, Any]:
    return {"player": player, "total": total}


def test_a_leaderboard_that_could_not_be_right_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    app = hf.App("wrong", settings=settings(tmp_path), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
    table = stream.group_by().aggregate(total=hf.sum("points")).store("totals")
    with pytest.raises(TopologyError, match="n is a whole number from 1 to 1000"):
        table.top(0, by="total", name="none")
    with pytest.raises(TopologyError, match="is not in the table's key"):
        table.top(3, by="total", per="game", name="none")
    with pytest.raises(TopologyError, match="no column 'totl'"):
        table.top(3, by="totl", name="none")
    with pytest.raises(TopologyError, match="each group is one row"):
        table.top(3, by="total", per="player", name="none")
    expiring = stream.group_by().aggregate(total=hf.sum("points")).store("expiring", ttl="1h")
    with pytest.raises(TopologyError, match="end without a sign"):
        expiring.top(3, by="total", name="none")
