"""Global tables on real Spark: one app with a changelog and static rows, joins, a processor, queries, restarts."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.log.appfile import AppChanged
from holdfast.pipeline.sinks.builtin import Memory
from tests.apps import entries_of, game, get, read, settings, write
from tests.test_changelog_tables import CHANGE, COLUMNS, change

pytestmark = pytest.mark.spark


class Named(hf.Processor):
    """The city of each player, and how many there are."""

    cities = hf.GlobalStore("cities", key=int)
    sizes = hf.GlobalStore("sizes")

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        row = None if event.points is None else self.cities.get(event.points)
        size = self.sizes.get(row["city"]) if row else None
        ctx.forward(key, {"size": size["people"] if size else None, "cities": sum(1 for _ in self.cities)})


class Outputs:
    """The sinks of one run."""

    def __init__(self) -> None:
        self.looked_up, self.sized, self.processed, self.expressed = hf.memory(), hf.memory(), hf.memory(), hf.memory()


def app_of(spark: SparkSession, folder: Path, sizes: dict[str, int], ranks: dict[str, int], outputs: Outputs) -> hf.App:
    """Games whose points are the id of a city: a join, one after it, a processor, and one by an expression."""
    app = hf.App(
        "global", settings=settings(folder, instances=2, batch=hf.BatchSettings(idle_interval="100ms")), spark=spark
    )
    games = app.stream(read(spark, folder / "games"), key="player", timestamp="at", name="games")
    changes = read(spark, folder / "changes", COLUMNS)
    cities = app.global_table(changes, "cities", key="id", timestamp="at", deleted="op = 'DELETE'")
    static = spark.createDataFrame(list(sizes.items()), "city string, people long").repartition(3)
    table = app.global_table(static, "sizes", key="city")
    joined = games.join(cities, how="left", on="points", name="looked-up", prefix="c_").sink(outputs.looked_up)
    joined.to_stream().join(table, on="c_city", name="sized").sink(outputs.sized)
    games.process(Named, output="player string, size bigint, cities bigint").sink(outputs.processed)
    schema = pa.schema([("name", pa.string()), ("rank", pa.int64())])
    rows = pa.Table.from_pylist([{"name": name, "rank": rank} for name, rank in ranks.items()], schema)
    upper = app.global_table(rows, "ranks", key="name")
    games.select("player", "at").join(upper, on=F.upper("player"), name="ranked").sink(outputs.expressed)
    return app


def values(memory: Memory, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[column] for column in columns) for row in memory.rows()), key=repr)


def test_every_task_reads_every_row(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "games", 1, [game("ann", 1), game("bob", 2), game("cid", 3), game("dee", None)])
    write(tmp_path / "changes", 1, [change(1, "Bern", 1), change(2, "Ulm", 1)], CHANGE)
    write(tmp_path / "games", 2, [game("ann", 2), game("bob", 3)])
    write(tmp_path / "changes", 2, [change(2, None, 2, "DELETE"), change(3, "Ulm", 2)], CHANGE)
    first = Outputs()
    app = app_of(spark, tmp_path, {"Bern": 144, "Ulm": 129}, {"ANN": 1}, first)
    with app:
        app.process_all_available()
        assert app.version == 2
        assert {key: row["city"] for key, row in entries_of(app, "cities").items()} == {1: "Bern", 3: "Ulm"}
        assert get(app, "/v1/stores/sizes/keys/Ulm")[1]["value"] == {"people": 129}
        assert {each["store"]: each["partitions"] for each in get(app, "/v1/stores")[1]["stores"]} == dict.fromkeys(
            ("cities", "ranks", "sizes"), 1
        )
        assert sorted(each["task"] for each in get(app, "/v1/state")[1]["tasks"]) == ["0_0", "1_0", "5_0"]
        assert "task 1_0" in app.describe() and "on upper(player), not shuffled" in app.describe()
    assert values(first.looked_up, "player", "c_city") == [
        ("ann", "Bern"),
        ("ann", None),
        ("bob", "Ulm"),
        ("bob", "Ulm"),
        ("cid", None),
        ("dee", None),
    ]
    assert values(first.sized, "player", "people") == [("ann", 144), ("bob", 129), ("bob", 129)]
    assert values(first.processed, "player", "size", "cities") == [
        ("ann", 144, 2),
        ("ann", None, 2),
        ("bob", 129, 2),
        ("bob", 129, 2),
        ("cid", None, 2),
        ("dee", None, 2),
    ]
    assert values(first.expressed, "player", "rank") == [("ann", 1), ("ann", 1)]

    second = Outputs()
    app = app_of(spark, tmp_path, {"Ulm": 130, "Chur": 38}, {}, second)
    with app:
        while app.version < 3:  # the driver makes a version for the static rows: no record arrives
            app.process_all_available()
        assert entries_of(app, "sizes") == {"Ulm": {"people": 130}, "Chur": {"people": 38}}
        assert entries_of(app, "ranks") == {}, "a DataFrame without rows empties the table"
        write(tmp_path / "games", 3, [game("ann", 3), game("bob", 1)])
        write(tmp_path / "changes", 3, [change(1, "Chur", 3)], CHANGE)
        app.process_all_available()
        assert app.version == 4
    assert values(second.sized, "player", "people") == [("ann", 130), ("bob", 38)]
    assert values(second.expressed, "player") == []

    other = hf.App("global", settings=settings(tmp_path, instances=2), spark=spark)
    other.table(read(spark, tmp_path / "changes", COLUMNS), "cities", key="id", timestamp="at", deleted="op = 'DELETE'")
    with pytest.raises(AppChanged, match="store 'cities' has one_partition True in the log and False in the code"):
        other.start()
