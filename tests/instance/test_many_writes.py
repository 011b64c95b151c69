"""A store of ten entries after a million writes: a new replica restores about ten."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs

import holdfast as hf
from holdfast.instance.events import Events, RestoreEvent, RestorePhase
from holdfast.instance.log_reader import LogReader
from holdfast.instance.replica import Replica
from holdfast.instance.state_dir import TaskDirectory
from holdfast.instance.updater import ReplicaUpdater
from holdfast.log.log import Log
from holdfast.pipeline.aggregation_task import AggregationWork
from holdfast.pipeline.driver import Step
from holdfast.pipeline.processing_task import ProcessingWork
from holdfast.pipeline.task import Limits
from holdfast.settings.sections import RestoreSettings, RetrySettings, SnapshotSettings
from holdfast.stores.engines.base import Resources
from holdfast.words import TaskId, Version
from tests.crash.machine import PARTITIONS, SPEC, TASKS, Machine, Record
from tests.crash.processor_machine import ProcessorMachine

ENTRIES = 10
VERSIONS = 21
EACH = 50_000
ROWS = 2 * ENTRIES + 1
"""Rows for ten entries: each has one in the recency index, and there is one count."""


LIMITS = SnapshotSettings(age=timedelta(seconds=10))
"""With one version per second, snapshots are due at versions 11 and 21, the last one."""


class Many(Sequence[Record]):
    """One version's records, all of new players."""

    def __init__(self, number: int) -> None:
        self._first = number * EACH

    def players(self) -> pa.Array:
        return pa.array(np.char.mod("player-%07d", np.arange(self._first, self._first + EACH)), pa.string())

    def __len__(self) -> int:
        return EACH

    def __getitem__(self, at: Any) -> Any:
        return [(player, 0) for player in self.players().to_pylist()][at]

    def __repr__(self) -> str:
        return f"{EACH} from {self._first}"


class Recent(hf.Processor):
    """Keeps the last players."""

    recent = hf.KeyValueStore("recent", value=int, max_entries=ENTRIES)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.recent[key] = event.points


class Processing(ProcessorMachine):
    """A processor, which puts record by record."""

    limits = LIMITS
    processor = Recent

    def rows(self, records: Sequence[Record], step: Step) -> pa.RecordBatch:
        assert isinstance(records, Many)
        points = pa.array(np.zeros(EACH, np.int64))
        times = pa.array(np.full(EACH, step.wall))
        names = ("_dead", "k0", "points", "_time")
        return pa.RecordBatch.from_arrays([pa.nulls(EACH, pa.string()), records.players(), points, times], names=names)


class Tabulating(Machine):
    """A table, which writes columns."""

    limits = LIMITS

    def work(self, step: Step) -> AggregationWork | ProcessingWork:
        return replace(super().work(step), limits=Limits(PARTITIONS, EACH, 0))

    def rows(self, records: Sequence[Record], step: Step) -> pa.RecordBatch:
        assert isinstance(records, Many)
        ones, names = pa.array(np.ones(EACH, np.int64)), ("_dead", "k0", "p0", "p1")
        return pa.RecordBatch.from_arrays([pa.nulls(EACH, pa.string()), records.players(), ones, ones], names=names)


def restored(log: Log, folder: Path, store: str) -> tuple[dict[TaskId, Replica], list[RestoreEvent]]:
    """Replicas in a new folder, restored as by an instance, and the events of the restore."""
    events, source = Events(), LogReader(log)
    replicas = {
        task: Replica(TaskDirectory(folder, task, "new"), source, log.app.stores_of(task), Resources(16 << 20), events)
        for task in TASKS
    }
    updater = ReplicaUpdater(source, events, RestoreSettings(), RetrySettings())
    for replica in replicas.values():
        updater.add(replica)
    updater.start()
    assert updater.wait_ready(30)
    updater.stop()
    found = [numbered.event for numbered in events.since(0).events]
    return replicas, [each for each in found if isinstance(each, RestoreEvent) and each.store == store]


@pytest.mark.parametrize("kind", [pytest.param(Processing, marks=pytest.mark.slow), Tabulating])
def test_a_million_writes_to_ten_entries_are_restored_as_about_ten(kind: type[Machine], tmp_path: Path) -> None:
    machine = kind(tmp_path / "first", structs.replace(SPEC, max_entries=ENTRIES))
    machine.run([Many(number) for number in range(VERSIONS)])
    newest = machine.driver.newest
    assert newest is not None
    assert newest.version == VERSIONS
    [store] = [spec.name for spec in machine.specs()]
    assert newest.counts[f"evicted/{store}"] == EACH, "as many as were put"

    parts = [part for task in TASKS for ref in newest.of_task(task) for part in ref.of_type("state")]
    assert sum(part.rows for part in parts) <= PARTITIONS * (2 * ROWS - 1), "ten puts, ten deletes"
    replicas, events = restored(machine.log, tmp_path / "second", store)
    for task, replica in replicas.items():
        assert machine.log.snapshots.versions(task)[-1] == VERSIONS, "by the snapshot policy"
        [ended] = [each for each in events if each.phase is RestorePhase.END and each.task == str(task)]
        assert ended.total == ROWS, "about ten: the entries and their index"
        with replica.read_view(Version(VERSIONS)) as view:
            rows = dict(view.scan(store, b"", None))
        with machine.replicas[task].read_view(Version(VERSIONS)) as view:
            assert rows == dict(view.scan(store, b"", None)), "equal to the replica that applied all versions"
        assert len(rows) == ROWS
        assert len([key for key in rows if key[0] == 1]) == ENTRIES
        replica.close()
