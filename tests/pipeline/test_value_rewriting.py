"""A processor's store whose values changed their shape: writes and the pass rewrite it, and sinks hear of writes."""

import uuid
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.log.appfile import AppSpec
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.pipeline.processing_task import Code, ProcessingWork, RecordColumns
from holdfast.pipeline.results import TaskDone
from holdfast.pipeline.shipping import ship
from holdfast.pipeline.sinks.outputs import rows_of
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.cells import unpack
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.base import REWRITE_NOTE
from holdfast.testing.processor import HeldState
from holdfast.topology.events import EventShape
from holdfast.topology.outputs import ChangedEntries
from holdfast.topology.processor import stores_of
from holdfast.words import TaskId, Version
from tests.log.making import next_commit, subtopologies_of
from tests.pipeline.outcomes import done
from tests.stores.schemas import First, Tenths


class Old(hf.Processor):
    """Release 1 of a store's values."""

    people = hf.KeyValueStore("people", value=First)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.people[key] = First(key, event.points)


class New(hf.Processor):
    """A later release."""

    people = hf.KeyValueStore("people", value=Tenths)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.people[key] = Tenths(key, event.points / 10)


class OldForgetting(Old):
    people = hf.KeyValueStore("people", value=First, ttl="8s")


class NewForgetting(New):
    people = hf.KeyValueStore("people", value=Tenths, ttl="8s")


class OldTouching(hf.Processor):
    people = hf.KeyValueStore("people", value=First, max_entries=9, refresh_on_read=True)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.people[key] = First(key, event.points)


class NewTouching(hf.Processor):
    """Reads who it is asked for, which is a touch and no change of the value."""

    people = hf.KeyValueStore("people", value=Tenths, max_entries=9, refresh_on_read=True)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.people.get(key)


@dataclass
class OneTask:
    """Versions of a processor over one store, one after the other, whatever its release."""

    held: DictBytes = field(default_factory=DictBytes)
    number: int = 0

    def __post_init__(self) -> None:
        app = AppSpec(
            id="app", partitions=1, stores=(Old.people.spec(),), subtopologies=subtopologies_of({"people": 0})
        )
        self.log = Log.create_or_open(open_storage(f"memory://{uuid.uuid4().hex}"), app)

    def version(
        self, processor: type[hf.Processor], *records: tuple[str, int], lost: bool = False, rewrite_entries: int = 0
    ) -> TaskDone:
        declared = stores_of(processor)["people"]
        work = ProcessingWork(
            topology=0,
            version=Version(self.number + 1),
            source="main",
            now=Now(1_000 * (self.number + 1)),
            name="people",
            key=Schema.of(player="string"),
            stores=(("people", declared.spec()),),
            output=None,
            columns=RecordColumns(event=("c0", "c1"), keys=("c0",), time=None),
            partitions=1,
            chunk_rows=1_000,
            state_bytes=1 << 20,
            inline_limit=1 << 20,
            rewrite_entries=rewrite_entries,
            code=ship(Code(processor, EventShape(("player", "points")))),
        )
        batch = pa.RecordBatch.from_pydict(
            {
                "c0": pa.array([player for player, _ in records], pa.string()),
                "c1": pa.array([points for _, points in records], pa.int64()),
                "_dead": pa.nulls(len(records), pa.string()),
            }
        )
        result = done(work.run(TaskId(0, 0), [batch], self.log, HeldState({"people": self.held})))
        if lost:
            return result
        self.number += 1
        for ref in result.segments:
            for _, table in self.log.state_parts(ref):
                for key, value in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
                    if value is None:
                        self.held.delete(key)
                    else:
                        self.held.put(key, value)
        output = ChangedEntries("seen", 0, declared.spec(), declared)
        commit = next_commit(self.log, None, {"0_0": result.segments})
        self.sent = [row for rows in rows_of(output, self.log, commit) for row in rows.table.to_pylist()]
        return result

    def schemas(self) -> list[int]:
        return [unpack(data).schema for _, data in self.held.scan(b"\x01", b"\x03")]


def test_a_pass_rewrites_old_shapes_some_in_each_version_and_a_lost_version_changes_nothing() -> None:
    task = OneTask()
    task.version(Old, *((f"p{n}", 10 * n) for n in range(5)), rewrite_entries=2)
    assert task.schemas() == [1, 1, 1, 1, 1]
    assert task.held.get(REWRITE_NOTE) is None  # there is no older shape than the first
    task.version(New)
    assert task.schemas() == [1, 1, 1, 1, 1]  # nobody asked for the pass
    task.version(New, rewrite_entries=2, lost=True)
    counted = [task.version(New, rewrite_entries=2).counts.get("rewritten/people") for _ in range(4)]
    assert counted == [2, 2, 1, None]
    assert task.schemas() == [2, 2, 2, 2, 2]
    bound = New.people.bind(task.held, Now(0))
    assert bound["p3"] == Tenths("p3", 3.0)


def test_sinks_of_changes_hear_of_writes_and_not_of_the_pass() -> None:
    task = OneTask()
    task.version(OldForgetting, ("ann", 30), ("bob", 10))
    task.version(OldForgetting)
    task.version(OldForgetting, ("ann", 50))
    # Ann has a copy in an older slice, which is shadowed: rewritten, it must not be told as what she has now.
    result = task.version(NewForgetting, ("cat", 70), rewrite_entries=2)
    assert result.counts["rewritten/people"] == 2
    assert [(row["key"], row["value"]) for row in task.sent] == [("cat", '{"player":"cat","score":7.0,"tags":[]}')]
    assert result.counts["keys"] == 1
    task.version(NewForgetting, rewrite_entries=10)
    assert task.sent == []
    assert task.schemas() == [2, 2, 2, 2]
    bound = NewForgetting.people.bind(task.held, Now(5_000))
    assert {key: value.score for key, value in bound.items()} == {"ann": 5.0, "bob": 1.0, "cat": 7.0}


def test_an_entry_that_was_only_touched_is_rewritten_after_its_touch() -> None:
    task = OneTask()
    task.version(OldTouching, ("ann", 30), ("bob", 10))
    task.version(NewTouching, ("ann", 0), rewrite_entries=10)
    assert task.schemas() == [2, 2]
    bound = NewTouching.people.bind(task.held, Now(5_000))
    assert {key: value.score for key, value in bound.items()} == {"ann": 3.0, "bob": 1.0}
    assert [key for key, _ in task.held.scan(b"\x04", b"\x05")][-1].endswith(b"ann"), "she was touched last"
