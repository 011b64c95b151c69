"""Stores as Arrow record batches, all tasks at one version, from this instance and from others.

A reader first holds a version: the tasks of the stores are opened at one (`opening`), and each of them holds it. The
version then stays readable until the reader is done, however many steps that takes and however fast the app commits.
Batches come from the replicas that hold it, so a read with require=active is one of active replicas to its end.
Batches stream: at any time a few blocks are in memory, and no Python runs per row.
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance.held_versions import HoldTerms
from holdfast.query.freshness import LATEST, Freshness
from holdfast.query.opening import OpenStores, ReadSource, StorePart
from holdfast.query.reader import StoreReader
from holdfast.query.retries import Retries
from holdfast.query.tables import StoreTable, table_of
from holdfast.query.task_reader import HeldTask, NotHere, TaskStore
from holdfast.query.value_columns import NotAsColumns
from holdfast.query.wanted import while_wanted
from holdfast.stores.layouts.blocks import ALL_KEYS, ALWAYS, KeyRange, TimeRange
from holdfast.words import TaskId, Version


@dataclass(frozen=True)
class HeldStores:
    """Stores at one version, which all their tasks hold."""

    source: ReadSource
    tasks: Mapping[TaskId, HeldTask]
    active: bool
    """Whether only active replicas may be read."""

    @property
    def version(self) -> Version:
        return self.source.version

    def release(self) -> None:
        for held in self.tasks.values():
            held.release()


class ColumnReader:
    """Reads stores as columns."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self.threads = reader.threads

    def table(self, store: str) -> StoreTable:
        """The table of a store, by the newest app file."""
        return table_of(self._reader.specs[store])

    def tables(self) -> dict[str, StoreTable]:
        """All stores that can be tables: not those of a user's own kind that has no columns or isn't installed here."""
        found: dict[str, StoreTable] = {}
        for spec in self._reader.specs.all():
            try:
                found[spec.name] = table_of(spec)
            except NotAsColumns:
                continue
        return found

    def tasks_of(self, store: str) -> list[TaskId]:
        return self._reader.tasks_of(store)

    async def awaited(self, freshness: Freshness, *stores: str) -> Freshness:
        """Waits until the replicas of these stores here are as fresh as a request demands, as `StoreReader` does."""
        return await self._reader.awaited(freshness, [task for store in stores for task in self.tasks_of(store)])

    def retries(self, freshness: Freshness) -> Retries:
        """Which errors of a read make it start over."""
        return self._reader.retries(freshness)

    @contextmanager
    def held(
        self, stores: Iterable[str], freshness: Freshness, seconds: float, tasks: Collection[TaskId] | None = None
    ) -> Iterator[HeldStores]:
        """One version of these stores, readable for the length of a block, or for so many seconds."""
        found = self.hold(stores, freshness, HoldTerms(seconds), tasks)
        try:
            yield found
        finally:
            found.release()

    def hold(
        self, stores: Iterable[str], freshness: Freshness, terms: HoldTerms, tasks: Collection[TaskId] | None = None
    ) -> HeldStores:
        """Has all tasks of these stores, or some of them, hold one version.

        Without at= it is the newest one that all of them have. If there is none, they have to come to one: at=latest.
        With a version in at=, only the tasks that hold it are asked.
        """
        # One store of each task is enough: a version has all of them.
        asked = {task: store for store in stores for task in self._reader.tasks_of(store)}
        wanted = asked.keys() if tasks is None else tasks
        opened_tasks = wanted if isinstance(freshness.at, int) else asked.keys()
        places = [StorePart(store, task) for task, store in asked.items() if task in opened_tasks]

        def hold(opened: OpenStores) -> HeldStores | None:
            if not opened.source.consistent:
                return None
            parts = [part for part in opened.parts if part.place.task in wanted]
            wanted_tasks = [part.place.task for part in parts]
            held = OpenStores(parts, ReadSource.of(parts, {}), opened.peers)
            return HeldStores(
                held.source, dict(zip(wanted_tasks, held.hold_each(terms), strict=True)), freshness.active
            )

        found = self._reader.answer(places, hold, freshness)
        if found is None:
            found = self._reader.answer(places, hold, replace(freshness, at=LATEST))
        assert found is not None  # at= has one version, or raises
        return found

    def batches(
        self,
        store: str,
        held: HeldStores,
        *,
        columns: Sequence[str] | None = None,
        keys: Sequence[KeyRange] = (ALL_KEYS,),
        times: TimeRange = ALWAYS,
        tasks: Sequence[TaskId] | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """The entries of a store, or of some of its tasks, at the version that is held: one task after the other."""
        wanted = self.table(store).columns(columns)
        for task in self._reader.tasks_of(store) if tasks is None else tasks:
            with self._part(StorePart(store, task), held) as found:
                table = table_of(self._reader.specs.at(store, held.version))
                with closing(table.read(found.bytes, found.now, wanted, keys, times)) as batches:
                    yield from while_wanted(batches)

    @contextmanager
    def _part(self, place: StorePart, held: HeldStores) -> Iterator[TaskStore]:
        """A part at the held version: from the replica that holds it, or if that has gone, from one that has it too."""
        with ExitStack() as stack:
            try:
                if place.task not in held.tasks:  # a table that the statement doesn't name
                    raise NotHere(f"Nobody holds version {held.version} of task {place.task}.")
                found = stack.enter_context(held.tasks[place.task].at(place.store))
            except HoldfastError as error:
                if error.category not in (ErrorCategory.RETRY, ErrorCategory.CLOSED):
                    raise
                found = stack.enter_context(self._reader.part_at(place, held.version, active=held.active))
            yield found
