"""Members that beat, and that the driver can't call."""

import itertools
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from holdfast import group_instances
from holdfast.errors import Interrupted
from holdfast.group import members
from holdfast.group.generations import Address, Generation, Generations, Place
from holdfast.group.members import Hosted, Member
from holdfast.group.rebalances import RebalancePhase
from holdfast.instance.group_host import InstanceHost
from holdfast.instance.group_member import GroupMember
from holdfast.instance.instance import Instance
from holdfast.log import documents, names
from holdfast.log.storage import open_storage
from holdfast.settings.group import GroupSettings
from holdfast.settings.security import SecuritySettings
from tests.cluster.processes import free_port
from tests.group.servers import Server
from tests.group.test_servers import GAME, Game, game, joined
from tests.instance.processes import until
from tests.query.instances import Driver, config
from tests.query.test_standbys import running


def beating(app: Game, address: str) -> Callable[[], None]:
    """Writes the next heartbeat of a member `b` that says it runs all tasks of the newest generation."""
    log = app.driver.log
    storage = open_storage(log.storage.place, fsync=False)
    generations = Generations(storage, log.id)
    last = Member(log=log.id, id="b", incarnation=1, process="p", beat=0, address=address)

    def beat() -> None:
        nonlocal last
        newest = generations.look_again()
        last = Member(
            log=log.id,
            id="b",
            incarnation=1,
            process="p",
            beat=last.beat + 1,
            address=address,
            generation=0 if newest is None else newest.number,
            tasks={str(task): Hosted(version=app.driver.version, running=True) for task in GAME.tasks()},
        )
        members.write(storage, last)

    return beat


def test_a_member_that_the_driver_has_no_way_to_call_is_suspected(tmp_path: Path) -> None:
    with game(tmp_path) as app, Server(tmp_path, "a") as a:
        joined(a)
        app.start()
        beat = beating(app, "grpc+tls://127.0.0.1:1")

        def is_suspected() -> bool:
            beat()
            return "b" in app.instances._coordinator.suspected

        until(is_suspected, "nobody can call b without TLS")
        assert {*app.actives().values()} == {a.address}


def test_an_app_that_waits_says_for_which_tasks_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_instances, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(group_instances, "_WAITING_SECONDS", 0.1)
    address = f"grpc://127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(1) as thread, caplog.at_level(logging.WARNING), game(tmp_path) as app:
        started, beat = thread.submit(app.start), beating(app, address)

        def is_said() -> bool:
            beat()
            return (
                f"4 of its 4 tasks (0_0, 0_1, 0_2, 0_3), which no instance can read yet. instance b: the instance "
                f"at {address} can't be reached" in caplog.text
            )

        until(is_said, "the driver has tried to call b")
        app.instances.stop(30.0)
        with pytest.raises(Interrupted):
            started.result(60)


def test_a_rebalance_ends_if_heartbeats_alone_say_that_all_tasks_run(tmp_path: Path) -> None:
    with game(tmp_path) as app:
        app.instances.assign(GAME.tasks())
        beat = beating(app, f"grpc://127.0.0.1:{free_port()}")

        def has_ended() -> bool:
            beat()
            return any(event.phase is RebalancePhase.COMPLETED for event in app.rebalances)

        until(has_ended, "b has taken its tasks, as it says")


@contextmanager
def mute() -> Iterator[str]:
    """Connections are accepted, and nothing is said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"grpc://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def refusing(folder: Path) -> Iterator[str]:
    """An instance of another app, which doesn't know this process."""
    Driver(str(folder / "log"), GAME)
    security = SecuritySettings(token="t" * 32)
    instance = Instance(msgspec.structs.replace(config(folder, "x", ()), security=security))
    with running(instance):
        yield instance.address


@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize("beats", [True, False])
def test_a_holder_of_an_id_that_cannot_be_asked_runs_if_its_heartbeat_moves(
    tmp_path: Path, beats: bool, refuses: bool
) -> None:
    """At its address there may be a process that hangs, or one that has got the address since."""
    log = Driver(str(tmp_path / "log"), GAME).log
    group = GroupSettings(heartbeat_interval="200ms")
    instance = Instance(msgspec.structs.replace(config(tmp_path, "a", ()), group=group))
    stopped = threading.Event()
    at = refusing(tmp_path / "other") if refuses else mute()
    with ThreadPoolExecutor(1) as thread, at as address:
        holder = Member(log=log.id, id="a", incarnation=1, process="p", beat=0, address=address)
        members.write(log.storage, holder)

        def beat() -> None:
            for number in itertools.count(1):
                if stopped.wait(0.05):
                    return
                members.write(log.storage, msgspec.structs.replace(holder, beat=number))

        beating = thread.submit(beat) if beats else None
        try:
            assert InstanceHost(instance, log.storage).is_running(holder) is beats
        finally:
            stopped.set()
            instance.stop()
        if beating is not None:
            beating.result(60)


def test_a_member_that_is_replaced_while_it_hands_over_waits_for_nobody(tmp_path: Path) -> None:
    log = Driver(str(tmp_path / "log"), GAME).log
    group = GroupSettings(heartbeat_interval="200ms")
    instance = Instance(msgspec.structs.replace(config(tmp_path, "a", ()), group=group, embedded=False))
    placed = Generation(
        log=log.id,
        number=1,
        id="1",
        before="",
        proposer="",
        reason="",
        app_file=1,
        members={id: Address(incarnation=1, flight="grpc://127.0.0.1:1") for id in "ab"},
        tasks={"0_0": Place(active="a")},
    )
    log.storage.create(names.generation(1), documents.encode(placed))
    others = Member(log=log.id, id="b", incarnation=1, process="p", beat=1, address="grpc://127.0.0.1:1")
    members.write(log.storage, others)
    successor = msgspec.structs.replace(others, id="a", incarnation=99)
    with ThreadPoolExecutor(1) as thread, running(instance):
        member = GroupMember(instance)
        drained = thread.submit(member.drain, 600.0)

        def is_replaced() -> bool:
            members.write(log.storage, successor)
            return instance.failure is not None

        until(is_replaced, "it has read the heartbeat of the process that has its id now")
        drained.result(60)
        member.stop()


def test_what_is_due_is_no_failure_of_an_app_that_ends(tmp_path: Path) -> None:
    """The idle loop may be about to ask when the instances are stopped."""
    with game(tmp_path) as app:
        app.instances.assign(GAME.tasks())
        beat = beating(app, f"grpc://127.0.0.1:{free_port()}")

        def has_places() -> bool:
            beat()
            return bool(app.instances.replicas())

        until(has_places, "b is asked what is due")
        app.instances.stop(30.0)
        with pytest.raises(Interrupted):
            app.instances.due(app.driver.version)
