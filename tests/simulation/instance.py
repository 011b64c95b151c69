"""An instance of the simulation: real replicas, updater and steps of a member, without threads and network."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from holdfast.chance import new_id
from holdfast.errors import HoldfastError
from holdfast.group.coordinator import Coordinator, Needs
from holdfast.group.generations import Generation
from holdfast.group.member_steps import MemberSteps
from holdfast.group.members import Hosted, Member, MemberState
from holdfast.group.membership import IdInUse, Replaced
from holdfast.instance.config import Phase, unchecked
from holdfast.instance.events import Events
from holdfast.instance.group_host import needs_in
from holdfast.instance.log_reader import LogReader
from holdfast.instance.messages import InstanceRefused, TaskNotHere
from holdfast.instance.replica import Replica, ReplicaSettings
from holdfast.instance.replica_check import ReplicaDiffers, check_replica
from holdfast.instance.snapshotter import Snapshotter
from holdfast.instance.state_dir import TaskDirectory
from holdfast.instance.updater import ReplicaUpdater, TaskProgress
from holdfast.log import names
from holdfast.log.log import Log
from holdfast.settings.sections import RestoreSettings, RetrySettings, SnapshotSettings
from holdfast.stores.engines.base import DamagedState
from holdfast.words import TaskId, Version
from tests.simulation.disk import Disk, resources_on
from tests.simulation.model import Violation
from tests.simulation.processes import Process
from tests.simulation.watching import FORGET_AFTER, INTERVAL, TIMEOUT, Watch, WatchedJudge

if TYPE_CHECKING:
    from tests.simulation.world import World

_RETRY = RetrySettings(first="200ms", longest="1s")
_SNAPSHOTS = unchecked(SnapshotSettings, ratio=0.01, bytes=1, age=timedelta(seconds=1))
_DRAIN_TIMEOUT = 20.0


class Calls(Executor):
    """A pool without threads: the updater's next step runs the calls."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], Any]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self._waiting.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self) -> None:
        while self._waiting:
            self._waiting.popleft()()


class Instance(Process):
    """One start of an instance with an id, on a folder. It is the `Host` of its own steps in the group."""

    def __init__(self, world: "World", id: str, folder: Path, number: int) -> None:
        super().__init__(world, f"{id}#{number}")
        self.id = id
        self.folder = folder
        self.disk = Disk(world)
        self.process = new_id(world.random)
        self.opened: dict[TaskId, Replica] = {}
        """The replicas that are here."""
        self.progress: dict[TaskId, TaskProgress] = {}
        self.snapshotters: dict[TaskId, Snapshotter] = {}
        self.shown: dict[TaskId, Version] = {}
        """The newest version that a reader got from each replica."""
        self.active: set[TaskId] = set()
        self.watch = Watch(self.name)
        self.steps: MemberSteps | None = None
        self.drained_by: float | None = None
        """When it ends at the latest, if it was told to."""
        self.alone = 0
        """How many steps it made while it was drained and nobody stayed."""
        self.looked = -1.0
        """When its last step in the group began that was completed."""
        self.beats: deque[float] = deque([-1.0] * 3, maxlen=3)
        """When its last steps in the group were completed."""

    @property
    def address(self) -> str:
        return f"grpc://{self.process}:1"

    def start(self) -> None:
        world, random = self.world, self.world.random
        self.log = Log(self.storage, Log.open(self.storage).app, random)
        self.events = Events(keep=1, clock=self.clock)
        self.source = LogReader(self.log)
        self.calls = Calls()
        self.resources = resources_on(self.disk)
        self.updater = ReplicaUpdater(
            self.source,
            self.events,
            RestoreSettings(acceptable_lag=world.rules.acceptable_lag),
            _RETRY,
            INTERVAL,
            self.clock,
            random,
            self.calls,
        )
        number = int(self.id.removeprefix("i"))
        member = Member(
            log=self.log.id,
            id=self.id,
            incarnation=1,
            process=self.process,
            beat=0,
            address=self.address,
            tags={"zone": "xy"[number % 2], "rack": "12"[number // 2]},
        )
        holder, began, before = self._holder(), world.step_number, world.invariants.group.incarnation_below(self.id)
        self.steps = MemberSteps(
            self.storage,
            member,
            self,
            self.clock,
            interval=INTERVAL,
            timeout=TIMEOUT,
            new_coordinator=self._new_coordinator,
        )
        if holder is not None and world.step_number == began and not holder.dead:
            raise Violation(f"{self} took the id of {holder}, which answers")
        if self.steps.member.incarnation <= before:
            raise Violation(f"{self} has incarnation {self.steps.member.incarnation} after incarnation {before}")
        self.loop("beat", INTERVAL, self.beat)
        self.loop("alive", INTERVAL, self.keep_alive)
        self.loop("update", INTERVAL, self.update)
        self.loop("maintain", 2.0, self.maintain)

    def _new_coordinator(self) -> Coordinator:
        self.watch = Watch(self.name)  # one that coordinates again starts over
        return Coordinator(
            self.storage,
            self.log.id,
            self.id,
            WatchedJudge(self.watch),
            self.world.assigning,
            self.world.rules,
            lambda: new_id(self.world.random),
            keeps_rules=True,
            forget_after=FORGET_AFTER,
            each=map,
        )

    @property
    def coordinator(self) -> Coordinator | None:
        return None if self.steps is None else self.steps.coordinator

    def _holder(self) -> "Instance | None":
        """The process that has the id now and answers."""
        data = self.world.objects.stored.get(names.member(self.id), b"")
        with suppress(msgspec.MsgspecError):
            found = msgspec.json.decode(data, type=Member)
            holder = self.world.at_address(found.address)
            if holder is not None and holder.answers and found.state is not MemberState.LEFT:
                return holder
        return None

    # The host of its steps

    def replicas(self, now: float) -> Mapping[str, Hosted]:
        return {str(task): self._hosted(task, replica) for task, replica in self.opened.items()}

    def _hosted(self, task: TaskId, replica: Replica) -> Hosted:
        progress, size = self.progress[task], self.world.sizes[task]
        here, loading = progress.report.loaded
        return Hosted(
            version=replica.version,
            running=progress.phase is Phase.RUNNING,
            bytes=size if replica.version else size * here // max(1, loading),
            loading=loading and max(1, size),
            load=self.world.loads[task] if task in self.active else 0.0,
        )

    def hosted(self) -> Collection[TaskId]:
        return sorted(self.opened)

    def use_app(self, number: int) -> None:
        self.source.use_app(number)

    def drop(self, task: TaskId) -> None:
        self.updater.remove(task)
        self.opened[task].close()
        del self.opened[task]  # last: a kill before this releases its folder
        self.active.discard(task)
        self.shown.pop(task, None)

    def host(self, task: TaskId, *, active: bool) -> None:
        if task not in self.opened:
            self._open(task)
        (self.active.add if active else self.active.discard)(task)

    def _open(self, task: TaskId) -> None:
        home = TaskDirectory(self.folder, task, self.name)
        try:
            settings = ReplicaSettings(flush_versions=self.world.random.choice((2, 4, 8)), overlay_bytes=1 << 16)
            if not (specs := self.source.stores_of(task)):
                raise InstanceRefused(f"the app has no stores in task {task}, so it can't be hosted.")
            replica = Replica(home, self.source, specs, self.resources, self.events, settings, self.clock)
        except BaseException:
            home.close()
            raise
        self.opened[task] = replica
        self.progress[task] = self.updater.add(replica)
        self.snapshotters[task] = Snapshotter(replica, self.log, _SNAPSHOTS, self.clock)

    def not_hosted(self, task: TaskId, error: HoldfastError) -> None:
        self.world.say(f"{self} can't host {task}: {type(error).__name__}")

    def ask_peers(self, generation: Generation) -> None:
        """Instances of the simulation don't ask each other."""

    def took(self, generation: Generation) -> None:
        self.world.say(f"{self} hosts generation {generation.number}")

    def look_at_driver(self, *, gone: bool) -> None:
        """Nobody asks for the state of the app."""

    def is_running(self, holder: Member) -> bool:
        return self.world.is_running(holder)

    def needs(self) -> Needs | None:
        return needs_in(self.source)

    def tell(self, generation: Generation) -> None:
        self.world.tell(generation, but=self)

    # Loops

    def beat(self) -> None:
        assert self.steps is not None
        began = self.world.now
        try:
            self.steps.step()
            self.looked = began
            self.beats.append(self.world.now)
        except Replaced as replaced:
            self.world.say(f"{self} stops: {replaced}")
            self.stop()
            return
        if self.drained_by is not None and not self.dead:
            self.alone = self.alone + 1 if self.world.invariants.group.nobody_stays_but(self) else 0

    def keep_alive(self) -> None:
        assert self.steps is not None
        try:
            self.steps.keep_alive()
        except Replaced as replaced:
            self.world.say(f"{self} stops: {replaced}")
            self.stop()

    def hear(self, number: int) -> None:
        """Someone tells of a generation."""
        if self.steps is not None and self.steps.hear(number):
            self.beat()

    def update(self) -> None:
        self.updater.step(self.clock.monotonic())
        self.calls.run()

    def committed(self, version: Version) -> None:
        """The driver's notice."""
        self.updater.committed(version)
        self.update()

    def maintain(self) -> None:
        """A check, a flush or a snapshot of one task, as the loops of an instance do it."""
        if not self.opened:
            return
        task = self.world.random.choice(sorted(self.opened))
        replica = self.opened[task]
        if self.world.random.random() < 0.3 and self.progress[task].phase is Phase.RUNNING:
            self._check(replica)
        elif task in self.active and self.world.random.random() < 0.6:
            self.snapshotters[task].step()
        elif replica.flush_due() or self.world.random.random() < 0.3:
            replica.flush_overlay()

    def _check(self, replica: Replica) -> None:
        """No fault makes a replica differ from the log."""
        try:
            check_replica(replica, self.source)
        except ReplicaDiffers as differs:
            raise Violation(f"{self}: {differs}") from differs

    # What others ask

    def read(self, task: TaskId, store: str, keys: Sequence[bytes], version: Version) -> list[bytes | None]:
        """Values at exactly a version, as the state service answers a task."""
        replica = self.opened.get(task)
        if replica is None:
            raise TaskNotHere(f"{self} doesn't host {task}. Ask another one.")
        with replica.read_view(version, wait=0) as view:
            found: list[bytes | None] = view.get_many(store, pa.array(keys, pa.binary())).to_pylist()
            return found

    def newest(self, task: TaskId) -> Version:
        """A query of the newest version. What a replica showed once, it never takes back."""
        with self.opened[task].read_view() as view:
            version = view.version
        if version < self.shown.get(task, 0):
            raise Violation(f"{self} showed version {version} of {task} after version {self.shown[task]}")
        self.shown[task] = version
        return version

    def damage(self, task: TaskId) -> None:
        """A reader finds that a replica's files are damaged."""
        self.updater.restore_again(task)
        self.opened[task].rebuild(DamagedState(self.folder, "simulated"))
        self.updater.restore_again(task)

    # Ending

    def terminate(self) -> None:
        """SIGTERM: it hands its tasks over, says that it has ended, and ends."""
        if self.steps is not None and self.drained_by is None:
            self.steps.start_leaving()
            self.drained_by = self.clock.monotonic() + _DRAIN_TIMEOUT
            self.loop("drain", INTERVAL / 2, self.drain)
            self.beat()

    def drain(self) -> None:
        assert self.steps is not None and self.drained_by is not None
        if self.steps.has_handed_over():
            self.world.invariants.group.check_handed_over(self)
        elif self.alone > 1:
            raise Violation(f"{self} waits for others to take over its tasks, and nobody stays")
        elif self.clock.monotonic() < self.drained_by:
            return
        with suppress(HoldfastError):
            self.steps.leave()
        if not self.dead:
            for replica in self.opened.values():
                replica.close()
            self.stop()

    def ended(self) -> None:
        self.disk.crash()
        for replica in self.opened.values():
            replica._home.close()


__all__ = ["IdInUse", "Instance"]
