"""Several sources on real Spark: one query, a clock each, and only the columns that the topology uses."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.log.commits import Commit
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.pipeline.protocol import inputs_of
from holdfast.pipeline.source_order import SourceRemoved
from holdfast.words import Version
from tests.apps import NOON, entries_of, game, read, settings, write

pytestmark = pytest.mark.spark

LATER = NOON + timedelta(hours=1)


def two_sources(spark: SparkSession, folder: Path) -> tuple[hf.App, hf.Stream, hf.Stream]:
    app = hf.App("sources", settings=settings(folder), spark=spark)
    for name in ("games", "chats"):
        (folder / name).mkdir(exist_ok=True)
    games = app.stream(read(spark, folder / "games"), key="player", timestamp="at", name="games")
    chats = app.stream(read(spark, folder / "chats"), key="player", timestamp="at", name="chats")
    return app, games, chats


def clocks(app: hf.App) -> dict[str, Any]:
    newest = app._started().driver.newest
    assert newest is not None
    return {name: datetime.fromtimestamp(time / 1000, UTC) for name, time in newest.clocks.sources.items()}


def plan_of(app: hf.App) -> str:
    execution = app.query._jsq.streamingQuery().lastExecution()
    return str(execution.executedPlan().toString())


def test_each_source_has_its_own_records_and_clock(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "games", 1, [game("ann", 3), game("bob", 4, LATER)])
    write(tmp_path / "chats", 1, [game("ann", 100)])
    app, games, chats = two_sources(spark, tmp_path)
    games.group_by().aggregate(n=hf.count(), points=hf.sum("points")).store("played")
    chats.group_by().aggregate(points=hf.sum("points")).store("chatted")
    games.merge(chats).group_by().aggregate(n=hf.count()).store("seen")
    with app:
        app.process_all_available()
        assert entries_of(app, "played") == {"ann": {"n": 1, "points": 3}, "bob": {"n": 1, "points": 4}}
        assert entries_of(app, "chatted") == {"ann": {"points": 100}}
        assert entries_of(app, "seen") == {"ann": {"n": 2}, "bob": {"n": 1}}
        assert clocks(app) == {"games": LATER, "chats": NOON}
        newest = app._started().driver.newest
        assert newest is not None and newest.counts["records"] == 3


def test_a_merged_stream_moves_the_clock_of_each_source_alone(spark: SparkSession, tmp_path: Path) -> None:
    class Seen(hf.Processor):
        seen = hf.KeyValueStore("seen", value=int)

        def process(self, key: str, event: Any, ctx: hf.Context) -> None:
            self.seen[key] = self.seen.get(key, 0) + event.points

    write(tmp_path / "games", 1, [game("ann", 3, LATER)])
    write(tmp_path / "chats", 1, [game("ann", 100), game(None, 7)])
    app, games, chats = two_sources(spark, tmp_path)
    games.merge(chats.where("points > 5")).process(Seen)
    with app:
        app.process_all_available()
        assert entries_of(app, "seen") == {"ann": 103}
        assert clocks(app) == {"games": LATER, "chats": NOON}
    (path,) = (tmp_path / "base" / "sources" / "dead-letters").glob("[0-9]*.json")
    letter = json.loads(path.read_text())
    assert json.loads(letter["record"]) == {
        "player": None,
        "points": 7,
        "at": NOON.isoformat()[:-6] + ".000Z",
        "_source": "chats",
    }


def test_the_tasks_of_a_merged_stream_count_the_records_of_each_source(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job counts them: the tasks do, also unusable ones, in each plan of an aggregate and in a table."""

    def refuse(frame: DataFrame) -> None:
        raise AssertionError("a job that counts")

    monkeypatch.setattr(type(spark.range(1)), "count", refuse)
    app, games, chats = two_sources(spark, tmp_path)
    merged = games.merge(chats)
    merged.group_by().aggregate(n=hf.count()).store("seen")
    merged.group_by().window(hf.tumbling("1h")).aggregate(n=hf.count()).store("hourly")
    counts, before = [], 0
    with app:
        for number in range(3):
            write(tmp_path / "games", number, [game("ann", 3), game("bob", 4), game(None if number == 2 else "cat")])
            write(tmp_path / "chats", number, [game("dan", 100)])
            app.process_all_available()
            log = Log.open(open_storage(str(tmp_path / "base" / app.id / "log")))
            commits = [log.commit(Version(version)) for version in range(before + 1, app.version + 1)]
            counts.append([each.counts for each in commits if each is not None])  # a batch may come between two files
            before = app.version
    assert [sum(each["records"] for each in some) for some in counts] == [4, 4, 4]
    assert [sum(each.get("dead", 0) for each in some) for some in counts] == [0, 0, 1]


@pytest.mark.parametrize("whole", [False, True])
def test_only_the_columns_that_are_used_are_read(spark: SparkSession, tmp_path: Path, whole: bool) -> None:
    write(tmp_path / "input", 1, [game("ann", 3), game(None, 7)])
    app = hf.App("pruned", settings=settings(tmp_path), spark=spark)
    source = read(spark, tmp_path / "input")
    stream = app.stream(source, key="player", whole_dead_letters=whole)
    stream.where("points > 1").group_by().count().store("one")
    with app:
        app.process_all_available()
        assert entries_of(app, "one") == {"ann": {"count": 1}}
        plan = plan_of(app)
        assert ("at:timestamp" in plan) is whole, plan
        assert "PushedFilters: [IsNotNull(points), GreaterThan(points,1)]" in plan, "filters reach the source"
    (path,) = (tmp_path / "base" / "pruned" / "dead-letters").glob("[0-9]*.json")
    record = json.loads(json.loads(path.read_text())["record"])
    assert record.keys() == ({"player", "points", "at"} if whole else {"player"})


def test_a_column_that_only_a_later_step_names_may_be_left_out(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("ann", 3)])
    app = hf.App("later", settings=settings(tmp_path), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input"), key="player")
    stream.select("player", "at").group_by().count().store("one")
    stream.with_column("double", "points * 2").group_by().aggregate(sum=hf.sum("double")).store("two")
    with app:
        app.process_all_available()
        assert entries_of(app, "one") == {"ann": {"count": 1}}
        assert entries_of(app, "two") == {"ann": {"sum": 6}}
        assert "at:timestamp" not in plan_of(app)


def test_branches_take_each_record_once(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("ann", n) for n in (1, 2, 3, 4, None)])
    app = hf.App("branches", settings=settings(tmp_path), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input"), key="player")
    small, even, rest = stream.branch("points < 3", "points % 2 = 0")
    for name, part in {"small": small, "even": even, "rest": rest}.items():
        part.group_by().aggregate(n=hf.count(), sum=hf.sum("points")).store(name)
    words = stream.flat_map("sequence(1, points)", "step").key_by("step")
    words.group_by().count().store("steps")
    with app:
        app.process_all_available()
        assert entries_of(app, "small") == {"ann": {"n": 2, "sum": 3}}
        assert entries_of(app, "even") == {"ann": {"n": 1, "sum": 4}}
        assert entries_of(app, "rest") == {"ann": {"n": 2, "sum": 3}}
        assert entries_of(app, "steps") == {1: {"count": 4}, 2: {"count": 3}, 3: {"count": 2}, 4: {"count": 1}}


def test_streams_that_cannot_be_merged_or_split_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    _, games, chats = two_sources(spark, tmp_path)
    with pytest.raises(TopologyError, match=r"the streams differ.*Select the same columns"):
        games.merge(chats.drop("points"))
    with pytest.raises(TopologyError, match=r"key player.*key points"):
        games.merge(chats.key_by("points"))
    with pytest.raises(TopologyError, match="may answer otherwise"):
        games.branch("rand() < 0.5")
    with pytest.raises(TopologyError, match=r"no column 'playr'.*'player'"):
        games.key_by("playr")


def test_a_source_can_be_added_moved_and_removed_and_comes_back(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def start(*names: str, **more: Any) -> dict[str, dict[str, Any]]:
        app = hf.App("more", settings=settings(tmp_path, **more), spark=spark)
        for name in names:
            stream = app.stream(read(spark, tmp_path / name), key="player", timestamp="at", name=name)
            stream.group_by().aggregate(points=hf.sum("points")).store(f"of-{name}")
        with app:
            app.process_all_available()
            return {name: entries_of(app, f"of-{name}") for name in names}

    for name, points in {"games": 1, "chats": 10, "bets": 100}.items():
        write(tmp_path / name, 1, [game("ann", points)])
    assert start("games") == {"games": {"ann": {"points": 1}}}
    write(tmp_path / "games", 2, [game("ann", 2)])
    assert start("chats", "games") == {"chats": {"ann": {"points": 10}}, "games": {"ann": {"points": 3}}}
    write(tmp_path / "chats", 2, [game("ann", 20)])
    found = start("bets", "games", "chats")
    assert {name: rows["ann"]["points"] for name, rows in found.items()} == {"bets": 100, "games": 3, "chats": 30}
    (tmp_path / "rolls").mkdir()
    with pytest.raises(SourceRemoved, match=r"no longer reads the source 'chats', and has a new one, 'rolls'"):
        start("games", "bets", "rolls")

    for name, points in {"games": 4, "chats": 40}.items():
        write(tmp_path / name, 3, [game("ann", points)])
    assert start("games", "bets") == {"games": {"ann": {"points": 7}}, "bets": {"ann": {"points": 100}}}
    assert "source 'chats' isn't in the code any more: its position is kept" in caplog.text
    assert start("games") == {"games": {"ann": {"points": 7}}}
    write(tmp_path / "bets", 2, [game("ann", 200)])
    back = {"of-chats": "continue", "of-bets": "continue"}
    found = start("games", "chats", "bets", returned_stores=back)
    assert {name: rows["ann"]["points"] for name, rows in found.items()} == {"games": 7, "chats": 70, "bets": 300}


class Failing(hf.Processor):
    def process(self, key: Any, event: Any, ctx: hf.Context) -> None:
        raise ValueError("a bug")


def test_the_release_before_a_source_was_added_starts_after_the_new_ones_batch_has_failed(
    spark: SparkSession, tmp_path: Path
) -> None:
    def release(*names: str, broken: str = "", **more: Any) -> hf.App:
        app = hf.App("more", settings=settings(tmp_path, **more), spark=spark)
        for name in names:
            (tmp_path / name).mkdir(exist_ok=True)
            stream = app.stream(read(spark, tmp_path / name), key="player", timestamp="at", name=name)
            stream.group_by().aggregate(points=hf.sum("points")).store(f"of-{name}")
            if name == broken:
                stream.process(Failing, name="failing")
        return app

    def points(app: hf.App, *names: str) -> list[int]:
        with app:
            app.process_all_available()
            return [entries_of(app, f"of-{name}")["ann"]["points"] for name in names]

    def commits() -> list[Commit]:
        log = Log.open(open_storage(str(tmp_path / "base" / "more" / "log")))
        return [commit for number in range(1, 50) if (commit := log.commit(Version(number))) is not None]

    def positions(commit: Commit) -> list[object]:
        assert commit.spark is not None
        return inputs_of(commit.spark.offsets)[1:]

    write(tmp_path / "games", 1, [game("ann", 1)])
    assert points(release("games"), "games") == [1]
    with release("games", "chats") as app:  # which has no records yet, so Spark notes no position
        write(tmp_path / "games", 2, [game("ann", 2)])
        app.process_all_available()
    assert points(release("games"), "games") == [3]

    write(tmp_path / "chats", 1, [game("ann", 10)])
    back = {"of-chats": "continue"}
    assert points(release("games", "chats", returned_stores=back), "games", "chats") == [3, 10]
    write(tmp_path / "games", 3, [game("ann", 4)])
    write(tmp_path / "chats", 2, [game("ann", 20)])
    app = release("games", "chats", broken="chats")
    with pytest.raises(hf.HoldfastError, match="a bug"):  # its batch is planned and never done
        points(app, "games", "chats")
    before = commits()[-1]
    assert points(release("games"), "games") == [7]
    made = commits()[before.version :]
    assert all(positions(each)[1] == positions(before)[1] for each in made), "it never passes what it hasn't read"
    assert points(release("games", "chats", returned_stores=back), "games", "chats") == [7, 30]
