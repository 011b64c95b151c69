"""Windows on real Spark: what stores, sinks and queries get, compared with Spark SQL and with a dictionary."""

from collections.abc import Sequence
from datetime import UTC, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.pipeline.sinks.builtin import Memory
from holdfast.words import Version
from tests import apps
from tests.apps import NOON, get, read, settings, write
from tests.test_tables import eventually

pytestmark = pytest.mark.spark

Record = dict[str, Any]
START = round(NOON.timestamp() * 1000)


def game(player: str | None, second: float, points: int = 1) -> Record:
    return apps.game(player, points, NOON + timedelta(seconds=second))


def run(spark: SparkSession, folder: Path, batches: Sequence[Sequence[Record]], build: Any) -> tuple[hf.App, Any]:
    """Runs an app over these batches. `build` adds a table to its stream."""
    for number, records in enumerate(batches):
        write(folder / "input", number, records)
    app = hf.App("windows", settings=settings(folder), spark=spark)
    made = build(app.stream(read(spark, folder / "input"), key="player", timestamp="at"))
    return app, made


TIMES = ("window_start", "window_end")


def seconds(rows: list[Record], *columns: str) -> list[tuple[Any, ...]]:
    """Rows of a sink: the key, start and end in seconds after noon, then these columns."""
    return [
        (row["player"], *((row[t] - NOON) / timedelta(seconds=1) for t in TIMES), *(row[each] for each in columns))
        for row in rows
    ]


def test_tumbling_windows_count_records_per_key_and_window(spark: SparkSession, tmp_path: Path) -> None:
    batches = [
        [game("ann", 1, 5), game("ann", 59, 7), game("ann", 60), game("bob", 30)],
        [game("ann", 20, 9), game("bob", 61), game("bob", 64.999)],  # the clock is at 60: the grace keeps 0 open
        [game("ann", 3), game("ann", 130), game(None, 131)],  # the clock is at 64.999
        [game("ann", 4), game("ann", 4), game("bob", 131)],  # the clock is at 130: two late records
    ]
    rows, late, dead = Memory(), Memory(), Memory()

    def build(stream: hf.Stream) -> None:
        table = (
            stream.group_by()
            .window(hf.tumbling("60s", grace="5s"))
            .aggregate(games=hf.count(), best=hf.max("points"))
            .store("games", retention="6h")
        )
        table.sink(rows)
        table.late.sink(late)
        table.topology.add_sink("dead-letters", dead, None)

    app, _ = run(spark, tmp_path, batches, build)
    with app:
        app.process_all_available()
        status, found = get(app, f"/v1/stores/games/windows/ann?from={START}&to={START + 60_000}")
        assert status == 200, found
        windows = [(w["start"] - START, w["end"] - START, w["value"]) for w in found["windows"]]
        log = app._started().driver.newest
    assert windows == [(0, 60_000, {"games": 4, "best": 9}), (60_000, 120_000, {"games": 1, "best": 1})]
    assert [sorted(seconds(rows.versions[Version(n)], "games", "best")) for n in (1, 2, 3, 4)] == [
        [("ann", 0, 60, 2, 7), ("ann", 60, 120, 1, 1), ("bob", 0, 60, 1, 1)],
        [("ann", 0, 60, 3, 9), ("bob", 60, 120, 2, 1)],
        [("ann", 0, 60, 4, 9), ("ann", 120, 180, 1, 1)],
        [("bob", 120, 180, 1, 1)],
    ]
    assert late.versions == {Version(4): [game("ann", 4), game("ann", 4)]}
    assert [row["reason"] for row in dead.rows()] == ["no key: player is null"]
    assert log is not None and log.counts["late/games"] == 2


def test_windows_equal_those_of_spark_sql_whatever_the_batches(spark: SparkSession, tmp_path: Path) -> None:
    """Out of order, many records per key in some batches and few in others: both plans run.

    With a long grace none is late; with a short one many are.
    """
    dice = Random(7)
    records = [game(f"p{dice.randrange(40)}", dice.uniform(0, 120), dice.randrange(100)) for _ in range(1_500)]
    batches = [records[:20], records[20:900], records[900:930], records[930:]]
    tables: dict[str, Any] = {
        "tumbling": hf.tumbling("10s", grace="1h"),
        "hopping": hf.hopping("10s", every="4s", grace="1h"),
        "session": hf.session("3s", grace="1h"),
        "sliding": hf.sliding("3s", grace="1h"),
        "short-tumbling": hf.tumbling("10s", grace="20s"),
        "short-hopping": hf.hopping("10s", every="4s", grace="20s"),
    }
    sinks, late = {name: Memory() for name in tables}, {name: Memory() for name in tables}

    def build(stream: hf.Stream) -> None:
        for name, windows in tables.items():
            aggregates = {"games": hf.count(), "total": hf.sum("points"), "last": hf.last("points")}
            table = stream.group_by().window(windows).aggregate(**aggregates).store(name)
            table.sink(sinks[name])
            table.late.sink(late[name])

    app, _ = run(spark, tmp_path, batches, build)
    with app:
        app.process_all_available()
    frame = spark.read.parquet(str(tmp_path / "input")).selectExpr(
        "player", "points", "at AS exact", "timestamp_millis(unix_millis(at)) AS at", "_metadata.file_name AS batch"
    )
    spans = {
        "tumbling": "window(at, '10 seconds')",
        "hopping": "window(at, '10 seconds', '4 seconds')",
        "session": "session_window(at, '3 seconds')",
    }
    columns = ("games", "total", "last")
    for name, span in spans.items():
        w = span.split("(")[0]
        end = f"{w}.end" if name != "session" else f"{w}.end - INTERVAL 3 SECONDS"  # Spark's ends a gap later
        query = (
            f"SELECT player, {w}.start AS window_start, {end} AS window_end, count(1) AS games, sum(points) AS total, "
            f"max_by(points, struct(exact, points)) AS last FROM {{frame}} GROUP BY player, {span}"
        )
        expected = {row[:3]: row[3:] for row in seconds(utc(spark.sql(query, frame=frame).collect()), *columns)}
        assert {row[:3]: row[3:] for row in seconds(rows_left(sinks[name]), *columns)} == expected, name
        assert late[name].rows() == []
    for name, hop in {"short-tumbling": "10 seconds", "short-hopping": "4 seconds"}.items():
        placed = f"""
            WITH clocks AS (
                SELECT batch, max(max(at)) OVER (
                    ORDER BY batch ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                ) AS clock
                FROM {{frame}} GROUP BY batch
            ), placed AS (
                SELECT f.*, clock, window(f.at, '10 seconds', '{hop}') AS w FROM {{frame}} f JOIN clocks USING (batch)
            ), decided AS (
                SELECT *, clock IS NULL OR w.end + INTERVAL 20 SECONDS > clock AS is_open FROM placed
            )"""
        query = (
            f"{placed} SELECT player, w.start AS window_start, w.end AS window_end, count(1) AS games, "
            "sum(points) AS total, max_by(points, struct(exact, points)) AS last "
            "FROM decided WHERE is_open GROUP BY player, w"
        )
        expected = {row[:3]: row[3:] for row in seconds(utc(spark.sql(query, frame=frame).collect()), *columns)}
        assert {row[:3]: row[3:] for row in seconds(rows_left(sinks[name]), *columns)} == expected, name
        query = f"{placed} SELECT player, exact, points FROM decided GROUP BY ALL HAVING NOT bool_or(is_open)"
        too_late = [(row.player, row.exact.timestamp(), row.points) for row in spark.sql(query, frame=frame).collect()]
        assert len(too_late) > 100
        rows: list[Record] = late[name].rows()
        found = [(row["player"], row["at"].timestamp(), row["points"]) for row in rows]
        assert sorted(found) == sorted(too_late), name
    counts = {}
    for player in {record["player"] for record in records}:
        times = [round((r["at"] - NOON) / timedelta(microseconds=1)) // 1000 for r in records if r["player"] == player]
        for start, end in tables["sliding"].windows(times):
            counts[player, start / 1000, end / 1000] = sum(start <= time <= end for time in times)
    assert {row[:3]: row[3] for row in seconds(rows_left(sinks["sliding"]), "games")} == counts


def rows_left(sink: Memory) -> list[Record]:
    """The newest row of each window that was not deleted."""
    left: dict[Any, Record] = {}
    for version in sorted(sink.versions):
        for row in sorted(sink.versions[version], key=lambda row: not row.get("_deleted", False)):
            left[seconds([row])[0]] = row
    return [row for row in left.values() if not row.get("_deleted", False)]


def utc(rows: list[Any]) -> list[Record]:
    """Spark's rows with times in UTC: it gives them in the zone of this machine, without naming it."""
    return [{**row.asDict(), **{name: row[name].astimezone(UTC) for name in TIMES}} for row in rows]


def test_final_rows_come_when_windows_close_also_without_records(spark: SparkSession, tmp_path: Path) -> None:
    final, rows = Memory(), Memory()

    def build(stream: hf.Stream) -> None:
        table = stream.group_by().window(hf.tumbling("60s", grace="5s")).count().store("games", retention="65s")
        table.sink(rows)
        table.final().sink(final)

    app, _ = run(spark, tmp_path, [[game("ann", 1), game("bob", 2), game("ann", 64)], [game("bob", 3)]], build)
    with app:
        app.process_all_available()
        assert final.rows() == []
        write(tmp_path / "input", 2, [game("bob", 65)])
        app.process_all_available()
        eventually(lambda: bool(final.rows()))  # the driver makes a version on its own
        made = app.version
    assert sorted(seconds(final.rows(), "count")) == [("ann", 0, 60, 1), ("bob", 0, 60, 2)]
    assert len(rows.rows()) == 5
    assert made == 4


def test_every_record_gives_a_row_where_updates_are_wanted(spark: SparkSession, tmp_path: Path) -> None:
    updates, final, sessions, sliding, largest = Memory(), Memory(), Memory(), Memory(), Memory()

    def build(stream: hf.Stream) -> None:
        grouped = stream.group_by()
        windows = grouped.window(hf.hopping("60s", every="30s"))
        windows.aggregate(games=hf.count(), last=hf.last("points")).store("games", emit="updates").sink(updates)
        grouped.window(hf.session("30s", grace="1h")).count().store("sessions", emit="updates").sink(sessions)
        grouped.window(hf.sliding("10s", grace="1h")).count().store("sliding", emit="updates").sink(sliding)
        windows.reduce(max, of="points").store("largest").final().sink(largest)
        table = windows.count().store("every", emit=hf.every("60s"))
        table.sink(final)

    batches = [[game("ann", 40, 2), game("ann", 5, 1), game("ann", 6, 3)], [game("ann", 50, 4)], [game("bob", 200)]]
    app, _ = run(spark, tmp_path, batches, build)
    with app:
        app.process_all_available()
        eventually(
            lambda: [len([r for r in sink.rows() if r["player"] == "ann"]) for sink in (final, largest)] == [3, 3]
        )
    first, second, _ = (updates.versions[version] for version in sorted(updates.versions))
    assert seconds(first, "games", "last") == [
        ("ann", -30, 30, 1, 1),
        ("ann", 0, 60, 1, 1),
        ("ann", -30, 30, 2, 3),
        ("ann", 0, 60, 2, 3),
        ("ann", 0, 60, 3, 2),
        ("ann", 30, 90, 1, 2),
    ]
    assert seconds(second, "games", "last") == [("ann", 0, 60, 4, 4), ("ann", 30, 90, 2, 4)]
    rows = sorted(row for row in seconds(final.rows(), "count") if row[0] == "ann")
    assert rows == [("ann", -30, 30, 2), ("ann", 0, 60, 4), ("ann", 30, 90, 2)]
    rows = sorted(row for row in seconds(largest.rows(), "value") if row[0] == "ann")
    assert rows == [("ann", -30, 30, "3"), ("ann", 0, 60, "4"), ("ann", 30, 90, "4")]
    assert [row for row in seconds(sessions.rows(), "count", "_deleted") if row[0] == "ann"] == [
        ("ann", 5, 5, 1, False),
        ("ann", 5, 5, None, True),
        ("ann", 5, 6, 2, False),
        ("ann", 40, 40, 1, False),
        ("ann", 40, 40, None, True),
        ("ann", 40, 50, 2, False),
    ]
    assert [row for row in seconds(sliding.rows(), "count") if row[0] == "ann"] == [
        ("ann", -5, 5, 1),
        ("ann", -4, 6, 2),
        ("ann", 5.001, 15.001, 1),
        ("ann", 30, 40, 1),
        ("ann", 40, 50, 2),
        ("ann", 40.001, 50.001, 1),
    ]


def test_late_records_and_final_rows_as_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Final rows and late records of tables are the records of others, in the same version."""
    late, busy, missed = Memory(), Memory(), Memory()

    def build(stream: hf.Stream) -> None:
        table = stream.group_by().window(hf.session("10s")).aggregate(games=hf.count()).store("sessions")
        table.late.sink(late)
        sessions = table.final().to_stream(key="player")
        sessions.group_by().aggregate(sessions=hf.count(), longest=hf.max("games")).store("busy").sink(busy)
        tens = stream.group_by().window(hf.tumbling("10s")).count().store("tens")
        lost = tens.late.to_stream().where("points > 1").group_by()
        lost.aggregate(n=hf.count(), points=hf.sum("points"), last=hf.max("at")).store("missed").sink(missed)

    batches = [
        [game("ann", 0), game("ann", 10), game("bob", 3)],
        [game("ann", 50), game("bob", 50)],
        [game("ann", 1, 7), game("ann", 1, 7), game("bob", 41)],  # two late ones; bob's extends the session at 50
        [game("ann", 90)],
        [game("ann", 91)],
    ]
    app, _ = run(spark, tmp_path, batches, build)
    with app:
        app.process_all_available()
        eventually(lambda: len(rows_by_player(busy)) == 2 and rows_by_player(busy)["bob"]["sessions"] == 2)
    assert missed.rows() == [{"player": "ann", "n": 2, "points": 14, "last": NOON + timedelta(seconds=1)}]
    assert late.rows() == [game("ann", 1, 7)] * 2, "all columns, also those that this table has no use for"
    assert {player: (row["sessions"], row["longest"]) for player, row in rows_by_player(busy).items()} == {
        "ann": (2, 2),
        "bob": (2, 2),
    }


def rows_by_player(sink: Memory) -> dict[Any, Record]:
    return {row["player"]: row for row in sink.rows()}


def test_impossible_windows_are_errors_when_the_app_is_built(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    app = hf.App("windows", settings=settings(tmp_path), spark=spark)
    frame = read(spark, tmp_path / "input")
    group = app.stream(frame, key="player", timestamp="at").group_by()
    with pytest.raises(TopologyError, match="windows are spans of event time, and the stream has none"):
        app.stream(frame, key="player").group_by().window(hf.tumbling("1m"))
    with pytest.raises(TopologyError, match="not a window. Use hf.tumbling"):
        group.window("1m")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="records between two windows would be in none"):
        hf.hopping("1m", every="2m")
    with pytest.raises(TopologyError, match="a record would be in 60,000 windows"):
        hf.hopping("1m", every="1ms")
    minutes = group.window(hf.tumbling("1m", grace="10s"))
    with pytest.raises(TopologyError, match='retention="1m10s" or more'):
        minutes.count().store("games", retention="1m")
    with pytest.raises(TopologyError, match="a column is named 'window_start'"):
        minutes.aggregate(window_start=hf.count()).store("games")
    with pytest.raises(TopologyError, match='ttl="1h" is for single entries'):
        minutes.count().store("games", ttl="1h")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="emit='always' is not possible"):
        minutes.count().store("games", emit="always")  # type: ignore[arg-type]
    table = minutes.count().store("games", emit=hf.every("10s"), retention="2m")
    with pytest.raises(TopologyError, match="A table can't do both"):
        table.final()
