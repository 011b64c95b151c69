"""A task of a processor, without Spark: records in, segments out, refusals that say which record it was."""

import datetime as dt
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import BadValue, ErrorCategory, TopologyError
from holdfast.instance.messages import InstanceUnavailable
from holdfast.log.appfile import AppSpec
from holdfast.log.log import Log
from holdfast.log.segments import DEAD, OUTPUT
from holdfast.log.storage import open_storage
from holdfast.pipeline.processing_task import Code, ProcessingWork, RecordColumns, output_table
from holdfast.pipeline.results import TaskDone, TaskResult
from holdfast.pipeline.running import ProcessorFailed
from holdfast.pipeline.shipping import ship
from holdfast.pipeline.task_state import Range
from holdfast.pipeline.values import events_of, values_of
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.types import Schema
from holdfast.testing.processor import HeldState, ProcessorTest
from holdfast.topology.events import EventShape, shape_of
from holdfast.topology.processor import parse_output, specs_of, stores_of
from holdfast.words import TaskId, Version
from tests.log.making import subtopologies_of
from tests.pipeline.outcomes import done, refusal

UTC = dt.UTC
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=UTC)


class Games(hf.Processor):
    """Counts games, keeps the last ten minutes of them by minute, and remembers who plays."""

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


def work(version: int, **changes: Any) -> ProcessingWork:
    made = ProcessingWork(
        topology=0,
        version=Version(version),
        source="main",
        now=Now(1_000 * version),
        name="games",
        key=Schema.of(player="string"),
        stores=STORES,
        output=parse_output("player string, games int"),
        columns=RecordColumns(event=("c0", "c1"), keys=("c0",), time="_time"),
        partitions=1,
        chunk_rows=1_000,
        state_bytes=1 << 20,
        inline_limit=1 << 20,
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


class Replica:
    """The state that segments add up to, as an instance would answer for it."""

    def __init__(self, name: str) -> None:
        spec = AppSpec(
            id="app",
            partitions=1,
            stores=tuple(s for _, s in STORES),
            subtopologies=subtopologies_of({s.name: 0 for _, s in STORES}),
        )
        self.log = Log.create_or_open(open_storage(f"memory://{name}"), spec)
        self.held = HeldState({spec.name: DictBytes() for _, spec in STORES})

    def attempt(self, work: ProcessingWork, *batches: pa.RecordBatch) -> TaskResult:
        return work.run(TaskId(0, 0), batches, self.log, self.held)

    def run(self, work: ProcessingWork, *batches: pa.RecordBatch) -> TaskDone:
        result = done(self.attempt(work, *batches))
        for ref in (*result.segments, *result.volatile):
            for store, table in self.log.state_parts(ref):
                for key, value in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
                    if value is None:
                        self.held.stores[store].delete(key)
                    else:
                        self.held.stores[store].put(key, value)
        return result

    def store(self, name: str, now: Now) -> Any:
        declared = next(store for store in stores_of(Games).values() if store.name == name)
        return declared.bind(self.held.stores[name], now, lambda what, number: None)

    def forwarded(self, result: TaskDone) -> list[dict[str, Any]]:
        return [
            row for ref in result.segments for _, table in self.log.read_parts(ref, OUTPUT) for row in table.to_pylist()
        ]


def test_versions_add_up_over_all_stores() -> None:
    replica = Replica("processor-adds-up")
    first = replica.run(work(1), rows(("ann", 3), ("bob", 1)), rows(("ann", 4), time=60_000))
    replica.run(work(2), rows(("ann", 5), time=60_001))
    now = Now(9_000, 60_001)
    assert dict(replica.store("games", now).items()) == {"ann": 3, "bob": 1}
    assert list(replica.store("minutes", now).fetch("ann", from_=0)) == [(0, 3), (60_000, 9)]
    assert dict(replica.store("online", now).items()) == {"ann": "version 2", "bob": "version 1"}
    assert replica.forwarded(first) == [
        {"player": "ann", "games": 1},
        {"player": "bob", "games": 1},
        {"player": "ann", "games": 2},
    ]
    assert (first.event_times, first.records, first.counts["user/games"]) == ({"main": 60_000}, 3, 3)
    assert [part.name for ref in first.volatile for part in ref.parts] == ["online"]
    assert {part.name for ref in first.segments for part in ref.parts} == {"games", "minutes"}


class Asked(HeldState):
    """Counts how often an instance would have been asked."""

    asked = 0

    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        self.asked += 1
        return super().get(store, keys)

    def scan(self, store: str, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        self.asked += 1
        return super().scan(store, start, stop, reverse=reverse, limit=limit)

    def scan_many(self, store: str, ranges: Sequence[Range]) -> pa.Table:
        self.asked += 1
        return super().scan_many(store, ranges)


class Meetings(hf.Processor):
    """Looks its pairs up under a key that isn't the record's."""

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


def test_an_instance_is_asked_a_few_times_however_many_records_there_are() -> None:
    """Also in versions in which time has come to slices that nobody had written to before."""
    stores = tuple((attribute, declared.spec()) for attribute, declared in stores_of(Meetings).items())
    held = Asked({spec.name: DictBytes() for _, spec in stores})
    log = Replica("processor-asks").log
    asked = []
    for version in range(1, 6):
        held.asked = 0
        batch = rows(*[(f"p{n % 50}", n % 7) for n in range(500)], time=version * 50_000)
        changes: dict[str, Any] = {"stores": stores, "now": Now(0, (version - 1) * 50_000 or None)}
        made = work(version, code=ship(replace(CODE, processor=Meetings)), **changes)
        result = done(made.run(TaskId(0, 0), [batch], log, held))
        asked.append(held.asked)
        for ref in result.segments:
            for store, table in log.state_parts(ref):
                held.stores[store].entries.update(zip(*[column.to_pylist() for column in table.columns], strict=True))
    assert max(asked) < 20, asked


def test_a_version_without_records_is_run_too_and_writes_nothing() -> None:
    result = Replica("processor-empty").run(work(1))
    assert (result.segments, result.volatile, result.records, result.counts) == ((), (), 0, {})


def test_chunks_change_nothing() -> None:
    batches = [rows((f"p{n % 3}", n)) for n in range(20)]
    found = []
    for chunk_rows in (1, 7, 1_000):
        replica = Replica(f"processor-chunks-{chunk_rows}")
        result = replica.run(work(1, chunk_rows=chunk_rows), *batches)
        found.append((dict(replica.store("games", Now(0)).items()), replica.forwarded(result)))
    assert found[0] == found[1] == found[2]


def test_a_users_exception_names_the_record_and_the_line() -> None:
    replica = Replica("processor-raises")
    refused = refusal(replica.attempt(work(1), rows(("ann", 3), ("bob", -1))))
    assert refused.category is not ErrorCategory.RETRY
    for part in (
        "ProcessorFailed: Games.process()",
        "ValueError: -1 points",
        "'bob'",
        "points=-1",
        "test_processing_task.py",
        "raise ValueEr",
    ):
        assert part in refused.message


def test_an_exception_is_told_in_a_few_lines_however_large_the_record_is() -> None:
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
    """Puts what it is given into a field that is to be a whole number."""

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
def test_a_value_that_could_not_be_read_again_is_not_committed(store: str) -> None:
    test = ProcessorTest(Careless)
    test.pipe("ann", {"store": store, "value": 3})
    assert test.commit() == 1
    test.pipe("bob", {"store": store, "value": 4})
    test.pipe("ann", {"store": store, "value": True})
    with pytest.raises(
        BadValue, match=rf"store '{store}': .* key .*'ann'.* as [\w\[\]]+: Expected `int`.*It was .*True"
    ) as no:
        test.commit()
    assert "Nothing of the batch was committed" in str(no.value)


def test_a_task_refuses_what_could_not_be_read_again_once_and_for_all() -> None:
    class Largest(hf.Processor):
        best = hf.KeyValueStore("games", value=Written)

        def process(self, key: str, event: Any, ctx: hf.Context) -> None:
            self.best[key] = Written([None] * 1_000)  # type: ignore[arg-type]

    replica = Replica("processor-unreadable")
    (spec,) = specs_of(Largest)
    made = work(1, stores=(spec,), output=None, code=ship(replace(CODE, processor=Largest)))
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


def test_a_key_of_another_type_is_told_how_the_store_could_take_it() -> None:
    class ByText(hf.Processor):
        games = hf.KeyValueStore("games", value=int)

        def process(self, key: Any, event: Any, ctx: hf.Context) -> None:
            self.games[key] = 1

    with pytest.raises(ProcessorFailed, match="key=1 is an int, .*Give a str, or declare the store with key=int"):
        ProcessorTest(ByText).pipe(1, {})


class Misnaming(hf.Processor):
    """Goes wrong before `process` has seen a record."""

    pairs: hf.KeyValueStore[tuple[str, int], int] = hf.KeyValueStore("pairs", key=(str, int), value=int)

    def prefetch(self, key: str, event: Any) -> Iterator[tuple[Any, Any]]:
        if event.points < 0:
            raise ValueError(f"{event.points} points")
        yield self.pairs, (key, event.points) if event.points else key

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        raise AssertionError("no record was to come so far")


def test_an_exception_in_prefetch_is_told_as_one() -> None:
    test = ProcessorTest(Misnaming)
    with pytest.raises(ProcessorFailed) as raised:
        test.pipe("bob", {"points": -1})
    for part in (
        "Misnaming.prefetch()",
        "ValueError: -1 points",
        "'bob'",
        "points=-1",
        "test_processing_task.py",
        "raise ValueEr",
    ):
        assert part in str(raised.value)
    with pytest.raises(ProcessorFailed, match=r"Misnaming\.prefetch\(\) raised .*BadKey.*'bob' was given as a key"):
        test.pipe("bob", {"points": 0})


def test_an_instance_that_is_away_is_worth_another_try() -> None:
    class Away(HeldState):
        def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
            raise InstanceUnavailable("nobody is there")

    replica = Replica("processor-away")
    replica.held = Away({spec.name: DictBytes() for _, spec in STORES})
    refused = refusal(replica.attempt(work(2), rows(("ann", 1))))
    assert refused.category is ErrorCategory.RETRY
    assert refused.message.startswith("InstanceUnavailable: ")


def test_records_that_cannot_be_used_are_kept_and_counted() -> None:
    replica = Replica("processor-dead")
    result = replica.run(work(1), rows((None, 1), ("ann", 1), (None, 2)))
    assert (result.records, result.counts["dead"]) == (3, 2)
    [(name, letters)] = [part for ref in result.segments for part in replica.log.read_parts(ref, DEAD)]
    assert (name, letters.num_rows) == ("games", 2)


def test_a_key_of_another_partition_is_refused_with_the_key() -> None:
    refused = refusal(Replica("processor-stray").attempt(work(1, partitions=2), rows(("stray", 1), ("bob", 1))))
    assert refused.message.startswith("WrongPartition: ")
    assert "'bob'" in refused.message


def test_too_much_state_is_refused_with_the_setting() -> None:
    batches = [rows((f"p{n}", 1)) for n in range(50)]
    assert "batch.state_bytes" in refusal(Replica("budget").attempt(work(1, state_bytes=2_000), *batches)).message


def test_a_row_forwarded_without_an_output_is_told_with_the_processor_and_what_to_write() -> None:
    error = refusal(Replica("no-output").attempt(work(1, output=None), rows(("ann", 3))))
    assert error.category is not ErrorCategory.RETRY
    assert (
        "Games.process() raised holdfast.errors.TopologyError: ctx.forward() needs to know the output's"
        in error.message
    )
    assert "stream.process(..., output='player string, n bigint')" in error.message
    assert "test_processing_task.py" in error.message


def test_a_forwarded_row_that_does_not_fit_is_named() -> None:
    schema = parse_output("player string, n int")
    with pytest.raises(BadValue, match=r"\('bob', 'many'\).*n, which must be int32"):
        output_table(schema, [("ann", 1), ("bob", "many")])
    ctx = hf.Context(Version(1), Now(0), 0, schema, lambda name, number: None)
    ctx.forward("ann", {"n": 1})
    ctx.forward(("ann", 2), {})
    ctx.forward(None, {"n": 3, "player": "bob"})
    assert ctx.rows == [("ann", 1), ("ann", 2), ("bob", 3)]
    for value in ({}, {"m": 1}, {"n": 1, "m": 2}):
        with pytest.raises(BadValue, match="must have exactly n"):
            ctx.forward("ann", value)
    assert len(ctx.rows) == 3
    with pytest.raises(TopologyError, match="output="):
        hf.Context(Version(1), Now(0), 0, None, lambda name, number: None).forward("ann", {})


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


def test_an_event_is_of_the_annotated_type_and_only_its_columns_are_carried() -> None:
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
    """Unions that msgspec would not take."""

    at: dt.datetime | str
    player: str | dt.date | None


def test_columns_are_required_whose_type_has_no_none() -> None:
    assert shape(Any).required == ()
    assert shape(Played).required == ("points", "player", "tags", "bonus"), "a default is for where there is no column"
    assert shape(PlayedToo).required == ("at",)
    assert shape(Loose).required == ("tags", "bonus")
    assert shape(Either).required == ("at",)


@pytest.mark.parametrize(
    ("annotation", "columns", "message"),
    [
        (Played, {"points": "bigint"}, "Played.player has no column and no default"),
        (
            Played,
            {**COLUMNS, "points": "string"},
            "Played.points .*int.*column 'points' is of type string",
        ),
        (int, COLUMNS, "Annotate it with a msgspec.Struct or a "),
        (Any, {"a b": "int"}, "'a b' can't be an attribute"),
    ],
)
def test_an_event_that_cannot_be_is_refused_when_the_app_is_built(
    annotation: Any, columns: dict[str, str], message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        shape(annotation, columns)


def test_values_are_pythons_own() -> None:
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


def test_a_processor_that_cannot_be_is_refused() -> None:
    from holdfast.topology.processor import check_processor

    class NoWork(hf.Processor):
        pass

    for wrong, message in (
        (NoWork, "has no process"),
        (int, "derives from hf.Processor"),
        (Games(), "the class itself"),
    ):
        with pytest.raises(TopologyError, match=message):
            check_processor(wrong)
    with pytest.raises(TopologyError, match="can't be read at 'n'"):
        parse_output("player string, n")


def test_stores_of_base_classes_come_first_and_can_be_taken_out() -> None:
    class More(Games):
        more = hf.KeyValueStore("more", value=int)
        online = None  # type: ignore[assignment]

    assert list(stores_of(More)) == ["games", "minutes", "more"]


SCRIPT = """
from __future__ import annotations
import dataclasses, sys
import msgspec
import holdfast as hf
from holdfast.pipeline.shipping import ship

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


def test_classes_of_the_script_itself_arrive_whole(tmp_path: Path) -> None:
    """A Struct in `__main__` loses its fields when Spark's own pickler carries it."""
    (tmp_path / "app.py").write_text(SCRIPT)
    shipped = subprocess.run([sys.executable, tmp_path / "app.py"], capture_output=True, check=True).stdout
    from holdfast.pipeline.shipping import unship
    from holdfast.testing import ProcessorTest

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
