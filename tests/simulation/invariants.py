"""The invariants of docs/design.md, checked with every object that is stored or deleted and after every step."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from holdfast.instance.read_views import ReadView, VersionNotAvailable
from holdfast.instance.replica import Replica
from holdfast.log import names
from holdfast.log.commits import Commit
from holdfast.words import NOTHING, TaskId, Version
from tests.simulation.driver import DriverProcess
from tests.simulation.group_invariants import GroupInvariants
from tests.simulation.instance import Instance
from tests.simulation.model import STORES, State, Violation
from tests.simulation.processes import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

_COMMITS = msgspec.json.Decoder(Commit)


class Invariants:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._led_since: dict[int, int] = {}
        """By epoch, the step in which its record was created."""
        self._excused: set[str] = set()
        """The ids of commits that a driver could not withdraw."""
        self._checked: dict[int, object] = {}
        """By replica, the read view that was compared last."""
        self._cleaned = False
        self.delivered_to = NOTHING
        """The newest version that the sink got."""
        self.group = GroupInvariants(world)

    # Objects

    def created(self, name: str, data: bytes) -> None:
        if name.startswith(names.COMMITS):
            self._commit(_COMMITS.decode(data))
        elif name.startswith(names.LEADERS):
            self._led_since[names.number_of(name) or 0] = self._world.step_number
        elif name.startswith(names.GENERATIONS):
            if (driver := self._acting_driver()) is not None:
                self._check_leads(driver, f"creates {name}")
            self.group.generation_created(data, self._acting())
        elif name.startswith(names.MEMBERS):
            self.group.member_stored(name, data)
        elif name == names.DRIVER_HEARTBEAT:
            self.group.driver_beats(data)

    def _commit(self, commit: Commit) -> None:
        self._world.say(f"version {commit.version} of epoch {commit.writer.epoch}")
        self._world.model.committed(commit)
        if (driver := self._acting_driver()) is not None and driver.epoch == commit.writer.epoch:
            self._check_leads(driver, f"commits version {commit.version}")

    def deleted(self, name: str, data: bytes) -> None:
        """Whoever deletes leads, and leaves what restores and sinks need."""
        model = self._world.model
        if (driver := self._acting_driver()) is not None:
            self._check_leads(driver, f"deletes {name}")
        version = names.version_of(name) or NOTHING
        if name.startswith(names.MEMBERS):
            self.group.member_deleted(name, data, self._acting())
        elif name.startswith(names.COMMITS):
            self._cleaned = True
            if version >= model.newest - 1 and version in model.commits and version > NOTHING:
                raise Violation(f"{name} was deleted, and {model.newest} is the newest version")
        elif name.startswith(names.SNAPSHOTS) and names.is_manifest(name):
            self._cleaned = True
        elif name.startswith(names.SEGMENTS):
            named = model.commits.get(version)
            if version > model.newest:
                raise Violation(f"{name} was deleted, and a driver may still commit it")
            if named is not None and name in named.segment_names() and self._stored(named):
                raise Violation(f"{name} was deleted, and version {version} needs it")

    def _stored(self, commit: Commit) -> bool:
        return names.commit(Version(commit.version)) in self._world.objects.stored

    def _acting(self) -> Process | None:
        """The process that stores or deletes now; None for a put that arrives late."""
        return self._world.stack[-1] if self._world.stack and not self._world.arriving else None

    def _acting_driver(self) -> DriverProcess | None:
        process = self._acting()
        return process if isinstance(process, DriverProcess) and hasattr(process, "leadership") else None

    def _check_leads(self, driver: DriverProcess, what: str) -> None:
        """A driver looks for a newer one first: only one that appeared in the same step may have been missed."""
        since = self._led_since.get(driver.epoch + 1)
        if since is not None and since < driver.step_began:
            raise Violation(f"{driver} {what}, and epoch {driver.epoch + 1} had begun before this step")

    def check_withdrawn(self, driver: DriverProcess) -> None:
        """A commit that a driver which slept created under a cleaned number is deleted by that driver."""
        for commit in self._left_by(driver):
            if commit.id not in self._excused:
                raise Violation(
                    f"{driver} left its commit of version {commit.version}, which isn't part of the history"
                )

    def excuse(self, driver: DriverProcess) -> None:
        """The storage failed before a driver could delete its commit. Nobody believes it, and the leader cleans it."""
        self._excused.update(commit.id for commit in self._left_by(driver))

    def _left_by(self, driver: DriverProcess) -> Iterator[Commit]:
        """The commits of a driver that are stored and no part of the history."""
        for commit, version in self._world.model.unbelieved.items():
            stored = self._world.objects.stored.get(names.commit(version))
            if stored is not None:
                found = _COMMITS.decode(stored)
                if found.id == commit and found.writer.epoch == driver.epoch:
                    yield found

    # Sinks

    def delivered(self, driver: DriverProcess, version: Version, rows: dict[bytes, int]) -> None:
        model = self._world.model
        self._check_leads(driver, f"delivers version {version}")
        if version not in model.commits:
            raise Violation(f"the sink got version {version}, which isn't committed")
        if version > self.delivered_to + 1:
            raise Violation(f"the sink got version {version} after version {self.delivered_to}")
        if rows != model.rows[version]:
            raise Violation(f"the sink got {rows} in version {version}; it has {model.rows[version]}")
        self.delivered_to = max(self.delivered_to, version)

    # After every step

    def check(self) -> None:
        for instance in self._world.instances:
            self.check_instance(instance)
        if self._cleaned:
            self._cleaned = False
            self._check_reachable()

    def check_instance(self, instance: Instance) -> None:
        """What readers could see of an instance now, if that is new; also in the middle of its step."""
        for task, replica in instance.opened.items():
            newest = replica.published._newest
            if newest is not None and self._checked.get(id(replica)) is not newest:
                self._checked[id(replica)] = newest
                self._compare(instance, task, replica, newest.version)

    def _compare(self, instance: Instance, task: TaskId, replica: Replica, newest: Version) -> None:
        model, random = self._world.model, self._world.random
        if newest > model.newest:
            raise Violation(f"{instance} shows version {newest} of {task}, and {model.newest} is the newest one")
        commit = model.commits.get(newest)
        if commit is not None and replica.version == newest and replica._commit not in ("", commit.id):
            raise Violation(f"{instance} has commit {replica._commit} as version {newest} of {task}")
        others = (Version(newest - random.randint(1, 3)),) if newest > 3 and random.random() < 0.2 else ()
        for version in (newest, *others):
            try:
                view = replica.published.read_view(version)
            except VersionNotAvailable:
                if version == newest:
                    raise
                continue  # a restore has passed it without a stop, or it is too old
            with view:
                self._compare_view(f"{instance}, {task} at version {version}", view, model.states[version, task])

    def _compare_view(self, where: str, view: ReadView, expected: State) -> None:
        """All entries of a store, or some lookups in it, in turns: each takes a different path in the real code."""
        random = self._world.random
        store = STORES[random.randrange(2)]
        if random.random() < 0.7:
            found = dict(view.scan(store, b"", None))
            if found != expected[store]:
                raise Violation(f"{where} has {found} in {store}; it is {expected[store]}")
        else:
            keys = [b"\x01key-%02d" % key for key in range(8)]
            read = view.get_many(store, pa.array(keys, pa.binary())).to_pylist()
            if read != [expected[store].get(key) for key in keys]:
                raise Violation(f"{where} answers {read} for {keys} of {store}; it is {expected[store]}")

    def _check_reachable(self) -> None:
        """From what is in the log, every task can be restored to the newest version."""
        stored, newest = self._world.objects.stored, self._world.model.newest
        if newest == NOTHING:
            return
        oldest = newest
        while oldest > 1 and names.commit(Version(oldest - 1)) in stored:
            oldest = Version(oldest - 1)
        for task in self._world.model.tasks:
            found = self._world.objects.listed(names.snapshots(task))
            starts = [names.version_of(name) or NOTHING for name in found if names.is_manifest(name)]
            if oldest > 1 and not any(start >= oldest - 1 for start in starts):
                raise Violation(f"{task} has snapshots {starts}, and commits begin at {oldest}: it can't be restored")
