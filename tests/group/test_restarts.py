"""Servers that are told to end: they hand over what is read, and find their tasks again if they return in time."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.group.generations import Generations
from holdfast.log.storage import open_storage
from tests.group.servers import Server
from tests.group.test_servers import KEYS, game, joined
from tests.instance.processes import until


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


def test_a_server_that_left_for_good_is_replaced_after_its_session(tmp_path: Path) -> None:
    with ExitStack() as stack:
        a, b, c = (stack.enter_context(Server(tmp_path, id)) for id in "abc")
        app = stack.enter_context(game(tmp_path, standbys=1, session_timeout="3s"))
        app.commit(1)
        joined(a, b, c)
        app.start()
        a.terminate()
        assert a.wait()[0] == 0
        both = {b.address, c.address}
        until(lambda: all({*each} == both for each in app.instances.replicas().values()), "two replicas of each task")
        until(lambda: len(b.hosted()) == len(c.hosted()) == 4, "they host them")
        assert b.values("numbers", KEYS) == c.values("numbers", KEYS) == [*KEYS]


def test_a_planned_restart_moves_nothing(tmp_path: Path) -> None:
    """SIGTERM, and a start within the session: the others restore nothing, and the server has its tasks again."""
    with ExitStack() as stack:
        app = stack.enter_context(game(tmp_path, standbys=1))
        app.commit(1)
        b, c = (stack.enter_context(Server(tmp_path, id)) for id in "bc")
        reader = Generations(open_storage(str(tmp_path / "log")), app.driver.log.id)

        def hosts() -> dict[str, set[str]]:
            newest = reader.follow()
            assert newest is not None
            return {task: {*place.members} for task, place in newest.tasks.items()}

        with Server(tmp_path, "a") as a:
            joined(a, b, c)
            app.start()
            until(lambda: sum(each.caught_up() for each in (a, b, c)) == 8, "each task is there twice")
            until(lambda: "active" in a.hosted().values(), "it is active for some")
            before, hosted = hosts(), a.hosted()
            restores = [len(each.restores()) for each in (b, c)]
            a.terminate()
            assert a.wait()[0] == 0
        assert not {*app.actives().values()} - {b.address, c.address}, "others are active for all"
        assert hosts() == before
        with Server(tmp_path, "a") as a:
            until(lambda: a.hosted().keys() == hosted.keys(), "it hosts the same tasks")
            until(lambda: "active" in a.hosted().values(), "it is active again")
            assert hosts() == before
            assert [len(each.restores()) for each in (b, c)] == restores


def test_servers_that_are_stopped_at_once_wait_for_nobody(tmp_path: Path) -> None:
    for_long = {"GROUP__DRAIN_TIMEOUT": "1h"}
    with Server(tmp_path, "a", for_long) as a, Server(tmp_path, "b", for_long) as b, game(tmp_path) as app:
        app.commit(1)
        joined(a, b)
        app.start()
        until(lambda: len(a.hosted()) == len(b.hosted()) == 2, "both have tasks")
        a.terminate()
        b.terminate()
        assert [server.wait()[0] for server in (a, b)] == [0, 0]
