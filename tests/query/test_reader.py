"""The reader: a key is read from its task, a range from all tasks, and each answer is of one version."""

from operator import itemgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.clock import ManualClock
from holdfast.errors import HoldfastError
from holdfast.log.commits import Point
from holdfast.query.last_errors import LastError
from holdfast.query.reader import StoreReader
from holdfast.query.store_specs import UnknownStore
from holdfast.query.task_reader import ANY_REPLICA, NotReady
from holdfast.stores.engines.base import FIRST_KEY
from holdfast.stores.formats.keys import decode_key, encode_key
from holdfast.words import Millis, TaskId, Version
from tests.query.fake_tasks import APP, LEVELS, NUMBERS, Files, World


def _filled(version: int = 1, *, remote: tuple[TaskId, ...] = ()) -> World:
    world = World(remote=remote)
    world.commit(version, NUMBERS, {(n,): {"n": n} for n in range(40)})
    return world


def test_a_lookup_reads_only_the_task_of_the_key() -> None:
    world = _filled()
    owner = world.task_of(NUMBERS, (7,))
    for task, fake in world.tasks.items():
        if task != owner:
            fake.error = NotReady("not here")
    found = world.reader.get(world.reader.find("numbers", (7,)))
    assert found.task == owner
    assert found.version == 1
    assert found.cell is not None


def test_a_missing_key_has_a_version_too() -> None:
    found = _filled(9).reader.get(_filled(9).reader.find("numbers", (-1,)))
    assert (found.version, found.cell) == (9, None)


def test_an_unknown_store_is_an_error_with_the_existing_ones() -> None:
    with pytest.raises(UnknownStore, match=r"no store 'scroes'\. It has levels, numbers, scores") as caught:
        World().reader.find("scroes", ("a",))
    assert caught.value.stores == ["levels", "numbers", "scores"]


def test_a_task_that_no_instance_hosts_is_not_ready() -> None:
    reader = StoreReader(Files(APP, ManualClock()), lambda task, needs=ANY_REPLICA: None)
    with pytest.raises(NotReady, match="No instance is known to hold task 1_"):
        reader.get(reader.find("numbers", (7,)))


@pytest.mark.parametrize("remote", [(), (TaskId(1, 1),), tuple(APP.tasks())])
def test_a_range_merges_all_partitions_in_key_order(remote: tuple[TaskId, ...]) -> None:
    world = _filled(remote=remote)
    page = world.reader.range("numbers", FIRST_KEY, None, limit=25)
    assert [decode_key(NUMBERS.key, key) for key, _ in page.entries] == [(n,) for n in range(25)]
    assert (page.source.version, page.source.consistent, page.more) == (1, True, True)


def test_the_last_page_has_no_more_entries() -> None:
    page = _filled().reader.range("numbers", FIRST_KEY, None, limit=40)
    assert (len(page.entries), page.more) == (40, False)


def test_replicas_that_are_ahead_answer_at_the_version_that_all_have() -> None:
    world = _filled(1)
    ahead = world.tasks[TaskId(1, 0)]
    ahead.write(2, "numbers", dict.fromkeys(ahead.versions[1]["numbers"]))  # version 2 deletes its entries
    page = world.reader.range("numbers", FIRST_KEY, None, limit=100)
    assert (page.source.version, page.source.consistent, len(page.entries)) == (1, True, 40)


def test_an_answer_without_a_common_version_is_not_consistent() -> None:
    world = _filled(1)
    ahead = world.tasks[TaskId(1, 0)]
    for version in range(2, 6):
        ahead.write(version, "numbers", dict.fromkeys(ahead.versions[max(ahead.versions)]["numbers"]))
    page = world.reader.range("numbers", FIRST_KEY, None, limit=100)
    assert (page.source.version, page.source.consistent) == (1, False)
    assert 0 < len(page.entries) < 40


def test_a_given_version_is_read_while_available_and_then_the_newest() -> None:
    world = _filled(1)
    world.commit(2, NUMBERS, {(3,): None})
    at_1 = world.reader.range("numbers", FIRST_KEY, None, limit=100, before=Point(Version(1), ""))
    assert (at_1.source.version, len(at_1.entries)) == (1, 40)
    for version in range(3, 8):
        world.commit(version, NUMBERS, {})
    later = world.reader.range("numbers", FIRST_KEY, None, limit=100, before=Point(Version(1), ""))
    assert (later.source.version, later.source.consistent, len(later.entries)) == (7, True, 39)


def test_a_probe_reads_each_partition_and_reports_failures() -> None:
    world = _filled()
    broken = NotReady("task 1_2 restores")
    world.tasks[TaskId(1, 2)].error = broken
    probes = world.reader.probe("numbers")
    assert [(str(probe.task), probe.version, probe.error) for probe in probes] == [
        ("1_0", 1, None),
        ("1_1", 1, None),
        ("1_2", None, broken),
    ]
    assert world.reader.last_errors == {"numbers": LastError(str(broken), Millis(1_000))}


def test_a_probe_finds_a_damaged_value() -> None:
    world = World()
    for task in world.tasks.values():
        task.write(1, "numbers", {b"\x01key": b"\x09garbage"})
    assert all(isinstance(probe.error, HoldfastError) for probe in world.reader.probe("numbers"))


_keys = st.tuples(st.sampled_from(["", "a", "a\x00", "ab", "b", "ä"]), st.integers(-3, 3))


@settings(max_examples=50)
@given(st.dictionaries(_keys, st.integers(0, 9), max_size=30), _keys, _keys, st.integers(1, 12))
def test_all_pages_together_are_the_range(
    entries: dict[tuple[str, int], int], low: tuple[str, int], high: tuple[str, int], limit: int
) -> None:
    world = World()
    world.commit(1, LEVELS, entries)  # type: ignore[arg-type]
    start, stop = encode_key(LEVELS.key, low), encode_key(LEVELS.key, high) + b"\x00"
    seen: list[tuple[bytes, bytes]] = []
    at, more = start, True
    while more:
        page = world.reader.range("levels", at, stop, limit=limit)
        seen += page.entries
        more = page.more
        at = page.entries[-1][0] + b"\x00" if page.entries else at
    assert [decode_key(LEVELS.key, key) for key, _ in seen] == sorted(key for key in entries if low <= key <= high)
    assert seen == sorted(seen, key=itemgetter(0))
