"""`holdfast group`, on a log whose group was made by the real members and the real coordinator."""

import io
import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from holdfast import group_command
from holdfast.cli import app as command
from holdfast.clock import ManualClock
from holdfast.errors import HoldfastError
from holdfast.group import members
from holdfast.group.assignor import assign
from holdfast.group.candidates import Wanted
from holdfast.group.coordinator import Coordinator, Needs
from holdfast.group.failure_detector import FailureDetector
from holdfast.group.generations import Generation, Rules
from holdfast.group.members import Hosted, Member, MemberState
from holdfast.group.membership import Membership, Status
from holdfast.group.overview import Watch
from holdfast.group_command import AppMissing, GroupReader, Target, keep_looking
from holdfast.log import names
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.query_connection import Connection
from holdfast.words import Version
from tests.log.making import app_spec, grow

GIB = 1 << 30


class Cluster:
    """A log in a folder, with instances that are members of its group."""

    def __init__(self, folder: Path, partitions: int = 2) -> None:
        self.storage = open_storage(str(folder / "log"), fsync=False)
        self.log = Log.create_or_open(self.storage, app_spec(partitions=partitions))
        grow(self.log, 20)
        self.url = str(folder / "log")
        self.hosted: dict[str, Mapping[str, Hosted]] = {}
        self.memberships: dict[str, Membership] = {}
        self.generation = 0
        self.pace = 0.0

    def join(self, id: str, **tasks: Hosted) -> None:
        self.hosted[id] = {name.removeprefix("t"): hosted for name, hosted in tasks.items()}
        member = Member(
            log=self.log.id, id=id, incarnation=1, process=f"p-{id}", beat=0, address=f"grpc://{id}:7070", host="h",
            tags={"zone": id}, rest=f"http://{id}:8080",
        )  # fmt: skip
        status = lambda: Status(  # noqa: E731
            state=MemberState.JOINED, generation=self.generation, tasks=self.hosted[id], pace=self.pace
        )
        self.memberships[id] = Membership.join(self.storage, member, status, lambda holder: False)

    def coordinate(self, rules: Rules) -> Generation:
        detector = FailureDetector(1.0, 10.0)
        coordinator = Coordinator(self.storage, self.log.id, "driver", detector, assign, rules, self.log.new_id)
        tasks = [Wanted(task=task) for task in self.log.app.tasks()]
        needs = Needs(app_file=1, tasks=tasks, newest=Version(20))
        for now in (0.0, 1.0):
            coordinator.look(now)
            if (proposed := coordinator.propose(needs)) is not None:
                self.generation, found = proposed.number, proposed
            self.beat()
        return found

    def beat(self, *ids: str) -> None:
        for id in ids or self.memberships:
            self.memberships[id].beat()

    @contextmanager
    def beating(self, *ids: str) -> Iterator[None]:
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(0.02):
                self.beat(*ids)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("HOLDFAST_GROUP__HEARTBEAT_INTERVAL", "1s")
    monkeypatch.chdir(tmp_path)
    return Cluster(tmp_path)


def run(cluster: Cluster, *arguments: str, app: str = "scores") -> Result:
    return CliRunner().invoke(command, ["group", "--app", app, "--log", cluster.url, *arguments])


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def a_group(cluster: Cluster) -> None:
    cluster.join("a", t0_0=Hosted(version=20, running=True, bytes=3 * GIB, load=90, heavy=("ann", "bo\x1b[2Jb")))
    cluster.join("b", t0_1=Hosted(version=5, running=False, bytes=1 * GIB, load=30))
    cluster.coordinate(Rules())


def test_members_and_tasks_are_shown_with_what_they_have(cluster: Cluster) -> None:
    a_group(cluster)
    with cluster.beating():
        done = run(cluster)
    assert done.exit_code == 0, done.output
    assert "at version 20, generation 1 by driver (the first assignment, to a, b" in done.output
    (a,) = [row for row in rows(done.output) if row[:2] == ["a", "joined"]]
    assert a[3:] == ["s", "ago", "1", "0", "0", "3.00", "GiB", "90", "zone=a", "grpc://a:7070", "http://a:8080"]
    assert ["0_0", "active", "a", "running", "20", "0", "3.00", "GiB", "90"] in rows(done.output)
    assert ["0_1", "active", "b", "restoring", "5", "15", "1.00", "GiB", "30"] in rows(done.output)


def test_skew_names_the_heaviest_tasks_and_keys(cluster: Cluster) -> None:
    a_group(cluster)
    with cluster.beating():
        done = run(cluster)
    keys = "0_0 (3.00 GiB, 90 reads/s, heaviest keys ann, bo?[2Jb)"
    assert f"size skew 1.50: a has 3.00 GiB, the mean is 2.00 GiB; its heaviest tasks: {keys}" in done.output
    assert "load skew 1.50: a has 90 reads/s, the mean is 60 reads/s" in done.output


def test_loads_are_shown_when_they_are_measured(cluster: Cluster) -> None:
    cluster.join("a", t0_0=Hosted(version=20, running=True, bytes=3 * GIB))
    cluster.join("b", t0_1=Hosted(version=20, running=True, bytes=1 * GIB))
    cluster.coordinate(Rules())
    with cluster.beating():
        done, shown = run(cluster), json.loads(run(cluster, "--json").output)
    assert ["0_0", "active", "a", "running", "20", "0", "3.00", "GiB", "-"] in rows(done.output)
    assert "size skew 1.50: a has 3.00 GiB, the mean is 2.00 GiB; its heaviest tasks: 0_0 (3.00 GiB)" in done.output
    assert "load skew" not in done.output
    assert ([row["load"] for row in shown["members"]], list(shown["skew"])) == ([None, None], ["size"])


def test_one_member_alone_has_no_skew(cluster: Cluster) -> None:
    cluster.join("a", t0_0=Hosted(version=20, running=True, bytes=3 * GIB, load=90))
    cluster.coordinate(Rules())
    with cluster.beating():
        assert "skew" not in run(cluster).output


def test_a_large_state_without_a_standby_is_one_warning(cluster: Cluster) -> None:
    a_group(cluster)
    with cluster.beating():
        done, quiet = run(cluster), run(cluster, "--warn-above", "4GiB")
    (warning,) = [line for line in done.output.splitlines() if line.startswith("warning")]
    assert "tasks on a without a standby: 1, 3.00 GiB together" in warning
    assert "for about 1 m 1 s, at 50.00 MiB/s of restore. Set standbys = 1 or more." in warning
    assert "warning" not in quiet.output


def test_a_standby_that_is_missing_is_a_warning_whatever_the_size(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_GROUP__HEARTBEAT_INTERVAL", "200ms")
    small = Hosted(version=20, running=True, bytes=1 << 20)
    cluster.join("a", t0_0=small, t0_1=small)
    cluster.join("b", t0_0=small, t0_1=small)
    cluster.coordinate(Rules(standbys=1))
    with cluster.beating():
        assert "warning" not in run(cluster).output
    with cluster.beating("a"):  # the other one is silent
        (warning,) = [line for line in run(cluster).output.splitlines() if line.startswith("warning")]
    assert "tasks on a without a standby: 1, 1.00 MiB together. If a is lost with its disk, " in warning
    assert "for less than a second, at 50.00 MiB/s of restore. Start more instances: standbys = 1 needs 2." in warning


def test_standbys_that_others_will_restore_need_no_more_instances(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_GROUP__HEARTBEAT_INTERVAL", "200ms")
    small = Hosted(version=20, running=True, bytes=1 << 20)
    for id in "abc":
        cluster.join(id, t0_0=small, t0_1=small)
    placed = cluster.coordinate(Rules(standbys=1))
    gone = placed.tasks["0_0"].standbys[0]
    with cluster.beating(*sorted({"a", "b", "c"} - {gone})):
        (warning,) = [line for line in run(cluster).output.splitlines() if line.startswith("warning")]
    assert f"{gone} may be back; if not, other instances restore" in warning


def test_a_member_whose_heartbeat_does_not_change_is_silent(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_GROUP__HEARTBEAT_INTERVAL", "200ms")
    a_group(cluster)
    with cluster.beating("a"):
        done = run(cluster, "--json")
    shown = json.loads(done.output)
    found = {row["id"]: row for row in shown["members"]}
    assert (found["a"]["state"], found["a"]["beat"]["alive"]) == ("joined", True)
    assert (found["b"]["state"], found["b"]["beat"]["alive"]) == ("silent", False)
    assert {row["member"]: row["state"] for row in shown["replicas"]} == {"a": "running", "b": "silent"}


def test_json_has_everything(cluster: Cluster) -> None:
    a_group(cluster)
    with cluster.beating():
        shown = json.loads(run(cluster, "--json").output)
    assert shown["version"] == 20
    assert shown["generation"]["number"] == 1
    assert [(row["task"], row["member"], row["lag"]) for row in shown["replicas"]] == [
        ("0_0", "a", 0),
        ("0_1", "b", 15),
    ]
    assert shown["skew"]["size"]["ratio"] == 1.5
    assert len(shown["warnings"]) == 1


def test_explain_prints_why_each_task_is_where_it_is(cluster: Cluster) -> None:
    a_group(cluster)
    with cluster.beating():
        done = run(cluster, "explain")
        one = CliRunner().invoke(command, ["group", "explain", "0_1", "--app", "scores", "--log", cluster.url])
    assert done.output.startswith("generation 1, by driver: the first assignment, to a, b")
    assert "0_0  active on a: caught up at version 20" in done.output
    assert "0_1  active on b: " in one.output
    assert "0_0" not in one.output


def test_explain_also_says_what_has_become_of_the_replicas_since(cluster: Cluster) -> None:
    a_group(cluster)
    with cluster.beating():
        before = json.loads(run(cluster, "explain", "0_1", "--json").output)["0_1"]
        cluster.hosted["b"] = {"0_1": Hosted(version=20, running=True)}
        cluster.beat("b")
        done = run(cluster, "explain", "0_1")
    assert before["now"] == "active on b: restoring at version 5, 15 behind"
    assert before["why"] in done.output, "the generation is the same"
    assert "now: active on b: running at version 20\n" in done.output


def test_a_task_that_does_not_exist_is_an_error(cluster: Cluster) -> None:
    a_group(cluster)
    done = run(cluster, "explain", "0_7")
    assert isinstance(done.exception, HoldfastError)
    assert "The newest generation has no task '0_7'." in str(done.exception)


def test_an_empty_group_says_so(cluster: Cluster) -> None:
    done = run(cluster)
    assert "No members yet: no instance has written a heartbeat to this log." in done.output
    assert "No generation yet: no task has a place." in done.output
    assert "No generation yet" in run(cluster, "explain").output


def test_another_apps_log_is_an_error(cluster: Cluster) -> None:
    done = run(cluster, app="game")
    assert "belongs to the app 'scores', and --app says 'game'." in str(done.exception)


def test_a_member_of_another_log_is_left_out_with_a_warning(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    stranger = Member(log="other", id="x", incarnation=1, process="p", beat=1, address="grpc://x:1")
    members.write(cluster.storage, stranger)
    done = run(cluster)
    assert "No members yet" in done.output
    assert names.member("x") in caplog.text


def test_app_and_log_come_from_the_environment_or_from_the_folder(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_group(cluster)
    app = cluster.log.app.id

    def invoke(*more: str) -> Result:
        return CliRunner().invoke(command, ["group", *more, "--json"])

    monkeypatch.chdir(tmp_path)
    with pytest.raises(AppMissing, match=r"Which app\? ./.holdfast has no app. Write --app ID or set HOLDFAST_APP"):
        raise invoke().exception or AssertionError
    monkeypatch.setenv("HOLDFAST_APP", app)
    monkeypatch.setenv("HOLDFAST_LOG", cluster.url)
    assert invoke().exit_code == 0
    assert invoke("--app", "another").exit_code == 1, "an option wins"
    monkeypatch.delenv("HOLDFAST_APP")
    monkeypatch.delenv("HOLDFAST_LOG")
    shutil.copytree(cluster.url, tmp_path / ".holdfast" / app / "log")
    assert invoke().exit_code == 0, "the only app of the folder"
    for found in (Connection(), Connection(log=cluster.url)):
        assert sorted(found.addresses()) == ["http://a:8080", "http://b:8080"], "queries find its instances too"
    (tmp_path / ".holdfast" / "zoo" / "log").mkdir(parents=True)
    with pytest.raises(AppMissing, match=rf"has the apps {app}, zoo\. Write --app ID"):
        raise invoke().exception or AssertionError


class Looks(ManualClock):
    """Between two looks a member beats, the first few times; after the last look, someone presses Ctrl-C."""

    def __init__(self, cluster: Cluster, *, looks: int, beats: int) -> None:
        super().__init__()
        self.cluster = cluster
        self.left, self.beats = looks, beats

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.beats:
            self.cluster.beat("a")
            self.beats -= 1
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def watched(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *, looks: int, beats: int, is_terminal: bool = True
) -> list[str]:
    """What `--watch` shows at each look."""
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=is_terminal, color_system=None, width=200, height=50)
    monkeypatch.setattr(group_command, "_console", lambda: terminal)
    clock = Looks(cluster, looks=looks, beats=beats)
    keep_looking(GroupReader(Target("scores", cluster.url, None), large=GIB, restore_rate=GIB, clock=clock))
    assert clock.left == 0
    return screen.getvalue().split(" at version ")[1:]


def test_watch_keeps_looking_until_ctrl_c(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    a_group(cluster)
    first, *_, last = watched(cluster, monkeypatch, looks=3, beats=3)
    assert first.count("not seen yet") == 2
    assert last.count("0.0 s ago") == 1, "a has changed since"
    assert last.count("not seen yet") == 1, "b hasn't"


def test_watch_prints_to_a_pipe_what_has_changed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing changes from the second look on, but the age of heartbeats, until they should have come again."""
    a_group(cluster)
    shown = watched(cluster, monkeypatch, looks=12, beats=1, is_terminal=False)
    assert [(each.count("not seen yet"), each.count("s ago")) for each in shown] == [(2, 0), (1, 1)]
    assert "\x1b" not in "".join(shown)
    assert ["0_0", "active", "a", "running", "20", "0", "3.00", "GiB", "90"] in rows(shown[-1])


def test_watch_prints_to_a_terminal_that_cannot_redraw(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    a_group(cluster)
    shown = watched(cluster, monkeypatch, looks=12, beats=1)
    assert [(each.count("not seen yet"), each.count("s ago")) for each in shown] == [(2, 0), (1, 1)]
    assert "\x1b" not in "".join(shown)


def test_watch_shows_a_member_as_silent_only_when_it_should_have_beaten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks ten times per interval, and waits for one interval and a half."""
    a_group(cluster)
    shown = watched(cluster, monkeypatch, looks=40, beats=20)
    silent = [[line.split()[0] for line in each.splitlines() if "none for" in line] for each in shown]
    assert silent[:15] == [[]] * 15
    assert silent[16:34] == [["b"]] * 18
    assert silent[36:40] == [["a", "b"]] * 4, "a has beaten for two intervals, and then no more"
    assert "silent" not in "".join(shown[:15])


def test_a_member_is_silent_by_its_own_interval_and_not_by_that_of_the_one_who_looks() -> None:
    def beat(number: int, pace: float) -> dict[str, Member]:
        return {"a": Member(log="l", id="a", incarnation=1, process="p", beat=number, address="grpc://a:1", pace=pace)}

    slow, absurd = Watch(interval=0.2), Watch(interval=0.2)
    slow.look(0.0, beat(1, 3.0))
    assert not slow.beat("a", 4.0).silent and slow.beat("a", 4.6).silent
    absurd.look(0.0, beat(1, 1e12))
    assert absurd.patience == 90.0
