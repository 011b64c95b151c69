"""Reading stores that are spread over tasks, at a version.

A lookup goes to the task of the key, by the same hash that Spark shuffles with. A range reads every task and merges
their entries in key order; so does a query about one key, since a processor may write a key in any task. Replicas are
updated independently, so a range first reads each task at its newest version, then reads those that were ahead again at
the smallest of these versions: replicas keep their last few versions, so the answer is the state of the app at one
version. If a replica no longer has that version, the answer has `consistent: false` and each task's own newest version;
this is not an error, since half a second later answers are consistent again.

Nothing here waits for a replica to catch up: the error is `NotReady`, and the caller asks again.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import TypeVar

import msgspec

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import HoldfastError
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.log.appfile import AppSpec
from holdfast.query.store_specs import KnownApps, StoreSpecs
from holdfast.query.task_reader import NotReady, ReadInterrupted, TaskPart, TaskReader, TaskStore
from holdfast.stores.engines.base import FIRST_KEY
from holdfast.stores.formats.cells import Cell, unpack
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.scans import Closing
from holdfast.stores.spec import StoreSpec
from holdfast.words import Millis, TaskId, Version

Entry = tuple[bytes, bytes]
T = TypeVar("T")

_PEER_THREADS = 8


@dataclass(frozen=True)
class Lookup:
    """Where one key of one store is found."""

    spec: StoreSpec
    task: TaskId
    key: bytes
    local: bool


@dataclass(frozen=True)
class LookupResult:
    """What a lookup found; `cell` is None where the key isn't there at that version."""

    version: Version
    task: TaskId
    cell: Cell | None


@dataclass(frozen=True)
class Page:
    """Entries of a range in key order. `version` is the smallest over the tasks and, if `consistent`, that of all.

    A key that a processor wrote in several tasks comes once per task. All of them are on one page, which may then be
    longer than the limit: the next page starts after the key.
    """

    version: Version
    consistent: bool
    entries: Sequence[Entry]
    more: bool


@dataclass(frozen=True)
class Probe:
    """One task's answer to whether a store can be read: at which version, or why not."""

    task: TaskId
    version: Version | None
    error: HoldfastError | None


class LastError(msgspec.Struct, frozen=True):
    """The last error of a store, kept after the store has recovered: people usually look after the failure."""

    message: str
    at: Millis


class StoreReader:
    """All stores of an app, read through one `TaskReader` per task.

    `tasks` finds a task's reader, None while no instance is known to host it; it is called at each read, since tasks
    move. `files` has the app's newest file.
    """

    def __init__(
        self, files: KnownApps, tasks: Callable[[TaskId], TaskReader | None], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.specs = StoreSpecs(files)
        self.last_errors: dict[str, LastError] = {}
        self._files = files
        self._tasks = tasks
        self._clock = clock
        self._peers = ThreadPoolExecutor(_PEER_THREADS, thread_name_prefix="holdfast-peers")

    def close(self) -> None:
        self._peers.shutdown(wait=False, cancel_futures=True)

    @property
    def app(self) -> AppSpec:
        """The newest known app file."""
        return self._files.app

    def tasks_of(self, store: str) -> list[TaskId]:
        """The tasks that hold a part of the store, one per partition."""
        spec, app = self.specs[store], self.app
        number = app.number_of(spec.name)
        return [TaskId(number, partition) for partition in range(spec.partitions(app.partitions))]

    def find(self, store: str, values: Sequence[object]) -> Lookup:
        """Where the key is. Reads nothing."""
        spec = self.specs[store]
        tasks = self.tasks_of(store)
        task = tasks[partition_of(spec.key, values, len(tasks))]
        reader = self._tasks(task)
        return Lookup(spec, task, encode_key(spec.key, values), reader is None or reader.local)

    def get(self, lookup: Lookup, version: Version | None = None) -> LookupResult:
        """The cell of a key in the task it belongs to."""
        with self._recording(lookup.spec.name):
            return _uninterrupted(lambda: self._found(lookup, version))

    def search(self, lookup: Lookup, missed: LookupResult) -> LookupResult:
        """Looks in the other tasks for a key that its own task doesn't have: a processor may write under any key."""
        others = [task for task in self.tasks_of(lookup.spec.name) if task != lookup.task]
        with self._recording(lookup.spec.name):
            found = self._on_each(others, lambda task: self._found(replace(lookup, task=task), None))
        return next((each for each in found if each.cell is not None), missed)

    def read(self, store: str, read: Callable[[TaskStore], Sequence[T]]) -> list[TaskPart[T]]:
        """The result of `read` for each task's part of the store, at one version while every replica has it."""

        def part(task: TaskId, at: Version | None) -> TaskPart[T]:
            with self._task(task).at(store, at) as found:
                return TaskPart(task, found.version, read(found))

        with self._recording(store):
            return self._at_one_version(self.tasks_of(store), part, None)

    def range(
        self, store: str, start: bytes, stop: bytes | None, *, limit: int, version: Version | None = None
    ) -> Page:
        """Up to `limit` entries with start <= key < stop, at `version` while every replica has it."""
        tasks = self.tasks_of(store)

        def scan(task: TaskId, at: Version | None) -> TaskPart[Entry]:
            with self._task(task).at(store, at) as found:
                spec = self.specs.at(store, found.version)
                entries = layout_of(spec).reader(found.bytes, found.now)
                batches = entries.scan(start, stop, reverse=False)
                with Closing(batches):
                    rows = (row for keys, cells in batches for row in zip(keys, cells, strict=True))
                    return TaskPart(task, found.version, list(itertools.islice(rows, limit + 1)))

        with self._recording(store):
            slices = self._at_one_version(tasks, scan, version)
        entries = list(itertools.islice(merged(part.entries for part in slices), limit + len(tasks)))
        shown = limit
        while shown < len(entries) and entries[shown][0] == entries[shown - 1][0]:
            shown += 1
        versions = {part.version for part in slices}
        return Page(min(versions), len(versions) == 1, entries[:shown], len(entries) > shown)

    def _found(self, lookup: Lookup, version: Version | None) -> LookupResult:
        spec, task = lookup.spec, lookup.task
        reader = self._task(task)
        layout = layout_of(spec)
        if layout.one_place:
            got = reader.get(spec.name, lookup.key, version)
            return LookupResult(got.version, task, layout.visible(got.value, got.now))
        with reader.at(spec.name, version) as store:
            # A TTL only grows, so the newest known one is right here, where an event loop must not read the log.
            spec = self.specs[spec.name] if reader.local else self.specs.at(spec.name, store.version)
            data = layout_of(spec).reader(store.bytes, store.now).find(lookup.key)
            return LookupResult(store.version, task, None if data is None else layout.cell(data))

    def probe(self, store: str) -> list[Probe]:
        """Reads the first entry of each part of the store, as a check that it can be read at all."""

        def read(task: TaskId) -> Probe:
            try:
                with self._recording(store), self._task(task).at(store) as found:
                    with Closing(found.bytes.scan(FIRST_KEY, None)) as entries:
                        for _, value in itertools.islice(entries, 1):
                            unpack(value)
            except HoldfastError as error:
                return Probe(task, None, error)
            return Probe(task, found.version, None)

        return self._on_each(self.tasks_of(store), read)

    def _at_one_version(
        self, tasks: Sequence[TaskId], scan: Callable[[TaskId, Version | None], TaskPart[T]], wanted: Version | None
    ) -> list[TaskPart[T]]:
        if wanted is not None:
            try:
                return self._on_each(tasks, lambda task: scan(task, wanted))
            except VersionNotAvailable:
                pass  # replicas no longer have the cursor's version: continue at the newest
        slices = self._on_each(tasks, lambda task: scan(task, None))
        smallest = min(part.version for part in slices)
        ahead = [n for n, part in enumerate(slices) if part.version > smallest]
        try:
            again = self._on_each([tasks[n] for n in ahead], lambda task: scan(task, smallest))
        except VersionNotAvailable:
            return slices
        for n, part in zip(ahead, again, strict=True):
            slices[n] = part
        return slices

    def _on_each(self, tasks: Sequence[TaskId], read: Callable[[TaskId], T]) -> list[T]:
        """Reads all tasks, those of other instances at the same time."""
        remote = {
            task: self._peers.submit(_uninterrupted, partial(read, task))
            for task in tasks
            if (reader := self._tasks(task)) is not None and not reader.local
        }
        return [remote[task].result() if task in remote else read(task) for task in tasks]

    @contextmanager
    def _recording(self, store: str) -> Iterator[None]:
        """Keeps the error of a read, if it has one."""
        try:
            yield
        except HoldfastError as error:
            self.last_errors[store] = LastError(str(error), self._clock.now())
            raise

    def _task(self, task: TaskId) -> TaskReader:
        if (reader := self._tasks(task)) is None:
            raise NotReady(
                f"No instance is known to hold task {task}. Ask again in a moment, or see /v1/state on the app's other "
                "instances."
            )
        return reader


def _uninterrupted(read: Callable[[], T]) -> T:
    """The result of a read, from the start if an instance goes away in the middle of it: another replica answers."""
    try:
        return read()
    except ReadInterrupted:
        return read()


def merged(parts: Iterable[Sequence[Entry]]) -> Iterable[Entry]:
    """Parts in key order as one in key order.

    >>> list(merged([[(b"a", b"1"), (b"c", b"3")], [(b"b", b"2")]]))
    [(b'a', b'1'), (b'b', b'2'), (b'c', b'3')]
    """
    return heapq.merge(*parts, key=itemgetter(0))
