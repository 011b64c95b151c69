"""The stores of all tasks as a log has them, in dictionaries: what replicas are in an app."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.log.commits import Commit
from holdfast.log.log import Log
from holdfast.log.segments import SegmentRef
from holdfast.pipeline.task_state import TaskState
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.layouts.due import Due, next_due
from holdfast.stores.spec import StoreSpec
from holdfast.testing.processor import StateInMemory
from holdfast.topology.topology import SubTopology
from holdfast.words import NOTHING, TaskId, Version


class LogState:
    """Applies the versions of a log, in order."""

    def __init__(self, log: Log, subtopologies: Sequence[SubTopology], partitions: int) -> None:
        self._log = log
        self._specs = {store.name: store for each in subtopologies for store in each.stores}
        self._tasks = {
            task: {store.name: DictBytes() for store in each.stores}
            for each in subtopologies
            for task in each.tasks(partitions)
        }
        self._version = NOTHING
        self.now = Now(0)
        if (newest := log.newest()) is not None:
            self.catch_up(Version(newest.version))

    def catch_up(self, version: Version) -> None:
        """Applies all versions up to this one."""
        while self._version < version:
            commit = self._log.commit(Version(self._version + 1))
            assert commit is not None, "a log in memory is never cleaned"
            for task, stores in self._tasks.items():
                for ref in _segments(commit, task):
                    self._apply(stores, ref)
            self._version, self.now = Version(commit.version), Now(commit.clocks.wall, commit.clocks.event)

    def _apply(self, stores: Mapping[str, DictBytes], ref: SegmentRef) -> None:
        for name, table in self._log.state_parts(ref):
            if (store := stores.get(name)) is None:
                continue  # of a store that this release doesn't have
            for key, value in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
                if value is None:
                    store.delete(key)
                else:
                    store.put(key, value)

    def of(self, task: TaskId) -> TaskState:
        """The stores of a task."""
        return _OneTask(self, self._tasks[task])

    def of_store(self, name: str) -> Iterator[DictBytes]:
        """A store's bytes in each partition."""
        return (stores[name] for stores in self._tasks.values() if name in stores)

    def spec(self, name: str) -> StoreSpec:
        return self._specs[name]

    def due(self) -> dict[str, Due]:
        """What is due next in each store."""
        return {
            name: Due.soonest([next_due(spec, bytes_, self.now) for bytes_ in self.of_store(name)])
            for name, spec in self._specs.items()
        }


class _OneTask(StateInMemory):
    def __init__(self, states: LogState, stores: Mapping[str, DictBytes]) -> None:
        super().__init__(stores)
        self._states = states

    def of_task(self, task: TaskId) -> TaskState:
        return self._states.of(task)


def _segments(commit: Commit, task: TaskId) -> Iterator[SegmentRef]:
    yield from commit.of_task(task)
    yield from commit.volatile_of(task)
