"""How fresh an answer is: what a request may demand, and what replicas that aren't as fresh answer."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from holdfast import metrics
from holdfast.clock import Clock, ManualClock
from holdfast.errors import HoldfastError
from holdfast.instance.instance import Instance
from holdfast.instance.looks import Looks
from holdfast.instance.messages import InstanceUnavailable
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import Commit
from holdfast.query.freshness import ANY, LATEST, Freshness, freshness_of, needs_of, newest_at
from holdfast.query.problems import Problem
from holdfast.query.service import RestService
from holdfast.query.task_reader import ANY_REPLICA, NotFresh, ReadNeeds, VersionGone
from holdfast.stores.engines.base import FIRST_KEY
from holdfast.words import Millis, TaskId, Version
from tests.instance.processes import until
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import APP, LEVELS, NUMBERS, FakeTask, World, served
from tests.query.instances import Driver, Group, config, know_each_other, started

STORE = msgspec.structs.replace(NUMBERS, engine="rocksdb")
GAME = AppSpec(id="game", partitions=2, stores=(STORE,), subtopologies=subtopologies_of({"numbers": 0}))
KEYS = range(12)


class Versions:
    """Versions that were committed at these times."""

    def __init__(self, walls: list[int], clock: Clock | None = None) -> None:
        self._walls = walls
        self.looks = Looks(clock or ManualClock())
        self.looks.looked(self.looks.now())

    @property
    def newest_known(self) -> Version:
        return Version(len(self._walls))

    def commit(self, version: Version) -> Commit | None:
        clocks: dict[str, Any] = {"wall": self._walls[version - 1], "event": None, "sources": {}}
        writer = {"id": "d", "host": "h", "pid": 1, "epoch": 1}
        members = {"version": version, "id": "c", "previous": None, "log": "l", "app": 1, "clocks": clocks}
        return msgspec.convert({**members, "spark": None, "segments": {}, "counts": {}, "writer": writer}, Commit)


def test_a_request_that_says_nothing_takes_what_the_nearest_replica_has() -> None:
    assert freshness_of({}) is ANY
    assert needs_of(ANY, Versions([1, 2]), ManualClock(Millis(0))) is ANY_REPLICA


@pytest.mark.parametrize(("time", "version"), [(0, 0), (99, 0), (100, 1), (250, 2), (299, 2), (300, 3), (10_000, 3)])
def test_the_version_that_was_the_newest_at_a_time(time: int, version: int) -> None:
    assert newest_at(time, Versions([100, 200, 300])) == version


@pytest.mark.parametrize(
    ("given", "at_least"),
    [
        ({"max_lag": "0"}, 3),
        ({"max_lag": "2"}, 1),
        ({"max_lag": "9"}, 0),
        ({"max_lag": "100ms"}, 3),
        ({"max_lag": "150ms"}, 2),
        ({"max_lag": "1h"}, 0),
        ({"at_least": "2", "max_lag": "2"}, 2),
        ({"at_least": "2", "max_lag": "0"}, 3),
    ],
)
def test_what_a_request_demands_is_the_oldest_version_that_will_do(given: dict[str, str], at_least: int) -> None:
    clock = ManualClock(Millis(400))
    assert needs_of(freshness_of(given), Versions([100, 200, 300]), clock).at_least == at_least


def test_a_lag_in_time_cannot_be_kept_without_a_look_at_the_log() -> None:
    """An instance that is cut off doesn't know what has been committed since."""
    clock = ManualClock(Millis(400))
    versions = Versions([100, 200, 300], clock)
    clock.advance(4)
    assert needs_of(freshness_of({"max_lag": "5s"}), versions, clock).at_least == 0
    clock.advance(2)
    with pytest.raises(NotFresh, match=r"last read the log 6\.0 seconds ago"):
        needs_of(freshness_of({"max_lag": "5s"}), versions, clock)
    assert needs_of(freshness_of({"max_lag": "1"}), versions, clock).at_least == 2


@pytest.mark.parametrize("skew", [-600, 600])
def test_a_lag_in_time_is_kept_although_the_clocks_of_two_machines_differ(skew: int) -> None:
    """The commits' times are ten minutes before or after those of the instance that is asked."""
    clock = ManualClock(Millis(1_000_000))
    walls: list[int] = []
    versions = Versions(walls, clock)
    for version in range(1, 6):
        clock.advance(1)
        walls.append(clock.now() + skew * 1000)
        versions.looks.learned(Version(version))
    versions.looks.looked(clock.monotonic())
    clock.advance(1)
    found = needs_of(freshness_of({"max_lag": "2s"}), versions, clock).at_least
    assert found == (4 if skew > 0 else 5)  # of times that are long ago, the newest version is demanded


@pytest.mark.parametrize(
    "given",
    [
        {"require": "standby"},
        {"max_lag": "-1"},
        {"max_lag": "soon"},
        {"at_least": "latest"},
        {"at": "-1"},
        {"at": "newest"},
        {"at": "1" * 19},
        {"wait": "31s"},
        {"wait": "2"},
    ],
)
def test_what_cannot_be_used_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(Problem, match=next(iter(given))) as caught:
        freshness_of(given)
    assert (caught.value.status, caught.value.error) == (400, "bad_parameter")


def test_latest_never_mixes_versions() -> None:
    """One task is ahead by more versions than replicas keep, so that no version is common to all."""
    world = World()
    world.commit(1, NUMBERS, {(n,): 1 for n in range(40)})
    ahead = world.tasks[TaskId(1, 0)]
    for version in range(2, 7):
        ahead.write(version, "numbers", {})
    assert not world.reader.range("numbers", FIRST_KEY, None, limit=100).source.consistent
    with pytest.raises(NotFresh, match="version 6 or a later one"):
        world.reader.range("numbers", FIRST_KEY, None, limit=100, freshness=Freshness(at=LATEST))
    for task in world.tasks.values():
        task.catch_up = lambda version, task=task: task.write(version, "numbers", {})  # type: ignore[misc]
    page = world.reader.range("numbers", FIRST_KEY, None, limit=100, freshness=Freshness(at=LATEST))
    assert (page.source.version, page.source.consistent, len(page.entries)) == (6, True, 40)


def test_latest_tries_a_newer_version_when_a_replica_has_moved_past_the_first() -> None:
    """The replica elsewhere is ahead of those here, whose newest version it no longer has."""
    world = World(remote=[TaskId(1, 0)])
    world.commit(1, NUMBERS, {(n,): 1 for n in range(40)})
    for version in range(2, 7):
        world.tasks[TaskId(1, 0)].write(version, "numbers", {})
    for task in world.tasks.values():
        task.catch_up = lambda version, task=task: task.write(version, "numbers", {})  # type: ignore[misc]
    page = world.reader.range("numbers", FIRST_KEY, None, limit=100, freshness=Freshness(at=LATEST))
    assert (page.source.version, page.source.consistent, len(page.entries)) == (6, True, 40)


def test_latest_is_the_newest_version_that_all_replicas_hold_if_one_cannot_come_to_a_newer_one() -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): 1 for n in range(40)})
    world.commit(2, NUMBERS, {(0,): 2})
    world.tasks[TaskId(1, 0)].write(3, "numbers", {})
    with served(world.reader) as client:
        latest = client.get("/numbers/range?at=latest&wait=0s").json()
        assert (latest["version"], latest["consistent"], len(latest["entries"])) == (2, True, 40)
        refused = client.get("/numbers/range?at=latest&at_least=3&wait=0s")
        assert (refused.status_code, refused.json()["error"]) == (503, "not_fresh_enough")


def test_several_stores_are_opened_at_one_version() -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): 1 for n in range(10)})
    world.commit(2, LEVELS, {("a", n): 1 for n in range(10)})
    world.tasks[TaskId(0, 1)].write(3, "levels", {})
    for task in world.tasks.values():
        task.catch_up = lambda version, task=task: task.write(version, "numbers", {})  # type: ignore[misc]
    places = world.reader.places_of("numbers", "levels")
    with world.reader.opened(places, Freshness(at=LATEST)) as opened:
        assert {part.store.version for part in opened.parts} == {3}
        assert [part.place for part in opened.parts] == places


def test_a_named_version_is_read_or_gone() -> None:
    world = World()
    for version in range(1, 8):
        world.commit(version, NUMBERS, {(7,): version})
    with served(world.reader) as client:
        for path in ("keys/7?at=6", "range?at=6"):
            answer = client.get(f"/numbers/{path}").json()
            assert (answer["version"], (answer.get("entries") or [answer])[0]["value"]) == (6, 6)
        for path in ("keys/7?at=3", "range?at=3"):
            gone = client.get(f"/numbers/{path}")
            assert (gone.status_code, gone.json()["error"]) == (410, "version_gone")
            assert (gone.json()["oldest"], gone.json()["newest"]) == (5, 7)
        for path in ("keys/7?at=9&wait=0s", "range?at=9&wait=0s", "keys/7?at_least=9&wait=0s"):
            early = client.get(f"/numbers/{path}")
            assert (early.status_code, early.json()["error"]) == (503, "not_fresh_enough")
            assert (early.json()["version"], early.json()["wanted"]) == (7, 9)
            assert "wait=" not in early.json()["message"] and "wait=" in early.json()["what_to_do"]


def test_a_replica_that_is_too_old_says_how_old_it_is() -> None:
    world = World()
    world.commit(4, NUMBERS, {(7,): 1})
    world.log.newest_known = Version(9)
    with served(world.reader) as client:
        for path in ("keys/7?max_lag=2", "range?max_lag=2"):
            refused = client.get(f"/numbers/{path}")
            assert (refused.status_code, refused.json()["error"]) == (503, "not_fresh_enough")
            assert (refused.json()["version"], refused.json()["wanted"]) == (4, 7)
            assert refused.headers["retry-after"] == "1"
        assert client.get("/numbers/keys/7?max_lag=5").json()["version"] == 4


@pytest.mark.parametrize("path", ["keys/7", "range"])
def test_an_instance_that_cannot_read_the_log_does_not_promise_a_lag(path: str) -> None:
    world = World()
    world.commit(4, NUMBERS, {(7,): 1})
    world.log.looks = Looks(world.clock)
    world.log.looks.looked(world.clock.monotonic())
    world.clock.advance(6)
    with served(world.reader) as client:
        refused = client.get(f"/numbers/{path}?max_lag=5s&wait=0s")
        assert (refused.status_code, refused.json()["error"]) == (503, "not_fresh_enough")
        assert "last read the log 6.0 seconds ago" in refused.json()["message"]
        assert client.get(f"/numbers/{path}?max_lag=7s&wait=0s").json()["version"] == 4


def test_partial_answers_are_marked_and_only_given_when_asked_for() -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(40)})
    world.tasks[TaskId(1, 2)].error = NotFresh("task 1_2 is elsewhere.")
    with served(world.reader) as client:
        assert client.get("/numbers/range").status_code == 503
        answer = client.get("/numbers/range?partial=true").json()
        assert answer["missing"] == {"1_2": "task 1_2 is elsewhere."}
        assert 0 < len(answer["entries"]) < 40
        for task in world.tasks.values():
            task.error = NotFresh("nothing is here.")
        assert client.get("/numbers/range?partial=true").status_code == 503


def test_the_latest_version_without_a_partition_is_one_that_all_others_have() -> None:
    world = World()
    world.commit(3, NUMBERS, {(n,): n for n in range(40)})
    ahead, behind, lost = (TaskId(1, n) for n in range(3))
    world.tasks[ahead].write(4, "numbers")
    world.tasks[lost].error = InstanceUnavailable("it doesn't answer.")
    with served(world.reader) as client:
        answer = client.get("/numbers/range?at=latest&partial=true&wait=0s").json()
        assert (answer["version"], answer["consistent"], list(answer["missing"])) == (3, True, [str(lost)])
        here = [n for n in range(40) if world.task_of(NUMBERS, (n,)) != lost]
        assert [entry["key"] for entry in answer["entries"]] == here
        assert client.get("/numbers/range?at=latest&wait=0s").status_code == 503
        world.tasks[behind].error = world.tasks[lost].error
        answer = client.get("/numbers/range?at=latest&partial=true&wait=0s").json()
        assert (answer["version"], [*answer["missing"]]) == (4, [str(behind), str(lost)])


@pytest.mark.parametrize("path", ["range", "scan"])
@pytest.mark.parametrize("error", [NotFresh("task 1_2 is elsewhere."), InstanceUnavailable("it doesn't answer.")])
def test_the_next_page_without_a_partition_is_of_the_same_version(path: str, error: HoldfastError) -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(40)})

    def page(cursor: str | None) -> tuple[list[int], dict[str, Any]]:
        given = {"limit": "5", "partial": "true", **({} if cursor is None else {"cursor": cursor})}
        answer = client.get(f"/numbers/{path}", params=given)
        assert answer.status_code == 200, answer.text
        if path == "range":
            return [entry["key"] for entry in answer.json()["entries"]], answer.json()
        *entries, last = map(json.loads, answer.text.splitlines())
        return [entry["key"] for entry in entries], last

    with served(world.reader) as client:
        keys, said = page(None)
        assert "missing" not in said
        world.tasks[TaskId(1, 2)].error = error
        world.commit(2, NUMBERS, {(n,): None for n in range(10, 40)})
        while said["cursor"] is not None:
            found, said = page(said["cursor"])
            keys += found
            assert (said["version"], said["moved_on"], list(said["missing"])) == (1, False, ["1_2"])
    here = [n for n in range(5, 40) if world.task_of(NUMBERS, (n,)) != TaskId(1, 2)]
    assert keys == [*range(5), *here]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with started(tmp_path, GAME) as group:
        yield group


def _get(group: Group, path: str, at: int = 0, /, **params: str) -> dict[str, Any]:
    response = group.get(f"/v1/stores/numbers/{path}", at, **params)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def test_an_answer_says_who_gave_it_and_when_its_version_was_committed(group: Group) -> None:
    group.driver.commit(STORE, {(n,): n for n in KEYS})
    group.settle()
    commit = group.driver.log.commit(Version(1))
    assert commit is not None
    seen = set()
    for n in KEYS:
        answer = _get(group, f"keys/{n}")
        assert (answer["committed"], answer["event_time"]) == (commit.clocks.wall, commit.clocks.event)
        assert answer["role"] == "active"
        seen.add((answer["task"], answer["instance"]))
    assert seen == {("0_0", "game-0"), ("0_1", "game-1")}
    page = _get(group, "range")
    assert (page["committed"], page["instances"]) == (commit.clocks.wall, ["game-0", "game-1"])


def test_read_your_writes(group: Group) -> None:
    """Whoever knows that a version is committed sees it, on every instance, as soon as they hear of it."""
    for version in range(1, 20):
        group.driver.commit(STORE, {(n,): version for n in KEYS})
        group.instances[version % 2].committed(Version(version))
        for at in range(2):
            assert _get(group, "keys/7", at, at_least=str(version), wait="20s")["value"] == version
            values = {
                entry["value"] for entry in _get(group, "range", at, at_least=str(version), wait="20s")["entries"]
            }
            assert values == {version}


def test_latest_is_one_version_of_all_instances_while_versions_come(group: Group) -> None:
    group.driver.commit(STORE, {(n,): 1 for n in KEYS})
    group.settle()
    for version in range(2, 40):
        group.driver.commit(STORE, {(n,): version for n in KEYS})
        group.instances[version % 2].committed(Version(version))
        for at in range(2):
            page = _get(group, "range", at, at="latest", wait="20s")
            assert page["consistent"]
            assert {entry["value"] for entry in page["entries"]} == {page["version"]}


def test_a_version_that_replicas_no_longer_hold_is_gone_on_every_instance(group: Group) -> None:
    for version in range(1, 9):
        group.driver.commit(STORE, {(n,): version for n in KEYS})
        group.settle()
    for at in range(2):
        for path in ("range", "keys/0", "keys/1", "keys/2", "keys/3"):
            gone = group.get(f"/v1/stores/numbers/{path}", at, at="2")
            assert (gone.status_code, gone.json()["error"]) == (410, "version_gone"), gone.text
            held = group.get(f"/v1/stores/numbers/{path}", at, at="7").json()
            assert (held.get("entries") or [held])[0]["value"] == 7


@contextmanager
def _standbys(folder: Path) -> Iterator[tuple[Driver, Instance, Instance, RestService]]:
    """An active replica of each task, a standby that hears of no version by itself, and REST on the standby."""
    driver = Driver(str(folder / "log"), GAME)
    driver.commit(STORE, {(n,): 1 for n in KEYS})
    active = Instance(config(folder, "game-0", GAME.tasks()))
    late = msgspec.structs.replace(config(folder, "game-1", (), standbys=GAME.tasks()), poll_seconds=3600.0)
    behind = Instance(late)
    for instance in (active, behind):
        instance.start()
        assert instance.wait_ready(30)
    know_each_other([active, behind])
    rest = RestService(behind)
    rest.start()
    try:
        yield driver, active, behind, rest
    finally:
        rest.stop()
        behind.stop()
        active.stop()


def test_a_standby_answers_unless_the_active_one_is_required(tmp_path: Path) -> None:
    with _standbys(tmp_path) as (driver, active, _, rest):
        driver.commit(STORE, {(n,): 2 for n in KEYS})
        active.committed(Version(2))
        until(lambda: {hosted.replica.version for hosted in active.hosted()} == {2}, "the active ones are at 2")
        for path in ("keys/7", "range"):
            url = f"{rest.url}/v1/stores/numbers/{path}"
            here = httpx2.get(url).json()
            assert (here["version"], here["role"]) == (1, "standby")
            there = httpx2.get(url, params={"require": "active"}).json()
            assert (there["version"], there["role"]) == (2, "active")
        active.stop()
        refused = httpx2.get(f"{rest.url}/v1/stores/numbers/keys/7", params={"require": "active"})
        assert refused.status_code == 503


def test_a_standby_that_is_behind_asks_the_active_one_for_a_version(tmp_path: Path) -> None:
    with _standbys(tmp_path) as (driver, active, behind, rest):
        driver.commit(STORE, {(n,): 2 for n in KEYS})
        active.committed(Version(2))
        behind.source.learn(Version(2))  # it knows of the version, and its replicas don't have it
        for path in ("keys/7", "range"):
            answer = httpx2.get(f"{rest.url}/v1/stores/numbers/{path}", params={"at_least": "2", "wait": "20s"}).json()
            assert (answer["version"], answer["role"]) == (2, "active")


@pytest.mark.parametrize(("path", "status"), [("keys/7", 200), ("keys/99", 404), ("range", 200)])
def test_a_version_that_another_replica_holds_is_read_there(tmp_path: Path, path: str, status: int) -> None:
    """A key that its own task doesn't have is looked for in the other tasks, at the same version."""
    with _standbys(tmp_path) as (driver, active, behind, rest):
        holder = RestService(active)
        holder.start()
        try:
            assert httpx2.post(f"{holder.url}/v1/stores/numbers/hold").json()["version"] == 1
            for version in range(2, 9):
                driver.commit(STORE, {(n,): version for n in KEYS})
                for instance in (active, behind):
                    instance.committed(Version(version))
            replicas = [hosted.replica for instance in (active, behind) for hosted in instance.hosted()]
            until(lambda: all(replica.published.version == 8 for replica in replicas), "all are at version 8")
            found = httpx2.get(f"{rest.url}/v1/stores/numbers/{path}", params={"at": "1"})
            assert (found.status_code, found.json()["version"]) == (status, 1), found.text
            gone = httpx2.get(f"{rest.url}/v1/stores/numbers/{path}", params={"at": "2"})
            assert (gone.status_code, gone.json()["error"]) == (410, "version_gone")
        finally:
            holder.stop()


def test_requests_that_wait_for_a_version_take_no_thread(tmp_path: Path) -> None:
    """Whoever takes what there is gets an answer while far more requests wait than there are threads."""
    driver = Driver(str(tmp_path / "log"), GAME)
    driver.commit(STORE, {(n,): 1 for n in KEYS})
    instance = Instance(msgspec.structs.replace(config(tmp_path, "game-0", GAME.tasks()), poll_seconds=3600.0))
    instance.start()
    rest = RestService(instance)
    rest.start()
    url = f"{rest.url}/v1/stores/numbers"
    paths = ["keys/7", "keys?key=7", "range", "scan", "count", "arrow"]
    demands = ["at_least=2", "at=2", "max_lag=0", "max_lag=0s"]

    def get(path: str, demand: str) -> httpx2.Response:
        return httpx2.get(f"{url}/{path}{'&' if '?' in path else '?'}{demand}&wait=30s", timeout=60)

    try:
        assert instance.wait_ready(30)
        driver.commit(STORE, {(n,): 2 for n in KEYS})
        instance.source.learn(Version(2))  # it knows of the version, and its replicas don't have it
        with ThreadPoolExecutor(len(paths) * len(demands)) as threads:
            waiting = [threads.submit(get, path, demand) for path in paths for demand in demands]
            until(lambda: metrics.value("holdfast_rest_requests_under_way") == len(waiting), "all are under way")
            for path in ("range", "count", "scan"):
                assert httpx2.get(f"{url}/{path}", timeout=10).status_code == 200
            assert not any(each.done() for each in waiting)
            instance.committed(Version(2))
            answers = [each.result(60) for each in waiting]
        assert [answer.status_code for answer in answers] == [200] * len(answers)
        assert {answer.json()["version"] for answer in answers[: len(demands)]} == {2}
    finally:
        rest.stop()
        instance.stop()


def test_requests_that_wait_for_other_instances_delay_only_each_other() -> None:
    world = World(remote=APP.tasks())
    world.commit(1, NUMBERS, {(n,): n for n in range(20)})
    world.log.newest_known = Version(2)
    come = threading.Event()

    def catch_up(version: Version) -> None:
        assert come.wait(60)

    for task in world.tasks.values():
        task.catch_up = catch_up
    paths = ["range", "scan", "count", "arrow", "keys?key=7&key=8", "keys/7"]
    with served(world.reader) as client, ThreadPoolExecutor(4 * len(paths)) as threads:

        def get(path: str, demand: str) -> httpx2.Response:
            return client.get(f"/numbers/{path}{'&' if '?' in path else '?'}{demand}", timeout=60)

        waiting = [threads.submit(get, path, demand) for path in paths for demand in ("at_least=2", "at=2") * 2]
        try:
            until(lambda: metrics.value("holdfast_rest_requests_under_way") == len(waiting), "all are under way")
            for path in paths:
                assert client.get(f"/numbers/{path}", timeout=10).status_code == 200
            assert not any(each.done() for each in waiting)
            for task in world.tasks.values():
                task.write(2, "numbers")
        finally:
            come.set()
        assert {each.result(60).status_code for each in waiting} == {200}


@pytest.mark.parametrize("path", ["keys/7", "range"])
def test_a_request_waits_as_long_as_it_says_all_in_all(path: str) -> None:
    """Once for the commit and once for the replicas would be twice as long."""
    world = World()
    world.commit(1, NUMBERS, {(7,): 1})
    world.log.newest_known = Version(2)
    needs: list[ReadNeeds] = []

    class Behind(FakeTask):
        def is_behind(self, version: Version, needs: ReadNeeds) -> bool:
            world.clock.advance(seconds=1)
            return self.newest < version

        def _at(self, version: Version | None, asked: ReadNeeds) -> tuple[Version, dict[str, dict[bytes, bytes]]]:
            needs.append(asked)
            return super()._at(version, asked)

    for id, fake in world.tasks.items():
        world.tasks[id] = Behind(id)
        world.tasks[id].versions = fake.versions
    with served(world.reader) as client:
        refused = client.get(f"/numbers/{path}?at_least=2&wait=5s")
    assert (refused.status_code, refused.json()["error"]) == (503, "not_fresh_enough")
    assert {each.until for each in needs} == {world.clock.monotonic()}, "nothing was left"


@pytest.mark.parametrize("path", ["keys/7", "range"])
def test_a_restoring_task_says_how_far_it_is(tmp_path: Path, path: str) -> None:
    driver = Driver(str(tmp_path / "log"), GAME, inline_limit=0)
    driver.commit(STORE, {(n,): n for n in KEYS})
    segments = {path: path.read_bytes() for path in (tmp_path / "log" / "segments").rglob("*.arrow")}
    for path_, whole in segments.items():
        path_.write_bytes(whole[:-20])  # so that no task can reach version 1
    hosts = Instance(config(tmp_path, "game-0", GAME.tasks()))
    routes = Instance(config(tmp_path, "game-1", ()))
    with ExitStack() as stack:
        for instance in (hosts, routes):
            instance.start()
            stack.callback(instance.stop)
        know_each_other([hosts, routes])
        until(lambda: hosts.source.newest_known == 1, "the version is known")
        for instance, where in ((hosts, ""), (routes, " on instance 'game-0'")):
            rest = RestService(instance)
            rest.start()
            stack.callback(rest.stop)
            response = httpx2.get(f"{rest.url}/v1/stores/numbers/{path}", timeout=20)
            body = response.json()
            assert (response.status_code, body["error"]) == (503, "restoring")
            assert (body["version"], body["of"], body["progress"]) == (0, 1, 0.0)
            assert f"is being restored{where}: version 0 of 1" in body["message"]
            assert response.headers["retry-after"] == "1"


def test_gone_versions_have_the_range_that_is_left() -> None:
    error = VersionGone(2, 5, 8)
    assert "versions 5 to 8" in str(error)
