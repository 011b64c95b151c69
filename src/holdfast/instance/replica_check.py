"""Checks that a replica has what the log says, by a sample of bounded size. A difference that it finds is real.

    version   the commit of the replica's version is the one in the log
    changed   keys that were changed since the newest snapshot have the value of the last segment that changed them,
              or none if that deleted them
    the rest  ranges of the newest snapshot's sample in which nothing was changed since have as many entries as then,
              and the same checksum

Keys that the clocks hide are left out: replicas drop them, each at its own time. If the tail is longer than is read
here, the keys of its newest versions are compared, and no ranges. Decision 0038 has the reasons.
"""

import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from holdfast.errors import DamagedObject, ErrorCategory, HoldfastError
from holdfast.instance.log_reader import LogReader
from holdfast.instance.read_views import ReadView
from holdfast.instance.replica import Replica
from holdfast.instance.run import Run, merged
from holdfast.instance.sampling import ENTRIES, summary
from holdfast.instance.task_log_reader import as_changes
from holdfast.log.commits import Commit
from holdfast.log.objects import ObjectMissing
from holdfast.log.segments import STATE
from holdfast.log.snapshots import SampledRange
from holdfast.stores.engines.base import Changes
from holdfast.stores.layouts.registry import layout_of
from holdfast.words import NOTHING, TaskId, Version

_LOG = logging.getLogger(__name__)
VERSIONS = 32
"""How many of the newest commits are read: no more than the reader keeps for all tasks of an instance."""
_BYTES = 32 << 20
_ROW_BYTES = 32
"""How much of the tail is read: one request per version, and this much memory."""
KEYS = 1_000
"""How many changed keys of a store are compared."""


class ReplicaDiffers(HoldfastError):
    """A replica doesn't have what the log says."""

    category = ErrorCategory.DATA

    def __init__(self, version: Version, fact: str) -> None:
        super().__init__(f"the replica at version {version} differs from the log: {fact}.")


@dataclass(frozen=True)
class Checked:
    """What was compared: keys that changed, and ranges that didn't."""

    version: Version
    keys: int
    ranges: int


@dataclass(frozen=True)
class _Tail:
    """The newest changes of a task by store, each key once and in order. `complete`: back to the snapshot."""

    changes: Mapping[str, Changes]
    since: Version
    complete: bool


def check_replica(replica: Replica, source: LogReader) -> Checked | None:
    """Compares a replica with the log; None if its version isn't in the log. Raises ReplicaDiffers."""
    task = replica.task
    version, own = replica.standing
    commit = source.commit(version) if version > NOTHING else None
    app = None if commit is None else source.app_at(commit.app)
    if commit is None or app is None:
        return None
    if own and own != commit.id:
        raise ReplicaDiffers(version, f"it was built on commit {own}, and the log has {commit.id}")
    snapshot = source.log.snapshots.newest(task, at_most=version)
    begin = replica.begin if snapshot is None else Version(snapshot.version)
    keys = ranges = 0
    with replica.published.read_view(version) as view:
        tail = _read_tail(replica, source, commit, begin)
        for spec in app.stores_of(task):
            after = replica.durable_stores.get(spec.name)
            if after != spec.after:
                continue  # not durable, or another store of this name
            hidden = layout_of(spec).hidden(view.now)
            changed = tail.changes.get(spec.name)
            if changed is not None:
                keys += _check_keys(view, spec.name, changed, hidden, tail.since)
            if snapshot is None or not tail.complete or snapshot.app != commit.app:
                continue  # a former app file may hide other keys
            for each in snapshot.samples.get(spec.name, ()) if snapshot.stores.get(spec.name) == after else ():
                if not _is_touched(each, changed, hidden):
                    _check_range(view, spec.name, each, begin)
                    ranges += 1
    return Checked(version, keys, ranges)


def _check_keys(
    view: ReadView, store: str, changed: Changes, hidden: tuple[bytes, bytes] | None, since: Version
) -> int:
    rows = pa.array(range(0, len(changed), -(-len(changed) // KEYS)))
    sampled = zip(changed.keys.take(rows).to_pylist(), changed.values.take(rows).to_pylist(), strict=True)
    expected = {key: value for key, value in sampled if hidden is None or not hidden[0] <= key < hidden[1]}
    keys = list(expected)
    found = view.get_many(store, pa.array(keys, pa.binary())).to_pylist()
    wrong = [key for key, value in zip(keys, found, strict=True) if value != expected[key]]
    if wrong:
        raise ReplicaDiffers(
            view.version,
            f"{len(wrong)} of {len(keys)} keys of the store {store!r} that versions {since + 1} to {view.version} "
            f"changed have another value, such as {wrong[0].hex()}",
        )
    return len(keys)


def _check_range(view: ReadView, store: str, sampled: SampledRange, since: Version) -> None:
    with closing(view.scan(store, sampled.start, sampled.stop)) as entries:
        count, checksum = summary(islice(entries, 2 * ENTRIES))
    if (count, checksum) != (sampled.entries, sampled.checksum):
        stop = "its end" if sampled.stop is None else sampled.stop.hex()
        raise ReplicaDiffers(
            view.version,
            f"the store {store!r} has {count} entries with the checksum {checksum} from key "
            f"{sampled.start.hex() or 'the first'} to {stop}, and the snapshot of version {since} had "
            f"{sampled.entries} with {sampled.checksum}",
        )


def _is_touched(sampled: SampledRange, changed: Changes | None, hidden: tuple[bytes, bytes] | None) -> bool:
    """Whether the entries of a range may be others than in the snapshot."""
    if hidden is not None and hidden[1] > sampled.start and (sampled.stop is None or hidden[0] < sampled.stop):
        return True
    if changed is None:
        return False
    keys = _Keys(changed)
    place = bisect_left(keys, sampled.start)
    return place < len(keys) and (sampled.stop is None or keys[place] < sampled.stop)


class _Keys:
    """Sorted keys for a search, without a Python object per key."""

    def __init__(self, changes: Changes) -> None:
        self._keys = changes.keys

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, place: int) -> bytes:
        key: bytes = self._keys[place].as_py()
        return key


def _read_tail(replica: Replica, source: LogReader, newest: Commit, begin: Version) -> _Tail:
    runs: dict[str, list[Run]] = {}
    since, size = Version(newest.version), 0
    for commit in _backwards(source, newest):
        size += sum(_sizes(commit, replica.task))
        is_far = size > _BYTES or newest.version - commit.version >= VERSIONS
        if commit.version <= begin or is_far or commit.app != newest.app:
            break
        try:
            changes = list(_changes(replica, source, commit))
        except (ObjectMissing, DamagedObject) as error:
            _LOG.debug("version %s can't be compared: %s", commit.version, error)
            break
        for store, run in changes:
            runs.setdefault(store, []).append(run)
        since = Version(commit.version - 1)
    together = {store: merged(newest_first) for store, newest_first in runs.items()}
    in_order = {store: Changes(run.keys, run.values).in_key_order() for store, run in together.items()}
    return _Tail(in_order, since, complete=since <= begin)


def _backwards(source: LogReader, commit: Commit) -> Iterator[Commit]:
    """A commit and its predecessors, as far as they are there. All tasks share those that the reader keeps."""
    while True:
        yield commit
        before = source.commit(Version(commit.version - 1)) if commit.version > 1 else None
        if before is None or before.id != commit.previous:
            return
        commit = before


def _sizes(commit: Commit, task: TaskId) -> Iterator[int]:
    for ref in commit.of_task(task):
        for part in ref.of_type(STATE):
            yield part.bytes + _ROW_BYTES * part.rows


def _changes(replica: Replica, source: LogReader, commit: Commit) -> Iterator[tuple[str, Run]]:
    """What a version changed in the durable stores, the last changes first."""
    version = Version(commit.version)
    for ref in reversed(commit.of_task(replica.task)):
        for store, table in reversed(list(source.log.state_parts(ref))):
            after = replica.durable_stores.get(store)
            if after is not None and version > after and table.num_rows:
                part = as_changes(table)
                yield store, Run(part.keys, part.values, version)
