"""A processor's store whose schema changed: writes and the pass rewrite entries, and sinks get the writes only."""

from dataclasses import replace
from typing import Any

import holdfast as hf
from holdfast.pipeline.processing_task import Code
from holdfast.pipeline.results import TaskDone
from holdfast.pipeline.shipping import ship
from holdfast.pipeline.sinks.outputs import rows_of
from holdfast.stores.access import Now
from holdfast.stores.formats.cells import unpack
from holdfast.stores.layouts.base import REWRITE_NOTE
from holdfast.topology.events import EventShape
from holdfast.topology.outputs import ChangedEntries
from holdfast.topology.processor import stores_of
from holdfast.words import TaskId
from tests.log.making import next_commit
from tests.pipeline.outcomes import ReplicaState, done, log_of
from tests.pipeline.test_processing_task import LIMITS, rows, work
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
    """Reads its key, which touches the entry without changing it."""

    people = hf.KeyValueStore("people", value=Tenths, max_entries=9, refresh_on_read=True)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.people.get(key)


class OneTask:
    """One task of a processor with one store, version after version, with changing code."""

    def __init__(self) -> None:
        self.number = 0
        self.log = log_of(Old.people.spec())
        self.state = ReplicaState("people")
        self.people = self.state.stores["people"]

    def version(
        self, processor: type[hf.Processor], *records: tuple[str, int], lost: bool = False, rewrite_entries: int = 0
    ) -> TaskDone:
        declared = stores_of(processor)["people"]
        code = ship(Code(processor, EventShape(("player", "points"))))
        limits = replace(LIMITS, rewrite_entries=rewrite_entries)
        options: dict[str, Any] = {"outputs": (), "limits": limits, "code": code}
        made = work(self.number + 1, stores=(("people", declared.spec()),), **options)
        result = done(made.run(TaskId(0, 0), [rows(*records)], self.log, self.state))
        if lost:
            return result
        self.number += 1
        self.state.apply(self.log, result.segments)
        output = ChangedEntries("seen", 0, declared.spec(), declared)
        commit = next_commit(self.log, None, {"0_0": result.segments})
        self.sent = [row for part in rows_of(output, self.log, commit) for row in part.table.to_pylist()]
        return result

    def schemas(self) -> list[int]:
        return [unpack(data).schema for _, data in self.people.scan(b"\x01", b"\x03")]


def test_a_pass_rewrites_some_entries_per_version_and_a_lost_version_changes_nothing() -> None:
    task = OneTask()
    task.version(Old, *((f"p{n}", 10 * n) for n in range(5)), rewrite_entries=2)
    assert task.schemas() == [1, 1, 1, 1, 1]
    assert task.people.get(REWRITE_NOTE) is None  # no schema is older than the first
    task.version(New)
    assert task.schemas() == [1, 1, 1, 1, 1]  # the pass is off
    task.version(New, rewrite_entries=2, lost=True)
    counted = [task.version(New, rewrite_entries=2).counts.get("rewritten/people") for _ in range(4)]
    assert counted == [2, 2, 1, None]
    assert task.schemas() == [2, 2, 2, 2, 2]
    bound = New.people.bind(task.people, Now(0))
    assert bound["p3"] == Tenths("p3", 3.0)


def test_sinks_get_writes_and_not_rewrites() -> None:
    task = OneTask()
    task.version(OldForgetting, ("ann", 30), ("bob", 10))
    task.version(OldForgetting)
    task.version(OldForgetting, ("ann", 50))
    # Ann has an outdated copy in an older slice. Its rewrite must not be sent as her current value.
    result = task.version(NewForgetting, ("cat", 70), rewrite_entries=2)
    assert result.counts["rewritten/people"] == 2
    assert [(row["key"], row["value"]) for row in task.sent] == [("cat", '{"player":"cat","score":7.0,"tags":[]}')]
    assert result.counts["keys"] == 1
    task.version(NewForgetting, rewrite_entries=10)
    assert task.sent == []
    assert task.schemas() == [2, 2, 2, 2]
    bound = NewForgetting.people.bind(task.people, Now(5_000))
    assert {key: value.score for key, value in bound.items()} == {"ann": 5.0, "bob": 1.0, "cat": 7.0}


def test_an_entry_that_was_only_touched_is_rewritten_after_its_touch() -> None:
    task = OneTask()
    task.version(OldTouching, ("ann", 30), ("bob", 10))
    task.version(NewTouching, ("ann", 0), rewrite_entries=10)
    assert task.schemas() == [2, 2]
    bound = NewTouching.people.bind(task.people, Now(5_000))
    assert {key: value.score for key, value in bound.items()} == {"ann": 3.0, "bob": 1.0}
    assert [key for key, _ in task.people.scan(b"\x04", b"\x05")][-1].endswith(b"ann"), "touched last"
