"""A task of an aggregation merges its rows into the state at v-1 and writes segments."""

from dataclasses import replace

import pyarrow as pa

from holdfast.errors import ErrorCategory
from holdfast.log.segments import DEAD, STATE_SCHEMA
from holdfast.pipeline.aggregation_task import AggregationWork
from holdfast.pipeline.results import FastPlanRejected, decode, encode
from holdfast.pipeline.sinks.outputs import aggregate_rows
from holdfast.pipeline.task import Limits, chunks
from holdfast.pipeline.task_columns import TaskColumns
from holdfast.pipeline.task_state import EmptyState
from holdfast.stores.access import Now
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.topology.aggregates import count, sum
from holdfast.topology.reducers import bind
from holdfast.words import TaskId, Version
from tests.pipeline.outcomes import ReplicaState, done, log_of, refusal

TASK = TaskId(0, 0)

REDUCERS = (bind("n", count(), None), bind("total", sum("x"), "bigint"))
SPEC = StoreSpec(
    name="scores",
    key=Schema((Field("player", "string"),)),
    value=RowValues(Schema((Field("n", "bigint"), Field("total", "bigint")))),
    codec="rows/1",
    engine="memory",
)


def work(version: int, chunk_rows: int = 1000) -> AggregationWork:
    return AggregationWork(
        subtopology=0,
        version=Version(version),
        store=SPEC,
        reducers=REDUCERS,
        columns=TaskColumns(keys=("k0",), partials=("p0", "p1"), rows="p0", time=None),
        now=Now(wall=1_000),
        limits=Limits(1, chunk_rows, 0),
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


def table_of(state: ReplicaState) -> dict[str, tuple[int, int | None]]:
    entries = state.stores["scores"].entries
    part = pa.table([list(entries), list(entries.values())], schema=STATE_SCHEMA)
    return {row["player"]: (row["n"], row["total"]) for row in aggregate_rows(SPEC, part).to_pylist()}


def test_versions_are_merged_into_the_state() -> None:
    log = log_of(SPEC)
    state = ReplicaState("scores")
    for version, batch in enumerate([rows(["b", "a"], [1, 2], [5, None]), rows(["a", "c"], [1, 1], [7, 1])], start=1):
        state.apply(log, done(work(version).run(TASK, [batch], log, state)).segments)
    assert table_of(state) == {"a": (3, 7), "b": (1, 5), "c": (1, 1)}


def test_more_keys_than_a_chunk_become_several_segments() -> None:
    log = log_of(SPEC)
    state = ReplicaState("scores")
    batches = [rows([f"p{n}"], [1], [n]) for n in range(10)]
    result = done(work(1, chunk_rows=3).run(TASK, batches, log, state))
    assert [ref.parts[0].rows for ref in result.segments] == [3, 3, 3, 1]
    assert state.reads == 4
    state.apply(log, result.segments)
    assert len(table_of(state)) == 10


def test_invalid_records_become_dead_letters() -> None:
    log = log_of(SPEC)
    result = done(work(1).run(TASK, [rows([None, "a"], [3, 2], [1, 1])], log, EmptyState()))
    assert (result.records, result.counts) == (5, {"dead": 3, "keys": 1})
    [(_, letters)] = log.read_parts(result.segments[0], DEAD)
    assert letters.to_pylist() == [{"letter": '{"reason":"no key"}', "times": 3}]


def test_a_key_of_another_partition_is_refused_with_the_key() -> None:
    log = log_of(SPEC)
    batch = rows(["stray", "bob"], [1, 1], [1, 1])
    refused = refusal(replace(work(1), limits=Limits(2, 1_000, 0)).run(TASK, [batch], log, EmptyState()))
    assert refused.category is ErrorCategory.BUG
    assert refused.message.startswith("WrongPartition: ")
    assert "'bob'" in refused.message


def test_an_overflow_names_the_key_and_both_numbers() -> None:
    log = log_of(SPEC)
    state = ReplicaState("scores")
    state.apply(log, done(work(1).run(TASK, [rows(["a", "b"], [1, 1], [2**63 - 1, 1])], log, state)).segments)
    refused = refusal(work(2).run(TASK, [rows(["b", "a"], [1, 1], [1, 1])], log, state))
    assert refused.message.startswith("Overflow: ")
    assert "['a']" in refused.message
    assert str(2**63 - 1) in refused.message


def test_a_row_without_a_key_rejects_the_fast_plan() -> None:
    log = log_of(SPEC)
    fast = replace(work(1), columns=replace(work(1).columns, dead=False))
    result = fast.run(TASK, [rows([None], [1], [1])], log, EmptyState())
    assert isinstance(result, FastPlanRejected)
    assert decode(encode(result)) == result


def test_an_empty_partition_writes_nothing() -> None:
    log = log_of(SPEC)
    result = done(work(1).run(TASK, [rows([], [], [])], log, EmptyState()))
    assert (result.segments, result.records, result.counts) == ((), 0, {})


def test_large_rows_come_in_smaller_chunks() -> None:
    """Together they would pass 2 GiB, which no column can hold."""
    batch = pa.record_batch([pa.array([bytes(40 << 20)], pa.binary())], names=["value"])
    assert [chunk.num_rows for chunk in chunks([batch] * 60, rows=200_000)] == [2] * 30
