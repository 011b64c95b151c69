"""Changes in a processor's stores, as sinks get them: puts with values, and deletes for any reason."""

from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.pipeline.processing_task import Code
from holdfast.pipeline.shipping import ship
from holdfast.pipeline.sinks.outputs import changed_entries
from holdfast.pipeline.sinks.runner import Feed, SinkRunner
from holdfast.topology.events import EventShape
from holdfast.topology.outputs import ChangedEntries
from holdfast.topology.processing import Processed, Processing
from holdfast.topology.processor import stores_of
from holdfast.topology.topology import Topology
from holdfast.words import TaskId
from tests.log.making import alone
from tests.pipeline.outcomes import ReplicaState, done, log_of
from tests.pipeline.test_processing_task import rows, work


class Score(msgspec.Struct, frozen=True):
    points: int


class Plays(hf.Processor):
    """A negative record deletes its player."""

    last = hf.KeyValueStore("last", value=Score, max_entries=2)
    online = hf.KeyValueStore("online", value=int)
    seen = hf.TimestampedKeyValueStore("seen", value=str, ttl="10s")
    few = hf.KeyValueStore("few", value=int, max_entries=5, ttl="1500ms")
    minutes = hf.WindowStore("minutes", value=int, size="1m")

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        if event.points < 0:
            self.last.delete(key)
            self.seen.delete(key)
        else:
            self.last[key] = Score(event.points)
            self.online.put(key, event.points, ttl="1500ms")
            self.seen.put(key, f"{event.points} points", ctx.timestamp)
            self.few[key] = event.points


DECLARED = stores_of(Plays)
STORES = tuple((attribute, declared.spec()) for attribute, declared in DECLARED.items())


class Task:
    """One task whose changes are applied and sent to sinks."""

    def __init__(self) -> None:
        specs = [spec for _, spec in STORES]
        self.log = log_of(*specs)
        self.state = ReplicaState(*(spec.name for spec in specs))
        self.outputs = {
            spec.name: ChangedEntries(spec.name, 0, spec, DECLARED[attribute]) for attribute, spec in STORES
        }

    def run(self, version: int, *records: tuple[str, int], time: int = 0) -> dict[str, list[dict[str, Any]]]:
        code = ship(Code(Plays, EventShape(("player", "points"))))
        made = work(version, stores=STORES, outputs=(), code=code)
        result = done(made.run(TaskId(0, 0), [rows(*records, time=time)], self.log, self.state))
        sent: dict[str, list[dict[str, Any]]] = {}
        for ref in result.segments:
            for store, table in self.log.state_parts(ref):
                if store in ("last", "online", "seen", "few"):
                    output = self.outputs[store]
                    sent[store] = changed_entries(output.store, output.declared, table).to_pylist()
        self.state.apply(self.log, result.segments)
        return sent


def put(key: str, value: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "value": value, **more, "_deleted": False}


def gone(key: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "value": None, **more, "_deleted": True}


def test_puts_have_values_and_internal_entries_are_not_sent() -> None:
    sent = Task().run(1, ("ann", 3), ("bob", 4), time=7)
    assert sent["last"] == [put("ann", '{"points":3}'), put("bob", '{"points":4}')]
    assert sent["online"] == [put("ann", "3"), put("bob", "4")]
    assert sent["seen"] == [put("ann", '"3 points"', timestamp=7), put("bob", '"4 points"', timestamp=7)]


def test_deleted_evicted_and_expired_entries_are_tombstones() -> None:
    task = Task()
    task.run(1, ("ann", 1), ("bob", 2))  # wall clock 1,000
    second = task.run(2, ("cleo", 3), ("bob", -1))
    assert second["last"] == [gone("bob"), put("cleo", '{"points":3}')], "there is room: no eviction"
    assert second["seen"] == [gone("bob", timestamp=None), put("cleo", '"3 points"', timestamp=0)]
    third = task.run(3, ("dora", 4))
    assert third["last"] == [gone("ann"), put("dora", '{"points":4}')], "evicted"
    assert third["online"] == [gone("ann"), gone("bob"), put("dora", "4")], "expired at 2,500"
    assert third["few"] == third["online"], "a store with max_entries deletes expired entries too"
    fourth = task.run(4)
    assert fourth["online"] == fourth["few"] == [gone("cleo")], "also without records"


def test_a_new_key_that_is_deleted_in_the_same_version_is_not_sent() -> None:
    task = Task()
    assert "seen" not in task.run(1, ("ann", 1), ("ann", -1))
    assert task.state.stores["seen"].entries == task.state.stores["last"].entries == {}
    second = task.run(2, ("ann", 2), ("bob", 3), ("bob", -1))
    assert second["seen"] == [put("ann", '"2 points"', timestamp=0)]
    assert second["last"] == [put("ann", '{"points":2}')]
    assert task.run(3, ("ann", 3), ("ann", -1))["seen"] == [gone("ann", timestamp=None)], "it was there before"


def test_a_key_that_moves_to_another_slice_is_a_put() -> None:
    task = Task()
    task.run(1, ("ann", 1))
    assert task.run(9, ("ann", -1), ("ann", 5))["seen"] == [put("ann", '"5 points"', timestamp=0)]


def added(name: str) -> tuple[Topology, Processed]:
    """A topology with the processor under this name."""
    topology, operator = Topology(), Processing(Plays, EventShape(()), tuple(DECLARED), name=name)
    topology.add(name, None, work(1).key, tuple(spec for _, spec in STORES), operator)  # type: ignore[arg-type]
    return topology, Processed(topology, name, name)


def test_only_key_value_stores_have_changes_to_send() -> None:
    topology, processed = added("plays")
    with pytest.raises(TopologyError, match=r"has a window store of that name.*last, online, seen, few"):
        processed.sink_changes("minutes", hf.memory())
    with pytest.raises(TopologyError, match="no such store"):
        processed.sink_changes("plays", hf.memory())
    processed.sink_changes("last", hf.memory())
    processed.sink_changes("seen", hf.memory(), name="players")
    assert [(node.name, node.source) for node in topology.sinks] == [
        ("plays.last.memory", "plays~last"),
        ("players", "plays~seen"),
    ]


def test_a_sink_without_a_name_can_catch_up() -> None:
    task = Task()
    topology, processed = added("plays")
    processed.sink_changes("last", hf.memory())
    feeds = [Feed(node.name, task.outputs["last"], node.sink) for node in topology.sinks]
    assert SinkRunner(task.log, feeds, retry=lambda call: call(), check_leads=alone).positions == {
        "plays.last.memory": 0
    }
