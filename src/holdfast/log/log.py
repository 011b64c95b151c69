"""The log of one app: all that may be asked of it, in one place.

    with the driver     create_commit, sinks, app
    with a task         write_parts, write_segment
    with a replica      newest, commit, next_commit, read_part(s), snapshots

Reading verifies: a truncated, altered or foreign object is an error that names it. The order of writes (segments,
commit, sinks) is the callers'; what each write checks is here.
"""

import logging
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast import faults
from holdfast.chance import SYSTEM_RANDOM, Random, new_id
from holdfast.errors import ErrorCategory, HoldfastError, StorageUnavailable
from holdfast.log import appfile, commits, documents, names
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import Commit
from holdfast.log.objects import ObjectMissing, Put, Storage
from holdfast.log.segments import DEAD, OUTPUT, STATE, Part, Sealed, SegmentRef, Unsealed, open_part, parted, seal
from holdfast.log.sinks import SinkPositions
from holdfast.log.snapshots import Snapshots
from holdfast.words import NOTHING, TaskId, Version

logger = logging.getLogger(__name__)

_SEARCHES = 5
"""How often a search for the newest commit begins anew because a cleaning passed it; cleanings are a minute apart."""


class LogMissing(HoldfastError):
    """There is no log where one was expected."""

    category = ErrorCategory.INVALID


class LostRace(HoldfastError):
    """Another driver made this version."""

    category = ErrorCategory.INVALID


class HistoryCleaned(HoldfastError):
    """The commits asked for were cleaned; the state there is now begins with a snapshot."""

    category = ErrorCategory.RETRY


class BrokenChain(HoldfastError):
    """A commit is not the successor of the one it was to follow."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True)
class Written:
    """A task's segments of one version as the commit names them: those that count, and those that are soon gone."""

    segments: tuple[SegmentRef, ...] = ()
    volatile: tuple[SegmentRef, ...] = ()

    def __add__(self, other: "Written") -> "Written":
        return Written(self.segments + other.segments, self.volatile + other.volatile)


class Log:
    """An app's log, opened."""

    def __init__(self, storage: Storage, app: AppSpec, random: Random = SYSTEM_RANDOM) -> None:
        self.storage = storage
        self.app = app
        self.snapshots = Snapshots(storage, app.log)
        self.sinks = SinkPositions(storage, app.log)
        self._random = random
        self._created: tuple[Version, str] | None = None  # the commit made last through this object

    @property
    def id(self) -> str:
        """The log's random id; a new log in an old folder has another."""
        return self.app.log

    @classmethod
    def open(cls, storage: Storage) -> "Log":
        """A log that must be there."""
        app = _newest_app(storage)
        if app is None:
            raise LogMissing(f"There is no log at {storage.place}. Start the app first, or correct log.url.")
        return cls(storage, app)

    @classmethod
    def create_or_open(cls, storage: Storage, spec: AppSpec, random: Random = SYSTEM_RANDOM) -> "Log":
        """The app's log, begun if it isn't there; refused (AppChanged) if another app wrote it.

        A log without a version binds nobody: a first start with a mistake in it can simply be put right.
        """
        if (old := _newest_app(storage)) is None:
            old = _created(storage, appfile.first(spec, new_id(random)))
        empty = cls(storage, old).newest() is None
        if not empty or old.id != spec.id:
            appfile.check(old, spec, place=storage.place)
        for line in [] if empty else appfile.one_way(old, spec):
            logger.warning("%s.", line)
        while (wanted := appfile.successor(old, spec, empty=empty)) != old:
            old = _created(storage, wanted)
        return cls(storage, old, random)

    def new_id(self) -> str:
        """A new id, for a commit or a segment."""
        return new_id(self._random)

    def app_at(self, number: int) -> AppSpec:
        """The app as a commit's `app` number names it."""
        return self.app if number == self.app.number else _read_app(self.storage, number)

    def newest_app(self) -> AppSpec:
        """The app as its newest file has it: another start may have written one since this was opened."""
        found = _newest_app(self.storage)
        if found is None or found.log != self.id:
            raise LogMissing(f"Log {self.id} isn't at {self.storage.place} any more. Start the app again.")
        return found

    # Commits

    def commit(self, version: Version) -> Commit | None:
        """The commit of a version, verified; None where it doesn't exist, or no longer."""
        try:
            data = self.storage.get(names.commit(version))
        except ObjectMissing:
            return None
        return commits.decode(data, version, self.id, place=self.storage.place)

    def newest(self, at_least: Version = NOTHING) -> Commit | None:
        """The newest commit. `at_least` is a version known to have existed; the search begins there.

        Commits are without gaps from the oldest kept on, so doubling steps and then halving find the end in a few
        questions, however long the history is. Cleaning takes commits oldest first: one that is still there after the
        search proves that its missing successor had not been cleaned.
        """
        for _ in range(_SEARCHES):
            known = self._known_version(at_least)
            if known == NOTHING:
                return None
            last = self._last_from(known)
            if (commit := self.commit(last)) is not None:
                return commit
        raise documents.damaged(names.commit(last), self.storage.place, "it is gone, and there is a snapshot of it")

    def next_commit(self, after: Version) -> Commit | None:
        """The commit that follows a version; None while there is none. HistoryCleaned where it has been cleaned."""
        if (found := self.commit(Version(after + 1))) is not None:
            return found
        if after != NOTHING and self.storage.exists(names.commit(after)):
            return None
        if (oldest := self._snapshot_version()) > after:
            raise HistoryCleaned(
                f"Version {after + 1} was cleaned from {self.storage.place}; there are snapshots up to {oldest}. Load "
                "one and go on from there."
            )
        return None

    def create_commit(self, commit: Commit) -> None:
        """Makes a version exist. Returns only once it is this commit that stands there; else raises LostRace.

        The predecessor is looked for before, so that no version can be made on an old or a gone history, and again
        after, since a cleaning may have passed a driver that slept between the two.
        """
        version = Version(commit.version)
        if commit.log != self.id or commit.format != commits.FORMAT or version <= NOTHING:
            raise BrokenChain(
                f"Commit {commit.id} is for log {commit.log}, format {commit.format}, version {version}; this is log "
                f"{self.id}, format {commits.FORMAT}."
            )
        self._check_predecessor(commit)
        faults.point("commit.before")
        try:
            put = self.storage.create(names.commit(version), commits.encode(commit))
        except StorageUnavailable:
            # Stored or not, nobody knows but the storage.
            if self.commit(version) is None:
                raise
            put = Put.EXISTS
        if put is Put.EXISTS:
            self._check_won(commit)
        elif version > 1 and not self.storage.exists(names.commit(Version(version - 1))):
            raise self._history_gone(version)
        self._created = version, commit.id
        faults.point("commit.after")

    # Segments

    def write_parts(
        self,
        task: TaskId,
        version: Version,
        parts: Iterable[Unsealed],
        *,
        inline_limit: int,
        volatile: Container[str] = (),
    ) -> Written:
        """Seals and stores a task's parts: the state of the stores that `volatile` names in a segment of its own."""

        def written(some: list[Unsealed], *, volatile: bool) -> tuple[SegmentRef, ...]:
            if not some:
                return ()
            return (self.write_segment(task, version, seal(some), inline_limit=inline_limit, volatile=volatile),)

        kept, lost = parted(parts, volatile)
        return Written(written(kept, volatile=False), written(lost, volatile=True))

    def write_segment(
        self, task: TaskId, version: Version, sealed: Sealed, *, inline_limit: int, volatile: bool = False
    ) -> SegmentRef:
        """Stores a segment under a fresh name, or, up to `inline_limit` bytes, hands it back to stand in the commit."""
        faults.point("segment.before")
        if len(sealed.data) <= inline_limit:
            ref = SegmentRef(name=None, inline=sealed.data, length=len(sealed.data), parts=sealed.parts)
        else:
            name = (names.volatile_segment if volatile else names.segment)(task, version, self.new_id())
            # EXISTS can only be this very put, repeated after a lost answer: the name is random.
            self.storage.create(name, sealed.data)
            ref = SegmentRef(name=name, inline=None, length=len(sealed.data), parts=sealed.parts)
        faults.point("segment.after")
        return ref

    def read_part(self, ref: SegmentRef, part: Part) -> pa.Table:
        """One part of a segment, verified."""
        return open_part(self._bytes(ref, part.offset, part.length), part, place=self._place_of(ref))

    def read_parts(self, ref: SegmentRef, kind: str) -> Iterator[tuple[str, pa.Table]]:
        """The name and the rows of each part of a kind, read in one go."""
        wanted = ref.of_kind(kind)
        if not wanted:
            return
        start = min(part.offset for part in wanted)
        data = memoryview(self._bytes(ref, start, max(part.offset + part.length for part in wanted) - start))
        for part in wanted:
            piece = data[part.offset - start : part.offset - start + part.length]
            yield part.name, open_part(piece, part, place=self._place_of(ref))

    def state_parts(self, ref: SegmentRef) -> Iterator[tuple[str, pa.Table]]:
        """Each store's changes, by the store's name."""
        return self.read_parts(ref, STATE)

    def output_parts(self, ref: SegmentRef) -> Iterator[tuple[str, pa.Table]]:
        return self.read_parts(ref, OUTPUT)

    def dead_parts(self, ref: SegmentRef) -> Iterator[tuple[str, pa.Table]]:
        return self.read_parts(ref, DEAD)

    def _bytes(self, ref: SegmentRef, start: int, length: int) -> bytes | memoryview:
        if ref.inline is not None:
            return memoryview(ref.inline)[start : start + length]
        if ref.name is None:
            raise BrokenChain("A segment that is neither inline nor an object was named. Report this; it is a bug.")
        return self.storage.get_range(ref.name, start, length)

    def _place_of(self, ref: SegmentRef) -> str:
        return f"{ref.name or 'An inline segment'} in {self.storage.place}"

    # Finding the newest version

    def _known_version(self, at_least: Version) -> Version:
        """A version that has a commit now, or NOTHING."""
        if at_least != NOTHING and self.storage.exists(names.commit(at_least)):
            return at_least
        if (snapshot := self._snapshot_version()) != NOTHING:
            return snapshot
        return Version(1) if self.storage.exists(names.commit(Version(1))) else NOTHING

    def _snapshot_version(self) -> Version:
        """The newest version any task has a snapshot of. Its commit is never cleaned."""
        return max((version for task in self.app.tasks() for version in self.snapshots.versions(task)), default=NOTHING)

    def _last_from(self, known: Version) -> Version:
        step = 1
        low, high = known, Version(known + step)
        while self.storage.exists(names.commit(high)):
            step *= 2
            low, high = high, Version(high + step)
        while high - low > 1:
            middle = Version((low + high) // 2)
            if self.storage.exists(names.commit(middle)):
                low = middle
            else:
                high = middle
        return low

    # What create_commit checks

    def _check_predecessor(self, commit: Commit) -> None:
        version = Version(commit.version)
        if version > 1:
            predecessor = Version(version - 1)
            if self._created == (predecessor, commit.previous):
                if not self.storage.exists(names.commit(predecessor)):
                    raise self._history_gone(version)
                return
            if (before := self.commit(predecessor)) is None:
                raise self._history_gone(version)
            if before.id != commit.previous:
                raise BrokenChain(
                    f"Version {version} was made on commit {commit.previous} of version {version - 1}, and the log has "
                    f"{before.id} there, by process {before.writer.pid} on {before.writer.host}. Stop the other driver "
                    "and start again."
                )
        elif commit.previous is not None or self._snapshot_version() != NOTHING:
            # Where the first commits have been cleaned, creating version 1 anew would succeed and mean nothing.
            raise self._history_gone(version)

    def _check_won(self, commit: Commit) -> None:
        version = Version(commit.version)
        winner = self.commit(version)
        if winner is None:
            raise self._history_gone(version)
        if winner.id != commit.id:
            raise LostRace(
                f"Version {version} of {self.storage.place} was made by another driver: process {winner.writer.pid} on "
                f"{winner.writer.host} (driver {winner.writer.id}). Two drivers run on one log; stop one of them."
            )

    def _history_gone(self, version: Version) -> LostRace:
        return LostRace(
            f"Version {version} can't be made in {self.storage.place}: version {version - 1} isn't there. Another "
            "driver has gone on and cleaned it, or the log was changed by hand. Stop this driver and start it again."
        )


def _newest_app(storage: Storage) -> AppSpec | None:
    numbers = [number for name in storage.list_flat(names.APPS) if (number := names.number_of(name)) is not None]
    return _read_app(storage, max(numbers)) if numbers else None


def _read_app(storage: Storage, number: int) -> AppSpec:
    return appfile.decode(storage.get(names.app(number)), number, place=storage.place)


def _created(storage: Storage, spec: AppSpec) -> AppSpec:
    """Writes an app's file, or reads the one that another start, or this put's lost answer, had written before."""
    storage.create(names.app(spec.number), appfile.encode(spec))
    return _read_app(storage, spec.number)
