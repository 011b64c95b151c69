"""Instances as servers: they find their app through its log, host what generations name, and replace each other."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.group.generations import Generations
from holdfast.group.rebalances import RebalanceEvent, RebalancePhase
from holdfast.group_instances import GroupInstances
from holdfast.log.appfile import AppSpec
from holdfast.log.storage import open_storage
from holdfast.settings.group import GroupSettings
from holdfast.settings.sections import LogSettings
from tests.apps import settings
from tests.group.servers import Server
from tests.instance.processes import until
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import NUMBERS
from tests.query.instances import Driver

STORE = msgspec.structs.replace(NUMBERS, engine="rocksdb")
GAME = AppSpec(id="game", partitions=4, stores=(STORE,), subtopologies=subtopologies_of({"numbers": 0}))
KEYS = range(12)


class Game:
    """An app without Spark: it commits versions, and drives the group as an app does."""

    def __init__(self, folder: Path, app: AppSpec = GAME, **changes: Any) -> None:
        self.rebalances: list[RebalanceEvent] = []
        self.failures: list[BaseException] = []
        self.driver = Driver(str(folder / "log"), app)
        group = GroupSettings(heartbeat_interval="200ms", session_timeout=changes.pop("session_timeout", "60s"))
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
        )

    def start(self) -> None:
        self.instances.assign(self.driver.log.app.tasks())
        self.instances.wait_until_ready(self.driver.version)

    def commit(self, factor: int) -> None:
        """The value of each key is the key times a factor."""
        self.instances.committed(self.driver.commit(STORE, {(n,): n * factor for n in KEYS}))

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


@pytest.mark.parametrize("standbys", [0, 1])
def test_sigterm_hands_the_tasks_over_first(tmp_path: Path, standbys: int) -> None:
    with Server(tmp_path, "a") as a, Server(tmp_path, "b") as b, game(tmp_path, standbys=standbys) as app:
        app.commit(1)
        joined(a, b)
        app.start()
        app.instances.wait_until_visible(app.driver.version)
        a.terminate()
        while a.running:
            assert b.values("numbers", KEYS) == [*KEYS]
        code, errors = a.wait()
        assert code == 0, errors
        assert {*app.actives().values()} == {b.address}
        assert b.values("numbers", KEYS) == [*KEYS]
        until(lambda: all(len(each) == 1 for each in app.instances.replicas().values()), "a has left")


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
        app.instances.committed(app.driver.commit(more, {(n,): 7 * n for n in KEYS}))
        app.instances.wait_until_visible(app.driver.version)
        assert a.values("more", KEYS) == [7 * n for n in KEYS]
        assert a.values("numbers", KEYS) == [*KEYS]
