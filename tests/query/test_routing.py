"""`GET /v1/routing` on real instances: the answer leads to the replicas of each task."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import msgspec
import pytest

from holdfast.group.generations import Address, Generation, Place
from holdfast.log.appfile import AppSpec
from holdfast.query.routes import Routing
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import LEVELS, NUMBERS
from tests.query.instances import Group, started

GLOBAL = StoreSpec(
    name="codes", key=Schema.of(code="string"), codec="msgpack/1", engine="memory", one_partition=True, everywhere=True
)
GAME = AppSpec(
    id="game",
    partitions=4,
    stores=(LEVELS, NUMBERS, GLOBAL),
    subtopologies=subtopologies_of({"levels": 0, "numbers": 1, "codes": 2}),
)


def routing(group: Group, at: int = 0) -> Routing:
    answer = group.get("/v1/routing", at)
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=Routing)


def generation(group: Group) -> Generation:
    """A generation in which the first instance is active for all tasks, and the second one a standby of some."""
    names = [instance.config.name for instance in group.instances]
    rests = [service.url for service in group.rests]
    members = {
        name: Address(incarnation=1, flight=instance.address, rest=rest)
        for name, instance, rest in zip(names, group.instances, rests, strict=True)
    }
    members["no-rest"] = Address(incarnation=1, flight="grpc://nowhere:1")
    standbys = {"1_0": (names[1],), "1_1": ("no-rest",)}
    return Generation(
        log=group.driver.log.id,
        number=7,
        id="g7",
        before="g6",
        proposer="test",
        reason="a test",
        app_file=1,
        members=members,
        tasks={
            str(task): Place(active=names[0], standbys=standbys.get(str(task), ()), warming=(names[1],))
            for task in GAME.tasks()
        },
    )


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with started(tmp_path, GAME) as group:
        yield group


def test_routing_has_what_the_partition_of_a_key_depends_on(group: Group) -> None:
    found = routing(group)
    assert found.log == group.driver.log.id
    assert [route.store for route in found.stores] == ["codes", "levels", "numbers"]
    levels, codes = found.store("levels"), found.store("codes")
    assert levels is not None and codes is not None and found.store("nothing") is None
    assert (levels.key, levels.subtopology, levels.partitions, levels.kind) == (LEVELS.key, 0, 4, "key-value")
    assert (codes.partitions, codes.everywhere, levels.everywhere) == (1, True, False)
    group.driver.commit(LEVELS, {("ann", 7): 1})
    group.settle()
    answer = group.get('/v1/stores/levels/keys/["ann",7]').json()
    assert levels.task(partition_of(levels.key, ("ann", 7), levels.partitions)) == answer["task"]


def test_an_instance_without_a_group_knows_its_own_tasks(group: Group) -> None:
    first, second = routing(group, 0), routing(group, 1)
    assert first.generation == 0
    assert first.tasks.keys() | second.tasks.keys() == {str(task) for task in GAME.tasks()}
    assert first.tasks.keys() & second.tasks.keys() == set()
    assert first.addresses("0_0") == (group.rests[0].url,) and first.addresses("0_1") == ()


def test_routing_follows_the_generation_with_active_replicas_first(group: Group) -> None:
    group.instances[1].placement = generation(group)
    found = routing(group, 1)
    urls = tuple(service.url for service in group.rests)
    assert found.generation == 7
    assert found.addresses("1_0") == urls
    assert found.addresses("1_1") == urls[:1], "an instance without REST, and one that only warms up, can't be asked"


def test_routing_takes_no_parameters(group: Group) -> None:
    answer: httpx2.Response = group.get("/v1/routing", 0, store="levels")
    assert answer.status_code == 400 and answer.json()["error"] == "bad_parameter"


def test_a_request_for_another_log_is_refused(group: Group) -> None:
    """Also a lookup, which is answered in front of everything else."""
    group.driver.commit(NUMBERS, {(7,): "seven"})
    group.settle()
    client, url, log = group.client, group.rests[0].url, group.driver.log.id
    for path in ("/v1/stores/numbers/keys/7", "/v1/stores/numbers/range", "/v1/routing"):
        for named, status in ((log, 200), ("another", 421)):
            answer = client.get(url + path, headers={"holdfast-log": named})
            assert answer.status_code == status
            assert status == 200 or (answer.json()["error"], answer.json()["log"]) == ("another_app", log)
