"""The log as one task's replica sees it: what a version changed in its stores, and whether state is of this history."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from holdfast import metrics
from holdfast.errors import DamagedObject, ErrorCategory, HoldfastError
from holdfast.instance.log_reader import LogReader
from holdfast.instance.next_step import Unusable, Usable, check_state
from holdfast.instance.run import Run, merged
from holdfast.log.commits import Commit
from holdfast.log.objects import ObjectMissing
from holdfast.log.segments import STATE, Part, SegmentRef
from holdfast.stores.engines.base import Changes, Mark
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, TaskId, Version

_LOG = logging.getLogger(__name__)
_ROW_OVERHEAD = 32

_emptied = metrics.counter(
    "holdfast_volatile_stores_emptied", "How often a store that isn't durable started over empty.", ["store"]
)


class ForeignState(HoldfastError):
    """The state here was built on another commit than the log has."""

    category = ErrorCategory.DATA


class VolatileChangesGone(HoldfastError):
    """Changes of stores that aren't durable are no longer in the log, so those stores start over empty."""

    category = ErrorCategory.DATA


class StoreNotKnown(HoldfastError):
    """The log has a store that this instance was started without."""

    category = ErrorCategory.INVALID


class TaskLogReader:
    """The log as one task sees it."""

    def __init__(self, source: LogReader, task: TaskId, specs: Sequence[StoreSpec]) -> None:
        self._source = source
        self._log = source.log
        self._task = task
        self._stores = [spec.name for spec in specs]
        self._after = {spec.name: spec.after for spec in specs}
        self._begin = Version(min(self._after.values(), default=NOTHING))
        self._app_file = source.app.number
        self.volatile_after = NOTHING
        """Changes of stores that aren't durable are applied from versions after this one."""

    def begin_without(self, volatile: Sequence[str]) -> None:
        """The replica starts over: these stores, which aren't durable, get only the changes of later versions."""
        if volatile and (newest := self._source.newest()) > self.volatile_after:
            self.volatile_after = newest
            for store in volatile:
                _emptied.labels(store).inc()
            text = "task %s starts at version %s with an empty %s, which isn't durable"
            _LOG.info(text, self._task, newest, ", ".join(volatile))

    def look_back(self) -> None:
        """The log was set back: it has fewer versions than there were when stores that aren't durable began."""
        self.volatile_after = min(self.volatile_after, self._source.newest())

    def specs(self, app: int) -> list[StoreSpec]:
        """The replica's stores by the number of the app's file; none if that isn't known."""
        found = self._source.app_at(app) if app else None
        return [] if found is None else [spec for spec in found.stores_of(self._task) if spec.name in self._stores]

    def estimated_bytes(self, commit: Commit) -> int:
        """About how much memory the changes of a version need."""
        size = 0
        for ref in self._refs(commit):
            for part in ref.parts:
                if part.type == STATE:
                    size += part.bytes + _ROW_OVERHEAD * part.rows
        return size

    def parts(self, commit: Commit) -> list[tuple[SegmentRef, Part]]:
        """The parts that `changes` reads."""
        return [
            (ref, part)
            for ref in self._refs(commit)
            for part in ref.parts
            if part.type == STATE and part.rows and self._has(part.name, commit)
        ]

    def changes(self, commit: Commit) -> Iterator[tuple[str, Changes]]:
        """The changes that a version made to the task's stores, in the order they were written."""
        for ref in commit.of_task(self._task):
            for store, table in self._log.state_parts(ref):
                if table.num_rows and self._has(store, commit):
                    yield store, as_changes(table)
        for ref in self._volatile(commit):
            for store, table in self._if_there(commit, ref):
                if table.num_rows and self._has(store, commit):
                    yield store, as_changes(table)

    def _has(self, store: str, commit: Commit) -> bool:
        """Whether a store is this replica's and has begun. A former store of its name is another one."""
        after = self._after.get(store)
        if after is None and commit.app > self._app_file:
            raise StoreNotKnown(
                f"version {commit.version} changes the store {store!r}, which was added after this instance opened "
                "the task. It opens the task again when it finds the generation of the app's driver."
            )
        return after is not None and commit.version > after

    def _refs(self, commit: Commit) -> tuple[SegmentRef, ...]:
        durable = commit.of_task(self._task)
        return durable + self._volatile(commit) if commit.volatile else durable

    def _volatile(self, commit: Commit) -> tuple[SegmentRef, ...]:
        return commit.volatile_of(self._task) if commit.version > self.volatile_after else ()

    def _if_there(self, commit: Commit, ref: SegmentRef) -> list[tuple[str, pa.Table]]:
        """The changes of stores that aren't durable. Without them, what the replica has would be wrong from here on."""
        try:
            return list(self._log.state_parts(ref))
        except (ObjectMissing, DamagedObject) as error:
            stores = sorted({part.name for part in ref.of_type(STATE)})
            raise VolatileChangesGone(
                f"the changes of version {commit.version} to {', '.join(stores)} can't be read: {error}"
            ) from error

    def gather(self, first: Commit, to: Version, most_bytes: int) -> list[Commit]:
        """Commits to apply together, starting with `first`: as many as fit, and at least one."""
        commits, size = [first], self.estimated_bytes(first)
        while commits[-1].version < to:
            following = self._source.commit(Version(commits[-1].version + 1))
            if following is None or following.previous != commits[-1].id:
                break
            size += self.estimated_bytes(following)
            if size > most_bytes:
                break
            commits.append(following)
        return commits

    def stream(self, commits: Sequence[Commit]) -> Iterable[tuple[str, Changes]]:
        """The changes of some versions combined. A single version, which may be large, is read part by part."""
        if len(commits) == 1:
            return self.changes(commits[0])
        return as_one([(Version(each.version), list(self.changes(each))) for each in commits], self._stores)

    def examine(self, mark: Mark | None, path: Path) -> Usable:
        """Checks that the state at `path` is a part of this log's history; raises ForeignState if it isn't."""
        at = NOTHING if mark is None else mark.version
        applying = NOTHING if mark is None else mark.applying or NOTHING
        newest = NOTHING if mark is None else self._source.reaching(max(at, applying))
        verdict = check_state(
            mark,
            log=self._log.id,
            newest=newest,
            commit=self._source.id_at(at) if at else None,
            applying=self._source.id_at(applying) if NOTHING < applying <= newest else None,
            begin=self._begin,
        )
        if isinstance(verdict, Unusable):
            raise ForeignState(f"the state in {path} can't be used: {verdict.reason}.")
        return verdict


def as_changes(table: pa.Table) -> Changes:
    """The columns of a state part as changes."""
    return Changes(whole(table.column("key")), whole(table.column("value")))


def as_one(
    parts: Sequence[tuple[Version, list[tuple[str, Changes]]]], stores: Sequence[str]
) -> Iterator[tuple[str, Changes]]:
    """Several versions combined: the newest value per key, in key order."""
    runs: dict[str, list[Run]] = {store: [] for store in stores}
    for version, changes in parts:
        for store, part in changes:
            runs[store].append(Run(part.keys, part.values, version))
    for store, newest_last in runs.items():
        if newest_last:
            yield from ((store, part) for part in merged(newest_last[::-1]).changes())
