"""Mutations: each breaks one rule of the real code. The simulator is worth something if it notices every one of them.

A mutation is a list of attributes to replace for the time of a run. `first` is the first seed that notices it: `make
test` begins there, and `make simulate` searches from seed 0.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import msgspec

from holdfast.errors import StorageUnavailable
from holdfast.group.coordinator import Coordinator
from holdfast.group.draft import Draft
from holdfast.group.driver_heartbeat import DriverWatch
from holdfast.group.failure_detector import FailureDetector, Liveness
from holdfast.group.generations import Generation, Generations
from holdfast.group.member_steps import MemberSteps
from holdfast.group.members import Member
from holdfast.group.membership import Membership
from holdfast.group.moving import _Moves
from holdfast.instance import task_log_reader
from holdfast.instance.next_step import Usable, check_state
from holdfast.instance.read_views import PublishedVersions, ReadView
from holdfast.instance.replica import Replica
from holdfast.instance.task_log_reader import TaskLogReader
from holdfast.instance.updater import ReplicaUpdater
from holdfast.log import cleaning, names
from holdfast.log.chain import CommitChain
from holdfast.log.commits import Commit
from holdfast.log.leadership import Leadership
from holdfast.log.log import Log
from holdfast.pipeline import driver
from holdfast.pipeline.protocol import Compute, version_of
from holdfast.pipeline.sinks.runner import SinkRunner
from holdfast.stores.engines import base, family_marks
from holdfast.words import NOTHING, Version
from tests.simulation import assignor_mutations as assignor

Patches = list[tuple[object, str, Any]]


@dataclass(frozen=True)
class Mutation:
    name: str
    """The rule that it breaks."""
    first: int
    patches: Callable[[], Patches]

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    @contextmanager
    def active(self) -> Iterator[None]:
        patched = [mock.patch.object(owner, name, other) for owner, name, other in self.patches()]
        for each in patched:
            each.start()
        try:
            yield
        finally:
            for each in reversed(patched):
                each.stop()


# The log


def _overwriting_commit() -> Patches:
    create = Log.create_commit

    def overwrites(self: Log, commit: Commit) -> None:
        self.storage.delete([names.commit(Version(commit.version))])
        create(self, commit)

    return [(Log, "create_commit", overwrites)]


def _unconfirmed_commit() -> Patches:
    create = Log.create_commit

    def assumes(self: Log, commit: Commit) -> None:
        try:
            create(self, commit)
        except StorageUnavailable:
            self._created = Version(commit.version), commit.id

    return [(Log, "create_commit", assumes)]


def _cleaned_past_snapshots() -> Patches:
    floor = cleaning.floor_of
    return [(cleaning, "floor_of", lambda contents: floor(replace(contents, snapshots={})))]


def _cleaned_past_newest() -> Patches:
    def floor(contents: cleaning.LogContents) -> Version:
        tasks = [contents.usable(task) for task in contents.snapshots]
        return min([contents.newest, *(versions[-1] if versions else NOTHING for versions in tasks)])

    return [(cleaning, "floor_of", floor)]


def _orphans_of_slow_drivers() -> Patches:
    deletable = cleaning._is_deletable

    def any_version(segment: str, floor: Version, contents: cleaning.LogContents) -> bool:
        version = names.version_of(segment)
        return deletable(segment, floor, contents) or (version is not None and version > contents.newest)

    return [(cleaning, "_is_deletable", any_version)]


def _segments_before_commits() -> Patches:
    delete = cleaning.Cleaner._delete

    def segments_first(self: cleaning.Cleaner, plan: cleaning.Plan) -> None:
        self._log.storage.delete(plan.segments)
        delete(self, plan)

    return [(cleaning.Cleaner, "_delete", segments_first)]


# The driver


def _batch_computed_again() -> Patches:
    return [(driver, "decide", lambda batch, newest, commit, restart: Compute(Version(version_of(newest) + 1)))]


def _sinks_start_at_the_newest() -> Patches:
    def newest(self: SinkRunner, feed: Any, newest: Commit | None) -> Version:
        return version_of(newest)

    return [(SinkRunner, "_starting_position", newest)]


# Replicas


def _mark_before_data() -> Patches:
    return [(base, "mark_before_changes", lambda before, mark: mark)]


def _half_a_version() -> Patches:
    def complete(*args: Any, **kwargs: Any) -> Any:
        found = check_state(*args, **kwargs)
        return Usable(found.at, found.at) if isinstance(found, Usable) else found

    return [(task_log_reader, "check_state", complete)]


def _forgets_unflushed_families() -> Patches:
    return [(family_marks.FamilyMark, "covers", lambda self, family, own: True)]


def _reads_the_newest() -> Patches:
    def newest(self: Replica, version: Version | None = None, wait: float = 0.0, commit: str | None = None) -> ReadView:
        return self.published.read_view(None)

    return [(Replica, "read_view", newest)]


def _restore_skips() -> Patches:
    gather = TaskLogReader.gather

    def skips(self: TaskLogReader, first: Commit, to: Version, most_bytes: int) -> list[Commit]:
        found = gather(self, first, to, most_bytes)
        return [*found[:-2], found[-1]]

    return [(TaskLogReader, "gather", skips)]


def _flush_keeps_the_view() -> Patches:
    """The overlay is given up for the engines, and readers keep the view from before."""
    move = PublishedVersions.move

    def stays(self: PublishedVersions, overlay: Any, pinned: Any, now: Any = None) -> None:
        before = self._newest
        if before is not None and now is None and before.version == overlay.version:
            pinned.release()
            pinned = before.pinned.hold()
            object.__setattr__(overlay, "families", {name: type(each)() for name, each in overlay.families.items()})
        move(self, overlay, pinned, now)

    return [(PublishedVersions, "move", stays)]


def _goes_back_in_time() -> Patches:
    read_view = PublishedVersions.read_view

    def any_newest(self: PublishedVersions, version: Version | None = None) -> ReadView:
        self._furthest = NOTHING
        return read_view(self, version)

    return [(PublishedVersions, "read_view", any_newest)]


def _suspended_for_good() -> Patches:
    def gives_up(self: ReplicaUpdater, progress: Any, error: BaseException, opening: int) -> None:
        progress.retry_at = float("inf")

    return [(ReplicaUpdater, "_suspend", gives_up)]


# The group


def _counts_sleep() -> Patches:
    return [(FailureDetector, "_gap", property(lambda self: float("inf")))]


def _trusts_old_heartbeats() -> Patches:
    liveness = FailureDetector.liveness

    def alive(self: FailureDetector, id: str) -> Liveness:
        found = liveness(self, id)
        return Liveness.LIVE if found is Liveness.UNKNOWN else found

    return [(FailureDetector, "liveness", alive)]


def _drops_the_absent() -> Patches:
    liveness = FailureDetector.liveness

    def gone(self: FailureDetector, id: str) -> Liveness:
        found = liveness(self, id)
        return found if found is Liveness.LIVE else Liveness.GONE

    return [(FailureDetector, "liveness", gone)]


def _never_gives_up() -> Patches:
    liveness = FailureDetector.liveness

    def present(self: FailureDetector, id: str) -> Liveness:
        found = liveness(self, id)
        return Liveness.LIVE if found is Liveness.GONE and id in self._seen else found

    return [(FailureDetector, "liveness", present)]


def _own_generation() -> Patches:
    propose = Generations.propose

    def believes(self: Generations, generation: Generation) -> bool:
        propose(self, generation)
        self.newest = generation
        return True

    return [(Generations, "propose", believes)]


def _same_number_again() -> Patches:
    build = Coordinator._generation

    def again(self: Coordinator, *what: Any) -> Generation:
        made = build(self, *what)
        self.generations._storage.delete([names.generation(made.number)])
        return made

    return [(Coordinator, "_generation", again)]


def _takes_any_id() -> Patches:
    join = Membership.join.__func__  # type: ignore[attr-defined]

    def unasked(cls: type[Membership], storage: Any, member: Member, status: Any, answers: Any) -> Membership:
        joined: Membership = join(cls, storage, member, status, lambda holder: False)
        return joined

    return [(Membership, "join", classmethod(unasked))]


def _reads_nobody_leaves() -> Patches:
    return [(MemberSteps, "_staying", lambda self, coordinator, generation: True)]


def _missing_is_gone() -> Patches:
    def look(self: Coordinator, now: float, pace: float = 0.0) -> None:
        self.members = self._members.read()
        self.detector.look(now, self.members, pace)

    return [(Coordinator, "look", look)]


def _counts_starts_only() -> Patches:
    def above(self: Membership, held: int) -> None:
        self._member = msgspec.structs.replace(self._member, incarnation=held + 1)

    return [(Membership, "_start_above", above)]


def _proposes_unasked() -> Patches:
    made = Coordinator.__init__

    def unasked(self: Coordinator, *what: Any, **settings: Any) -> None:
        made(self, *what, **(settings | {"check_leads": lambda: None}))

    return [(Coordinator, "__init__", unasked)]


def _same(target: object, name: str, value: Any) -> Callable[[], Patches]:
    return lambda: [(target, name, value)]


MUTATIONS = [
    Mutation("a commit replaces another one", 2, _overwriting_commit),
    Mutation("a commit that fails is assumed to exist", 2, _unconfirmed_commit),
    Mutation("exists counts as won", 22, _same(Log, "_check_won", lambda self, commit: None)),
    Mutation("a commit needs no neighbour", 2, _same(CommitChain, "follows", lambda self, version: True)),
    Mutation("cleaning passes the snapshots", 2, _cleaned_past_snapshots),
    Mutation("cleaning keeps one commit", 73, _cleaned_past_newest),
    Mutation("cleaning deletes what a slow driver writes", 2, _orphans_of_slow_drivers),
    Mutation("cleaning deletes segments first", 2, _segments_before_commits),
    Mutation("an outdated driver doesn't look", 2, _same(Leadership, "check", lambda self: None)),
    Mutation("a batch is computed again", 2, _batch_computed_again),
    Mutation("a restart forgets what sinks lack", 28, _sinks_start_at_the_newest),
    Mutation("the mark comes before the data", 2, _mark_before_data),
    Mutation("half a version is served", 144, _half_a_version),
    Mutation("a family that lost its writes is complete", 109, _forgets_unflushed_families),
    Mutation("a task reads the newest version", 2, _reads_the_newest),
    Mutation("a restore skips a version", 2, _restore_skips),
    Mutation("a flush keeps the former view", 0, _flush_keeps_the_view),
    Mutation("a reader goes back in time", 178, _goes_back_in_time),
    Mutation("a replica that failed is not tried again", 13, _suspended_for_good),
    Mutation("a detector counts time in which it slept", 2, _counts_sleep),
    Mutation("a detector trusts an old heartbeat", 0, _trusts_old_heartbeats),
    Mutation("an absent member loses its tasks", 0, _drops_the_absent),
    Mutation("nobody is given up", 107, _never_gives_up),
    Mutation("a coordinator believes in its own generation", 506, _own_generation),
    Mutation("a generation replaces another one", 180, _same_number_again),
    Mutation("a second process takes the id", 19, _takes_any_id),
    Mutation("a replaced process goes on", 139, _same(Membership, "_check_own", lambda self: None)),
    Mutation("a drain waits for those who leave too", 204, _reads_nobody_leaves),
    Mutation("a drain waits for nobody", 88, _same(MemberSteps, "has_handed_over", lambda self: True)),
    Mutation("an operator's drain is not seen", 7, _same(Coordinator, "draining", frozenset())),
    Mutation("a member without a heartbeat is gone at once", 204, _missing_is_gone),
    Mutation(
        "a heartbeat is deleted too early", 7, _same(FailureDetector, "gone_for", lambda self, id, now: float("inf"))
    ),
    Mutation("a heartbeat is deleted that was not looked at", 656, _same(Coordinator, "_is_stored", lambda *_: True)),
    Mutation("incarnations count starts only", 74, _counts_starts_only),
    Mutation("an outdated driver proposes", 109, _proposes_unasked),
    Mutation("the number of a lost generation is used again", 530, _same(Coordinator, "_newest_hosted", lambda *_: 0)),
    Mutation("a replica is dropped that nobody replaces", 151, assignor.anyone_can_go),
    Mutation("a silent replica counts for a drop", 506, assignor.the_silent_count),
    Mutation("a replica that restarts counts for a drop", 5176, assignor.those_that_restart_count),
    Mutation("a replica without anything is caught up", 209, assignor.nothing_is_caught_up),
    Mutation("a role goes to one that can't be read", 6, _same(Draft, "is_running", lambda self, spot, id: False)),
    Mutation("an old heartbeat counts as a lag", 1, assignor.old_heartbeats_are_behind),
    Mutation("what a member that ends has isn't replaced", 56, _same(_Moves, "_may_hurry", lambda self, spot: False)),
    Mutation("a member coordinates beside a driver", 1, _same(DriverWatch, "is_gone", lambda self, now, pace: True)),
]
