"""REST on real instances: two of them host the tasks of one app, and each answers for all."""

import math
from collections.abc import Iterator
from pathlib import Path

import httpx2
import msgspec
import pytest

from holdfast.instance.instance import Instance
from holdfast.instance.messages import AppStateMessage
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.log.appfile import AppSpec
from holdfast.query.service import RestService
from holdfast.query.task_reader import NotReady, Restoring
from holdfast.stores.engines.base import FIRST_KEY
from tests.instance.processes import until
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import APP, LEVELS, NUMBERS, SCORES
from tests.query.instances import Driver, Group, config, process, started

GAME = AppSpec(
    id="game",
    partitions=3,
    stores=tuple(msgspec.structs.replace(spec, engine="rocksdb") for spec in (SCORES, LEVELS, NUMBERS)),
    subtopologies=APP.subtopologies,
)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with started(tmp_path, GAME) as group:
        yield group


def test_a_global_store_is_answered_by_every_instance_itself(tmp_path: Path) -> None:
    numbers = msgspec.structs.replace(NUMBERS, engine="rocksdb", everywhere=True)
    app = AppSpec(id="game", partitions=3, stores=(numbers,), subtopologies=subtopologies_of({"numbers": 0}))
    driver = Driver(str(tmp_path / "log"), app)
    driver.commit(numbers, {(n,): n * n for n in range(20)})
    tasks = app.tasks()
    shares = [(tasks[n::2], [task for task in tasks if task not in tasks[n::2]]) for n in range(2)]
    instances = [Instance(config(tmp_path, f"game-{n}", *share)) for n, share in enumerate(shares)]
    for instance in instances:
        instance.start()
    try:
        for instance in instances:  # none knows the others
            assert instance.wait_ready(30)
            service = RestService(instance)
            service.start()
            assert httpx2.get(f"{service.url}/v1/stores/numbers/keys/7").json()["value"] == 49
            entries = httpx2.get(f"{service.url}/v1/stores/numbers/range").json()["entries"]
            assert [entry["key"] for entry in entries] == list(range(20))
            service.stop()
    finally:
        for instance in instances:
            instance.stop()


def test_any_instance_answers_for_any_key(group: Group) -> None:
    group.driver.commit(NUMBERS, {(n,): {"square": n * n} for n in range(20)})
    group.settle()
    for at in range(2):
        for n in range(20):
            response = group.get(f"/v1/stores/numbers/keys/{n}", at)
            assert response.status_code == 200, response.text
            assert (response.json()["value"], response.json()["version"]) == ({"square": n * n}, 1)
        assert group.get("/v1/stores/numbers/keys/-1", at).json()["error"] == "key_not_found"


def test_a_range_over_two_instances_is_in_key_order_and_at_one_version(group: Group) -> None:
    group.driver.commit(LEVELS, {("alice", n): n for n in range(30)})
    group.driver.commit(LEVELS, {("alice", n): None for n in range(0, 30, 3)})
    group.settle()
    for at in range(2):
        first = group.get("/v1/stores/levels/range", at, limit="7").json()
        assert (first["version"], first["consistent"]) == (2, True)
        second = group.get("/v1/stores/levels/range", 1 - at, cursor=first["cursor"]).json()
        keys = [entry["key"] for entry in first["entries"] + second["entries"]]
        assert keys == [["alice", n] for n in range(30) if n % 3]


def test_pages_are_read_at_the_version_of_the_first_while_it_is_available(group: Group) -> None:
    group.driver.commit(NUMBERS, {(n,): 0 for n in range(20)})
    group.settle()
    first = group.get("/v1/stores/numbers/range", limit="5").json()
    group.driver.commit(NUMBERS, {(n,): 1 for n in range(20)})
    group.settle()
    second = group.get("/v1/stores/numbers/range", limit="5", cursor=first["cursor"]).json()
    assert (second["version"], second["moved_on"]) == (1, False)
    assert [entry["value"] for entry in second["entries"]] == [0] * 5
    for _ in range(8):
        group.driver.commit(NUMBERS, {(n,): 2 for n in range(20)})
    group.settle()
    third = group.get("/v1/stores/numbers/range", cursor=second["cursor"]).json()
    assert (third["version"], third["consistent"], third["moved_on"]) == (10, True, True)
    assert [entry["key"] for entry in third["entries"]] == list(range(10, 20))
    assert {entry["value"] for entry in third["entries"]} == {2}


def test_hidden_columns_of_an_aggregate_are_not_shown(group: Group) -> None:
    group.driver.commit(SCORES, {("alice",): (7, math.inf, None, None, 3)})
    group.settle()
    value = group.get("/v1/stores/scores/keys/alice").json()["value"]
    assert value == {"points": 7, "best": "Infinity", "money": None, "day": None}


def test_health_and_state_of_a_running_app(group: Group) -> None:
    group.driver.commit(NUMBERS, {(1,): 1})
    group.settle()
    assert group.get("/health/live").json() == {"status": "live", "app": "game", "version": 1}
    assert group.get("/health/ready").json() == {"status": "ready", "app": "game", "version": 1}
    stores = group.get("/health/stores").json()["stores"]
    assert [(store["store"], store["available"], store["partitions"]["all"]) for store in stores] == [
        ("levels", True, 3),
        ("numbers", True, 3),
        ("scores", True, 3),
    ]
    group.instances[0].app_state = AppStateMessage("running")
    state = group.get("/v1/state").json()
    assert (state["app"], state["instance"], state["state"], state["version"]) == ("game", "game-0", "running", 1)
    assert {task["phase"] for task in state["tasks"]} == {"running"}
    assert "holdfast_rest_requests_total" in group.get("/metrics").text


def test_the_state_is_what_the_driver_last_reported(group: Group) -> None:
    group.instances[0].app_state = AppStateMessage("error", "the disk is full")
    state = group.get("/v1/state").json()
    assert (state["state"], state["cause"]) == ("error", "the disk is full")


def test_the_state_of_an_app_whose_driver_has_said_nothing_or_is_gone_is_not_called_running(group: Group) -> None:
    assert group.get("/v1/state").json()["state"] == "unknown"
    group.instances[0].app_state = AppStateMessage("running")
    group.instances[0].driver_gone = True
    assert group.get("/v1/state").json()["state"] == "no_driver"
    group.instances[0].app_state = AppStateMessage("error", "the disk is full")
    assert group.get("/v1/state").json()["state"] == "error", "why it is gone"
    group.instances[0].driver_gone = False
    group.instances[0].app_state = AppStateMessage("restoring")
    assert group.get("/v1/state").json()["state"] == "restoring", "another one has started"


def _is_here(group: Group, n: int) -> bool:
    """Whether the first instance has the task of this key."""
    reader = group.rests[0].reader
    return reader.local_task(reader.find("numbers", (n,)).task) is not None


def test_a_stopped_instance_makes_only_its_own_keys_unavailable(group: Group) -> None:
    group.driver.commit(NUMBERS, {(n,): n for n in range(20)})
    group.settle()
    group.rests[1].stop()
    group.instances[1].stop()
    statuses = {}
    for n in range(20):
        response = group.get(f"/v1/stores/numbers/keys/{n}")
        statuses[n] = response.status_code
        if response.status_code == 503:
            assert response.json()["error"] == "not_ready"
            assert response.headers["retry-after"] == "1"
    assert statuses == {n: 200 if _is_here(group, n) else 503 for n in range(20)}
    assert set(statuses.values()) == {200, 503}
    assert group.get("/v1/stores/numbers/range").status_code == 503
    task = group.rests[0].reader.find("numbers", (next(n for n in statuses if statuses[n] == 503),)).task
    silent = f"No instance with a replica of task {task} answers; the instance's log says why."
    assert group.get("/v1/stores/numbers/range", partial="true").json()["missing"][str(task)] == silent
    health = group.get("/health/stores")
    assert health.status_code == 503
    numbers = health.json()["stores"][1]
    assert (numbers["store"], numbers["available"]) == ("numbers", False)
    assert numbers["partitions"]["available"] == 3 - len(numbers["unavailable"]) > 0
    assert "can't be reached" in numbers["last_error"]["message"]


def test_a_restoring_replica_says_so(tmp_path: Path) -> None:
    driver = Driver(str(tmp_path / "log"), GAME, inline_limit=0)
    driver.commit(NUMBERS, {(n,): n for n in range(20)})
    segments = {path: path.read_bytes() for path in (tmp_path / "log" / "segments").rglob("*.arrow")}
    for path, whole in segments.items():
        path.write_bytes(whole[:-20])  # so that no task can reach version 1
    instance = Instance(config(tmp_path, "game-0", list(GAME.tasks())))
    instance.start()
    service = RestService(instance)
    service.start()
    try:
        response = httpx2.get(service.url + "/v1/stores/numbers/keys/7")
        assert (response.status_code, response.json()["error"]) == (503, "restoring")
        ready = httpx2.get(service.url + "/health/ready")
        assert ready.status_code == 503
        assert "Task 1_0 is" in ready.json()["message"]
        assert httpx2.get(service.url + "/health/live").status_code == 200
        for path, whole in segments.items():
            path.write_bytes(whole)
        assert instance.wait_ready(30)
        until(lambda: httpx2.get(service.url + "/health/ready").status_code == 200, "ready")
        assert httpx2.get(service.url + "/v1/stores/numbers/keys/7").json()["value"] == 7
    finally:
        service.stop()
        instance.stop()


def test_a_task_is_never_read_at_an_earlier_version(group: Group) -> None:
    group.driver.commit(NUMBERS, {(n,): n for n in range(20)})
    group.settle()
    reader = group.rests[0].reader
    here = next(n for n in range(20) if _is_here(group, n))
    lookup = reader.find("numbers", (here,))
    assert reader.get(lookup).version == 1
    replica = group.instances[0].replica(lookup.task)
    hosted = group.instances[0].hosted_task(lookup.task)
    assert hosted is not None
    hosted.progress.busy = True  # so that the updater does not restore it
    replica.rebuild(NotReady("a test wants it to start over."))
    assert replica.published.version == 0
    with pytest.raises(Restoring, match=f"task {lookup.task} is being restored: version 0 of 1"):
        reader.get(lookup)
    with pytest.raises(VersionNotAvailable, match=f"task {lookup.task} .* is being restored"):
        replica.read_view()


def test_readers_see_complete_versions_while_replicas_catch_up(group: Group) -> None:
    group.driver.commit(NUMBERS, {(n,): 1 for n in range(60)})
    group.settle()
    reader = group.rests[0].reader
    seen = 0
    for version in range(2, 30):
        group.driver.commit(NUMBERS, {(n,): version for n in range(60)})
        for instance in group.instances:
            instance.committed(group.driver.version)
        page = reader.range("numbers", FIRST_KEY, None, limit=100)
        values = {msgspec.msgpack.decode(value[17:]) for _, value in page.entries}
        assert len(page.entries) == 60
        if page.source.consistent:
            assert values == {page.source.version}
            seen += 1
    assert seen > 0


def test_an_instance_process_reports_its_rest_address_and_ends_on_sigterm(tmp_path: Path) -> None:
    driver = Driver(str(tmp_path / "log"), GAME)
    driver.commit(NUMBERS, {(7,): 49})
    with process(config(tmp_path, "game-0", list(GAME.tasks()))) as started:
        url = started.addresses()["rest"]
        assert url.startswith("http://127.0.0.1:")
        until(lambda: httpx2.get(url + "/health/ready").status_code == 200, "ready")
        assert httpx2.get(url + "/v1/stores/numbers/keys/7").json()["value"] == 49
        started.terminate()
        assert started.output() == (0, b"")
