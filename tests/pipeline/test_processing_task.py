"""A task of a processor, without Spark: records in, segments out, and errors that name the record."""

import datetime as dt
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import BadValue, ErrorCategory, TopologyError
from holdfast.instance.messages import InstanceUnavailable
from holdfast.log.segments import DEAD, OUTPUT
from holdfast.pipeline.processing_task import Code, ProcessingWork, RecordColumns
from holdfast.pipeline.results import TaskDone, TaskResult
from holdfast.pipeline.running import ProcessorFailed
from holdfast.pipeline.shipping import ship, unship
from holdfast.pipeline.task import Limits
from holdfast.pipeline.values import events_of, output_table, values_of
from holdfast.stores.access import Now
from holdfast.stores.formats.types import Schema
from holdfast.testing.processor import ProcessorTest
from holdfast.topology.events import EventShape, shape_of
from holdfast.topology.processor import check_processor, parse_output, specs_of, stores_of
from holdfast.topology.punctuation import Punctuation
from holdfast.words import TaskId, Version
from tests.pipeline.outcomes import ReplicaState, done, log_of, refusal

UTC = dt.UTC
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=UTC)


class Games(hf.Processor):
    """Counts games per player and per minute, and keeps who is online."""

    games = hf.KeyValueStore("games", value=int)
    minutes = hf.WindowStore("minutes", value=int, size="1m", retention="10m")
    online = hf.KeyValueStore("online", value=str, durable=False)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        if event.points < 0:
            raise ValueError(f"{event.points} points")
        self.games[key] = self.games.get(key, 0) + 1
        minute = ctx.timestamp // 60_000 * 60_000
        self.minutes.put(key, (self.minutes.fetch(key, minute) or 0) + event.points, minute)
        self.online[key] = f"version {ctx.version}"
        ctx.count("games")
        ctx.forward(key, {"games": self.games[key]})


CODE = Code(Games, EventShape(("player", "points")))
STORES = tuple((attribute, declared.spec()) for attribute, declared in stores_of(Games).items())


LIMITS = Limits(1, 1_000, 1 << 20, state_bytes=1 << 20)


def work(version: int, **changes: Any) -> ProcessingWork:
    made = ProcessingWork(
        subtopology=0,
        version=Version(version),
        now=Now(1_000 * version),
        name="games",
        key=Schema.of(player="string"),
        stores=STORES,
        outputs=((None, parse_output("player string, games int")),),
        columns=RecordColumns(event=("c0", "c1"), keys=("c0",), time="_time", clocks=(("main", "_time"),)),
        limits=LIMITS,
        code=ship(CODE),
    )
    return replace(made, **changes)


def rows(*records: tuple[str | None, int], time: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "c0": pa.array([player for player, _ in records], pa.string()),
            "c1": pa.array([points for _, points in records], pa.int64()),
            "_dead": pa.array(['{"reason":"no key"}' if p is None else None for p, _ in records], pa.string()),
            "_time": pa.array([time] * len(records), pa.int64()),
        }
    )


class ProcessorReplica(ReplicaState):
    """The processor's stores, and the log that its task writes to."""

    def __init__(self) -> None:
        specs = [spec for _, spec in STORES]
        super().__init__(*(spec.name for spec in specs))
        self.log = log_of(*specs)

    def attempt(self, work: ProcessingWork, *batches: pa.RecordBatch) -> TaskResult:
        return work.run(TaskId(0, 0), batches, self.log, self)

    def run(self, work: ProcessingWork, *batches: pa.RecordBatch) -> TaskDone:
        result = done(self.attempt(work, *batches))
        self.apply(self.log, (*result.segments, *result.volatile))
        return result

    def bound(self, name: str, now: Now) -> Any:
        declared = next(store for store in stores_of(Games).values() if store.name == name)
        return declared.bind(self.stores[name], now, lambda what, number: None)

    def forwarded(self, result: TaskDone) -> list[dict[str, Any]]:
        """The forwarded rows without their event times."""
        tables = (table for ref in result.segments for _, table in self.log.read_parts(ref, OUTPUT))
        return [row for table in tables for row in table.drop_columns("_time").to_pylist()]


def test_versions_are_applied_to_all_stores() -> None:
    replica = ProcessorReplica()
    first = replica.run(work(1), rows(("ann", 3), ("bob", 1)), rows(("ann", 4), time=60_000))
    replica.run(work(2), rows(("ann", 5), time=60_001))
    now = Now(9_000, 60_001)
    assert dict(replica.bound("games", now).items()) == {"ann": 3, "bob": 1}
    assert list(replica.bound("minutes", now).fetch("ann", from_=0)) == [(0, 3), (60_000, 9)]
    assert dict(replica.bound("online", now).items()) == {"ann": "version 2", "bob": "version 1"}
    assert replica.forwarded(first) == [
        {"player": "ann", "games": 1},
        {"player": "bob", "games": 1},
        {"player": "ann", "games": 2},
    ]
    assert (first.event_times, first.records, first.counts["user/games"]) == ({"main": 60_000}, 3, 3)
    assert [part.name for ref in first.volatile for part in ref.parts] == ["online"]
    assert {part.name for ref in first.segments for part in ref.parts} == {"games", "minutes"}


class Meetings(hf.Processor):
    """Reads pairs under another key than the record's."""

    minutes = hf.WindowStore("minutes", value=int, size="1m", retention="8m")
    visits = hf.SessionStore("visits", value=int, gap="10s", retention="8m")
    pairs: hf.KeyValueStore[tuple[str, int], int] = hf.KeyValueStore("pairs", key=(str, int), value=int)

    def prefetch(self, key: str, event: Any) -> Iterator[tuple[Any, Any]]:
        yield self.pairs, (key, event.points)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        minute = ctx.timestamp // 60_000 * 60_000
        self.minutes.put(key, (self.minutes.fetch(key, minute) or 0) + 1, minute)
        self.visits.merge(key, ctx.timestamp, None, lambda one, other: one + other, 1)
        self.pairs[key, event.points] = self.pairs.get((key, event.points), 0) + 1


def test_the_number_of_reads_does_not_depend_on_the_number_of_records() -> None:
    """Also in versions that are the first to write to a slice."""
    stores = tuple((attribute, declared.spec()) for attribute, declared in stores_of(Meetings).items())
    state = ReplicaState(*(spec.name for _, spec in stores))
    log = log_of(*(spec for _, spec in stores))
    reads = []
    for version in range(1, 6):
        state.reads = 0
        batch = rows(*[(f"p{n % 50}", n % 7) for n in range(500)], time=version * 50_000)
        changes: dict[str, Any] = {"stores": stores, "now": Now(0, (version - 1) * 50_000 or None)}
        made = work(version, code=ship(replace(CODE, processor=Meetings)), **changes)
        result = done(made.run(TaskId(0, 0), [batch], log, state))
        reads.append(state.reads)
        state.apply(log, result.segments)
    assert max(reads) < 20, reads


def test_a_version_without_records_writes_nothing() -> None:
    result = ProcessorReplica().run(work(1))
    assert (result.segments, result.volatile, result.records, result.counts) == ((), (), 0, {})


def test_the_result_does_not_depend_on_chunks() -> None:
    batches = [rows((f"p{n % 3}", n)) for n in range(20)]
    found = []
    for chunk_rows in (1, 7, 1_000):
        replica = ProcessorReplica()
        result = replica.run(work(1, limits=replace(LIMITS, chunk_rows=chunk_rows)), *batches)
        found.append((dict(replica.bound("games", Now(0)).items()), replica.forwarded(result)))
    assert found[0] == found[1] == found[2]


RAISED = ("ValueError: -1 points", "'bob'", "points=-1", "test_processing_task.py", "raise ValueEr")


def test_a_users_exception_names_the_record_and_the_line() -> None:
    replica = ProcessorReplica()
    refused = refusal(replica.attempt(work(1), rows(("ann", 3), ("bob", -1))))
    assert refused.category is not ErrorCategory.RETRY
    for part in ("ProcessorFailed: Games.process()", *RAISED):
        assert part in refused.message


def test_a_message_that_ends_with_a_full_stop_is_part_of_the_sentence() -> None:
    class Strict(hf.Processor):
        def process(self, key: str, event: Any, ctx: hf.Context) -> None:
            raise ValueError("Give one of those.")

    with pytest.raises(
        ProcessorFailed, match=r"ValueError: Give one of those \(at .*\) for the key 'ann' and the event"
    ):
        ProcessorTest(Strict).pipe("ann", {"points": 1})


def test_the_message_for_a_large_record_is_short() -> None:
    class Quoting(hf.Processor):
        def process(self, key: str, event: Any, ctx: hf.Context) -> None:
            raise ValueError(f"what is {event}?")

    with pytest.raises(ProcessorFailed) as raised:
        ProcessorTest(Quoting).pipe("k" * 1_000_000, {"text": "x" * 10_000_000})
    assert len(str(raised.value)) < 2_500
    for part in ("ValueError: what is", "'kkk", "Event(text='xxx", "(1,000,002 characters)", "(10,000,014 characters)"):
        assert part in str(raised.value)


class Seen(msgspec.Struct):
    points: int


@dataclass
class Written:
    points: int


class Careless(hf.Processor):
    """Puts any value into an int field."""

    plain = hf.KeyValueStore("plain", value=Written)
    json = hf.KeyValueStore("json", value=Seen, codec="json")
    bounded = hf.KeyValueStore("bounded", value=Seen, max_entries=2)
    brief = hf.KeyValueStore("brief", value=list[int], ttl="1h")
    stamped = hf.TimestampedKeyValueStore("stamped", value=Written)
    hours: hf.WindowStore[tuple[str, int], Seen] = hf.WindowStore("hours", key=(str, int), value=Seen, size="1h")
    visits = hf.SessionStore("visits", value=Seen)
    prices = hf.VersionedKeyValueStore("prices", value=Seen, retention="1h")

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        value, time = event.value, ctx.timestamp
        match event.store:
            case "brief":
                self.brief[key] = [value]
            case "stamped":
                self.stamped.put(key, Written(value), time)
            case "hours":
                self.hours.put((key, 7), Seen(value), time)
            case "visits":
                self.visits.put(hf.Session(key, time, time), Seen(value))
            case "prices":
                self.prices.put(key, Seen(1), time)
                self.prices.delete(key, time + 1)
                self.prices.put(key, Seen(value), time + 2)
            case "plain":
                self.plain[key] = Written(value)
            case store:
                getattr(self, store)[key] = Seen(value)


@pytest.mark.parametrize("store", [declared.name for declared in stores_of(Careless).values()])
def test_a_value_that_could_not_be_read_back_is_not_committed(store: str) -> None:
    test = ProcessorTest(Careless)
    test.pipe("ann", {"store": store, "value": 3})
    test.commit()
    test.pipe("bob", {"store": store, "value": 4})
    test.pipe("ann", {"store": store, "value": True})
    with pytest.raises(
        BadValue, match=rf"store '{store}': .* key .*'ann'.* as [\w\[\]]+: Expected `int`.*It was .*True"
    ) as no:
        test.commit()
    assert "Nothing of the batch was committed" in str(no.value)


def test_a_value_that_could_not_be_read_back_is_not_retried() -> None:
    class Largest(hf.Processor):
        best = hf.KeyValueStore("games", value=Written)

        def process(self, key: str, event: Any, ctx: hf.Context) -> None:
            self.best[key] = Written([None] * 1_000)  # type: ignore[arg-type]

    replica = ProcessorReplica()
    (spec,) = specs_of(Largest)
    made = work(1, stores=(spec,), outputs=(), code=ship(replace(CODE, processor=Largest)))
    refused = refusal(replica.attempt(made, rows(("ann", 3))))
    assert refused.category is not ErrorCategory.RETRY
    assert refused.message.startswith("BadValue: ")
    assert len(refused.message) < 700, refused.message


def test_two_stores_of_one_name_are_refused() -> None:
    class Twice(hf.Processor):
        one = hf.KeyValueStore("games", value=int)
        other = hf.KeyValueStore("games", value=str)

        def process(self, key: str, event: Any, ctx: hf.Context) -> None: ...

    with pytest.raises(TopologyError, match="two stores named 'games'"):
        ProcessorTest(Twice)


def test_a_key_of_another_type_is_an_error_with_advice() -> None:
    class ByText(hf.Processor):
        games = hf.KeyValueStore("games", value=int)

        def process(self, key: Any, event: Any, ctx: hf.Context) -> None:
            self.games[key] = 1

    with pytest.raises(ProcessorFailed, match="key=1 is an int, .*Give a str, or declare the store with key=int"):
        ProcessorTest(ByText).pipe(1, {})


class Misnaming(hf.Processor):
    """Fails before `process` gets a record."""

    pairs: hf.KeyValueStore[tuple[str, int], int] = hf.KeyValueStore("pairs", key=(str, int), value=int)

    def prefetch(self, key: str, event: Any) -> Iterator[tuple[Any, Any]]:
        if event.points < 0:
            raise ValueError(f"{event.points} points")
        yield self.pairs, (key, event.points) if event.points else key

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        raise AssertionError("prefetch should have failed")


def test_a_processor_that_calls_sys_exit_fails_like_any_other() -> None:
    class Ends(hf.Processor):
        games = hf.KeyValueStore("games", value=int)

        def process(self, key: Any, event: Any, ctx: hf.Context) -> None:
            sys.exit("no more games")

    with pytest.raises(ProcessorFailed, match=r"Ends\.process\(\) raised SystemExit.*no more games"):
        ProcessorTest(Ends).pipe("bob", {})


def test_an_exception_in_prefetch_names_the_record_and_the_line() -> None:
    test = ProcessorTest(Misnaming)
    with pytest.raises(ProcessorFailed) as raised:
        test.pipe("bob", {"points": -1})
    for part in ("Misnaming.prefetch()", *RAISED):
        assert part in str(raised.value)
    with pytest.raises(ProcessorFailed, match=r"Misnaming\.prefetch\(\) raised .*BadKey.*'bob' was given as a key"):
        test.pipe("bob", {"points": 0})


def test_an_unreachable_instance_is_retried() -> None:
    class Unreachable(ProcessorReplica):
        def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
            raise InstanceUnavailable("no answer")

    replica = Unreachable()
    refused = refusal(replica.attempt(work(2), rows(("ann", 1))))
    assert refused.category is ErrorCategory.RETRY
    assert refused.message.startswith("InstanceUnavailable: ")


def test_invalid_records_become_dead_letters() -> None:
    replica = ProcessorReplica()
    result = replica.run(work(1), rows((None, 1), ("ann", 1), (None, 2)))
    assert (result.records, result.counts["dead"]) == (3, 2)
    [(name, letters)] = [part for ref in result.segments for part in replica.log.read_parts(ref, DEAD)]
    assert (name, letters.num_rows) == ("games", 2)


def test_a_key_of_another_partition_is_refused_with_the_key() -> None:
    refused = refusal(
        ProcessorReplica().attempt(work(1, limits=replace(LIMITS, partitions=2)), rows(("stray", 1), ("bob", 1)))
    )
    assert refused.message.startswith("WrongPartition: ")
    assert "'bob'" in refused.message


def test_too_much_state_is_refused_with_the_setting() -> None:
    batches = [rows((f"p{n}", 1)) for n in range(50)]
    limited = work(1, limits=replace(LIMITS, state_bytes=2_000))
    assert "batch.state_bytes" in refusal(ProcessorReplica().attempt(limited, *batches)).message


def test_forwarding_without_an_output_is_an_error_with_advice() -> None:
    error = refusal(ProcessorReplica().attempt(work(1, outputs=()), rows(("ann", 3))))
    assert error.category is not ErrorCategory.RETRY
    assert (
        "Games.process() raised holdfast.errors.TopologyError: ctx.forward() needs to know the output's"
        in error.message
    )
    assert "stream.process(..., output='player string, n bigint')" in error.message
    assert "test_processing_task.py" in error.message


def test_a_forwarded_row_of_other_types_is_an_error() -> None:
    schema = parse_output("player string, n int")
    with pytest.raises(BadValue, match=r"\('bob', 'many'\).*n, which must be int32"):
        output_table(schema, [("ann", 1), ("bob", "many")])
    ctx = hf.Context(Version(1), Now(0), 0, {None: schema}, lambda name, number: None)
    ctx.forward("ann", {"n": 1})
    ctx.forward(("ann", 2), {})
    ctx.forward(None, {"n": 3, "player": "bob"})
    assert ctx.outlets[None].rows == [("ann", 1), ("ann", 2), ("bob", 3)]
    for value in ({}, {"m": 1}, {"n": 1, "m": 2}):
        with pytest.raises(BadValue, match="must have exactly n"):
            ctx.forward("ann", value)
    assert len(ctx.outlets[None].rows) == 3
    ctx.forward("ann", {"player": "ann", "n": 4})
    assert ctx.outlets[None].rows[3:] == [("ann", 4)], "what the key fills may be there twice"
    with pytest.raises(BadValue, match="'player': 'bob'.* it may repeat what the key has"):
        ctx.forward("ann", {"player": "bob", "n": 4})
    assert len(ctx.outlets[None].rows) == len(ctx.outlets[None].times) == 4
    with pytest.raises(TopologyError, match="output="):
        hf.Context(Version(1), Now(0), 0, {}, lambda name, number: None).forward("ann", {})


# Events


class Played(msgspec.Struct):
    points: int
    player: str
    tags: list[str] = []
    bonus: float = 0.0


@dataclass
class PlayedToo:
    at: dt.datetime
    points: int | None


COLUMNS = {"player": "string", "points": "bigint", "at": "timestamp", "tags": "array<string>", "bonus": "int"}


def shape(annotation: Any, columns: dict[str, str] = COLUMNS) -> EventShape:
    def process(self: Any, key: Any, event: Any, ctx: Any) -> None: ...

    process.__annotations__["event"] = annotation
    return shape_of(process, columns)


def test_an_event_has_the_annotated_type_and_only_its_columns() -> None:
    assert shape(Any) == EventShape(tuple(COLUMNS))
    played = shape(Played)
    assert played.columns == ("points", "player", "tags", "bonus")
    assert played.maker()(3, "ann", ["x"], 1) == Played(3, "ann", ["x"], 1)
    assert shape(PlayedToo).columns == ("at", "points")
    assert shape(Played, {"points": "int", "player": "string", "bonus": "double"}).maker()(1, "ann", 2.0) == Played(
        1, "ann", [], 2.0
    )


class Loose(msgspec.Struct):
    at: dt.datetime | None
    points: Any
    player: str = None  # type: ignore[assignment]
    tags: list[str] = []
    bonus: float = 0.0


@dataclass
class Either:
    """Unions that msgspec rejects."""

    at: dt.datetime | str
    player: str | dt.date | None


def test_a_column_is_required_if_its_type_has_no_none() -> None:
    assert shape(Any).required == ()
    assert shape(Played).required == ("points", "player", "tags", "bonus"), "a default is for a missing column"
    assert shape(PlayedToo).required == ("at",)
    assert shape(Loose).required == ("tags", "bonus")
    assert shape(Either).required == ("at",)


@pytest.mark.parametrize(
    ("annotation", "columns", "message"),
    [
        (Played, {"points": "bigint"}, "Played.player has no column and no default"),
        (Played, {**COLUMNS, "points": "string"}, "Played.points .*int.*column 'points' is of type string"),
        (int, COLUMNS, "Annotate it with a msgspec.Struct or a "),
        (Any, {"a b": "int"}, "'a b' can't be an attribute"),
    ],
)
def test_an_invalid_event_type_is_refused_when_the_app_is_built(
    annotation: Any, columns: dict[str, str], message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        shape(annotation, columns)


def test_values_are_python_objects() -> None:
    micros = pa.array([NOON, None, NOON], pa.timestamp("us", "Asia/Tokyo"))
    assert values_of(micros) == [NOON, None, NOON]
    assert values_of(micros)[0].tzinfo is UTC
    assert values_of(pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("us"))) == [dt.datetime(2026, 1, 1)]  # noqa: DTZ001
    assert values_of(pa.array([1.5, 2.5])) == [1.5, 2.5]
    assert values_of(pa.array(["a", None])) == ["a", None]
    assert values_of(pa.array([{"x": 1}])) == [{"x": 1}]
    with pytest.raises(BadValue, match="years 1 to 9999"):
        values_of(pa.array([2**62], pa.timestamp("us", "UTC")))


# Declarations


class Stocked(msgspec.Struct):
    stock: dict[str, int]


def test_a_map_is_a_dict_in_an_event() -> None:
    kind, columns = pa.map_(pa.string(), pa.int64()), {"stock": "map<string,bigint>"}
    rows = pa.array([[("a", 1), ("b", 2)], []], kind)
    assert events_of(shape(Stocked, columns), [rows], 2) == [Stocked({"a": 1, "b": 2}), Stocked({})]
    loose: list[Any] = events_of(shape(Any, columns), [pa.array([[("a", None)], None], kind)], 2)
    assert [event.stock for event in loose] == [{"a": None}, None]
    assert values_of(pa.array([[[("a", 1)]]], pa.list_(kind))) == [[{"a": 1}]]


def test_an_invalid_processor_is_refused() -> None:
    class NoWork(hf.Processor):
        pass

    refused = {NoWork: "has no process", int: "derives from hf.Processor", Games(): "the class itself"}
    for wrong, message in refused.items():
        with pytest.raises(TopologyError, match=message):
            check_processor(wrong)
    with pytest.raises(TopologyError, match="can't be read at 'n'"):
        parse_output("player string, n")


def test_stores_of_base_classes_come_first_and_can_be_removed() -> None:
    class More(Games):
        more = hf.KeyValueStore("more", value=int)
        online = None  # type: ignore[assignment]

    assert list(stores_of(More)) == ["games", "minutes", "more"]


SCRIPT = """
from __future__ import annotations
import dataclasses, sys
import msgspec
import holdfast as hf
from holdfast.pipeline.shipping import ship, unship

class Score(msgspec.Struct, frozen=True, tag="s"):
    points: int
    best: Score | None = None
    names: list[str] = msgspec.field(default_factory=list, name="n")

    def plus(self, more: int) -> Score:
        return Score(self.points + more, self)

@dataclasses.dataclass
class Seen:
    score: Score
    at: int = 3

class Scores(hf.Processor):
    scores = hf.KeyValueStore("scores", value=Score)

    def process(self, key, event, ctx):
        self.scores[key] = self.scores.get(key, Score(0)).plus(event.score.points)

msgspec.convert({"score": {"type": "s", "points": 1}}, Seen)
sys.stdout.buffer.write(ship((Scores, Seen, Score)))
"""


def test_classes_of_the_main_script_are_shipped_completely(tmp_path: Path) -> None:
    """A Struct in `__main__` loses its fields when Spark's own pickler carries it."""
    (tmp_path / "app.py").write_text(SCRIPT)
    shipped = subprocess.run([sys.executable, tmp_path / "app.py"], capture_output=True, check=True).stdout
    processor, seen, score = unship(shipped)
    assert unship(shipped)[0] is processor
    test = ProcessorTest(processor)
    test.pipe("ann", msgspec.convert({"score": {"type": "s", "points": 2}}, seen))
    test.commit()
    test.pipe("ann", seen(score(5)))
    assert test.store("scores").get("ann") == score(7, score(2, score(0)))
    assert msgspec.json.encode(score(1)) == b'{"type":"s","points":1,"best":null,"n":[]}'
    with pytest.raises(msgspec.ValidationError, match="points"):
        msgspec.convert({"score": {"type": "s", "points": "many"}}, seen)


class Closings(hf.Processor):
    """Looks up, one by one, keys of entries that it iterates over."""

    due: hf.KeyValueStore[tuple[int, str], str] = hf.KeyValueStore("due", key=(int, str), value=str)
    games = hf.KeyValueStore("games", value=int)
    brief = hf.KeyValueStore("brief", value=int, ttl="1h")
    latest = hf.TimestampedKeyValueStore("latest", value=int, max_entries=100_000)
    prices = hf.VersionedKeyValueStore("prices", value=int, retention="1h")
    hours = hf.WindowStore("hours", value=int, size="1m", retention="1h")

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.due[event.points, key] = key
        self.games[key] = self.brief[key] = event.points
        self.latest.put(key, event.points)
        self.prices.put(key, event.points, ctx.timestamp)
        self.hours.put(key, event.points, ctx.timestamp)

    @hf.punctuate(every="1s", time="wall")
    def by_component(self, now: int, ctx: hf.Context) -> None:
        for at, player in self.due.keys():  # noqa: SIM118
            assert self.games.get(player) == self.brief.get(player) == at
            del self.due[at, player]

    @hf.punctuate(every="1s", time="wall")
    def by_window(self, now: int, ctx: hf.Context) -> None:
        for window, points in self.hours.fetch_all():
            assert self.latest[window.key].value == self.prices.get(window.key).value == points  # type: ignore[union-attr]
            assert self.games.pop(window.key) == points


@pytest.mark.parametrize(("punctuator", "most"), [("by_component", 30), ("by_window", 40)])
def test_a_punctuator_reads_in_bulk_what_it_looks_up(punctuator: str, most: int) -> None:
    """6,000 closings: 12,000 lookups and 6,000 removals, and 18,000 lookups."""
    stores = tuple((attribute, declared.spec()) for attribute, declared in stores_of(Closings).items())
    state = ReplicaState(*(spec.name for _, spec in stores))
    log = log_of(*(spec for _, spec in stores))
    limits = Limits(1, 10_000, 1 << 30, state_bytes=1 << 30)
    made = work(1, code=ship(replace(CODE, processor=Closings)), stores=stores, limits=limits)
    written = done(made.run(TaskId(0, 0), [rows(*((f"p{n}", n) for n in range(6_000)), time=1)], log, state))
    state.apply(log, written.segments)
    state.reads = 0
    due = replace(made, version=Version(2), punctuations=(Punctuation(punctuator, 2_000),))
    done(due.run(TaskId(0, 0), [], log, state))
    assert state.reads <= most
