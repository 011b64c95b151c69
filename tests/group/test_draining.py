"""`holdfast group drain`: real servers hand their tasks over while they run and answer, and can have them back."""

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli import app as command
from holdfast.group.generations import Generations, Rules
from holdfast.group.members import Hosted
from holdfast.log.storage import open_storage
from holdfast.operating_command import NobodyTakesOver, UnknownMember
from tests.group.servers import Server
from tests.group.test_group_command import Cluster, a_group, cluster, run
from tests.group.test_servers import KEYS, Game, game, joined
from tests.instance.processes import until

__all__ = ["cluster"]


def drain(folder: Path, *arguments: str) -> str:
    done = CliRunner().invoke(command, ["group", "drain", *arguments, "--app", "game", "--log", str(folder / "log")])
    assert done.exit_code == 0, done.output
    return done.output


def hosts(app: Game, folder: Path, id: str) -> int:
    """How many replicas the newest generation has on an instance."""
    found = Generations(open_storage(str(folder / "log")), app.driver.log.id).follow()
    assert found is not None
    return len(found.hosted_by(id))


def test_a_drained_server_runs_on_without_tasks_and_fails_no_read(tmp_path: Path) -> None:
    with ExitStack() as stack:
        a, b = (stack.enter_context(Server(tmp_path, id)) for id in ("a", "b"))
        app = stack.enter_context(game(tmp_path))
        app.commit(1)
        joined(a, b)
        app.start()
        app.instances.wait_until_visible(app.driver.version)
        until(lambda: hosts(app, tmp_path, "b") == 2, "both have tasks")
        reading, failures = threading.Event(), list[BaseException]()

        def read() -> None:
            try:
                while not reading.is_set():
                    assert b.values("numbers", KEYS) == [*KEYS]
            except BaseException as error:  # noqa: BLE001  it is compared below
                failures.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        said = drain(tmp_path, "b", "--note", "its disk is replaced")
        assert "b hosts no task and can be stopped" in said
        assert hosts(app, tmp_path, "b") == 0
        until(lambda: b.hosted() == {}, "it has dropped its tasks")
        reading.set()
        reader.join()
        assert failures == []
        assert b.running
        until(lambda: len(a.hosted()) == 4, "the other one has all")
        app.commit(2)
        app.instances.wait_until_visible(app.driver.version)
        assert b.values("numbers", KEYS) == [2 * n for n in KEYS]
        assert "b may host tasks again" in drain(tmp_path, "b", "--undo")
        until(lambda: hosts(app, tmp_path, "b") == 2, "it has tasks again")


def test_the_group_shows_who_is_drained_and_the_command_need_not_wait(cluster: Cluster) -> None:
    a_group(cluster)
    said = run(cluster, "drain", "b", "--no-wait")
    assert said.exit_code == 0, said.output
    assert (
        "b hands its tasks over. To have it host tasks again: holdfast group drain b --undo --app scores" in said.output
    )
    with cluster.beating():
        shown = run(cluster)
    assert [line.split()[1] for line in shown.output.splitlines() if line.startswith(("a ", "b "))] == [
        "joined",
        "draining",
    ]
    run(cluster, "drain", "b", "--undo")
    with cluster.beating():
        assert "draining" not in run(cluster).output


def test_a_drain_says_how_many_tasks_have_no_standby_now(cluster: Cluster) -> None:
    caught_up = Hosted(version=20, running=True)
    for id in "abc":
        cluster.join(id, t0_0=caught_up, t0_1=caught_up)
    cluster.coordinate(Rules(standbys=1))
    run(cluster, "drain", "c", "--no-wait")
    while cluster.coordinate(Rules(standbys=1)).hosted_by("c"):
        pass
    assert "standby" not in run(cluster, "drain", "c").output, "two are left"
    run(cluster, "drain", "b", "--no-wait")
    while cluster.coordinate(Rules(standbys=1)).hosted_by("b"):
        pass
    said = "2 tasks have no standby now: standbys = 1 needs 2 instances that aren't drained. Start more."
    assert said in run(cluster, "drain", "b").output


def test_an_unknown_instance_is_refused_with_the_nearest_name(cluster: Cluster) -> None:
    cluster.join("game-1")
    with pytest.raises(UnknownMember, match=r"No instance 'game_1' has joined the group in .*game-1") as refused:
        raise run(cluster, "drain", "game_1").exception or AssertionError("it wasn't refused")
    assert "`holdfast group` prints all of them." in str(refused.value)


def test_a_drain_that_nobody_could_take_over_ends_with_the_reason(cluster: Cluster) -> None:
    cluster.pace = 0.2
    a_group(cluster)
    with cluster.beating("b"), pytest.raises(NobodyTakesOver, match=r"b has \d replicas.*: a wrote no heartbeat"):
        raise run(cluster, "drain", "b").exception or AssertionError("it was handed over")
    run(cluster, "drain", "a", "--no-wait")
    with pytest.raises(NobodyTakesOver, match="all others have left, or are drained too"):
        raise run(cluster, "drain", "b").exception or AssertionError("it was handed over")


def test_a_mistyped_id_is_refused_also_where_a_drain_is_undone(cluster: Cluster) -> None:
    cluster.join("game-1")
    with pytest.raises(UnknownMember, match="game-1"):
        raise run(cluster, "drain", "game_1", "--undo").exception or AssertionError("it wasn't refused")


def test_a_second_pause_without_a_note_keeps_the_first_one(cluster: Cluster) -> None:
    run(cluster, "pause", "--note", "the disk is replaced")
    said = run(cluster, "pause").output
    assert said.startswith("scores was paused already by ")
    assert said.splitlines()[0].endswith(": the disk is replaced.")
    assert "To go on: holdfast group resume --app scores" in said
    assert "the disk is replaced" in run(cluster).output
    again = run(cluster, "pause", "--note", "it takes longer").output.splitlines()
    assert again[0].endswith(": the disk is replaced.") and "is paused by" in again[1]
    assert "it takes longer" in run(cluster).output
