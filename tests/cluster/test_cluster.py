"""What happens to instances, on a real Spark cluster with the log on a real S3 server, under steady load.

After all of it nothing is lost, nothing is counted twice, and no lookup at a living instance has failed.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from holdfast.group.members import Member, MemberState
from tests import s3
from tests.cluster.load import Lookups, Records
from tests.cluster.processes import Cluster, cluster, until
from tests.cluster.verdict import stored

pytestmark = [
    pytest.mark.crash,
    pytest.mark.spark,
    pytest.mark.skipif(s3.binary() is None, reason=s3.MISSING),
    pytest.mark.timeout(1500),
]


class Scene:
    """A running cluster under load, with one instance after the other taken down and back."""

    def __init__(self, group: Cluster, folder: Path) -> None:
        self.group = group
        self.down: set[str] = set()
        self.records = Records(folder / "input")
        self.lookups = Lookups(self.addresses)
        self._rest: dict[str, str] = {}

    def addresses(self) -> list[str]:
        return [address for id, address in sorted(self._rest.items()) if id not in self.down]

    def start(self) -> None:
        self.records.write_one()
        self.group.start_app()
        until(lambda: self.group.settled(set(self.group.servers)))
        self._know_rest()
        self.records.start()
        self.lookups.start()

    def _know_rest(self) -> None:
        self._rest = {id: self.group.rest_of(id) for id in self.group.servers}

    def take_down(self, id: str) -> None:
        """Readers stop asking it before it goes, as those who know of a deployment do."""
        self.down.add(id)

    def brought_back(self, id: str) -> None:
        """Waits for a heartbeat that wasn't there yet, and until all instances host what they should."""
        before = self.group.members()[id]
        until(lambda: (found := self.group.members()[id]).state is MemberState.JOINED and _beat(found) != _beat(before))
        until(lambda: self.group.settled(set(self.group.servers)))
        self._know_rest()
        self.down.discard(id)

    def goes_on(self, versions: int = 3) -> None:
        """Waits for some more versions: the stream doesn't stop."""
        before = self.group.version()
        until(lambda: self.group.version() >= before + versions)


def kill(scene: Scene, id: str) -> None:
    """kill -9, and a restart within the session: the instance finds its tasks and its local state."""
    scene.take_down(id)
    scene.group.servers[id].kill()
    scene.goes_on()
    scene.group.servers[id].start()


def freeze(scene: Scene, id: str) -> None:
    """SIGSTOP until others have its tasks, then it wakes up as a zombie."""
    scene.take_down(id)
    server = scene.group.servers[id]
    server.signal(signal.SIGSTOP)
    until(lambda: scene.group.settled(set(scene.group.servers) - {id}))
    scene.goes_on()
    server.signal(signal.SIGCONT)


def cut_off(scene: Scene, id: str) -> None:
    """Neither the log nor the others can be reached, although the process runs."""
    scene.take_down(id)
    server = scene.group.servers[id]
    server.inward.cut()
    server.outward.cut()
    until(lambda: scene.group.settled(set(scene.group.servers) - {id}))
    scene.goes_on()
    server.inward.restore()
    server.outward.restore()


def lose_disk(scene: Scene, id: str) -> None:
    """kill -9 and a lost disk."""
    scene.take_down(id)
    server = scene.group.servers[id]
    server.kill()
    server.delete_state()
    scene.goes_on()
    server.start()


def restart(scene: Scene, id: str) -> None:
    """A deployment: SIGTERM, which hands tasks over, and a start."""
    server = scene.group.servers[id]
    scene.take_down(id)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    server.start()


def _beat(member: Member) -> tuple[str, int]:
    return member.process, member.beat


EVENTS: list[Callable[[Scene, str], None]] = [kill, freeze, cut_off, lose_disk]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with cluster(tmp_path) as group:
        yield Scene(group, tmp_path)


def play(scene: Scene, events: list[Callable[[Scene, str], None]], dice: Random) -> None:
    scene.start()
    for event in events:
        id = dice.choice([scene.group.active_with_tasks(), *scene.group.servers])
        event(scene, id)
        scene.brought_back(id)
    for id in sorted(scene.group.servers):
        restart(scene, id)
        scene.brought_back(id)
    scene.goes_on()
    scene.records.stop()
    version = scene.group.finish_app()
    until(lambda: all(member_is_at(member, version) for member in scene.group.members().values()))
    scene.lookups.stop()
    assert not scene.lookups.failed, scene.lookups.failed[:5]
    assert not scene.lookups.went_back, scene.lookups.went_back[:5]
    assert scene.lookups.done > 100
    for id in sorted(scene.group.servers):
        found = stored(scene.group.rest_of(id))
        assert found == {key: (scene.records.n[key], scene.records.total[key]) for key in scene.records.n}, id


def member_is_at(member: Member, version: int) -> bool:
    """Whether all replicas that a member hosts are at a version. It also names what is left of tasks on its disk."""
    hosted = [hosted for hosted in member.tasks.values() if hosted.running]
    return bool(hosted) and all(each.version >= version for each in hosted)


def test_nothing_that_happens_to_instances_is_noticed(scene: Scene) -> None:
    play(scene, EVENTS, Random(1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 5))
def test_a_dozen_events_in_any_order(scene: Scene, seed: int) -> None:
    dice = Random(seed)
    play(scene, [dice.choice(EVENTS) for _ in range(12)], dice)
