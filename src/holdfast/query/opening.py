"""Opening stores for one answer: the part of every task, held at a version until the answer is made.

Replicas are updated independently, and keep their last few versions. So three cases:

    at=VERSION   every task is opened at that version; one that has moved past it makes the version gone
    at=latest    the newest version that this instance has is tried first. A replica that is behind comes to it; if one
                 has moved past it meanwhile, a newer version is tried, until the deadline of the request. If one can't
                 come to it in time, the newest version that all of them hold is the answer's
    otherwise    every task is opened at its newest version, then those that are ahead again at the smallest of these.
                 If one no longer has that, each answers at its own version, and the answer isn't `consistent`

An open part doesn't change, however far its replica moves on. Parts on other instances are opened and read at the same
time. A reader of several steps has each part hold its version (`OpenPart.hold`), and closes them.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import UNSET, UnsetType

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.instance.config import Role
from holdfast.instance.held_versions import HoldTerms, TooManyHolds
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.log.commits import Point
from holdfast.query.freshness import ANY, Freshness, KnownVersions, Latest, needs_of
from holdfast.query.measuring import Answered
from holdfast.query.problems import problem_of
from holdfast.query.read_threads import ReadThreads
from holdfast.query.task_reader import (
    HeldTask,
    NotFresh,
    NotHere,
    ReadNeeds,
    TaskPart,
    TaskReader,
    Tasks,
    TaskStore,
    VersionGone,
    too_old,
)
from holdfast.retry import is_retryable
from holdfast.stores.access import Now
from holdfast.words import NOTHING, TaskId, Version

T = TypeVar("T")
_STAYS: Final = HoldTerms(120.0)
"""Longer than any request takes. A hold that can't be released ends by then."""


class StorePart(NamedTuple):
    """One task's part of a store."""

    store: str
    task: TaskId


class OpenPart:
    """One task's part of a store, held at a version."""

    def __init__(self, place: StorePart, reader: TaskReader, version: Version | None, needs: ReadNeeds) -> None:
        self.place = place
        self.local = reader.local
        self._context: AbstractContextManager[TaskStore] | None = reader.at(place.store, version, needs)
        self.store = self._context.__enter__()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """For the length of a read. An error goes through the task's reader, which may have to repair the replica."""
        try:
            yield
        except HoldfastError as error:
            context, self._context = self._context, None
            if context is not None:
                context.__exit__(type(error), error, error.__traceback__)
            raise

    def read(self, read: Callable[["OpenPart"], T]) -> T:
        """The result of a read of this part."""
        with self.reading():
            return read(self)

    def hold(self, terms: HoldTerms) -> HeldTask:
        """Has the replica keep this version for later reads, also those of other parts and other requests."""
        return self.store.hold(terms)

    def close(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)


Opened = OpenPart | HoldfastError
"""A part, or why it couldn't be opened."""


@dataclass(frozen=True)
class ReadSource:
    """What an answer from several parts is an answer to."""

    version: Version
    """That of all parts if `consistent`, otherwise the smallest."""
    consistent: bool
    commit: str
    """The id of its commit, if that is known."""
    now: Now
    """The clocks of that version."""
    role: Role
    """Standby if any part is from one."""
    instances: tuple[str, ...]
    missing: dict[str, str]
    """Why tasks are left out, where the request wants what there is."""
    answered: Answered

    def moved_on(self, before: Point | None) -> bool | UnsetType:
        """Whether any part is of another version than the page before; unset for the first page."""
        return UNSET if before is None else not self.consistent or self.version != before.version

    @classmethod
    def of(cls, parts: Sequence[OpenPart], missing: dict[str, str]) -> "ReadSource":
        stores = [part.store for part in parts]
        smallest = min(stores, key=lambda store: store.version)
        standby = any(store.served.role is Role.STANDBY for store in stores)
        one = Answered.by(local=parts[0].local, standby=standby)
        return cls(
            version=smallest.version,
            consistent=len({store.version for store in stores}) == 1,
            commit=smallest.commit,
            now=smallest.now,
            role=Role.STANDBY if standby else Role.ACTIVE,
            instances=tuple(sorted({store.served.instance for store in stores})),
            missing=missing,
            answered=one if len(parts) == 1 else Answered.SCATTERED,
        )


@dataclass(frozen=True)
class OpenStores:
    """Parts of stores, all open, and how they are read."""

    parts: Sequence[OpenPart]
    source: ReadSource
    peers: ThreadPoolExecutor

    def read(self, read: Callable[[OpenPart], T]) -> list[T]:
        """The result of `read` for each part, those on other instances at the same time."""
        remote = {
            n: self.peers.submit(copy_context().run, part.read, read)
            for n, part in enumerate(self.parts)
            if not part.local
        }
        return [remote[n].result() if n in remote else part.read(read) for n, part in enumerate(self.parts)]

    def hold_each(self, terms: HoldTerms) -> list[HeldTask]:
        """Has each part hold its version, or none of them."""

        def hold(part: OpenPart) -> HeldTask | HoldfastError:
            try:
                return part.hold(terms)
            except HoldfastError as error:
                return error  # of the others, those that worked have to be released

        found = self.read(hold)
        held = [each for each in found if not isinstance(each, HoldfastError)]
        for error in found:
            if isinstance(error, HoldfastError):
                for each in held:
                    each.release()
                raise error
        return held

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Other instances keep the versions for the length of the block. Those of this one are pinned anyway."""
        elsewhere = replace(self, parts=[part for part in self.parts if not part.local])
        try:
            held = elsewhere.hold_each(_STAYS)
        except TooManyHolds:
            held = []  # the replicas keep their last few versions all the same
        try:
            yield
        finally:
            for each in held:
                each.release()


@dataclass(frozen=True)
class Parts(Generic[T]):
    """What was read from each task, and from which version."""

    source: ReadSource
    parts: Sequence[TaskPart[T]]


_OpenAt = Callable[[Sequence[StorePart], Version | None, ReadNeeds], list[Opened]]
"""Opens each place at a version, or at its newest one."""


class Opener:
    """Opens parts of stores through the readers of their tasks."""

    def __init__(self, tasks: Tasks, versions: KnownVersions, threads: ReadThreads, clock: Clock) -> None:
        self._tasks = tasks
        self._versions = versions
        self._threads = threads
        self._clock = clock

    @contextmanager
    def opened(
        self, places: Sequence[StorePart], freshness: Freshness = ANY, *, partial: bool = False
    ) -> Iterator[OpenStores]:
        """The parts of these places for the length of the block; with `partial`, only those that can be opened."""
        needs, peers = needs_of(freshness, self._versions, self._clock), self._threads.peers(freshness)
        with ExitStack() as stack:
            open_at = functools.partial(self._opened, stack, peers)
            if freshness.at is None:
                found = self._newest(open_at, places, needs)
            elif isinstance(freshness.at, Latest):
                found = self._latest(open_at, places, needs, partial)
            else:
                found = open_at(places, freshness.at, replace(needs, exact=freshness.at))
                if (gone := _gone(found)) is not None and gone.held is not None:
                    raise VersionGone(freshness.at, *gone.held)
            yield OpenStores(*_usable(places, found, partial), peers)

    def _newest(self, open_at: _OpenAt, places: Sequence[StorePart], needs: ReadNeeds) -> list[Opened]:
        found = open_at(places, None, needs)
        versions = [part.store.version for part in found if isinstance(part, OpenPart)]
        smallest = min(versions, default=NOTHING)
        ahead = [n for n, part in enumerate(found) if isinstance(part, OpenPart) and part.store.version > smallest]
        again = open_at([places[n] for n in ahead], smallest, needs)
        if all(isinstance(part, OpenPart) for part in again):
            for n, part in zip(ahead, again, strict=True):
                _close(found[n])
                found[n] = part
        return found

    def _latest(self, open_at: _OpenAt, places: Sequence[StorePart], needs: ReadNeeds, partial: bool) -> list[Opened]:
        readers = [reader for place in places if (reader := self._tasks(place.task)) is not None]
        here = any(reader.local for reader in readers)
        target = max((reader.newest for reader in readers), default=NOTHING)  # elsewhere: the newest that was seen
        target = target if here else max(target, self._versions.newest_known)
        while True:
            target = max(target, needs.at_least)
            found = open_at(places, target, needs)
            gone = _gone(found)
            if gone is None or gone.held is None:
                return self._common(open_at, places, found, needs, partial) or found
            for part in found:
                _close(part)
            if self._clock.monotonic() >= needs.until:
                raise NotFresh(
                    f"Some replicas have moved on while others are still before version {gone.held[0]}, so there is no "
                    "version that all of them hold.",
                    target,
                    gone.held[0],
                )
            target = Version(gone.held[1])

    def _common(
        self, open_at: _OpenAt, places: Sequence[StorePart], found: Sequence[Opened], needs: ReadNeeds, partial: bool
    ) -> list[Opened] | None:
        """The newest version that all replicas have, if some of them haven't come to a newer one in time.

        With `partial`, that all those have which can be read.
        """
        behind = [Version(e.version) for e in found if isinstance(e, NotFresh) and e.version is not None]
        if not behind or min(behind) < needs.at_least:
            return None
        unreadable = [n for n, part in enumerate(found) if partial and _is_unreadable(part)]
        wanted = [n for n in range(len(places)) if n not in unreadable]
        again = open_at([places[n] for n in wanted], min(behind), needs)
        if not all(isinstance(part, OpenPart) for part in again):
            return None
        opened = dict(zip(wanted, again, strict=True))
        for n in wanted:
            _close(found[n])
        return [opened.get(n, part) for n, part in enumerate(found)]

    def _opened(
        self,
        stack: ExitStack,
        peers: ThreadPoolExecutor,
        places: Sequence[StorePart],
        version: Version | None,
        needs: ReadNeeds,
    ) -> list[Opened]:
        """Each place at a version, or at its newest one: its part, or the error."""
        readers = [self._tasks(place.task, needs.to_read(version)) for place in places]
        remote = {
            n: peers.submit(copy_context().run, _open, place, reader, version, needs)
            for n, (place, reader) in enumerate(zip(places, readers, strict=True))
            if reader is not None and not reader.local
        }
        found = [
            remote[n].result() if n in remote else _open(place, readers[n], version, needs)
            for n, place in enumerate(places)
        ]
        for part in found:
            stack.callback(_close, part)
        return found


def _open(place: StorePart, reader: TaskReader | None, version: Version | None, needs: ReadNeeds) -> Opened:
    try:
        return OpenPart(place, found_reader(place.task, reader), version, needs)
    except VersionNotAvailable as error:
        if error.asked is None or error.gone:
            return error
        held = NOTHING if error.held is None else Version(error.held[1])
        return too_old(place.task, held, Version(error.asked))
    except HoldfastError as error:
        return error


def found_reader(task: TaskId, reader: TaskReader | None) -> TaskReader:
    if reader is None:
        raise NotHere(
            f"No instance is known to hold task {task}. Ask again in a moment, or see /v1/state on the app's other "
            "instances."
        )
    return reader


def _is_unreadable(part: Opened) -> bool:
    """Whether there is no part, at whichever version."""
    return not isinstance(part, OpenPart) and not (isinstance(part, NotFresh) and part.version is not None)


def _close(part: Opened) -> None:
    if isinstance(part, OpenPart):
        part.close()


def _gone(found: Sequence[Opened]) -> VersionNotAvailable | None:
    """The error of a task that has moved past the version."""
    return next((each for each in found if isinstance(each, VersionNotAvailable) and each.gone), None)


def _usable(places: Sequence[StorePart], found: Sequence[Opened], partial: bool) -> tuple[list[OpenPart], ReadSource]:
    parts = [part for part in found if isinstance(part, OpenPart)]
    errors = [(place, error) for place, error in zip(places, found, strict=True) if not isinstance(error, OpenPart)]
    for _, error in errors:
        if not (partial and parts and is_retryable(error)):
            raise error
    return parts, ReadSource.of(parts, {str(place.task): problem_of(error).message for place, error in errors})
