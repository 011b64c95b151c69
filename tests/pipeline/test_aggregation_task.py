"""A task merges its rows into the state at v-1 and seals a segment: whole columns, bounded chunks, no surprises."""

from dataclasses import replace

import pyarrow as pa
from sortedcontainers import SortedDict

from holdfast.errors import ErrorCategory
from holdfast.log.appfile import AppSpec
from holdfast.log.log import Log
from holdfast.log.segments import DEAD
from holdfast.log.storage import open_storage
from holdfast.pipeline.aggregation_task import AggregationWork
from holdfast.pipeline.results import FastPlanRejected, decode, encode
from holdfast.pipeline.sinks.outputs import aggregate_rows
from holdfast.pipeline.task_columns import TaskColumns
from holdfast.pipeline.task_state import EmptyState
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.testing.processor import HeldState
from holdfast.topology.aggregates import count, sum
from holdfast.topology.reducers import bind
from holdfast.words import TaskId, Version
from tests.log.making import subtopologies_of
from tests.pipeline.outcomes import done, refusal

TASK = TaskId(0, 0)

REDUCERS = (bind("n", count(), None), bind("total", sum("x"), "bigint"))
SPEC = StoreSpec(
    name="scores",
    key=Schema((Field("player", "string"),)),
    value=RowValues(Schema((Field("n", "bigint"), Field("total", "bigint")))),
    codec="rows/1",
    engine="memory",
)


def make_log(name: str) -> Log:
    spec = AppSpec(id="app", partitions=1, stores=(SPEC,), subtopologies=subtopologies_of({"scores": 0}))
    return Log.create_or_open(open_storage(f"memory://{name}"), spec)


def work(version: int, chunk_rows: int = 1000) -> AggregationWork:
    return AggregationWork(
        topology=0,
        version=Version(version),
        source="main",
        store=SPEC,
        reducers=REDUCERS,
        chunk_rows=chunk_rows,
        inline_limit=0,
        partitions=1,
        columns=TaskColumns(keys=("k0",), partials=("p0", "p1"), rows="p0", time=None),
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


class State(HeldState):
    """The state that segments add up to, as a replica would answer for it."""

    def __init__(self, log: Log) -> None:
        super().__init__({"scores": DictBytes()})
        self.log = log
        self.asked = 0

    @property
    def cells(self) -> SortedDict[bytes, bytes]:
        return self.stores["scores"].entries

    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        self.asked += 1
        return super().get(store, keys)

    def apply(self, refs: tuple[object, ...]) -> None:
        for ref in refs:
            for _, table in self.log.state_parts(ref):  # type: ignore[arg-type]
                self.cells.update(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))

    def table(self) -> dict[str, tuple[int, int | None]]:
        part = pa.table(
            {"key": pa.array(list(self.cells), pa.binary()), "value": pa.array(list(self.cells.values()), pa.binary())}
        )
        decoded = aggregate_rows(SPEC, part).to_pylist()
        return {row["player"]: (row["n"], row["total"]) for row in decoded}


def test_versions_add_up() -> None:
    log = make_log("adds-up")
    state = State(log)
    for version, batch in enumerate([rows(["b", "a"], [1, 2], [5, None]), rows(["a", "c"], [1, 1], [7, 1])], start=1):
        state.apply(done(work(version).run(TASK, [batch], log, state)).segments)
    assert state.table() == {"a": (3, 7), "b": (1, 5), "c": (1, 1)}


def test_more_keys_than_a_chunk_become_several_segments() -> None:
    log = make_log("chunks")
    state = State(log)
    batches = [rows([f"p{n}"], [1], [n]) for n in range(10)]
    result = done(work(1, chunk_rows=3).run(TASK, batches, log, state))
    assert [ref.parts[0].rows for ref in result.segments] == [3, 3, 3, 1]
    assert state.asked == 4
    state.apply(result.segments)
    assert len(state.table()) == 10


def test_records_that_cannot_be_used_are_kept_and_counted() -> None:
    log = make_log("dead")
    result = done(work(1).run(TASK, [rows([None, "a"], [3, 2], [1, 1])], log, EmptyState()))
    assert (result.records, result.counts) == (5, {"dead": 3, "keys": 1})
    [(_, letters)] = log.read_parts(result.segments[0], DEAD)
    assert letters.to_pylist() == [{"letter": '{"reason":"no key"}', "times": 3}]


def test_a_key_of_another_partition_is_refused_with_the_key() -> None:
    log = make_log("stray")
    batch = rows(["stray", "bob"], [1, 1], [1, 1])
    refused = refusal(replace(work(1), partitions=2).run(TASK, [batch], log, EmptyState()))
    assert refused.category is ErrorCategory.BUG
    assert refused.message.startswith("WrongPartition: ")
    assert "'bob'" in refused.message


def test_an_overflow_names_the_key_and_both_numbers() -> None:
    log = make_log("overflow")
    state = State(log)
    state.apply(done(work(1).run(TASK, [rows(["a", "b"], [1, 1], [2**63 - 1, 1])], log, state)).segments)
    refused = refusal(work(2).run(TASK, [rows(["b", "a"], [1, 1], [1, 1])], log, state))
    assert refused.message.startswith("Overflow: ")
    assert "['a']" in refused.message
    assert str(2**63 - 1) in refused.message


def test_a_row_without_a_key_in_a_fast_plan_is_a_result_of_its_own() -> None:
    log = make_log("fast")
    fast = replace(work(1), columns=replace(work(1).columns, dead=False))
    result = fast.run(TASK, [rows([None], [1], [1])], log, EmptyState())
    assert isinstance(result, FastPlanRejected)
    assert decode(encode(result)) == result


def test_an_empty_partition_writes_nothing() -> None:
    log = make_log("empty")
    result = done(work(1).run(TASK, [rows([], [], [])], log, EmptyState()))
    assert (result.segments, result.records, result.counts) == ((), 0, {})
