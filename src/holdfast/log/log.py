"""The log of one app: everything that can be done with it, in one place.

    used by the driver      create_commit, sinks, app
    used by a task          write_parts, write_segment
    used by a replica       newest, commit, read_part(s), snapshots

Every read checks what it reads: a truncated, altered or foreign object is an error that names it. Callers are
responsible for the order of writes (segments, commit, sinks); this module checks each write.
"""

import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast import faults
from holdfast.chance import SYSTEM_RANDOM, Random, new_id
from holdfast.errors import ErrorCategory, HoldfastError, StorageUnavailable
from holdfast.log import commits, documents, identity, names
from holdfast.log.appfile import AppSpec
from holdfast.log.appfiles import AppFiles
from holdfast.log.chain import CommitChain
from holdfast.log.changing import ChangeRules
from holdfast.log.commits import Commit
from holdfast.log.objects import Put, Storage
from holdfast.log.segments import (
    STATE,
    Part,
    Sealed,
    SegmentRef,
    Unsealed,
    in_segments,
    open_part,
    open_state_parts,
    put_together,
    seal,
    split_volatile,
)
from holdfast.log.snapshots import Snapshots
from holdfast.log.starting import plan_start
from holdfast.words import NOTHING, TaskId, Version

logger = logging.getLogger(__name__)


class LogMissing(HoldfastError):
    """There is no log where one was expected."""

    category = ErrorCategory.INVALID


class LostRace(HoldfastError):
    """Another driver committed this version: `winner`, or one whose commit was cleaned since."""

    category = ErrorCategory.INVALID

    def __init__(self, message: str, winner: Commit | None = None) -> None:
        super().__init__(message)
        self.winner = winner


class BrokenChain(HoldfastError):
    """A commit doesn't follow the commit it should follow."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True)
class WrittenSegments:
    """A task's segments of one version as the commit names them: durable ones and volatile ones."""

    segments: tuple[SegmentRef, ...] = ()
    volatile: tuple[SegmentRef, ...] = ()

    def __add__(self, other: "WrittenSegments") -> "WrittenSegments":
        return WrittenSegments(self.segments + other.segments, self.volatile + other.volatile)


class Log:
    """An app's log, opened."""

    def __init__(self, storage: Storage, app: AppSpec, random: Random = SYSTEM_RANDOM) -> None:
        self.storage = storage
        self.app = app
        self.apps = AppFiles(storage, app.log)
        self.chain = CommitChain(storage, app.log)
        self.snapshots = Snapshots(storage, app.log)
        self.sinks = self.chain.sinks
        self._random = random
        self._created: tuple[Version, str] | None = None  # the last commit created through this object

    @property
    def id(self) -> str:
        """The log's random id. A new log in the same folder has a different one."""
        return self.app.log

    @staticmethod
    def identify(storage: Storage) -> str:
        """The id of the log in a storage, which must have one."""
        if (found := identity.read(storage)) is None:
            raise LogMissing(f"There is no log at {storage.place}. Start the app first, or fix log.url.")
        return found.id

    @classmethod
    def open(cls, storage: Storage, app: int | None = None) -> "Log":
        """Opens a log that must exist, with the app file of this number.

        Without a number, it is the one that the newest commit names; in a log without versions, the newest.
        """
        log = cls.identify(storage)
        files = AppFiles(storage, log)
        if app is None:
            newest = CommitChain(storage, log).newest()
            app = files.newest() if newest is None else newest.app
        return cls(storage, files.read(app))

    @classmethod
    def create_or_open(
        cls, storage: Storage, spec: AppSpec, random: Random = SYSTEM_RANDOM, rules: ChangeRules | None = None
    ) -> "Log":
        """Opens the app's log, or creates it. Raises AppChanged if the code doesn't fit it.

        The code is compared with the app file that the newest commit names. If it differs, it gets an app file of its
        own, which takes effect with the first commit that names it. So a start that fails decides nothing, and until
        the first version any code fits.
        """
        known = identity.create(storage, spec.id, random)
        plan = plan_start(storage, spec, rules or ChangeRules())
        plan.check()
        for line in plan.changes:
            logger.info("this start changes the app: %s.", line)
        for line in plan.warnings:
            logger.warning("%s.", line)
        if plan.before is not None and plan.after == plan.before.app:
            return cls(storage, plan.before.app, random)
        return cls(storage, AppFiles(storage, known.id).recorded(plan.after), random)

    def new_id(self) -> str:
        """A new id, for a commit or a segment."""
        return new_id(self._random)

    def app_at(self, number: int) -> AppSpec:
        """The app file with this number, as a commit names it."""
        return self.app if number == self.app.number else self.apps.read(number)

    # Commits

    def commit(self, version: Version) -> Commit | None:
        """The commit of a version; None if it doesn't exist or was cleaned."""
        return self.chain.commit(version)

    def newest(self, at_least: Version = NOTHING) -> Commit | None:
        """The newest commit. `at_least` is a version known to have existed, where the search starts."""
        return self.chain.newest(at_least)

    def create_commit(self, commit: Commit) -> None:
        """Creates a version. Returns only if this commit is the one in the log; otherwise raises LostRace.

        The predecessor is checked again after the write: a newer driver may have continued and cleaned it while this
        one was suspended. Then the commit is withdrawn. Readers don't believe it in the meantime.
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
            # The commit may or may not have been stored.
            if self.commit(version) is None:
                raise
            put = Put.EXISTS
        if put is Put.EXISTS:
            self._check_won(commit)
        faults.point("commit.middle")
        if not self.chain.follows(commit) and not self._has_successor(commit):
            self.storage.delete([names.commit(version)])
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
    ) -> WrittenSegments:
        """Seals and stores a task's parts. State of the stores named by `volatile` gets segments of its own."""

        def written(some: list[Unsealed], *, volatile: bool) -> tuple[SegmentRef, ...]:
            return tuple(
                self.write_segment(task, version, seal(each), inline_limit=inline_limit, volatile=volatile)
                for each in in_segments(some)
            )

        durable, others = split_volatile(parts, volatile)
        return WrittenSegments(written(durable, volatile=False), written(others, volatile=True))

    def write_segment(
        self, task: TaskId, version: Version, sealed: Sealed, *, inline_limit: int, volatile: bool = False
    ) -> SegmentRef:
        """Stores a segment under a new name, or returns it for the commit if it has at most `inline_limit` bytes."""
        faults.point("segment.before")
        if len(sealed.data) <= inline_limit:
            ref = SegmentRef(name=None, inline=sealed.data, length=len(sealed.data), parts=sealed.parts)
        else:
            name = self._new_name(task, version, volatile=volatile)
            self._create_segments(name, sealed.data)
            ref = SegmentRef(name=name, inline=None, length=len(sealed.data), parts=sealed.parts)
        faults.point("segment.after")
        return ref

    def write_together(
        self, version: Version, written: Mapping[str, WrittenSegments], *, inline_bytes: int
    ) -> dict[str, WrittenSegments]:
        """Stores the inline segments of all tasks as one object, unless together they have at most `inline_bytes`.

        Those of stores that aren't durable get an object of their own, since they expire early.
        """
        refs = (ref for each in written.values() for ref in (*each.segments, *each.volatile))
        if sum(len(ref.inline) for ref in refs if ref.inline is not None) <= inline_bytes:
            return dict(written)
        durable = self._stored_together(version, {task: each.segments for task, each in written.items()})
        others = self._stored_together(version, {task: each.volatile for task, each in written.items()}, volatile=True)
        return {task: WrittenSegments(durable[task], others[task]) for task in written}

    def _stored_together(
        self, version: Version, segments: Mapping[str, Sequence[SegmentRef]], *, volatile: bool = False
    ) -> Mapping[str, tuple[SegmentRef, ...]]:
        name = self._new_name(None, version, volatile=volatile)
        data, moved = put_together(segments, name)
        if data:
            self._create_segments(name, data)
            faults.point("segment.together")
        return moved

    def _new_name(self, task: TaskId | None, version: Version, *, volatile: bool) -> str:
        return (names.volatile_segment if volatile else names.segment)(task, version, self.new_id())

    def _create_segments(self, name: str, data: bytes) -> None:
        # The name is random, so EXISTS means that this put was repeated after its answer was lost. Look at it.
        if self.storage.create(name, data) is Put.EXISTS and self.storage.get(name) != data:
            raise documents.damaged(name, self.storage.place, "it isn't what was written under this new name")

    def read_part(self, ref: SegmentRef, part: Part) -> pa.Table:
        """One part of a segment, its checksum checked."""
        return open_part(self._bytes(ref, part.offset, part.length), part, place=self._place_of(ref))

    def read_parts(self, ref: SegmentRef, type_: str) -> Iterator[tuple[str, pa.Table]]:
        """The name and the rows of each part of a type, read with one request."""
        wanted = ref.of_type(type_)
        if not wanted:
            return
        start = wanted[0].offset  # parts are in the order of their offsets
        data = memoryview(self._bytes(ref, start, wanted[-1].offset + wanted[-1].length - start))
        for part in wanted:
            piece = data[part.offset - start : part.offset - start + part.length]
            yield part.name, open_part(piece, part, place=self._place_of(ref))

    def read_state(self, wanted: Sequence[tuple[SegmentRef, Part]]) -> list[tuple[pa.Array, pa.Array]]:
        """The keys and values of many state parts. Each object is read with one request, also for several tasks."""
        spans: dict[str, tuple[int, int]] = {}
        for ref, part in wanted:
            if ref.name is not None:
                start, stop = spans.get(ref.name, (part.offset, 0))
                spans[ref.name] = min(start, part.offset), max(stop, part.offset + part.length)
        read = {name: (a, memoryview(self.storage.get_range(name, a, b - a))) for name, (a, b) in spans.items()}
        pieces = []
        for ref, part in wanted:
            first, data = (0, memoryview(ref.inline or b"")) if ref.name is None else read[ref.name]
            start = part.offset - first
            pieces.append((data[start : start + part.length], part, self._place_of(ref)))
        return open_state_parts(pieces)

    def state_parts(self, ref: SegmentRef) -> Iterator[tuple[str, pa.Table]]:
        """Each store's changes, by the store's name."""
        return self.read_parts(ref, STATE)

    def _bytes(self, ref: SegmentRef, start: int, length: int) -> bytes | memoryview:
        if ref.inline is not None:
            return memoryview(ref.inline)[start : start + length]
        if ref.name is None:
            raise BrokenChain("A commit names a segment that is neither inline nor an object. Please report this bug.")
        return self.storage.get_range(ref.name, start, length)

    def _place_of(self, ref: SegmentRef) -> str:
        return f"{ref.name or 'An inline segment'} in {self.storage.place}"

    # Checks of create_commit

    def _check_predecessor(self, commit: Commit) -> None:
        version = Version(commit.version)
        if version > 1:
            predecessor = Version(version - 1)
            if self._created == (predecessor, commit.previous):
                return  # the check after the write finds out whether it is still there
            if (before := self.commit(predecessor)) is None:
                raise self._history_gone(version)
            if before.id != commit.previous:
                raise BrokenChain(
                    f"Version {version} follows commit {commit.previous} of version {version - 1}, but the log has "
                    f"{before.id} there, written by {before.writer}. Stop the other driver and start again."
                )
            self._check_description(commit, before)
        elif commit.previous is not None or self.chain.snapshot_version() != NOTHING:
            # If the first commits were cleaned, creating version 1 again would succeed without any effect.
            raise self._history_gone(version)

    def _has_successor(self, commit: Commit) -> bool:
        """Whether a commit is part of the history: its put was answered late, and others have gone on from it."""
        following = self.commit(Version(commit.version + 1))
        return following is not None and following.previous == commit.id

    def _check_description(self, commit: Commit, before: Commit) -> None:
        """The commit's app file must be the predecessor's, or one that was compared with the predecessor's."""
        if commit.app != before.app and self.app_at(commit.app).follows != before.app:
            raise LostRace(
                f"Version {before.version} of {self.storage.place} was made with app file {before.app}, and this "
                f"driver's app file {commit.app} follows {self.app_at(commit.app).follows}: {before.writer} changed "
                "the app meanwhile. Start this driver again."
            )

    def _check_won(self, commit: Commit) -> None:
        version = Version(commit.version)
        winner = self.commit(version)
        if winner is None:
            raise self._history_gone(version)
        if winner.id != commit.id:
            raise LostRace(
                f"Version {version} of {self.storage.place} was committed by another driver: {winner.writer}. Two "
                "drivers run on one log; stop one of them.",
                winner,
            )

    def _history_gone(self, version: Version) -> LostRace:
        return LostRace(
            f"Version {version} can't be committed in {self.storage.place}: version {version - 1}, which it follows, "
            "is missing or another one. Another driver continued and cleaned it, or the log was set back or changed by "
            "hand. Restart this driver."
        )
