"""A task merges its rows into the state at v-1 and seals a segment: whole columns, bounded chunks, no surprises."""

from dataclasses import replace

import pyarrow as pa

from holdfast.log.appfile import AppSpec
from holdfast.log.log import Log
from holdfast.log.segments import DEAD
from holdfast.log.storage import open_storage
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.sinks.outputs import TableOutput
from holdfast.pipeline.task import TaskWork, run
from holdfast.stores.access import Now
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.spec import StoreSpec
from holdfast.topology.aggregates import count, sum
from holdfast.topology.reducers import bind
from holdfast.words import NOTHING, TaskId, Version

REDUCERS = (bind("n", count(), None), bind("total", sum("x"), "bigint"))
SPEC = StoreSpec(
    name="scores",
    key=Schema((Field("player", "string"),)),
    value=Schema((Field("n", "bigint"), Field("total", "bigint"))),
    codec="rows/1",
    engine="memory",
)


def make_log(name: str) -> Log:
    spec = AppSpec(id="app", partitions=1, stores=(SPEC,), topologies={"scores": 0})
    return Log.create_or_open(open_storage(f"memory://{name}"), spec)


def work(version: int, chunk_rows: int = 1000) -> TaskWork:
    return TaskWork(
        topology=0,
        version=Version(version),
        store=SPEC,
        reducers=REDUCERS,
        chunk_rows=chunk_rows,
        inline_limit=0,
        partitions=1,
        layout=Layout(keys=("k0",), partials=("p0", "p1"), rows="p0", time=None),
        now=Now(wall=1_000),
    )


def rows(players: list[str | None], n: list[int], total: list[int | None]) -> pa.RecordBatch:
    dead = ['{"reason":"no key"}' if player is None else None for player in players]
    return pa.RecordBatch.from_pydict(
        {
            "_dead": pa.array(dead, pa.string()),
            "k0": pa.array(players, pa.string()),
            "p0": pa.array(n, pa.int64()),
            "p1": pa.array(total, pa.int64()),
        }
    )


class State:
    """The state that segments add up to, as a replica would answer for it."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.cells: dict[bytes, bytes] = {}
        self.version = NOTHING
        self.asked = 0

    def read(self, task: TaskId, store: str, version: Version, keys: pa.Array) -> pa.Array:
        assert (task, store, version) == (TaskId(0, 0), "scores", self.version)
        self.asked += 1
        return pa.array([self.cells.get(key) for key in keys.to_pylist()], pa.binary())

    def scan(self, task: TaskId, store: str, version: Version, start: bytes, stop: bytes, limit: int) -> pa.Array:
        raise AssertionError("a plain store is asked for its keys only")

    def apply(self, refs: tuple[object, ...]) -> None:
        for ref in refs:
            for _, table in self.log.state_parts(ref):  # type: ignore[arg-type]
                self.cells.update(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
        self.version = Version(self.version + 1)

    def table(self) -> dict[str, tuple[int, int | None]]:
        part = pa.table(
            {"key": pa.array(list(self.cells), pa.binary()), "value": pa.array(list(self.cells.values()), pa.binary())}
        )
        decoded = TableOutput(SPEC, 0).decode(part).to_pylist()
        return {row["player"]: (row["n"], row["total"]) for row in decoded}


def test_versions_add_up() -> None:
    log = make_log("adds-up")
    state = State(log)
    for version, batch in enumerate([rows(["b", "a"], [1, 2], [5, None]), rows(["a", "c"], [1, 1], [7, 1])], start=1):
        result = run(work(version), 0, [batch], log, state.read, state.scan)
        assert result.error is None
        state.apply(result.segments)
    assert state.table() == {"a": (3, 7), "b": (1, 5), "c": (1, 1)}


def test_more_keys_than_a_chunk_become_several_segments() -> None:
    log = make_log("chunks")
    state = State(log)
    batches = [rows([f"p{n}"], [1], [n]) for n in range(10)]
    result = run(work(1, chunk_rows=3), 0, batches, log, state.read, state.scan)
    assert [ref.parts[0].rows for ref in result.segments] == [3, 3, 3, 1]
    assert state.asked == 4
    state.apply(result.segments)
    assert len(state.table()) == 10


def test_records_that_cannot_be_used_are_kept_and_counted() -> None:
    log = make_log("dead")
    result = run(work(1), 0, [rows([None, "a"], [3, 2], [1, 1])], log, State(log).read, State(log).scan)
    assert result.counts == {"records": 5, "dead": 3, "keys": 1}
    [(_, letters)] = log.read_parts(result.segments[0], DEAD)
    assert letters.to_pylist() == [{"letter": '{"reason":"no key"}', "times": 3}]


def test_a_key_of_another_partition_is_refused_with_the_key() -> None:
    log = make_log("stray")
    result = run(
        replace(work(1), partitions=2),
        0,
        [rows(["stray", "bob"], [1, 1], [1, 1])],
        log,
        State(log).read,
        State(log).scan,
    )
    assert result.error is not None
    assert result.error.type == "WrongPartition"
    assert "'bob'" in result.error.message
    assert not result.segments


def test_an_overflow_names_the_key_and_both_numbers() -> None:
    log = make_log("overflow")
    state = State(log)
    state.apply(run(work(1), 0, [rows(["a", "b"], [1, 1], [2**63 - 1, 1])], log, state.read, state.scan).segments)
    result = run(work(2), 0, [rows(["b", "a"], [1, 1], [1, 1])], log, state.read, state.scan)
    assert result.error is not None
    assert result.error.type == "Overflow"
    assert "['a']" in result.error.message
    assert str(2**63 - 1) in result.error.message


def test_an_empty_partition_writes_nothing() -> None:
    log = make_log("empty")
    result = run(work(1), 0, [rows([], [], [])], log, State(log).read, State(log).scan)
    assert (result.segments, result.counts, result.error) == ((), {}, None)
