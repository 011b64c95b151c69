"""Tables from changelogs, on real Spark: the newest row per key, and tombstones."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from tests.apps import NOON, entries_of, read, settings, write

pytestmark = pytest.mark.spark

CHANGE = pa.schema([("id", pa.int64()), ("city", pa.string()), ("op", pa.string()), ("at", pa.timestamp("us", "UTC"))])
COLUMNS = "id long, city string, op string, at timestamp"


def change(id: int, city: str | None, second: int, op: str = "PUT") -> dict[str, object]:
    return {"id": id, "city": city, "op": op, "at": NOON + timedelta(seconds=second)}


def test_a_table_has_the_newest_row_per_key(spark: SparkSession, tmp_path: Path) -> None:
    changes = tmp_path / "changes"
    write(changes, 1, [change(1, "Basel", 5), change(1, "Bern", 2), change(2, "Thun", 1), change(3, "Chur", 1)], CHANGE)
    write(changes, 2, [change(1, "Genf", 4), change(2, None, 3, "DELETE"), change(9, None, 3, "DELETE")], CHANGE)
    write(changes, 3, [change(3, None, 2), change(4, "Biel", 4), change(4, None, 6, "DELETE")], CHANGE)
    app = hf.App("cities", settings=settings(tmp_path), spark=spark)
    source = read(spark, changes, COLUMNS)
    memory = hf.memory()
    table = app.table(source, "players", key="id", timestamp="at", deleted="op = 'DELETE'").sink(memory)
    table.to_stream().where("not _deleted").key_by("city").group_by().count().store("arrivals")
    with app:
        app.process_all_available()
        assert entries_of(app, "players") == {
            1: {"city": "Basel", "op": "PUT", "at": "2026-01-01T12:00:05Z"},
            3: {"city": None, "op": "PUT", "at": "2026-01-01T12:00:02Z"},
        }
        assert entries_of(app, "arrivals") == {city: {"count": 1} for city in ("Basel", "Thun", "Chur")}
    sent = [{(row["id"], row["city"], row["_deleted"]) for row in rows} for rows in memory.versions.values()]
    assert sent == [
        {(1, "Basel", False), (2, "Thun", False), (3, "Chur", False)},
        {(2, None, True)},
        {(3, None, False)},
    ], "an older row, a tombstone of an unknown key and one that came and went in a version change nothing"


def test_without_event_times_the_last_row_is_the_newest(spark: SparkSession, tmp_path: Path) -> None:
    changes = tmp_path / "changes"
    write(changes, 1, [change(1, "Basel", 5)], CHANGE)
    write(changes, 2, [change(1, "Bern", 2)], CHANGE)
    app = hf.App("untimed", settings=settings(tmp_path), spark=spark)
    app.table(read(spark, changes, COLUMNS), "players", key="id")
    with app:
        app.process_all_available()
        assert {key: row["city"] for key, row in entries_of(app, "players").items()} == {1: "Bern"}


def test_what_cannot_be_a_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "changes").mkdir()
    app = hf.App("wrong", settings=settings(tmp_path), spark=spark)
    source = read(spark, tmp_path / "changes", COLUMNS)
    with pytest.raises(TopologyError, match=r"of type string, and must be true or false"):
        app.table(source, "players", key="id", deleted="op")
    with pytest.raises(TopologyError, match=r"no column 'opp'.*'op'"):
        app.table(source, "players", key="id", deleted="opp = 'x'")
    with pytest.raises(TopologyError, match="no column beside its key"):
        app.table(source.select("id"), "ids", key="id")
