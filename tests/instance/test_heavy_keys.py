"""The heaviest keys of a task are found among its reads, and named in the heartbeats of its instance."""

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from holdfast.group.members import Members
from holdfast.instance import heavy_keys
from holdfast.instance.client import StateClient
from holdfast.instance.group_member import GroupMember
from holdfast.instance.heavy_keys import ENOUGH, LONGEST, LOOKUPS, NAMED, PERIOD, HeavyKeys, key_as_text
from holdfast.instance.instance import Instance
from holdfast.log.storage import open_storage
from holdfast.query.task_readers import TaskReaders
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId
from tests.instance.app_log import TASK, AppLog, key_of
from tests.instance.processes import until
from tests.instance.test_process import NO_SNAPSHOTS, config_of
from tests.query.instances import Driver, config
from tests.query.test_standbys import GAME, KEYS, STORE, running

SPEC = StoreSpec(name="scores", key=Schema.of(player="string"), codec="rows/1", engine="memory")
OTHER = msgspec.structs.replace(SPEC, name="other")


def keys_of(players: Sequence[str]) -> pa.Array:
    return pa.array([encode_key(SPEC.key, [player]) for player in players], pa.binary())


def read(heavy: HeavyKeys, times: int, players: int = 40, store: str = "scores") -> None:
    """Bulk reads of random players; ann is in every one, and bob in every second one."""
    chance = random.Random(1)
    for number in range(times):
        some = [f"p{chance.randrange(100_000)}" for _ in range(players)]
        heavy.add(store, keys_of([*some, "ann", *(["bob"] if number % 2 else [])]))


def test_keys_with_a_notable_share_are_named_with_it() -> None:
    heavy = HeavyKeys()
    assert heavy.heaviest(0.0, [SPEC]) == ()
    read(heavy, 200)
    assert heavy.heaviest(PERIOD - 1, [SPEC]) == (), "the period isn't over"
    assert heavy.heaviest(PERIOD, [SPEC]) == ("ann (2%)", "bob (1%)")
    assert heavy.heaviest(PERIOD + 1, [SPEC]) == ("ann (2%)", "bob (1%)"), "until the next period is over"


def test_a_large_read_is_sampled_and_what_is_sampled_counts_for_the_rest() -> None:
    heavy = HeavyKeys()
    heavy.heaviest(0.0, [SPEC])
    for _ in range(30):
        heavy.add("scores", keys_of(["ann"] * 300 + [f"p{n}" for n in range(2_700)]))
    assert heavy._sampled == 30 * heavy_keys.SAMPLED
    assert heavy.heaviest(PERIOD, [SPEC]) == ("ann (10%)",)


def test_nothing_is_named_before_enough_was_read_or_when_all_keys_are_alike() -> None:
    heavy = HeavyKeys()
    heavy.heaviest(0.0, [SPEC])
    heavy.add("scores", keys_of(["ann"] * 90))
    assert ENOUGH > 90
    assert heavy.heaviest(PERIOD, [SPEC]) == ()
    assert heavy.heaviest(LONGEST, [SPEC]) == ()
    for first in range(0, 50_000, 500):
        heavy.add("scores", keys_of([f"p{first + n}" for n in range(500)]))
    assert heavy.heaviest(LONGEST + PERIOD, [SPEC]) == ()


def test_names_are_forgotten_when_nothing_is_read_any_more() -> None:
    heavy = HeavyKeys()
    heavy.heaviest(0.0, [SPEC])
    read(heavy, 200)
    assert heavy.heaviest(PERIOD, [SPEC])
    assert heavy.heaviest(PERIOD + LONGEST, [SPEC]) == ()


def test_keys_of_several_stores_have_the_name_of_theirs() -> None:
    heavy = HeavyKeys()
    heavy.heaviest(0.0, [SPEC, OTHER])
    for _ in range(20):
        heavy.add("other", keys_of(["ann"] * 100))
        heavy.add("removed", keys_of(["ann"] * 10))
    assert heavy.heaviest(PERIOD, [SPEC, OTHER]) == ("other/ann (91%)",)


def test_indexes_and_notes_are_no_keys() -> None:
    heavy = HeavyKeys()
    heavy.heaviest(0.0, [SPEC])
    for _ in range(20):
        heavy.add("scores", pa.array([b"\x05note"] * 100, pa.binary()))
    assert heavy.heaviest(LONGEST, [SPEC]) == ()


def test_at_most_a_few_are_named() -> None:
    heavy = HeavyKeys()
    heavy.heaviest(0.0, [SPEC])
    for _ in range(20):
        heavy.add("scores", keys_of([f"p{n}" for n in range(10)] * 10))
    assert len(heavy.heaviest(PERIOD, [SPEC])) == NAMED


@pytest.mark.parametrize(("key", "shown"), [("x" * 60, "x" * 37 + "..."), ("ann", "ann")])
def test_long_keys_are_cut(key: str, shown: str) -> None:
    assert key_as_text(SPEC, encode_key(SPEC.key, [key])) == shown


def test_an_instance_names_them_in_its_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heavy_keys, "PERIOD", 0.0)
    app = AppLog(str(tmp_path / "log"), stores=("counts",))
    app.grow(3, seed=1)
    instance = Instance(config_of(app, tmp_path, snapshots=NO_SNAPSHOTS))
    instance.start()
    member = GroupMember(instance)
    try:
        assert instance.wait_ready(60)
        keys = pa.array([key_of(1)] * 60 + [key_of(2)] * 40, pa.binary())
        with StateClient(instance.address, 30.0) as client:
            for _ in range(ENOUGH // 100):
                client.get_many(TASK, "counts", app.version, keys)
        members = Members(open_storage(app.url), app.log.id)
        names = [key_as_text(app.log.app.stores[0], key_of(number)) for number in (1, 2)]
        expected = (f"{names[0]} (60%)", f"{names[1]} (40%)")
        until(lambda: seen(members) == expected, "the heartbeat names them")
    finally:
        member.stop()
        instance.stop()


def seen(members: Members) -> tuple[str, ...]:
    found = members.read()["one"].tasks.get(str(TASK))
    return () if found is None else found.heavy


def test_lookups_of_single_keys_count_too(tmp_path: Path) -> None:
    """Every 64th, by the instance that has the replica, whether it was asked itself or by another one."""
    driver = Driver(str(tmp_path / "log"), GAME)
    driver.commit(STORE, {(n,): n for n in KEYS})
    hosting = Instance(config(tmp_path, "game-0", GAME.tasks()))
    with running(hosting):
        task = TaskId(0, partition_of(STORE.key, (7,), GAME.partitions))
        hosted = hosting.hosted_task(task)
        assert hosted is not None
        hosted.heavy.heaviest(0.0, hosted.replica.specs)
        own = TaskReaders(hosting)(task)
        assert own is not None
        key = encode_key(STORE.key, [7])
        with StateClient(hosting.address, 30.0) as client:
            for _ in range(LOOKUPS):
                client.get_one(task, STORE.name, key)
        assert hosted.reads == LOOKUPS
        for _ in range(LOOKUPS * ENOUGH):
            own.get(STORE.name, key)
        assert hosted.reads == LOOKUPS * (ENOUGH + 1)
        assert hosted.heavy.heaviest(PERIOD, hosted.replica.specs) == ("7 (100%)",)
