"""Tables with options on real Spark: expiry, eviction, history, and what sinks and restores get."""

import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.clock import ManualClock
from holdfast.errors import TopologyError
from holdfast.instance.client import StateClient
from holdfast.log.appfile import AppChanged
from holdfast.pipeline.sinks.builtin import Memory
from holdfast.stores.formats.cells import unpack
from holdfast.stores.formats.keys import decode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.slices import split_sliced
from holdfast.words import Millis, TaskId, Version
from tests import apps
from tests.apps import ENGINES, NOON, Twice, entries_of, get, read, settings, write

pytestmark = pytest.mark.spark

KEY = Schema.of(player="string")


def game(player: str, points: int = 1, second: int = 0) -> dict[str, Any]:
    return apps.game(player, points, NOON + timedelta(seconds=second))


def build(spark: SparkSession, folder: Path, clock: ManualClock | None = None, **options: Any) -> hf.App:
    """Games and points per player in a store with these options."""
    app = hf.App("tables", settings=settings(folder), spark=spark, clock=clock)
    stream = app.stream(read(spark, folder / "input"), key="player", timestamp="at")
    stream.group_by().aggregate(games=hf.count(), points=hf.sum("points")).store("points", **options)
    return app


def add_sink(app: hf.App, sink: hf.Sink, name: str) -> None:
    hf.Table(app._topology, "points").sink(sink, name=name)


def stored(app: hf.App) -> list[dict[bytes, bytes]]:
    """The store's entries in the instances, as bytes, per partition."""
    found = []
    for task, addresses in sorted(app._started().instances.replicas().items()):
        with StateClient(addresses[0]) as client:
            scanned = client.scan(TaskId.parse(task), "points", Version(app.version))
            found.append(dict(zip(scanned.keys.to_pylist(), scanned.values.to_pylist(), strict=True)))
    return found


def players(cells: dict[bytes, bytes]) -> set[object]:
    return {decode_key(KEY, key)[0] for key in cells if key[0] == 1}


def upserted(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """The rows after applying a sink's changes; `_deleted` deletes."""
    state: dict[str, tuple[int, int]] = {}
    for row in rows:
        state.pop(row["player"], None)
        if not row["_deleted"]:
            state[row["player"]] = (row["games"], row["points"])
    return state


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_key_expires_although_nothing_arrives(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock(Millis(int(NOON.timestamp() * 1000)))
    write(tmp_path / "input", 0, [game("ann")])
    with build(spark, tmp_path, clock, ttl="5s") as app:
        app.process_all_available()
        assert entries_of(app) == {"ann": {"games": 1, "points": 1}}
        clock.advance(seconds=9)
        eventually(lambda: entries_of(app) == {})
        made = app.version
        clock.advance(seconds=3600)
        write(tmp_path / "input", 1, [game("bob")])
        app.process_all_available()
        assert app.version == made + 1, "with no entry left, nothing was due in an hour"
        assert entries_of(app) == {"bob": {"games": 1, "points": 1}}


class Seen(hf.Processor):
    seen = hf.KeyValueStore("seen", value=int, ttl="5s", ttl_to_sinks=True)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.seen[key] = event.points


def test_sinks_get_expired_keys_although_nothing_arrives(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock(Millis(round(NOON.timestamp() * 1000)))
    write(tmp_path / "input", 0, [game("ann", 7)])
    app = hf.App("tables", settings=settings(tmp_path), spark=spark, clock=clock)
    stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
    points, seen = hf.memory(), hf.memory()
    stream.group_by().aggregate(points=hf.sum("points")).store("points", ttl="5s", ttl_to_sinks=True).sink(points)
    stream.process(Seen).sink_changes("seen", seen)
    with app:
        app.process_all_available()
        clock.advance(seconds=9)
        eventually(lambda: app.version == 2)
        app.process_all_available()
    assert points.rows() == [
        {"player": "ann", "points": 7, "_deleted": False},
        {"player": "ann", "points": None, "_deleted": True},
    ]
    assert [(row["value"], row["_deleted"]) for row in seen.rows()] == [("7", False), (None, True)]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bounded_table_evicts_and_every_sink_gets_the_deletes(
    engine: str, spark: SparkSession, tmp_path: Path
) -> None:
    batches = [[game(f"player-{n % 300:03d}", 1, n) for n in range(b * 200, b * 200 + 200)] for b in range(4)]
    last: list[dict[str, int]] = [{}, {}]
    for number, batch in enumerate(batches, start=1):
        write(tmp_path / "input", number, batch)
        for record in batch:
            own = last[partition_of(KEY, [record["player"]], 2)]
            own[record["player"]] = own.pop(record["player"], 0) + 1
        for own in last:
            for player in list(own)[:-10]:
                del own[player]
    model = {player: (n, n) for own in last for player, n in own.items()}

    memory, sent = hf.memory(), list[pa.Table]()
    database = Twice(tmp_path / "players.db", ["player", "games", "total", "_deleted"])
    app = build(spark, tmp_path, engine=engine, max_entries=10)
    add_sink(app, memory, "memory")
    add_sink(app, hf.files(str(tmp_path / "parquet")), "parquet")
    add_sink(app, hf.files(str(tmp_path / "json"), format="json"), "json")
    add_sink(app, hf.console(limit=3), "console")
    add_sink(app, hf.foreach(lambda version, commit, rows: sent.append(rows)), "function")
    add_sink(app, database, "database")
    with app:
        app.process_all_available()
        assert [players(cells) for cells in stored(app)] == [set(own) for own in last]
        assert [len(cells) for cells in stored(app)] == [21, 21], "10 entries, 10 in the index, one count"
        assert entries_of(app) == {player: {"games": n, "points": total} for player, (n, total) in model.items()}
        assert get(app, "/v1/stores/points/keys/player-000")[0] == 404
    assert app.version == 4

    as_json = [
        json.loads(line) for path in sorted((tmp_path / "json").glob("0*")) for line in path.read_text().splitlines()
    ]
    in_files = [row for path in sorted((tmp_path / "parquet").glob("0*")) for row in pq.read_table(path).to_pylist()]
    in_function = [row for rows in sent for row in rows.to_pylist()]
    for rows in (memory.rows(), in_function, as_json, in_files):
        assert upserted(rows) == model
        assert any(row["_deleted"] and row["games"] is None for row in rows)
    database.write_again()
    with sqlite3.connect(tmp_path / "players.db") as connection:
        in_database = dict(connection.execute("SELECT player, total FROM players"))
    assert in_database == {player: total for player, (_, total) in model.items()}, "deletes reach a database"

    shutil.rmtree(tmp_path / "base" / "tables" / "state")
    again = build(spark, tmp_path, engine=engine, max_entries=10)
    for name in ("memory", "parquet", "json", "console", "function", "database"):
        add_sink(again, hf.memory(), name)
    with again:
        assert [players(cells) for cells in stored(again)] == [set(own) for own in last], "a restore gives the same"


def test_an_expired_key_is_counted_from_zero(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    clock = ManualClock(Millis(round(NOON.timestamp() * 1000)))
    memory = hf.memory()
    seen: list[dict[str, int]] = []
    app = build(spark, tmp_path, clock, ttl="1h")
    add_sink(app, memory, "sink")
    with app:
        for number, (minutes, names) in enumerate([(0, "ab"), (40, "a"), (30, "abc"), (70, "a")], start=1):
            clock.advance(60 * minutes)
            write(tmp_path / "input", number, [game(name) for name in names])
            app.process_all_available()
            seen.append({player: row["games"] for player, row in entries_of(app).items()})
        cells = [item for part in stored(app) for item in part.items()]
    games = [{row["player"]: row["games"] for row in rows} for _, rows in sorted(memory.versions.items())]
    assert games == [{"a": 1, "b": 1}, {"a": 2}, {"a": 3, "b": 1, "c": 1}, {"a": 1}]
    assert seen == [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 3, "b": 1, "c": 1}, {"a": 1}], "as queries show it"
    live = {decode_key(KEY, split_sliced(key)[1])[0] for key, cell in cells if unpack(cell).expires > clock.now()}
    assert live == {"a"}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_table_with_history_shows_earlier_results(engine: str, spark: SparkSession, tmp_path: Path) -> None:
    noon = round(NOON.timestamp() * 1000)
    batches = [
        [game("ann", 1, 0), game("bob", 5, 0)],
        [game("ann", 2, 60)],
        [game("ann", 4, 30)],  # late: only later results include it
        [game("ann", 8, 3_630), game("cleo", 1, 3_670)],
    ]
    memory = hf.memory()

    def build_with_history() -> hf.App:
        app = build(spark, tmp_path, history="1h", engine=engine)
        add_sink(app, memory, "sink")
        return app

    for number in (1, 2):
        write(tmp_path / "input", number, batches[number - 1])
    with build_with_history() as app:
        assert "history 1h by event time, in slices of 7m30s" in app.describe()
        app.process_all_available()
        before = stored(app)
    shutil.rmtree(tmp_path / "base" / "tables" / "state")
    with build_with_history() as app:
        assert stored(app) == before, "a restore includes the history"
        for number in (3, 4):
            write(tmp_path / "input", number, batches[number - 1])
        app.process_all_available()
        history = [
            (entry["value"], entry["timestamp"] - noon, entry["valid_to"] and entry["valid_to"] - noon)
            for entry in get(app, "/v1/stores/points/history/ann")[1]["history"]
        ]
        assert history == [
            # The result until 12:01 ended an hour and 10 seconds ago in event time, so it is hidden.
            ({"games": 3, "points": 7}, 60_000, 3_630_000),
            ({"games": 4, "points": 15}, 3_630_000, None),
        ]
        assert entries_of(app) == {
            "ann": {"games": 4, "points": 15},
            "bob": {"games": 1, "points": 5},
            "cleo": {"games": 1, "points": 1},
        }, "the latest results never expire"
        assert get(app, f"/v1/stores/points/history/bob?to={noon + 1}")[1]["history"][0]["value"]["points"] == 5
    sent = [sorted((row["player"], row["points"]) for row in rows) for _, rows in sorted(memory.versions.items())]
    assert sent == [[("ann", 1), ("bob", 5)], [("ann", 3)], [("ann", 7)], [("ann", 15), ("cleo", 1)]]
    with pytest.raises(AppChanged, match="kind versioned in the log and key-value in the code"):
        build(spark, tmp_path, engine=engine).start()


def test_a_store_that_is_not_durable_starts_empty_on_a_new_replica(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("a"), game("b")])
    app = build(spark, tmp_path, durable=False)
    memory = hf.memory()
    add_sink(app, memory, "sink")
    with app:
        app.process_all_available()
        assert len([key for part in stored(app) for key in part]) == 2
    assert sorted(str(row["player"]) for row in memory.rows()) == ["a", "b"], "sinks get it all the same"
    shutil.rmtree(tmp_path / "base" / "tables" / "state")
    write(tmp_path / "input", 2, [game("a")])
    again = build(spark, tmp_path, durable=False)
    add_sink(again, memory, "sink")
    with again:
        again.process_all_available()
    assert [row["games"] for row in memory.versions[Version(2)]] == [1]


def test_a_table_that_gains_a_limit_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("a")])
    with build(spark, tmp_path) as app:
        app.process_all_available()
    with pytest.raises(AppChanged, match="max_entries"):
        build(spark, tmp_path, max_entries=10).start()
    with pytest.raises(AppChanged, match="ttl"):
        build(spark, tmp_path, ttl="1h").start()


def test_options_that_aggregates_cannot_have_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    refused: list[tuple[dict[str, Any], str]] = [
        ({"history": "6h", "ttl": "1h"}, "ttl='1h' and history='6h' can't be combined"),
        ({"history": "6h", "max_entries": 5}, "max_entries=5 and history='6h' can't be combined"),
        ({"history": "6h", "ttl_to_sinks": True}, "ttl_to_sinks=True and history='6h' can't be combined"),
        ({"ttl_to_sinks": True}, "ttl_to_sinks=True sends keys to sinks"),
        ({"history": "0s"}, 'history="0s" is too short'),
        ({"retention": "6h"}, 'retention="6h" is for windows, .* use history="6h"'),
        ({"codec": "bytes"}, "codec"),
        ({"ttl": "-"}, "'-' is not a duration"),
        ({"max_entries": 0}, "max_entries=0"),
        ({"profile": "quick"}, "balanced"),
    ]
    for options, message in refused:
        with pytest.raises(TopologyError, match=message):
            build(spark, tmp_path, **options)
    app = hf.App("deleted", settings=settings(tmp_path), spark=spark)
    grouped = app.stream(read(spark, tmp_path / "input"), key="player").group_by()
    with pytest.raises(TopologyError, match="'_deleted'"):
        grouped.aggregate(_deleted=hf.count()).store("points", max_entries=1)
    grouped.aggregate(_deleted=hf.count()).store("points")


def test_describe_shows_every_option_with_its_numbers(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    app = build(spark, tmp_path, ttl="8h", profile="write-heavy", durable=False, everywhere=True)
    text = app.describe()
    assert "ttl 8h, in slices of 1h" in text
    assert "everywhere" in text
    assert "not durable: in no snapshot, never restored, profile write-heavy, codec rows/1" in text
    bounded = build(spark, tmp_path, max_entries=1_000, rocksdb_options="my.tuning:smaller").describe()
    assert "at most 1,000 entries per partition" in bounded
    assert "options by my.tuning:smaller" in bounded


def test_the_default_engine_is_a_setting(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    memory = hf.App("engines", settings=settings(tmp_path, state=hf.StateSettings(engine="memory")), spark=spark)
    stream = memory.stream(read(spark, tmp_path / "input"), key="player")
    assert stream.group_by().count().store("one").spec.engine == "memory"
    assert stream.group_by().count().store("two", engine="rocksdb").spec.engine == "rocksdb"
    with pytest.raises(TopologyError, match="state.engine: engine='rocks'"):
        hf.App("engines", settings=settings(tmp_path, state=hf.StateSettings(engine="rocks")))


PRICES = pa.schema(
    [("item", pa.string()), ("price", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("channel", pa.string())]
)


def test_last_values_are_those_of_one_record(spark: SparkSession, tmp_path: Path) -> None:
    """By every plan: with Spark's pre-aggregation and without it, and with dead letters; also in windows."""

    def price(item: str | None, price: int, channel: str | None) -> dict[str, Any]:
        return {"item": item, "price": price, "at": NOON, "channel": channel}

    others = [price(f"item-{n}", n, "a") for n in range(100)]
    batches = {
        (1, "z", 9, "a"): [price("a", 1, "z"), price("a", 9, "a"), *others],
        (1, "z", 9, "b"): [price("a", 9, None), price("a", 9, "b"), price("a", 2, "x")],
        (0, "y", 9, "c"): [price("a", 9, "c"), price("a", 0, "y"), price("a", 1, "a")],
        (0, "x", 9, "d"): [price(None, 10, "z"), price("a", 9, "d"), price("a", 0, "x")],
    }
    for number, records in enumerate(batches.values()):
        write(tmp_path / "input", number, records, PRICES)
    app = hf.App("prices", settings=settings(tmp_path), spark=spark)
    frame = read(spark, tmp_path / "input", "item string, price long, at timestamp, channel string")
    prices = app.stream(frame, key="item", timestamp="at")
    columns: dict[str, Any] = {
        f"{function.__name__}_{column}": function(column)
        for function in (hf.first, hf.last)
        for column in ("price", "channel")
    }
    memories = [Memory(), Memory()]
    prices.group_by().aggregate(**columns).store("prices").sink(memories[0])
    prices.group_by().window(hf.session("10s")).aggregate(**columns).store("sessions").sink(memories[1])
    with app:
        app.process_all_available()
    for memory in memories:
        rows = [row for row in memory.rows() if row["item"] == "a"]
        assert [tuple(row[name] for name in columns) for row in rows] == list(batches)
