"""An instance of the simulation: real replicas, updater, membership and coordinator, without threads and network."""

from collections import deque
from collections.abc import Callable, Sequence
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
from holdfast.group.driver_heartbeat import DriverWatch
from holdfast.group.generations import Generation
from holdfast.group.judge import Judge
from holdfast.group.members import Hosted, Member, MemberState
from holdfast.group.membership import IdInUse, Membership, Replaced, Status
from holdfast.instance.config import Phase, unchecked
from holdfast.instance.events import Events
from holdfast.instance.log_reader import LogReader
from holdfast.instance.messages import TaskNotHere
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
from tests.simulation.watching import INTERVAL, TIMEOUT, Watch

if TYPE_CHECKING:
    from tests.simulation.world import World

_RETRY = RetrySettings(first="200ms", longest="1s")
_SNAPSHOTS = unchecked(SnapshotSettings, ratio=0.01, bytes=1, age=timedelta(seconds=1))


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
    """One start of an instance with an id, on a folder."""

    def __init__(self, world: "World", id: str, folder: Path, number: int) -> None:
        super().__init__(world, f"{id}#{number}")
        self.id = id
        self.folder = folder
        self.disk = Disk(world)
        self.process = new_id(world.random)
        self.replicas: dict[TaskId, Replica] = {}
        self.progress: dict[TaskId, TaskProgress] = {}
        self.snapshotters: dict[TaskId, Snapshotter] = {}
        self.shown: dict[TaskId, Version] = {}
        """The newest version that a reader got from each replica."""
        self.active: set[TaskId] = set()
        self.generation = 0
        self.state = MemberState.JOINED

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
            self.source, self.events, RestoreSettings(), _RETRY, INTERVAL, self.clock, random, self.calls
        )
        member = Member(log=self.log.id, id=self.id, incarnation=1, process=self.process, beat=0, address=self.address)
        holder, began = self._holder(), world.step_number
        self.membership = Membership.join(self.storage, member, self._status, self._answers)
        if holder is not None and world.step_number == began and not holder.dead:
            raise Violation(f"{self} took the id of {holder}, which answers")
        self.judge = Judge(INTERVAL, TIMEOUT)
        self.watch = Watch(self.name)
        self.driver_watch = DriverWatch(self.storage, self.log.id, INTERVAL, TIMEOUT)
        self.driver_gone = False
        self.coordinator = Coordinator(
            self.storage, self.log.id, self.id, self.judge, world.assign, world.rules, lambda: new_id(random)
        )
        self.loop("beat", INTERVAL, self.beat)
        self.loop("update", INTERVAL, self.update)
        self.loop("maintain", 2.0, self.maintain)
        self.loop("coordinate", INTERVAL, self.coordinate)

    def _answers(self, holder: Member) -> bool:
        found = self.world.at_address(holder.address)
        return found is not None and found.answers

    def _holder(self) -> "Instance | None":
        """The process that has the id now and answers."""
        data = self.world.objects.stored.get(names.member(self.id), b"")
        with suppress(msgspec.MsgspecError):
            found = msgspec.json.decode(data, type=Member)
            holder = self.world.at_address(found.address)
            if holder is not None and holder.answers and found.state is not MemberState.LEFT:
                return holder
        return None

    def _status(self) -> Status:
        hosted = {
            str(task): Hosted(version=replica.version, running=self.progress[task].phase is Phase.RUNNING)
            for task, replica in self.replicas.items()
        }
        return Status(state=self.state, generation=self.generation, tasks=hosted)

    # Loops

    def beat(self) -> None:
        try:
            generation = self.membership.step()
        except Replaced as replaced:
            self.world.say(f"{self} stops: {replaced}")
            self.stop()
            return
        if generation is not None and generation.number >= self.generation:
            self._host(generation)

    def _host(self, generation: Generation) -> None:
        wanted = {TaskId.parse(task): place for task, place in generation.hosted_by(self.id).items()}
        for task in sorted(self.replicas.keys() - wanted.keys()):
            self._drop(task)
        self.active = {task for task, place in wanted.items() if place.active == self.id}
        for task in sorted(wanted.keys() - self.replicas.keys()):
            home = TaskDirectory(self.folder, task, self.name)
            try:
                settings = ReplicaSettings(flush_versions=self.world.random.choice((2, 4, 8)), overlay_bytes=1 << 16)
                replica = Replica(
                    home, self.source, self.source.stores_of(task), self.resources, self.events, settings, self.clock
                )
            except BaseException:
                home.close()
                raise
            self.replicas[task] = replica
            self.progress[task] = self.updater.add(replica)
            self.snapshotters[task] = Snapshotter(replica, self.log, _SNAPSHOTS, self.clock)
        self.generation = generation.number

    def _drop(self, task: TaskId) -> None:
        self.updater.remove(task)
        self.replicas[task].close()
        del self.replicas[task]  # last: a kill before this releases its folder
        self.shown.pop(task, None)

    def update(self) -> None:
        self.updater.step(self.clock.monotonic())
        self.calls.run()

    def committed(self, version: Version) -> None:
        """The driver's notice."""
        self.updater.committed(version)
        self.update()

    def maintain(self) -> None:
        """A check, a flush or a snapshot of one task, as the loops of an instance do it."""
        if not self.replicas:
            return
        task = self.world.random.choice(sorted(self.replicas))
        replica = self.replicas[task]
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

    def coordinate(self) -> None:
        """The smallest live member coordinates while there is no driver."""
        with suppress(HoldfastError):
            self.driver_gone = self.driver_watch.is_gone(self.clock.monotonic())
        self.world.coordinated(self, self.coordinator, self.watch, self._needs, self._coordinates)

    def _coordinates(self) -> bool:
        live = list(self.judge.live())
        seen_all = self.judge.has_looked_for(self.clock.monotonic()) >= 2 * INTERVAL
        return self.driver_gone and seen_all and bool(live) and live[0] == self.id

    def _needs(self) -> Needs:
        return self.world.needs(self.log, self.source.newest_known)

    # What others ask

    def read(self, task: TaskId, store: str, keys: Sequence[bytes], version: Version) -> list[bytes | None]:
        """Values at exactly a version, as the state service answers a task."""
        replica = self.replicas.get(task)
        if replica is None:
            raise TaskNotHere(f"{self} doesn't host {task}. Ask another one.")
        with replica.read_view(version, wait=0) as view:
            found: list[bytes | None] = view.get_many(store, pa.array(keys, pa.binary())).to_pylist()
            return found

    def newest(self, task: TaskId) -> Version:
        """A query of the newest version. What a replica showed once, it never takes back."""
        with self.replicas[task].read_view() as view:
            version = view.version
        if version < self.shown.get(task, 0):
            raise Violation(f"{self} showed version {version} of {task} after version {self.shown[task]}")
        self.shown[task] = version
        return version

    def damage(self, task: TaskId) -> None:
        """A reader finds that a replica's files are damaged."""
        self.updater.restore_again(task)
        self.replicas[task].rebuild(DamagedState(self.folder, "simulated"))
        self.updater.restore_again(task)

    # Ending

    def leave(self) -> None:
        """SIGTERM: it says that it has ended, and ends."""
        self.membership.leave()
        for replica in self.replicas.values():
            replica.close()
        self.stop()

    def ended(self) -> None:
        self.disk.crash()
        for replica in self.replicas.values():
            replica._home.close()


__all__ = ["IdInUse", "Instance"]
