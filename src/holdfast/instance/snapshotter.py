"""Snapshots of a replica: saved when they are due, between two versions and while readers continue.

A snapshot is a flush of the overlay, a RocksDB checkpoint (hard links), and then an upload in the background. It is
worth its upload when reading the tail (the segments after the last snapshot) costs more than reading the snapshot: that
is the ratio. Before the first snapshot, what the replica has on disk and in memory stands for its size. Size and age
limit the tail where the ratio alone would let it grow. Age also applies to a task that changed nothing, since cleaning
stops at the oldest snapshot of any task.
"""

import logging
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.instance.replica import Replica
from holdfast.instance.sampling import Entries, sample
from holdfast.instance.task_engines import PinnedView
from holdfast.log.log import Log
from holdfast.settings.sections import SnapshotSettings
from holdfast.words import Version

_LOG = logging.getLogger(__name__)
_SMALLEST_TAIL = 1 << 20
"""The ratio is ignored for a shorter tail (in bytes): a small store would get a snapshot per version."""


@dataclass
class Saved:
    """What is known of a task's last snapshot."""

    version: Version
    bytes: int | None
    applied_bytes: int
    """The bytes of the segments that led to it."""
    at: float


class Snapshotter:
    """Saves one replica's snapshots when they are due."""

    def __init__(self, replica: Replica, log: Log, limits: SnapshotSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._replica = replica
        self._log = log
        self._limits = limits
        self._clock = clock
        self._saved: Saved | None = None
        self._timeline = replica.timeline

    def step(self) -> bool:
        """Saves a snapshot if one is due, and says whether it did."""
        if not self._limits.enabled or not self._replica.published.version:
            return False
        if self._timeline != self._replica.timeline:
            self._timeline = self._replica.timeline
            self.look_again()  # the log was set back, and its snapshots with it
        last = self._saved or self._found()
        tail_bytes = self._replica.applied_bytes - last.applied_bytes
        size = last.bytes
        if size is None and tail_bytes >= _SMALLEST_TAIL:
            size = self._replica.disk_bytes() + self._replica.memory_bytes()
        due = is_due(
            self._limits,
            tail_versions=self._replica.published.version - last.version,
            tail_bytes=tail_bytes,
            snapshot_bytes=size,
            since=timedelta(seconds=self._clock.monotonic() - last.at),
        )
        if due:
            self.save()
        return due

    def look_again(self) -> None:
        """Has the next step look for the newest snapshot in the log: another replica may have saved some meanwhile."""
        self._saved = None

    def save(self) -> Version:
        """Saves a snapshot of the newest version now."""
        with self._replica.saved() as (mark, applied_bytes, home, pinned):
            task = self._replica.task
            stores = self._replica.durable_stores
            commit = self._replica.commit_of(mark.version)
            manifest = self._log.snapshots.write(
                task,
                home.saving,
                version=mark.version,
                commit=mark.commit,
                stores=stores,
                wall=mark.wall,
                applied_bytes=applied_bytes,
                app=0 if commit is None else commit.app,
                samples={store: sample(partial(_scanned, pinned, store), mark.commit) for store in stores},
                before_file=self._replica.check_open,
                before_manifest=self._replica.check_in_log,
            )
        self._saved = Saved(mark.version, manifest.bytes, applied_bytes, self._clock.monotonic())
        _LOG.info("task %s: snapshot of version %s, %s bytes", task, mark.version, manifest.bytes)
        return mark.version

    def _found(self) -> Saved:
        """The last snapshot as the log has it: processes come and go, so its age is measured by the log's clock."""
        manifest = self._log.snapshots.newest(self._replica.task, at_most=self._replica.published.version)
        if manifest is None:
            first = self._replica.commit_of(Version(self._replica.begin + 1))
            found = Saved(self._replica.begin, None, 0, self._since(None if first is None else first.clocks.wall))
        else:
            found = Saved(Version(manifest.version), manifest.bytes, manifest.applied_bytes, self._since(manifest.wall))
        self._saved = found
        return found

    def _since(self, wall: int | None) -> float:
        """When that was, by the clock of this process. Without a known time it counts from now."""
        age = 0 if wall is None else self._replica.published.wall - wall
        return self._clock.monotonic() - age / 1000


def _scanned(view: PinnedView, store: str, start: bytes, reverse: bool) -> Entries:
    return view.scan(store, start, None, reverse=reverse)


def is_due(
    limits: SnapshotSettings, *, tail_versions: int, tail_bytes: int, snapshot_bytes: int | None, since: timedelta
) -> bool:
    """Whether a snapshot should be saved now.

    `tail_versions` and `tail_bytes` are the versions and the bytes of segments that the replica has applied since its
    last snapshot, `snapshot_bytes` is the size of that snapshot or, before the first one, of the state, if it is known;
    `since` is the time since the last one.

    >>> is_due(SnapshotSettings(), tail_versions=3, tail_bytes=30 << 20, snapshot_bytes=10 << 20, since=timedelta(0))
    True
    """
    outweighs = snapshot_bytes is not None and tail_bytes >= max(_SMALLEST_TAIL, limits.ratio * snapshot_bytes)
    return tail_versions > 0 and (outweighs or tail_bytes >= limits.bytes or since >= limits.age)
