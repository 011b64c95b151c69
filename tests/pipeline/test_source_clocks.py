"""The clock of a source is that of what it has read: steps that drop records, and other stores, don't change it."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.pipeline.plan_nodes import column_before, is_stateless
from holdfast.pipeline.sinks.builtin import Memory
from holdfast.testing import TestDriver, records
from holdfast.words import Version
from tests.apps import NOON, entries_of, game, read, settings, write

pytestmark = pytest.mark.spark

Record = dict[str, Any]
Change = Callable[[hf.Stream], hf.Stream]
START = NOON.replace(tzinfo=UTC)
DROPPED = START + timedelta(minutes=1)
BATCHES = [
    [game("ann", 1, START + timedelta(seconds=1))],
    [game("bob", 0, DROPPED)],
    [game("ann", 1, START + timedelta(seconds=2))],  # late: the clock is at 60 s
]
FAILING = "CAST(IF(points = 0, 'x', '1') AS int)"
CHANGES: dict[str, Change] = {
    "where": lambda stream: stream.where("points > 0"),
    "branch": lambda stream: stream.branch("points > 0")[0],
    "rest": lambda stream: stream.branch("points = 0")[1],
    "transform": lambda stream: stream.transform(lambda df: df.withColumn("n", F.lit(1)).where("points > 0")),
    "join": lambda stream: stream.transform(
        lambda df: df.join(df.sparkSession.range(1, 2).toDF("points"), "points").select("player", "points", "at")
    ),
    "flat_map": lambda stream: stream.flat_map("filter(array(points), x -> x > 0)", "item"),
    "skip": lambda stream: stream.on_error("skip").with_column("n", FAILING),
    "dead_letter": lambda stream: stream.on_error("dead_letter").with_column("n", FAILING),
    "renamed": lambda stream: stream.transform(
        lambda df: df.select("player", F.col("at").alias("at"), "points").where("points > 0")
    ),
    "no-key": lambda stream: stream.with_column("player", "IF(points = 0, NULL, player)"),
    "computed-before": lambda stream: stream.with_column("at", "at + INTERVAL 0 SECOND").where("points > 0"),
}


def declare(stream: hf.Stream, name: str, final: hf.Sink) -> None:
    """A window over what a change leaves, and in some cases another reader."""
    change, _, others = name.partition("+")
    table = CHANGES[change](stream).group_by().window(hf.tumbling("10s")).count().store("windows")
    table.final().sink(final)
    if others == "other":
        stream.group_by().count().store("other")
    if others == "same":
        CHANGES[change](stream).group_by().count().store("other")


def run(spark: SparkSession, folder: Path, build: Callable[[hf.App], Any]) -> list[Any]:
    """The commits of an app."""
    app = hf.App("clocks", settings=settings(folder, batch=hf.BatchSettings(idle_interval="1h")), spark=spark)
    build(app)
    with app:
        app.process_all_available()
        log, newest = app._started().log, app._started().driver.newest
        assert newest is not None
        return [log.commit(Version(n)) for n in range(1, newest.version + 1)]


def clocks(commits: Sequence[Any], source: str = "main") -> list[datetime]:
    return [datetime.fromtimestamp(each.clocks.sources[source] / 1000, UTC) for each in commits]


READ = [START + timedelta(seconds=1), DROPPED, DROPPED]


@pytest.mark.parametrize("name", [*CHANGES, "where+other", "where+same", "skip+other"])
def test_what_steps_drop_moves_the_clock(spark: SparkSession, tmp_path: Path, name: str) -> None:
    final = Memory()
    for number, batch in enumerate(BATCHES):
        write(tmp_path / "input", number, batch)

    def build(app: hf.App) -> None:
        declare(app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at"), name, final)

    commits = run(spark, tmp_path, build)
    assert clocks(commits) == READ
    assert [(row["player"], row["count"]) for row in final.rows()] == [("ann", 1)]
    assert [each.counts.get("late/windows", 0) for each in commits] == [0, 0, 1]


@pytest.mark.parametrize("name", [*CHANGES, "where+other", "where+same", "skip+other"])
def test_a_test_driver_has_the_same_clock(spark: SparkSession, name: str) -> None:
    app = hf.App("clocks")
    stream = app.stream(records("player string, points long, at timestamp"), key="player", timestamp="at")
    declare(stream, name, Memory())
    driver = TestDriver(app, wall=START)
    seen = []
    for batch in BATCHES:
        driver.pipe("main", batch)
        seen.append(datetime.fromtimestamp((driver.now.event or 0) / 1000, UTC))
    assert seen == READ
    assert [(row["player"], row["count"]) for row in driver.output("windows/final")] == [("ann", 1)]
    assert driver.counts["late/windows"] == 1


class Failing(hf.Processor):
    """Fails for the record that others drop."""

    seen = hf.KeyValueStore("seen", value=int)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.seen[key] = 1 // event.points


def fails(stream: hf.Stream) -> None:
    stream.process(Failing, on_error="skip")


def has_no_key(stream: hf.Stream) -> None:
    stream.with_column("player", "IF(points = 0, NULL, player)").group_by().count().store("players")


def counts(stream: hf.Stream) -> None:
    stream.group_by().count().store("players")


TASKS: dict[str, Callable[[hf.Stream], None]] = {"fails": fails, "has-no-key": has_no_key, "counts": counts}


@pytest.mark.filterwarnings("ignore:A record of 'main' has the event time")
@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_sets_aside_moves_the_clock(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Each time: the first such batch is read again for it, later ones are not. Too far ahead is another matter."""
    later = [[game("bob", 0, DROPPED + timedelta(minutes=n)), game("eve", 3, AHEAD)] for n in (0, 1, 2)]
    batches = [BATCHES[0], *later, BATCHES[2]]
    for number, batch in enumerate(batches):
        write(tmp_path / "input", number, batch)

    def build(app: hf.App) -> None:
        TASKS[name](app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at"))

    wanted = [READ[0], *(DROPPED + timedelta(minutes=n) for n in (0, 1, 2, 2))]
    commits = run(spark, tmp_path, build)
    assert clocks(commits) == wanted
    app = hf.App("clocks")
    TASKS[name](app.stream(records("player string, points long, at timestamp"), key="player", timestamp="at"))
    driver = TestDriver(app, wall=datetime.now(UTC))
    assert [driver.pipe("main", batch) for batch in batches] == [1, 2, 3, 4, 5]
    assert driver.now.event == commits[-1].clocks.event


AHEAD = datetime.now(UTC) + timedelta(days=1)


@pytest.mark.parametrize("condition", ["points > 0", "true"])
def test_a_time_too_far_ahead_moves_no_clock_whatever_steps_do(
    spark: SparkSession, tmp_path: Path, condition: str
) -> None:
    at = datetime.now(UTC).replace(microsecond=0)
    write(tmp_path / "input", 1, [game("ann", 1, at - timedelta(hours=1)), game("bob", 0, AHEAD), game("eve", 0, at)])

    def build(app: hf.App) -> None:
        stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
        stream.where(condition).group_by().count().store("players")

    assert clocks(run(spark, tmp_path, build)) == [at]


@pytest.mark.parametrize("readers", [1, 2])
def test_each_source_has_the_clock_of_what_it_has_read(spark: SparkSession, tmp_path: Path, readers: int) -> None:
    """Of one source all records are dropped: it isn't idle, and holds the app's clock."""
    for number, batch in enumerate(BATCHES):
        write(tmp_path / "games", number, [{**record, "points": 1} for record in batch])
        write(tmp_path / "chats", number, [{**record, "points": 0} for record in batch[:1]])

    def build(app: hf.App) -> None:
        for name in ("games", "chats"):
            stream = app.stream(read(spark, tmp_path / name), key="player", timestamp="at", name=name)
            kept = stream.where("points > 0").where("player <> 'zoe'")
            for n in range(readers):
                kept.group_by().count().store(f"{name}-{n}")

    commits = run(spark, tmp_path, build)
    assert max(clocks(commits, "games")) == max(clocks(commits, "chats")) == DROPPED
    assert all(each.clocks.last_records == dict.fromkeys(("games", "chats"), each.clocks.wall) for each in commits)


def test_a_step_that_computes_the_time_anew_sets_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    """An hour earlier: by the source's own times every record would be late."""
    for number, batch in enumerate(BATCHES):
        write(tmp_path / "input", number, batch)
    earlier = timedelta(hours=1)

    def declared(app: hf.App, *, other: bool) -> None:
        stream = moved(app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at"))
        stream.where("points > 0").group_by().count().store("moved")
        if other:
            stream.with_column("n", "points").group_by().count().store("other")

    for other in (False, True):
        folder = tmp_path / str(other)
        folder.mkdir()
        commits = run(spark, folder, partial(declared, other=other))
        assert clocks(commits) == [time - earlier for time in READ]


def test_what_a_filter_leaves_of_a_union_is_not_kept_again(spark: SparkSession, tmp_path: Path) -> None:
    """While the second source is planned, the union of both is kept, and nothing of the first one alone."""
    kept: list[int] = []

    def looked(df: DataFrame) -> DataFrame:
        session: Any = spark._jsparkSession
        kept.append(session.sharedState().cacheManager().numCachedEntries())
        return df.where("points > 0")

    def build(app: hf.App) -> None:
        for name, change in (("games", CHANGES["where"]), ("chats", lambda stream: stream.transform(looked))):
            write(tmp_path / name, 0, BATCHES[0])
            stream = change(app.stream(read(spark, tmp_path / name), key="player", timestamp="at", name=name))
            for n in (0, 1):
                stream.group_by().count().store(f"{name}-{n}")

    run(spark, tmp_path, build)
    assert max(kept) == kept[0] + 1


def moved(stream: hf.Stream) -> hf.Stream:
    return stream.with_column("at", "at - INTERVAL 1 HOUR")


ANEW: dict[str, Callable[[hf.Stream], hf.Stream | Sequence[hf.Stream]]] = {
    "beside": lambda stream: (moved(stream), stream),
    "beside, declared later": lambda stream: (stream.where("points > 0"), moved(stream)),
    "twice": lambda stream: (moved(stream), moved(stream.where("points > 0"))),
    "merged": lambda stream: stream.merge(moved(stream)),
    "renamed": lambda stream: (stream.select("player", F.col("sent").alias("at")), stream),
    "opaque": lambda stream: (stream.transform(lambda df: df.mapInArrow(lambda rows: rows, df.schema)), stream),
    "skip": lambda stream: [moved(stream.on_error("skip")).where(f"points > {n}") for n in (0, 1)],
}


@pytest.mark.parametrize("name", ANEW)
def test_a_time_computed_anew_for_some_readers_is_refused(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """A store would change the windows of another: alone, by their own times, with it by the latest of both."""

    def declared(app: hf.App, frame: Any) -> hf.App:
        streams = ANEW[name](app.stream(frame, key="player", timestamp="at"))
        for n, stream in enumerate([streams] if isinstance(streams, hf.Stream) else streams):
            stream.group_by().window(hf.tumbling("10s")).count().store(f"windows-{n}")
        return app

    columns = "player string, points long, at timestamp, sent timestamp"
    (tmp_path / "input").mkdir()
    app = hf.App("clocks", settings=settings(tmp_path), spark=spark)
    declared(app, read(spark, tmp_path / "input", columns))
    message = "of the stream of 'windows-[01]' computes the event time 'at' of the source 'main' anew.*app.stream"
    with pytest.raises(TopologyError, match=message):
        app.start()
    with pytest.raises(TopologyError, match=message):
        TestDriver(declared(hf.App("clocks"), records(columns)))


def test_spark_keeps_the_state_of_a_shared_step_with_a_join(spark: SparkSession, tmp_path: Path) -> None:
    """Batch by batch, the same player would be new in each."""
    for number in range(3):
        write(tmp_path / "input", number, [game("ann", 1, START + timedelta(seconds=number))])
    static = spark.createDataFrame([("ann", "Oslo")], "player string, city string")

    def first(df: DataFrame) -> DataFrame:
        return df.withWatermark("at", "1 hour").dropDuplicates(["player"]).join(static, "player")

    def build(app: hf.App) -> None:
        stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at").transform(first)
        for name in ("one", "two"):
            stream.group_by().count().store(name)

    app = hf.App("clocks", settings=settings(tmp_path), spark=spark)
    build(app)
    with app:
        app.process_all_available()
        assert entries_of(app, "one") == entries_of(app, "two") == {"ann": {"count": 1}}


STATIC = "player string, city string"
JOINS: dict[str, tuple[Callable[[DataFrame, DataFrame], DataFrame], bool]] = {
    "inner": (lambda df, static: df.join(static, "player"), True),
    "broadcast": (lambda df, static: df.join(F.broadcast(static), "player"), True),
    "left": (lambda df, static: df.join(static.distinct(), "player", "left"), True),
    "static left": (lambda df, static: static.join(df, "player", "right").where("points > 0"), True),
    "anti": (lambda df, static: df.join(static, "player", "anti"), True),
    "all static rows": (lambda df, static: df.join(static, "player", "right"), False),
    "static anti": (lambda df, static: static.join(df, "player", "anti"), False),
    "itself": (lambda df, static: df.join(df.select("player").where("points > 0"), "player"), False),
    "itself, deeper": (lambda df, static: df.join(static.join(df.select("player"), "player"), "player"), False),
    "union": (lambda df, static: df.where("points > 0").unionByName(df.where("points = 0")), False),
    "after": (lambda df, static: df.join(static, "player").dropDuplicates(["player"]), False),
    "before": (lambda df, static: df.dropDuplicates(["player"]).join(static, "player"), False),
    "aggregated": (lambda df, static: df.groupBy("player").count().join(static, "player"), False),
}


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("name", JOINS)
def test_what_is_known_to_be_stateless(spark: SparkSession, tmp_path: Path, name: str, *, streaming: bool) -> None:
    write(tmp_path / "input", 0, [game("ann", 1)])
    frame = read(spark, tmp_path / "input") if streaming else spark.read.parquet(str(tmp_path / "input"))
    join, stateless = JOINS[name]
    derived = join(frame, spark.createDataFrame([], STATIC))
    assert is_stateless(frame, derived) is stateless
    assert "at" not in derived.columns or column_before(frame, derived, "at") == "at"


def jobs_of(spark: SparkSession) -> int:
    jobs: int = spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()
    return jobs


def test_times_are_read_in_the_same_pass(spark: SparkSession, tmp_path: Path) -> None:
    """One job per batch, in which the source is read once."""
    for number, batch in enumerate(BATCHES):
        write(tmp_path / "input", number, batch)
    rows = spark.sparkContext.accumulator(0)

    def counted(batches: Any) -> Any:
        for each in batches:
            rows.add(each.num_rows)
            yield each

    def build(app: hf.App) -> None:
        frame = read(spark, tmp_path / "input")
        source = frame.mapInArrow(counted, frame.schema)
        app.stream(source, key="player", timestamp="at").where("points > 0").group_by().count().store("players")

    before = jobs_of(spark)
    assert clocks(run(spark, tmp_path, build)) == READ
    assert (jobs_of(spark) - before, rows.value) == (len(BATCHES), sum(map(len, BATCHES)))


@pytest.mark.parametrize("condition", ["points > 0", "true"])
def test_a_text_that_cannot_be_read_has_no_time(spark: SparkSession, tmp_path: Path, condition: str) -> None:
    texts = [
        '{"player": "ann", "points": 1, "at": "2026-01-01T12:00:01Z"}',
        '{"player": "bob", "points": 0, "at": "2026-01-01T12:01:00Z"}',
        '{"player": null, "points": 5, "at": "2026-01-01T13:00:00Z"}',
    ]
    write(tmp_path / "input", 1, [{"value": text} for text in texts], pa.schema([("value", pa.string())]))
    json = hf.json("value", "player string, points int, at timestamp")

    def declared(app: hf.App, frame: Any) -> None:
        stream = app.stream(frame, key="player", timestamp="at", parse=json)
        stream.where(condition).group_by().count().store("players")

    commits = run(spark, tmp_path, lambda app: declared(app, read(spark, tmp_path / "input", "value string")))
    assert clocks(commits) == [DROPPED]
    app = hf.App("clocks")
    declared(app, records("value string"))
    driver = TestDriver(app, wall=START)
    driver.pipe("main", [{"value": text} for text in texts])
    assert driver.now.event == round(DROPPED.timestamp() * 1000)
