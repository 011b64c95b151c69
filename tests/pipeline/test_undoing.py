"""A failed record leaves nothing behind: the state and outputs are those of the same input without it."""

import datetime as dt
import json
import re
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadValue
from holdfast.instance.messages import InstanceUnavailable
from holdfast.log.segments import DEAD
from holdfast.pipeline.processing_task import Code, ProcessingWork, RecordColumns
from holdfast.pipeline.running import ProcessorFailed, concerns_record
from holdfast.pipeline.shipping import ship
from holdfast.pipeline.store_state import TooMuchState
from holdfast.pipeline.task import Limits
from holdfast.pipeline.values import events_of, keys_of
from holdfast.stores.access import Now
from holdfast.stores.formats.types import Schema
from holdfast.testing import ProcessorTest
from holdfast.topology.events import EventShape
from holdfast.topology.processor import parse_output, specs_of, stores_of
from holdfast.words import TaskId, Version
from tests.pipeline.outcomes import ReplicaState, done, log_of, refusal

KEYS = ["a", "b", "c", "d"]


class Everything(hf.Processor):
    """Does what its records say, to a store of every layout. A record may raise in the middle."""

    plain = hf.KeyValueStore("plain", value=int)
    sliced = hf.KeyValueStore("sliced", value=int, ttl="10s")
    expiring = hf.KeyValueStore("expiring", value=int, ttl="3s", ttl_to_sinks=True)
    bounded = hf.KeyValueStore("bounded", value=int, max_entries=2)
    refreshed = hf.KeyValueStore("refreshed", value=int, max_entries=3, refresh_on_read=True, ttl="4s")
    lists = hf.KeyValueStore("lists", value=list[int], max_entries=2)
    stamped = hf.TimestampedKeyValueStore("stamped", value=int)
    history = hf.VersionedKeyValueStore("history", value=int, retention="1h")
    windows = hf.WindowStore("windows", value=int, size="1s", retention="5s")
    all_puts = hf.WindowStore("all-puts", value=int, size="1s", retention="5s", duplicates=True)
    sessions = hf.SessionStore("sessions", value=int, gap="1s", retention="5s")

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        for step in event.steps:
            self.do(ctx, *step)
        if event.fails:
            raise ValueError("this record fails")

    def do(self, ctx: hf.Context, what: str, store: str, key: str, n: int) -> None:
        chosen = getattr(self, store)
        ctx.count(f"{what} {store}")
        ctx.forward(key, {"n": n})
        match what, chosen:
            case "scan", hf.KeyValueStore() | hf.TimestampedKeyValueStore():
                ctx.forward(key, {"n": sum(1 for _ in chosen.items())}, to="scans")
            case "scan", hf.SessionStore():
                ctx.forward(key, {"n": sum(1 for _ in chosen.fetch(key))}, to="scans")
            case "scan", hf.WindowStore():
                ctx.forward(key, {"n": sum(1 for _ in chosen.fetch(key, from_=0))}, to="scans")
            case "put", hf.KeyValueStore():
                chosen.put(key, [n] if store == "lists" else n, ttl="2s" if n % 3 == 0 else None)
            case "put", hf.SessionStore():
                chosen.merge(key, ctx.timestamp, None, lambda one, other: one + other, n)
            case "put", _:
                chosen.put(key, n, ctx.timestamp - n * 10)
            case "delete", hf.WindowStore():
                chosen.put(key, None, ctx.timestamp // 1000 * 1000)
            case "delete", hf.VersionedKeyValueStore():
                chosen.delete(key, ctx.timestamp)
            case "delete", hf.SessionStore():
                for session, _ in list(chosen.fetch(key)):
                    chosen.remove(session)
            case "delete", _:
                chosen.delete(key)
            case "get", hf.KeyValueStore():
                ctx.forward(key, {"n": n if chosen.get(key) is None else 1}, to="scans")


OUTPUTS: dict[str, Any] = {"output": "k string, n bigint", "outputs": {"scans": "k string, n bigint"}}
STORES = list(stores_of(Everything))


def histories(store: str) -> st.SearchStrategy[list[list[dict[str, Any]]]]:
    """Versions of records over one store: with several, few records would meet."""
    what = st.sampled_from(["put", "put", "put", "delete", "get", "scan"])
    step = st.tuples(what, st.just(store), st.sampled_from(KEYS), st.integers(0, 9))
    record = st.fixed_dictionaries(
        {"steps": st.lists(step, min_size=1, max_size=4), "fails": st.booleans(), "time": st.integers(0, 6_000)}
    )
    return st.lists(st.lists(record, min_size=1, max_size=6), min_size=1, max_size=3)


def lived(history: list[list[dict[str, Any]]], **options: Any) -> tuple[Any, ...]:
    """The bytes of every store, all forwarded rows and all counts after these versions."""
    test = ProcessorTest(Everything, wall=1_000_000, **OUTPUTS, **options)
    rows: list[Any] = []
    for version in history:
        for record in version:
            event = {"steps": record["steps"], "fails": record["fails"]}
            rows += test.pipe("a", event, timestamp=1_000_000 + record["time"])
            rows += test.output("scans")
        rows += test.advance("1500ms")
    bytes_ = {name: dict(store.entries) for name, store in test._state.stores.items()}
    test.counts.pop("skipped", None)
    return bytes_, rows, test.counts, test._clock


@pytest.mark.parametrize("store", STORES)
@given(data=st.data())
def test_the_state_is_that_of_the_same_input_without_the_failed_records(store: str, data: st.DataObject) -> None:
    history = data.draw(histories(store))
    good = [[record for record in version if not record["fails"]] for version in history]
    assert lived(history, on_error="skip") == lived(good)


class Unreadable(hf.Processor):
    """Its failures are found by Holdfast, after or within `process`."""

    plain = hf.KeyValueStore("plain", value=int)
    lists = hf.KeyValueStore("lists", value=list[int])
    bounded = hf.KeyValueStore("bounded", value=list[int], max_entries=2)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.plain[key] = 1
        ctx.forward(key, {"n": 1})
        if event.what in ("lists", "bounded"):
            getattr(self, event.what)[key] = ["x"]
        if event.what == "forward":
            ctx.forward(key, {"n": "x"})
        if event.what == "columns":
            ctx.forward(key, {"m": 1})
        if event.what == "key":
            self.plain[5] = 1  # type: ignore[index]


@pytest.mark.parametrize("what", ["lists", "bounded", "forward", "columns", "key"])
def test_a_value_that_is_found_to_be_wrong_later_fails_its_record_too(what: str) -> None:
    test = ProcessorTest(Unreadable, output="k string, n bigint", on_error="dead_letter")
    assert test.pipe("ann", {"what": ""}) == [("ann", {"n": 1})]
    assert test.pipe("bob", {"what": what}) == []
    test.commit()
    assert dict(test.store("plain").items()) == {"ann": 1}
    [letter] = test.dead_letters
    assert (letter.key, letter.event) == ("bob", {"what": what})
    assert letter.reason.startswith("Unreadable.process() raised holdfast.errors.Bad")
    assert "Nothing of the batch" not in letter.reason


def test_an_error_that_is_not_about_the_record_always_fails_the_app() -> None:
    assert concerns_record(ValueError("no")) and concerns_record(BadValue("no"))
    for error in (InstanceUnavailable("no"), TooMuchState("no"), SystemExit(1), MemoryError()):
        assert not concerns_record(error)
    result, _, _ = run(work(on_error="skip", outputs=()), batch(1))
    assert "ctx.forward() needs to know the output's columns" in refusal(result).message


@pytest.mark.parametrize("method", ["init", "close", "flush"])
def test_a_failure_outside_records_always_fails_the_app(method: str) -> None:
    def fail(self: Any, *arguments: Any) -> None:
        raise ValueError("no")

    def process(self: Any, key: str, event: Any, ctx: hf.Context) -> None: ...

    marked = hf.punctuate(every="1s", time="wall")(lambda self, now, ctx: fail(self)) if method == "flush" else fail
    processor = type("Fails", (hf.Processor,), {"process": process, method: marked})
    test = ProcessorTest(processor, on_error="skip")
    with pytest.raises(ProcessorFailed, match=rf"Fails.{method}\(\) raised ValueError: no"):
        test.advance("1s")


# A task


class Scores(hf.Processor):
    totals = hf.KeyValueStore("totals", value=int)

    def prefetch(self, key: str, event: Any) -> Any:
        if event.points == -2:
            raise KeyError("prefetch")
        yield self.totals, 5 if event.points == -3 else key

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.totals[key] = self.totals.get(key, 0) + event.points
        ctx.count("points", event.points)
        ctx.forward(key, {"total": self.totals[key]})
        if event.points < 0:
            raise ValueError(f"{event.points} points")


def work(**changes: Any) -> ProcessingWork:
    made = ProcessingWork(
        subtopology=0,
        version=Version(1),
        now=Now(1_000),
        name="scores",
        key=Schema.of(player="string"),
        stores=specs_of(Scores),
        outputs=((None, parse_output("player string, total bigint")),),
        columns=RecordColumns(
            event=("c0", "c1"),
            keys=("c0",),
            time="_time",
            clocks=(("main", "_time"),),
            position=(("partition", "s0"), ("offset", "s1"), ("at", "_time")),
        ),
        limits=Limits(1, 1_000, 1 << 20, state_bytes=1 << 20),
        code=ship(Code(Scores, EventShape(("player", "points")))),
    )
    return replace(made, **changes)


def batch(*points: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "c0": pa.array(["ann", "bob"] * len(points), pa.string()).slice(0, len(points)),
            "c1": pa.array(points, pa.int64()),
            "_dead": pa.nulls(len(points), pa.string()),
            "_time": pa.array([1_000 * n for n in range(len(points))], pa.int64()),
            "s0": pa.array([3] * len(points), pa.int32()),
            "s1": pa.array([100 + n for n in range(len(points))], pa.int64()),
        }
    )


def run(made: ProcessingWork, points: pa.RecordBatch) -> tuple[Any, ReplicaState, Any]:
    (_, spec), log = made.stores[0], log_of(made.stores[0][1])
    state = ReplicaState(spec.name)
    result = made.run(TaskId(0, 0), [points], log, state)
    return result, state, log


def test_the_error_of_a_failed_record_has_its_position() -> None:
    result, _, _ = run(work(), batch(1, 2, -1))
    message = refusal(result).message
    assert "for the key 'ann' and the event Event(player='ann', points=-1)" in message
    assert ", with partition=3, offset=102, at=1970-01-01 00:00:02+00:00" in message
    assert 'on_error="dead_letter"' in message


@pytest.mark.parametrize("fails", [-1, -2, -3])
def test_failed_records_are_skipped_and_counted_and_move_no_clock(fails: int) -> None:
    result, state, log = run(work(on_error="skip"), batch(1, 2, fails, 4, fails))
    skipped = done(result)
    assert (skipped.counts["skipped/scores"], skipped.counts["user/points"], skipped.records) == (2, 7, 5)
    assert skipped.event_times == {"main": 3_000}
    state.apply(log, skipped.segments)
    totals = Scores.totals.bind(state.stores["totals"], Now(0))
    assert dict(totals.items()) == {"ann": 1, "bob": 6}
    forwarded = [
        row for ref in skipped.segments for _, table in log.read_parts(ref, "output") for row in table.to_pylist()
    ]
    assert [row["total"] for row in forwarded] == [1, 2, 6]
    assert "dead" not in skipped.counts


def test_a_chunk_of_failed_records_leaves_nothing() -> None:
    result, _, _ = run(work(on_error="skip"), batch(-1, -1))
    assert (done(result).segments, done(result).event_times) == ((), {})
    assert done(result).counts == {"skipped/scores": 2}


def test_failed_records_become_dead_letters_with_reason_record_and_position() -> None:
    result, _, log = run(work(on_error="dead_letter"), batch(1, -1, 4))
    kept = done(result)
    assert kept.counts["dead"] == 1 and "skipped/scores" not in kept.counts
    [letters] = [table for ref in kept.segments for _, table in log.read_parts(ref, DEAD)]
    letter = json.loads(letters["letter"][0].as_py())
    assert letter["reason"].startswith("Scores.process() raised ValueError: -1 points (at ")
    assert letter["record"] == {
        "player": "bob",
        "points": -1,
        "partition": 3,
        "offset": 101,
        "at": "1970-01-01T00:00:01Z",
    }


class Reading(msgspec.Struct):
    at: dt.datetime
    tags: list[str]


@dataclass
class Checked:
    points: int

    def __post_init__(self) -> None:
        if self.points < 0:
            raise ValueError("less than nothing")


def test_a_record_that_cannot_become_an_event_fails_by_itself() -> None:
    times = pa.array([0, 2**62, 5, 6], pa.timestamp("us", "UTC"))
    tags = pa.array([["a"], ["b"], [None], ["d"]], pa.list_(pa.string()))
    shape = EventShape(("at", "tags"), Reading, (None, list[str]), ("at", "tags"))
    failed: dict[int, str] = {}
    events = events_of(shape, [times, tags], 4, failed)
    assert [getattr(event, "tags", None) for event in events[::3]] == [["a"], ["d"]]
    assert failed.keys() == {1, 2}
    assert "outside the years 1 to 9999" in failed[1] and "The column 'tags' has [None]" in failed[2]
    with pytest.raises(BadValue, match="outside the years"):
        events_of(shape, [times, tags], 4)


NO_UTF8 = pa.StringArray.from_buffers(
    2, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0])), pa.py_buffer(b"a\xff\xfe")
)


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (NO_UTF8, r"^A text isn't UTF-8: b'\\xff\\xfe' \(invalid start byte, at byte 0\)"),
        (pa.ListArray.from_arrays([0, 1, 2], NO_UTF8), "^A text isn't UTF-8"),
        (pa.StructArray.from_arrays([NO_UTF8, pa.nulls(2, pa.date32())], ["a", "b"]), "^A text isn't UTF-8"),
        (pa.MapArray.from_arrays([0, 1, 3], ["a", "b", "b"], [1, 2, 3]), "^A map has a key more than once.* 'b'"),
        (
            pa.array([0, 2**62], pa.duration("s")),
            r"^A value of type duration\[s\] is none that Python has: .*too large",
        ),
        (pa.array([0, 10**7], pa.int32()).view(pa.date32()), "^A date or time is outside the years 1 to 9999"),
    ],
)
def test_a_value_that_python_does_not_have_fails_with_its_own_cause(column: pa.Array, why: str) -> None:
    failed: dict[int, str] = {}
    found = keys_of([column], failed)
    assert found[0] is not None and found[1] is None
    assert failed.keys() == {1} and re.search(why, failed[1])


def test_a_class_of_events_may_refuse_a_record() -> None:
    shape, points = EventShape(("points",), Checked, (None,)), pa.array([1, -1, 3])
    failed: dict[int, str] = {}
    assert events_of(shape, [points], 3, failed) == [Checked(1), None, Checked(3)]
    assert failed == {1: "The record {'points': -1} can't become an event: ValueError: less than nothing."}
    with pytest.raises(BadValue, match="can't become an event: ValueError: less than nothing"):
        events_of(shape, [points], 3)
