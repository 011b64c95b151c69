"""Reading stores that are spread over tasks, at a version.

A lookup goes to the task of the key, by the same hash that Spark shuffles with. A range reads every task and merges
their entries in key order; so does a query about one key, since a processor may write a key in any task. `opening` says
which version of each task is read. An instance that goes away in the middle of a read, or a version that does, makes
the read start over.

Nothing here waits for a replica to catch up, unless the request says how fresh its answer has to be: the error is
`NotReady`, and the caller asks again.
"""

import datetime as dt
import heapq
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Protocol, TypeVar

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import HoldfastError
from holdfast.instance.messages import TaskNotHere
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import Point
from holdfast.query.freshness import ANY, Freshness, KnownVersions, needs_of
from holdfast.query.last_errors import LastError, is_of_the_store
from holdfast.query.lookups import Lookup, LookupResult, read_key
from holdfast.query.many_keys import find_many
from holdfast.query.opening import Opener, OpenPart, OpenStores, Parts, ReadSource, StorePart, found_reader
from holdfast.query.paging import AnswerSize, PageLimits, read_page
from holdfast.query.read_threads import ReadThreads
from holdfast.query.retries import Retries, uninterrupted
from holdfast.query.store_specs import KnownApps, StoreSpecs
from holdfast.query.task_reader import (
    ANY_REPLICA,
    NotHere,
    NotReady,
    ReadInterrupted,
    ReadNeeds,
    TaskPart,
    TaskReader,
    Tasks,
    TaskStore,
    VersionAbandoned,
    VersionGone,
)
from holdfast.query.waiting import VersionWait
from holdfast.query.wanted import while_wanted
from holdfast.settings.rest import RestSettings
from holdfast.stores.engines.base import FIRST_KEY
from holdfast.stores.formats.cells import unpack
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.layouts.base import Batch
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.scans import Closing
from holdfast.words import TaskId, Version

Entry = tuple[bytes, bytes]
T = TypeVar("T")

_KEY: Callable[[Entry], bytes] = itemgetter(0)
_NO_WAIT = dt.timedelta()


class KnownLog(KnownApps, KnownVersions, Protocol):
    """What an instance knows of the log; `LogReader` has it."""


@dataclass(frozen=True)
class Page:
    """Entries of a range in key order.

    A key that a processor wrote in several tasks comes once per task, on one page: the next one starts after the key.
    """

    source: ReadSource
    entries: Sequence[Entry]
    more: bool


@dataclass(frozen=True)
class Probe:
    """One task's answer to whether a store can be read: at which version, or why not."""

    task: TaskId
    version: Version | None
    error: HoldfastError | None


class StoreReader:
    """All stores of an app, read through one `TaskReader` per task.

    `tasks` finds a task's reader, at each read, since tasks move. `log` has the app's files and the newest versions.
    `max_page` is how many bytes of entries an answer has that isn't a stream.
    """

    def __init__(
        self, log: KnownLog, tasks: Tasks, clock: Clock = SYSTEM_CLOCK, *, max_page: int = RestSettings.max_page
    ) -> None:
        self.max_page = max_page
        self.specs = StoreSpecs(log)
        self.last_errors: dict[str, LastError] = {}
        self._log = log
        self._tasks = tasks
        self._clock = clock
        self.threads = ReadThreads()
        self._opener = Opener(tasks, log, self.threads, clock)
        self.awaited = VersionWait(tasks, log, clock).awaited

    def close(self) -> None:
        self.threads.close()

    @property
    def app(self) -> AppSpec:
        """The newest known app file."""
        return self._log.app

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
        return Lookup(spec, task, encode_key(spec.key, values))

    def part_at(self, place: StorePart, version: Version, *, active: bool) -> AbstractContextManager[TaskStore]:
        """One task's part of a store, at a version that one of its replicas has."""
        needs = ReadNeeds(at_least=version, active=active, exact=version)
        return found_reader(place.task, self._tasks(place.task, needs)).at(place.store, version, needs)

    def local_task(self, task: TaskId) -> TaskReader | None:
        """The reader of a task that this process answers for; None if it is elsewhere, or nowhere yet."""
        reader = self._tasks(task)
        return reader if reader is not None and reader.local else None

    def get_here(self, lookup: Lookup) -> LookupResult | None:
        """The cell of a key in a replica of this process, without waiting for anything, so an event loop may ask.

        None if there is no such replica or it can't be read now: `get` asks others, and explains the error.
        """
        reader = self.local_task(lookup.task)
        try:
            return None if reader is None else read_key(self.specs, reader, lookup, None, ANY_REPLICA)
        except HoldfastError:
            return None

    def get(self, lookup: Lookup, freshness: Freshness = ANY) -> LookupResult:
        """The cell of a key in the task it belongs to."""
        version = freshness.at if isinstance(freshness.at, int) else None
        needs = self._exactly(version, freshness)
        with self._recording(lookup.spec.name):
            try:
                return uninterrupted(lambda: self._found(lookup, version, needs))
            except VersionNotAvailable as error:
                if version is not None and error.gone and error.held is not None:
                    raise VersionGone(version, *error.held) from error
                raise

    def _exactly(self, version: Version | None, freshness: Freshness) -> ReadNeeds:
        """What a lookup demands of a replica; of one that has moved past the version, others may hold it."""
        needs = needs_of(freshness, self._log, self._clock)
        return needs if version is None else replace(needs, exact=version)

    def search(self, lookup: Lookup, missed: LookupResult, freshness: Freshness = ANY) -> LookupResult:
        """Looks in the other tasks for a key that its own task doesn't have: a processor may write under any key."""
        others = [task for task in self.tasks_of(lookup.spec.name) if task != lookup.task]
        version = None if freshness.at is None else missed.version
        needs = self._exactly(version, freshness)
        with self._recording(lookup.spec.name):
            found = self._on_each(others, lambda at: self._found(replace(lookup, task=at), version, needs), freshness)
        return next((each for each in found if each.cell is not None), missed)

    def read(
        self,
        store: str,
        read: Callable[[TaskStore], Sequence[T]],
        freshness: Freshness = ANY,
        *,
        partial: bool = False,
    ) -> Parts[T]:
        """The result of `read` for each task's part of the store, at one version while every replica has it."""

        def part(open_: OpenPart) -> TaskPart[T]:
            return TaskPart(open_.place.task, open_.store.version, read(open_.store))

        places = self.places_of(store)
        return self.answer(places, lambda opened: Parts(opened.source, opened.read(part)), freshness, partial=partial)

    def places_of(self, *stores: str) -> list[StorePart]:
        """All parts of these stores."""
        return [StorePart(store, task) for store in stores for task in self.tasks_of(store)]

    def opened(
        self, places: Sequence[StorePart], freshness: Freshness = ANY, *, partial: bool = False
    ) -> AbstractContextManager[OpenStores]:
        """Parts of stores, of one version if the request says so, for the length of the block."""
        return self._opener.opened(places, freshness, partial=partial)

    def answer(
        self,
        places: Sequence[StorePart],
        read: Callable[[OpenStores], T],
        freshness: Freshness = ANY,
        *,
        partial: bool = False,
        stays: bool = False,
    ) -> T:
        """The result of a read, from the start if an instance or the version goes away, which then `stays` there."""
        retries = self.retries(freshness)
        with self._recording(*{place.store for place in places}):
            while True:
                try:
                    with self._opener.opened(places, freshness, partial=partial) as opened:
                        with opened.staying() if stays or retries.started_over else nullcontext():
                            return read(opened)
                except TaskNotHere as error:  # it was moved elsewhere
                    retries.check(ReadInterrupted(str(error)))
                except (ReadInterrupted, VersionNotAvailable) as error:
                    retries.check(error)

    def retries(self, freshness: Freshness) -> Retries:
        """Which errors of a read make it start over."""
        return Retries(freshness, self._clock)

    def get_many(
        self, store: str, keys: Sequence[Sequence[object]], freshness: Freshness = ANY, *, partial: bool = False
    ) -> tuple[ReadSource, list[bytes | HoldfastError | None]]:
        """The stored cell of each key; None where it isn't there, an error where its task is missing.

        A processor may write under any key, so what its own task doesn't have is looked for in the others. `TooLarge`
        if they have more than `max_page` bytes together.
        """
        spec, tasks = self.specs[store], self.tasks_of(store)
        encoded = [encode_key(spec.key, values) for values in keys]
        owners = [tasks[partition_of(spec.key, values, len(tasks))] for values in keys]
        wanted = tasks if spec.value.by_processor else sorted(set(owners))

        def read(opened: OpenStores) -> tuple[ReadSource, list[bytes | HoldfastError | None]]:
            found: dict[int, bytes] = {}
            check = AnswerSize(self.max_page, spec.name, len(keys)).add
            find_many(opened, self.specs, encoded, lambda n, task: owners[n] == task, found, check)
            if spec.value.by_processor and len(found) < len(keys):
                find_many(
                    opened, self.specs, encoded, lambda n, task: n not in found and owners[n] != task, found, check
                )
            missing = {task: NotHere(why) for task, why in opened.source.missing.items()}
            return opened.source, [found.get(n, missing.get(str(owner))) for n, owner in enumerate(owners)]

        return self.answer([StorePart(store, task) for task in wanted], read, freshness, partial=partial)

    def range(
        self,
        store: str,
        start: bytes,
        stop: bytes | None,
        *,
        limit: int,
        reverse: bool = False,
        before: Point | None = None,
        freshness: Freshness = ANY,
        partial: bool = False,
    ) -> Page:
        """Up to `limit` entries, and about `max_page` bytes, with start <= key < stop.

        `before` is the version of the page before, if there is one.
        """

        def scan(part: OpenPart) -> Generator[Entry, None, None]:
            return self.guarded(part, start, stop, reverse=reverse)

        def page(opened: OpenStores) -> Page:
            limits = PageLimits(limit, self.max_page)
            found = read_page(opened, scan, limits, position=_KEY, size=entry_size, reverse=reverse)
            return Page(opened.source, found.entries, found.more)

        return self.next_page(self.places_of(store), page, before, freshness, partial=partial)

    def next_page(
        self,
        places: Sequence[StorePart],
        read: Callable[[OpenStores], T],
        before: Point | None,
        freshness: Freshness = ANY,
        *,
        partial: bool = False,
    ) -> T:
        """The result of a read of a page, at the version of the page before if there is one.

        At another version if replicas no longer have that one, or if the request demands a newer or a named one.
        """
        same = self._at_version_of(before, freshness)
        if same is not None:
            with suppress(VersionGone, NotReady):
                return self.answer(places, read, same, partial=partial)
        return self.answer(places, read, freshness, partial=partial)

    @contextmanager
    def opened_after(
        self, before: Point | None, places: Sequence[StorePart], freshness: Freshness = ANY, *, partial: bool = False
    ) -> Iterator[OpenStores]:
        """Parts of stores for the length of the block, at the version that `next_page` would read."""
        same = self._at_version_of(before, freshness)
        with ExitStack() as stack:
            opened: OpenStores | None = None
            if same is not None:
                with suppress(VersionGone, NotReady):
                    opened = stack.enter_context(self.opened(places, same, partial=partial))
            yield opened or stack.enter_context(self.opened(places, freshness, partial=partial))

    def _at_version_of(self, before: Point | None, freshness: Freshness) -> Freshness | None:
        """What a page demands to be of the version of the page before; None if the request demands another one."""
        if before is None:
            return None
        self._check_timeline(before)
        if isinstance(freshness.at, int):
            return None
        older = before.version < needs_of(freshness, self._log, self._clock).at_least
        return None if older else replace(freshness, at=before.version, wait=_NO_WAIT)

    def _check_timeline(self, before: Point) -> None:
        """Raises if the page before was of a version of this number that is abandoned."""
        commit = None
        if before.commit and before.version <= self._log.newest_known:
            with suppress(HoldfastError):  # the log can't be read now
                commit = self._log.commit(before.version)
        if commit is not None and not commit.id.startswith(before.commit):
            raise VersionAbandoned(
                f"The page before is of version {before.version} of commit {before.commit}. The log was set back "
                "since, and its version of this number is another one."
            )

    def batches(self, part: OpenPart, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Closing[Batch]:
        """The entries of one part with start <= key < stop, in the order of their keys, without expired ones."""
        spec = self.specs.at(part.place.store, part.store.version)
        found = layout_of(spec).reader(part.store.bytes, part.store.now).scan(start, stop, reverse=reverse)
        return Closing(while_wanted(found), found)

    def entries(self, part: OpenPart, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Closing[Entry]:
        """The same one by one."""
        batches = self.batches(part, start, stop, reverse=reverse)
        return Closing((row for keys, cells in batches for row in zip(keys, cells, strict=True)), batches)

    def guarded(
        self, part: OpenPart, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Generator[Entry, None, None]:
        """The same for a reader of several parts at a time: an error goes through the reader of its own task."""
        with part.reading(), self.entries(part, start, stop, reverse=reverse) as entries:
            yield from entries

    def _found(self, lookup: Lookup, version: Version | None, needs: ReadNeeds) -> LookupResult:
        reader = found_reader(lookup.task, self._tasks(lookup.task, needs.to_read(version)))
        return read_key(self.specs, reader, lookup, version, needs)

    def probe(self, store: str) -> list[Probe]:
        """Reads the first entry of each part of the store, as a check that it can be read at all."""

        def read(task: TaskId) -> Probe:
            try:
                with self._recording(store), found_reader(task, self._tasks(task)).at(store) as found:
                    with Closing(found.bytes.scan(FIRST_KEY, None)) as entries:
                        for _, value in itertools.islice(entries, 1):
                            unpack(value)
            except HoldfastError as error:
                return Probe(task, None, error)
            return Probe(task, found.version, None)

        return self._on_each(self.tasks_of(store), read)

    def _on_each(self, tasks: Sequence[TaskId], read: Callable[[TaskId], T], freshness: Freshness = ANY) -> list[T]:
        """Reads all tasks, those of other instances at the same time."""
        peers = self.threads.peers(freshness)
        remote = {
            task: peers.submit(copy_context().run, uninterrupted, partial(read, task))
            for task in tasks
            if (reader := self._tasks(task)) is not None and not reader.local
        }
        return [remote[task].result() if task in remote else read(task) for task in tasks]

    @contextmanager
    def _recording(self, *stores: str) -> Iterator[None]:
        """Keeps the error of a read that says that the stores can't be read."""
        try:
            yield
        except HoldfastError as error:
            if is_of_the_store(error):
                self.last_errors |= dict.fromkeys(stores, LastError(str(error), self._clock.now()))
            raise


def entry_size(entry: Entry) -> int:
    return len(entry[0]) + len(entry[1])


def merged(parts: Iterable[Iterable[Entry]], *, reverse: bool = False) -> Iterable[Entry]:
    """Parts in key order as one in key order, or all of them backwards.

    >>> list(merged([[(b"a", b"1"), (b"c", b"3")], [(b"b", b"2")]]))
    [(b'a', b'1'), (b'b', b'2'), (b'c', b'3')]
    """
    return heapq.merge(*parts, key=itemgetter(0), reverse=reverse)
