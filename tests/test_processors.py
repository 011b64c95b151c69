"""Processors on real Spark: stores of all kinds, a restart, and what stops an app."""

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from examples import sessions
from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import TopologyError
from holdfast.instance.client import StateClient
from holdfast.log import names
from holdfast.log.cleaning import Cleaner
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.pipeline.driver import TaskFailed
from holdfast.states import AppState
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.recency import COUNT_KEY
from holdfast.topology.processor import stores_of
from holdfast.words import TaskId, Version
from tests.apps import ENGINES, NOON, entries_of, finish, game, get, read, settings, write
from tests.log.making import alone
from tests.stores.kinds.models import KeyValue

pytestmark = pytest.mark.spark

ARROW = pa.schema(
    [("player", pa.string()), ("points", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("place", pa.int32())]
)
SCHEMA = "player string, points long, at timestamp, place int"
GAP_MS, FADING_MS, RECENT, PARTITIONS = 20_000, 240_000, 3, 2


class Totals(msgspec.Struct, frozen=True):
    games: int = 0
    points: int = 0


class Played(msgspec.Struct):
    """The columns that the processor reads; `place` is not among them."""

    points: int
    at: datetime


class Players(hf.Processor):
    """Stores of five kinds. One drops windows soon, one has room for few entries."""

    totals = hf.KeyValueStore("totals", value=Totals)
    latest = hf.TimestampedKeyValueStore("latest", value=int)
    minutes = hf.WindowStore("minutes", value=int, size="1m", retention="1d")
    sessions = hf.SessionStore("sessions", value=int, gap="20s", retention="1d")
    levels = hf.VersionedKeyValueStore("levels", value=int, retention="1d")
    seen: hf.KeyValueStore[tuple[str, int], int] = hf.KeyValueStore("seen", key=(str, int), value=int, ttl="1d")
    fading = hf.WindowStore("fading", value=int, size="30s", retention=f"{FADING_MS}ms")
    recent = hf.KeyValueStore("recent", value=int, max_entries=RECENT)

    def prefetch(self, key: str, event: Played) -> Iterator[tuple[Any, Any]]:
        yield self.seen, (key, event.points)

    def process(self, key: str, event: Played, ctx: hf.Context) -> None:
        was = self.totals.get(key, Totals())
        self.totals[key] = Totals(was.games + 1, was.points + event.points)
        self.latest.put(key, event.points, ctx.timestamp)
        minute = ctx.timestamp // 60_000 * 60_000
        self.minutes.put(key, (self.minutes.fetch(key, minute) or 0) + 1, minute)
        self.sessions.merge(key, ctx.timestamp, None, lambda one, other: one + other, 1)
        self.levels.put(key, event.points, event.at)
        self.seen[key, event.points] = self.seen.get((key, event.points), 0) + 1
        half = ctx.timestamp // 30_000 * 30_000
        self.fading.put(key, (self.fading.fetch(key, half) or 0) + 1, half)
        self.recent[key] = self.recent.get(key, 0) + 1
        if (was.games + 1) % 5 == 0:
            ctx.forward(key, {"games": was.games + 1, "at": event.at})


@dataclass
class Model:
    """The expected contents of the stores, as dictionaries."""

    totals: dict[str, Totals] = field(default_factory=dict)
    latest: dict[str, tuple[int, int]] = field(default_factory=dict)
    minutes: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    sessions: dict[str, list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    levels: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    seen: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    fading: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    recent: list[KeyValue] = field(default_factory=lambda: [KeyValue(most=RECENT) for _ in range(PARTITIONS)])
    forwarded: list[tuple[str, int, datetime]] = field(default_factory=list)
    clock: int = 0
    """The largest event time of the batches before."""

    def batch(self, records: Sequence[dict[str, Any]]) -> None:
        for record in sorted(records, key=lambda r: (r["at"], r["place"])):
            self.record(record["player"], record["points"], record["at"])
        self.clock = max(self.clock, *(round(record["at"].timestamp() * 1000) for record in records))
        for partition in self.recent:
            partition.end_of_version()

    def record(self, player: str, points: int, at: datetime) -> None:
        time = round(at.timestamp() * 1000)
        was = self.totals.get(player, Totals())
        self.totals[player] = Totals(was.games + 1, was.points + points)
        if player not in self.latest or time >= self.latest[player][1]:
            self.latest[player] = (points, time)
        self.minutes[player, time // 60_000 * 60_000] += 1
        start, end, number = time, time, 1
        apart = []
        for first, last, count in self.sessions[player]:
            if last >= time - GAP_MS and first <= time + GAP_MS:
                start, end, number = min(start, first), max(end, last), number + count
            else:
                apart.append((first, last, count))
        self.sessions[player] = sorted([*apart, (start, end, number)])
        self.levels[player][time] = points
        self.seen[player, points] += 1
        half = time // 30_000 * 30_000
        if half > self.clock - FADING_MS:
            self.fading[player, half] += 1
        recent = self.recent[partition_of(Schema.of(player="string"), (player,), PARTITIONS)]
        recent.do(("put", player, recent.entries.get(player, (0, 0))[0] + 1, None), Now(wall=0))
        if (was.games + 1) % 5 == 0:
            self.forwarded.append((player, was.games + 1, at))


def records(number: int, dice: random.Random, each: int = 60) -> list[dict[str, Any]]:
    """One file's records: most are newer than the last file's, some are much older."""
    start = NOON + timedelta(minutes=3 * number)
    return [
        {
            "player": f"player-{dice.randrange(9)}",
            "points": dice.randrange(5),
            "at": start - timedelta(milliseconds=dice.choice([0, 0, 600_000]) - dice.randrange(200_000)),
            "place": place,
        }
        for place in range(each)
    ]


def players_app(spark: SparkSession, folder: Path, **changes: Any) -> hf.App:
    app = hf.App("players", settings=settings(folder, **changes), spark=spark)
    stream = app.stream(read(spark, folder / "input", SCHEMA), key="player", timestamp="at", position="place")
    stream.process(Players, output="player string, games bigint, at timestamp").sink(hf.files(str(folder / "out")))
    return app


def bound(app: hf.App, processor: type[hf.Processor]) -> dict[str, Any]:
    """The processor's stores over all partitions, at the newest version."""
    running = app._started()
    newest = running.log.newest()
    assert newest is not None
    now = Now(newest.clocks.wall, newest.clocks.event)
    found = {}
    for attribute, declared in stores_of(processor).items():
        bytes_ = DictBytes()
        for task, addresses in running.instances.replicas().items():
            if TaskId.parse(task).subtopology == running.log.app.number_of(declared.name):
                with StateClient(addresses[0]) as client:
                    entries = client.scan(TaskId.parse(task), declared.name, Version(newest.version))
                assert not set(entries.keys.to_pylist()) & set(bytes_.entries) - {b"\x05newest", COUNT_KEY}
                for key, cell in zip(entries.keys.to_pylist(), entries.values.to_pylist(), strict=True):
                    bytes_.entries[key] = max(cell, bytes_.entries.get(key, cell))  # the newer of two notes
        found[attribute] = declared.bind(bytes_, now, lambda name, number: None)
    return found


def delivered(folder: Path) -> list[dict[str, Any]]:
    marks = sorted((folder / "_versions").glob("*.json"))
    files = [entry["file"] for mark in marks for entry in json.loads(mark.read_text())["files"]]
    return [row for file in files for row in pq.read_table(folder / file).to_pylist()]


def check(app: hf.App, model: Model) -> None:
    stores = bound(app, Players)
    assert dict(stores["totals"].items()) == model.totals
    assert {key: tuple(value) for key, value in stores["latest"].items()} == model.latest
    # Each partition notes its own slices, so windows are read by key.
    for player in model.totals:
        windows = {(player, start): number for start, number in stores["minutes"].fetch(player, from_=0)}
        assert windows == {key: number for key, number in model.minutes.items() if key[0] == player}
        sessions = [(session.start, session.end, number) for session, number in stores["sessions"].fetch(player)]
        assert sessions == model.sessions[player]
        fading = {(player, start): number for start, number in stores["fading"].fetch(player, from_=0)}
        kept = {key: n for key, n in model.fading.items() if key[0] == player and key[1] > model.clock - FADING_MS}
        assert fading == kept
        history = {record.timestamp: record.value for record in stores["levels"].history(player)}
        assert history == model.levels[player]
    assert dict(stores["seen"].items()) == model.seen
    assert dict(stores["recent"].items()) == {k: v for part in model.recent for k, (v, _) in part.entries.items()}


@pytest.mark.parametrize("engine", ENGINES)
def test_stores_of_every_kind_equal_the_model(engine: str, spark: SparkSession, tmp_path: Path) -> None:
    dice, model = random.Random(4), Model()
    state: dict[str, Any] = {"state": hf.StateSettings(engine=engine)}
    for numbers in (range(3), range(3, 6)):
        for number in numbers:
            batch = records(number, dice)
            write(tmp_path / "input", number, batch, ARROW)
            model.batch(batch)
        with players_app(spark, tmp_path, **state) as app:
            app.process_all_available()
            assert (app.state, app.version) == (AppState.RUNNING, numbers[-1] + 1), app.cause
            check(app, model)
            status, answer = get(app, "/v1/stores/totals/keys/player-3")
            assert (status, answer["value"]) == (200, msgspec.structs.asdict(model.totals["player-3"]))
    rows = [(row["player"], row["games"], row["at"]) for row in delivered(tmp_path / "out")]
    assert sorted(rows) == sorted(model.forwarded)
    for player in model.totals:
        assert [row for row in rows if row[0] == player] == [row for row in model.forwarded if row[0] == player]


class Scored(msgspec.Struct):
    points: int
    place: int | None
    tags: list[str] = []


class Careful(hf.Processor):
    """Raises for 13 points."""

    games = hf.KeyValueStore("games", value=int)

    def process(self, key: str, event: Scored, ctx: hf.Context) -> None:
        if event.points == 13:
            raise ValueError("nobody scores 13")
        self.games[key] = self.games.get(key, 0) + 1


def record(player: str | None, points: int | None, at: datetime | None = NOON) -> dict[str, Any]:
    return {**game(player, points, at), "place": 0}


def careful_app(spark: SparkSession, folder: Path, **changes: Any) -> hf.App:
    app = hf.App("careful", settings=settings(folder, **changes), spark=spark)
    stream = app.stream(read(spark, folder / "input", SCHEMA), key="player", timestamp="at")
    stream.with_column("tags", "array('a', CASE WHEN points <> 5 THEN 'b' END)").process(Careful)
    return app


def test_a_processor_that_raises_stops_the_app_with_the_record(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [record("ann", 1), record("bob", 1)], ARROW)
    write(tmp_path / "input", 2, [record("ann", 2), record("bob", 13)], ARROW)
    app = careful_app(spark, tmp_path).start()
    assert app._states.wait_for(AppState.ERROR, timeout=60), app.state
    assert isinstance(app.cause, TaskFailed), app.cause
    for part in ("'bob'", "points=13", "ValueError: nobody scores 13", "test_processors.py"):
        assert part in str(app.cause)
    assert entries_of(app, "games") == {"ann": 1, "bob": 1}, "the batch has no effect"
    app.stop()


def test_invalid_records_become_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    ahead = datetime.now(UTC) + timedelta(days=2)
    batch = [record("ann", 1), record(None, 7), record("bob", 2, None), record("x", 3, ahead), record("y", None)]
    batch.append(record("dora", 5))
    write(tmp_path / "input", 1, [*batch, {**record("cleo", 4), "place": None}], ARROW)
    assert finish(careful_app(spark, tmp_path), "games") == {"ann": 1, "cleo": 1}
    files = (tmp_path / "base" / "careful" / "dead-letters").glob("[0-9]*.json")
    letters = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert sorted(letter["reason"].split(":")[0].split(" is ")[0] for letter in letters) == [
        "event time",
        "no event time",
        "no key",
        "no value",
        "no value",
    ]
    reasons = {letter["reason"] for letter in letters}
    assert "no value: points is null, and Scored.points can't be None" in reasons
    assert "no value: tags[] is null, and Scored.tags has no None there" in reasons
    assert all(json.loads(letter["record"])["place"] == 0 for letter in letters)


def test_more_state_than_allowed_stops_the_app_with_the_setting(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [record("x" * 10_000 + str(n), 1) for n in range(400)], ARROW)
    app = careful_app(spark, tmp_path, batch=hf.BatchSettings(state_bytes="1MiB")).start()
    assert app._states.wait_for(AppState.ERROR, timeout=60), app.state
    assert "batch.state_bytes" in str(app.cause)
    app.stop()


class Doubled(hf.Processor):
    """Has no stores."""

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        ctx.forward(key, {"points": 2 * event.points})


def test_an_app_without_stores_runs_is_cleaned_and_starts_again(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.memory()

    def build() -> hf.App:
        app = hf.App("doubled", settings=settings(tmp_path, log=hf.LogSettings(inline_bytes=0)), spark=spark)
        stream = app.stream(read(spark, tmp_path / "input", SCHEMA), key="player")
        stream.process(Doubled, output="player string, points long").sink(sink)
        return app

    for number in (1, 2, 3, 4):
        write(tmp_path / "input", number, [record("ann", number)], ARROW)
    with build() as app:
        app.process_all_available()
    log = Log.open(open_storage(str(tmp_path / "base" / "doubled" / "log")))
    cleaner = Cleaner(
        log, retention=timedelta(0), sinks=lambda: ["doubled.memory"], clock=SYSTEM_CLOCK, check_leads=alone
    )
    assert cleaner.clean().floor == 3
    assert len(log.storage.list(names.SEGMENTS)) == len(log.storage.list(names.COMMITS)) == 2
    write(tmp_path / "input", 5, [record("ann", 5)], ARROW)
    with build() as app:
        app.process_all_available()
    assert app.version == 5
    assert [row["points"] for row in sink.rows()] == [2, 4, 6, 8, 10]


class Clocked(hf.Processor):
    """Counts the versions it runs in, also those without records."""

    runs = hf.KeyValueStore("runs", key=int, value=int)

    def init(self, ctx: hf.Context) -> None:
        self.runs[ctx.partition] = self.runs.get(ctx.partition, 0) + 1
        ctx.forward(ctx.partition, {"version": ctx.version, "event": ctx.now.event})

    def process(self, key: tuple[str, int], event: Any, ctx: hf.Context) -> None:
        ctx.count("records")
        assert isinstance(key, tuple)


@pytest.mark.parametrize("nothing", ["false", pytest.param("points < 0", marks=pytest.mark.slow)])
def test_every_partition_runs_in_every_version(nothing: str, spark: SparkSession, tmp_path: Path) -> None:
    """Also if Spark knows that the plan has no rows, for which it runs no tasks."""
    for number in (1, 2):
        write(tmp_path / "input", number, [record("ann", 1, NOON + timedelta(seconds=number))], ARROW)
    sink = hf.memory()
    app = hf.App("clocked", settings=settings(tmp_path, partitions=3), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input", SCHEMA), key=["player", "place"], timestamp="at")
    stream.group_by("player").count().store("counts")
    stream.where(nothing).process(Clocked, output="partition int, version int, event bigint").sink(sink)
    text = app.describe()
    assert "Sub-topology clocked\n" in text, "tasks are numbered in the log"
    assert "processor clocked (Clocked)" in text
    assert "store runs (key-value on rocksdb), key (key bigint)" in text
    assert "forwards partition int, version int, event bigint" in text
    with app:
        app.process_all_available()
        assert app.state is AppState.RUNNING, app.cause
        assert "Sub-topology clocked, tasks 1_0 to 1_2\n" in app.describe()
        assert entries_of(app, "counts") == {"ann": {"count": 2}}
        stored = bound(app, Clocked)["runs"]
        assert dict(stored.items()) == {0: 2, 1: 2, 2: 2}
    event = round((NOON + timedelta(seconds=1)).timestamp() * 1000)
    assert [sorted((r["partition"], r["event"]) for r in sink.versions[Version(v)]) for v in (1, 2)] == [
        [(0, None), (1, None), (2, None)],
        [(0, event), (1, event), (2, event)],
    ]


class ByNumber(hf.Processor):
    """Keyed by an int column; in Python and in stores it is a bigint."""

    places = hf.KeyValueStore("places", key=int, value=str)

    def process(self, key: int, event: Any, ctx: hf.Context) -> None:
        self.places[key] = event.player


def test_a_key_of_a_small_type_is_found_by_queries(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [{**record(f"p{n}", 1), "place": n} for n in range(20)], ARROW)
    app = hf.App("numbers", settings=settings(tmp_path), spark=spark)
    app.stream(read(spark, tmp_path / "input", SCHEMA), key="place").process(ByNumber)
    with app:
        app.process_all_available()
        assert [get(app, f"/v1/stores/places/keys/{n}")[1]["value"] for n in range(20)] == [f"p{n}" for n in range(20)]


def test_the_sessions_example_merges_clicks(spark: SparkSession, tmp_path: Path) -> None:
    sessions.write_clicks(tmp_path / "clicks")
    app = sessions.build(spark, tmp_path)
    with app:
        app.process_all_available()
        assert app.state is AppState.RUNNING, app.cause
        assert entries_of(app, "visitors")["ann"] == {"clicks": 4, "last_page": "shoes"}
        visits = bound(app, sessions.Visits)["visits"]
        noon = round(NOON.timestamp() * 1000)
        assert [(s.start - noon, s.end - noon, n) for s, n in visits.fetch("ann")] == [(0, 70 * 60_000, 4)]
        assert [n for _, n in visits.fetch("bob")] == [1, 2]


def test_retention_is_measured_in_event_time_if_the_stream_has_one(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    for timestamp, clock, text in (("at", "event", "event time"), (None, "wall", "the wall clock")):
        app = hf.App("clocks", settings=settings(tmp_path), spark=spark)
        stream = app.stream(read(spark, tmp_path / "input", SCHEMA), key="player", timestamp=timestamp)
        found = {spec.name: spec.clock for spec in stream.process(Players).specs if spec.retention_ms}
        assert found == dict.fromkeys(("minutes", "sessions", "levels", "fading"), clock)
        assert app.describe().count(f"retention 1d by {text}, in slices of 3h") == 3


def test_an_invalid_processor_is_refused_where_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    app = hf.App("refused", settings=settings(tmp_path), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input", SCHEMA), key="player", timestamp="at")
    careful = stream.process(Careful)
    assert {spec.stream_key for spec in careful.specs} == {Schema.of(player="string")}, "compared at a start"
    with pytest.raises(TopologyError, match="two outputs named 'careful'"):
        stream.process(Careful)
    with pytest.raises(TopologyError, match="two stores named 'games'"):
        stream.process(Careful, name="again")
    with pytest.raises(TopologyError, match="two stores named 'games'"):
        stream.group_by().count().store("games")
    with pytest.raises(TopologyError, match="output="):
        careful.sink(hf.memory())
    with pytest.raises(TopologyError, match="Played.points has no column"):
        stream.drop("points").process(Players)
    with pytest.raises(TopologyError, match="'map<string,string>' is not a type of keys"):
        stream.with_column("player", F.expr("map('a', 'b')")).process(ByNumber)
    assert [each.name for each in app._topology.subtopologies] == ["careful"]


def test_processors_that_share_a_store_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """A local store and local classes reach the workers by value, and are still one store there; also after a restart.

    A record that fails in the second one leaves nothing in the first one's store either.
    """
    balance = hf.KeyValueStore("balance", value=int)

    class Book(hf.Processor):
        balances = balance
        booked = hf.KeyValueStore("booked", value=int)

        def process(self, key: str, event: Any, ctx: hf.Context) -> None:
            self.balances[key] = self.balances.get(key, 0) + event.points
            self.booked[key] = self.booked.get(key, 0) + 1

    class Warn(hf.Processor):
        own = balance

        def process(self, key: str, event: Any, ctx: hf.Context) -> None:
            ctx.forward(key, {"balance": self.own[key]})
            if event.points > 100:
                raise ValueError("too much")

    warned = hf.memory()
    for batch, points in ((1, [2, -5]), (2, [500, 1])):
        write(
            tmp_path / "input", batch, [game("ann", each, NOON + timedelta(seconds=n)) for n, each in enumerate(points)]
        )
        app = hf.App("shared", settings=settings(tmp_path, on_error="dead_letter"), spark=spark)
        stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
        stream.process(Book)
        stream.process(Warn, output="player string, balance bigint").sink(warned)
        with app:
            app.process_all_available()
            assert app.describe().count("tasks ") == 1
            found = [entries_of(app, name) for name in ("balance", "booked")]
            newest = app._started().driver.newest
    assert found == [{"ann": -2}, {"ann": 3}]
    assert newest is not None and newest.counts["dead"] == 1
    assert [row["balance"] for row in warned.rows()] == [2, -3, -2]
