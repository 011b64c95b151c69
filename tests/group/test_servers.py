"""Instances as servers: they find their app through its log, host what generations name, and replace each other."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from holdfast.group import members
from holdfast.group.generations import Address, Generation, Generations, Place
from holdfast.group.members import Member, Members
from holdfast.group.membership import IdInUse
from holdfast.group.rebalances import RebalanceEvent, RebalancePhase
from holdfast.group_instances import GroupInstances
from holdfast.instance.group_member import GroupMember
from holdfast.instance.instance import Instance
from holdfast.log.appfile import AppSpec
from holdfast.log.storage import open_storage
from holdfast.settings.group import GroupSettings
from holdfast.settings.sections import LogSettings
from holdfast.states import AppState
from tests.apps import settings
from tests.cluster.processes import free_port
from tests.group.servers import Server
from tests.instance.processes import until
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import NUMBERS
from tests.query.instances import Driver, config
from tests.query.test_standbys import running

STORE = msgspec.structs.replace(NUMBERS, engine="rocksdb")
GAME = AppSpec(id="game", partitions=4, stores=(STORE,), subtopologies=subtopologies_of({"numbers": 0}))
KEYS = range(12)


class Game:
    """An app without Spark: it commits versions, and drives the group as an app does."""

    def __init__(self, folder: Path, app: AppSpec = GAME, **changes: Any) -> None:
        self.rebalances: list[RebalanceEvent] = []
        self.failures: list[BaseException] = []
        self.alerts: list[BaseException] = []
        self.driver = Driver(str(folder / "log"), app)
        group = GroupSettings(
            heartbeat_interval="200ms",
            session_timeout=changes.pop("session_timeout", "60s"),
            assignor=changes.pop("assignor", None),
        )
        chosen = settings(
            folder,
            instances="external",
            log=LogSettings(url=str(folder / "log"), fsync=False),
            group=group,
            **changes,
        )
        self.instances = GroupInstances(
            "game",
            chosen,
            app_file=self.driver.log.app.number,
            on_event=lambda event: None,
            on_failure=self.failures.append,
            on_rebalance=self.rebalances.append,
            alert=self.alerts.append,
        )

    def start(self) -> None:
        self.instances.assign(self.driver.log.app.tasks())
        self.instances.wait_until_ready(self.driver.point)

    def commit(self, factor: int) -> None:
        """The value of each key is the key times a factor."""
        self.driver.commit(STORE, {(n,): n * factor for n in KEYS})
        self.instances.committed(self.driver.point)

    def actives(self) -> dict[str, str]:
        """The address of the active replica of each task."""
        return {task: addresses[0] for task, addresses in self.instances.replicas().items()}


@contextmanager
def game(folder: Path, app: AppSpec = GAME, **changes: Any) -> Iterator[Game]:
    made = Game(folder, app, **changes)
    try:
        yield made
    finally:
        made.instances.stop(30.0)
    assert made.failures == []


def joined(*servers: Server) -> None:
    """Waits until these have joined the group: the first generation then places tasks on all of them."""
    for server in servers:
        assert server.address


def test_servers_wait_for_the_app_and_host_its_tasks(tmp_path: Path) -> None:
    with Server(tmp_path, "a") as a, Server(tmp_path, "b") as b:
        until(lambda: all("waits for the app 'game'" in each.errors() for each in (a, b)), "both wait")
        with game(tmp_path) as app:
            app.commit(1)
            joined(a, b)
            app.start()
            app.instances.wait_until_visible(app.driver.version)
            assert a.values("numbers", KEYS) == b.values("numbers", KEYS) == [*KEYS]
            assert sorted([*a.hosted(), *b.hosted()]) == ["0_0", "0_1", "0_2", "0_3"]
            until(lambda: len(app.rebalances) >= 2, "the rebalance is completed")
            assert app.rebalances[-1].phase is RebalancePhase.COMPLETED
            assert app.instances.rest_addresses == (a.addresses["rest"], b.addresses["rest"])


def test_a_server_that_joins_gets_replicas(tmp_path: Path) -> None:
    with Server(tmp_path, "a") as a, game(tmp_path, standbys=1) as app:
        app.commit(1)
        app.start()
        assert {*app.actives().values()} == {a.address}
        with Server(tmp_path, "b") as b:
            until(lambda: all(len(each) == 2 for each in app.instances.replicas().values()), "standbys on b")
            until(lambda: len(b.hosted()) == 4, "b hosts them")
            app.instances.wait_until_visible(app.driver.version)
            assert b.values("numbers", KEYS) == [*KEYS]


def test_a_killed_server_fails_no_read_and_its_standby_becomes_active(tmp_path: Path) -> None:
    with Server(tmp_path, "a") as a, Server(tmp_path, "b") as b, game(tmp_path, standbys=1) as app:
        app.commit(1)
        joined(a, b)
        app.start()
        until(lambda: len(a.hosted()) == len(b.hosted()) == 4, "both have all tasks")
        app.instances.wait_until_visible(app.driver.version)
        active, standby = (a, b) if app.actives()["0_0"] == a.address else (b, a)
        active.kill()
        assert standby.values("numbers", KEYS) == [*KEYS]
        until(lambda: {*app.actives().values()} == {standby.address}, "the standby is active for all")
        until(lambda: {*standby.hosted().values()} == {"active"}, "it knows")
        app.commit(2)
        app.instances.wait_until_visible(app.driver.version)
        assert standby.values("numbers", KEYS) == [2 * n for n in KEYS]


def test_a_server_that_returns_within_its_session_has_its_tasks_and_its_state(tmp_path: Path) -> None:
    often = {"STATE__FLUSH_VERSIONS": "1", "STATE__FLUSH_INTERVAL": "100ms"}
    with ExitStack() as stack:
        app = stack.enter_context(game(tmp_path, standbys=1))
        app.commit(1)
        with Server(tmp_path, "a", often) as a:
            b = stack.enter_context(Server(tmp_path, "b"))
            joined(a, b)
            app.start()
            until(lambda: len(a.hosted()) == 4, "it hosts all tasks")
            hosted = a.hosted()
            state = tmp_path / "base" / "game" / "state" / "a"
            until(lambda: len(list(state.glob("*/.checkpoint"))) == len(hosted), "its tasks are flushed")
            a.kill()
        with Server(tmp_path, "a", often) as a:
            app.instances.wait_until_visible(app.driver.version)
            until(lambda: a.hosted().keys() == hosted.keys(), "it hosts the same tasks")
            assert not [event for event in a.restores() if event.start_version == 0], "only what it has missed"
            app.commit(3)
            app.instances.wait_until_visible(app.driver.version)
            until(lambda: a.values("numbers", KEYS) == [3 * n for n in KEYS], "the server that returned has followed")
            assert b.values("numbers", KEYS) == [3 * n for n in KEYS]


def test_a_second_server_with_an_id_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    Driver(str(tmp_path / "log"), GAME)
    with Server(tmp_path, "a") as first:
        pid = first.addresses["pid"]
        with Server(tmp_path / "elsewhere", "a", log=tmp_path / "log") as second:
            code, errors = second.wait()
        assert code == 1
        assert f"instance 'a' (process {pid} on " in errors and "another --id" in errors
        with Server(tmp_path, "a") as third:
            code, errors = third.wait()
        assert code == 1
        assert f"held by instance 'a' (process {pid} on " in errors
        assert first.running


def test_an_instance_of_another_app_is_refused(tmp_path: Path) -> None:
    Driver(str(tmp_path / "log"), GAME)
    with Server(tmp_path, "a", app="other") as server:
        code, errors = server.wait()
    assert code == 1
    assert "is the log of the app 'game'" in errors


def test_a_frozen_server_is_not_waited_for(tmp_path: Path) -> None:
    with Server(tmp_path, "a") as a, Server(tmp_path, "b") as b, game(tmp_path, standbys=1) as app:
        app.commit(1)
        joined(a, b)
        app.start()
        until(lambda: len(a.hosted()) == len(b.hosted()) == 4, "both have all tasks")
        app.instances.wait_until_visible(app.driver.version)
        with a.frozen():
            assert b.values("numbers", KEYS) == [*KEYS]
            app.commit(2)
            app.instances.wait_until_visible(app.driver.version)
            assert b.values("numbers", KEYS) == [2 * n for n in KEYS]
            app.instances.due(app.driver.version)
        app.instances.wait_until_visible(app.driver.version)
        assert a.values("numbers", KEYS) == [2 * n for n in KEYS]


def test_a_frozen_server_loses_its_roles_before_its_session_ends_and_keeps_its_replicas(tmp_path: Path) -> None:
    """Its session has a minute. A freeze that is shorter than the driver's patience changes nothing."""
    with Server(tmp_path, "a") as a, Server(tmp_path, "b") as b, game(tmp_path, standbys=1) as app:
        app.commit(1)
        joined(a, b)
        app.start()
        storage, log = open_storage(str(tmp_path / "log")), app.driver.log.id
        generations = Generations(storage, log)

        def caught_up() -> int:
            """How many replicas are, as their heartbeats say."""
            return sum(
                hosted.running for each in Members(storage, log).read().values() for hosted in each.tasks.values()
            )

        until(lambda: caught_up() == 8, "both have all tasks")
        until(lambda: {*app.actives().values()} == {a.address, b.address}, "both are active for some")
        with a.frozen():
            time.sleep(2.0)
        restores, before = len(a.restores()), generations.follow()
        assert before is not None and "doesn't answer" not in before.reason
        with a.frozen():
            until(lambda: {*app.actives().values()} == {b.address}, "the standbys are asked")
            until(lambda: generations.follow() != before, "the next generation, in which they are active")
            assert (after := generations.follow()) is not None
            assert after.reason.startswith("a doesn't answer")
            assert after.members == before.members
            assert all(len(each) == 2 for each in app.instances.replicas().values()), "nothing has moved"
        until(lambda: not app.instances._coordinator.suspected, "it answers again")
        assert len(a.restores()) == restores


def test_without_a_driver_the_member_with_the_smallest_id_coordinates(tmp_path: Path) -> None:
    short = {"GROUP__SESSION_TIMEOUT": "2s"}
    with Server(tmp_path, "a", short) as a, Server(tmp_path, "b", short) as b:
        with game(tmp_path) as app:
            app.commit(5)
            joined(a, b)
            app.start()
            until(lambda: len(app.instances.rest_addresses) == 2, "both are members")
            gone, left = (a, b) if app.actives()["0_0"] == a.address else (b, a)
        gone.kill()
        until(lambda: [*left.hosted().values()] == ["active"] * 4, "the other one has taken over all tasks")
        generations = Generations(open_storage(str(tmp_path / "log")), app.driver.log.id)
        assert (newest := generations.follow()) is not None
        assert newest.proposer == left.id
        until(lambda: left.values("numbers", KEYS) == [5 * n for n in KEYS], "it answers")


def test_a_member_with_an_address_that_is_none_keeps_no_other_one_from_being_called(tmp_path: Path) -> None:
    with game(tmp_path) as app:
        absurd = Generation(
            log=app.driver.log.id,
            number=1,
            id="absurd",
            before="",
            proposer="",
            reason="",
            app_file=1,
            members={id: Address(incarnation=1, flight=flight) for id, flight in (("a", "?"), ("b", "grpc://[::1]:1"))},
            tasks={"0_0": Place(active="a", standbys=("b",))},
        )
        app.instances._on_generation(absurd)
        assert [*app.instances._contacts] == ["b"]
        assert app.instances.replicas() == {"0_0": ("grpc://[::1]:1",)}


def test_the_state_says_that_the_driver_is_gone_until_another_one_is_there(tmp_path: Path) -> None:
    with Server(tmp_path, "a", {"GROUP__SESSION_TIMEOUT": "2s"}) as a:

        def state(field: str = "state") -> object:
            return httpx2.get(f"{a.addresses['rest']}/v1/state").json()[field]

        for _ in range(2):
            with game(tmp_path) as app:
                app.commit(1)
                joined(a)
                app.start()
                app.instances.set_app_state(AppState.RUNNING, None, "http://127.0.0.1:9/metrics")
                until(lambda: state() == "running", "the driver has said so")
                assert state("driver_metrics") == "http://127.0.0.1:9/metrics"
            until(lambda: state() == "no_driver", "nobody makes versions any more")
            assert state("driver_metrics") is None


def test_a_bad_assignor_of_a_user_is_one_alert(tmp_path: Path) -> None:
    with Server(tmp_path, "a") as a, game(tmp_path, assignor="tests.group.own_assignors:raises") as app:
        app.commit(1)
        joined(a)
        app.start()
        with Server(tmp_path, "b") as b:
            until(lambda: len(b.hosted()) > 0, "the built-in assignor has decided again and again")
        (alert,) = app.alerts
        assert "it raised ValueError: no idea" in str(alert)


def test_a_server_that_is_started_answers_as_soon_as_it_accepts_connections(tmp_path: Path) -> None:
    port = free_port()
    with (
        Server(tmp_path, "a") as a,
        game(tmp_path) as app,
        socket.create_server(("127.0.0.1", 0)) as silent,  # the former holder of its id doesn't say that it has ended
    ):
        app.commit(1)
        joined(a)
        app.start()
        app.instances.wait_until_visible(app.driver.version)
        place = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        former = Member(log=app.driver.log.id, id="b", incarnation=1, process="former", beat=1, address=place)
        members.write(open_storage(str(tmp_path / "log")), former)
        with Server(tmp_path, "b", {"REST__PORT": str(port)}) as b:
            while (asking := connected(port)) is None:
                time.sleep(0.001)  # the first moment counts
            with asking:
                asking.sendall(b"GET /v1/stores/numbers/keys/7 HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n")
                assert asking.recv(12) == b"HTTP/1.1 200", b.errors()


def connected(port: int) -> socket.socket | None:
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=60)
    except ConnectionRefusedError:
        return None


def test_two_processes_under_one_id_are_told_apart_also_if_they_have_the_same_pid(tmp_path: Path) -> None:
    """As in two containers. Here one process has both instances."""
    Driver(str(tmp_path / "log"), GAME)
    made = [config(tmp_path / n, "a", ()) for n in ("x", "y")]
    first, second = (Instance(msgspec.structs.replace(each, log_url=str(tmp_path / "log"))) for each in made)
    with running(first, second):
        member = GroupMember(first)
        with pytest.raises(IdInUse, match=f"process {os.getpid()} on "):
            GroupMember(second)
        member.stop()
        GroupMember(second).stop()


def test_servers_follow_a_release_that_adds_a_store(tmp_path: Path) -> None:
    more = msgspec.structs.replace(STORE, name="more")
    release = AppSpec(
        id="game", partitions=4, stores=(STORE, more), subtopologies=subtopologies_of({"numbers": 0, "more": 0})
    )
    with Server(tmp_path, "a") as a, ExitStack() as stack:
        with game(tmp_path) as app:
            app.commit(1)
            app.start()
        app = stack.enter_context(game(tmp_path, release))
        app.start()
        app.driver.commit(more, {(n,): 7 * n for n in KEYS})
        app.instances.committed(app.driver.point)
        app.instances.wait_until_visible(app.driver.version)
        assert a.values("more", KEYS) == [7 * n for n in KEYS]
        assert a.values("numbers", KEYS) == [*KEYS]


def test_a_driver_that_finds_all_tasks_where_they_were_starts_no_rebalance(tmp_path: Path) -> None:
    with Server(tmp_path, "a") as a:
        with game(tmp_path) as app:
            app.commit(1)
            joined(a)
            app.start()
            until(lambda: app.rebalances[-1].phase is RebalancePhase.COMPLETED, "the first assignment is completed")
            assert all(move.source is None for move in app.rebalances[0].moves)
        with game(tmp_path) as app:
            app.start()
            assert {*app.actives().values()} == {a.address}
            assert app.rebalances == []
