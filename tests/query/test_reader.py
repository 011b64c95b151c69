"""The reader: the right task for a key, every task for a range, one version for an answer."""

from operator import itemgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.query.reader import StoreReader, UnknownStore
from holdfast.query.task_reader import NotReady
from holdfast.stores.engines.base import FIRST_KEY
from holdfast.stores.formats.keys import decode_key, encode_key
from holdfast.words import TaskId, Version
from tests.query.held import APP, LEVELS, NUMBERS, World

NAMES = [f"player-{n}" for n in range(40)]


def _filled(version: int = 1, *, remote: tuple[TaskId, ...] = ()) -> World:
    world = World(remote=remote)
    world.commit(version, NUMBERS, {(n,): {"n": n} for n in range(40)})
    return world


def test_a_lookup_asks_only_the_task_that_has_the_key() -> None:
    world = _filled()
    owner = world.task_of(NUMBERS, (7,))
    for task, held in world.tasks.items():
        if task != owner:
            held.error = NotReady("not here")
    found = world.reader.get(world.reader.find("numbers", (7,)))
    assert found.task == owner
    assert found.version == 1
    assert found.cell is not None


def test_a_key_that_is_not_there_still_has_a_version() -> None:
    found = _filled(9).reader.get(_filled(9).reader.find("numbers", (-1,)))
    assert (found.version, found.cell) == (9, None)


def test_an_unknown_store_names_those_there_are() -> None:
    with pytest.raises(UnknownStore, match=r"no store 'scroes'\. It has levels, numbers, scores") as caught:
        World().reader.find("scroes", ("a",))
    assert caught.value.stores == ["levels", "numbers", "scores"]


def test_a_task_that_nobody_holds_is_not_ready() -> None:
    reader = StoreReader(APP, lambda task: None)
    with pytest.raises(NotReady, match="No instance is known to hold task 1_"):
        reader.get(reader.find("numbers", (7,)))


@pytest.mark.parametrize("remote", [(), (TaskId(1, 1),), tuple(APP.tasks())])
def test_a_range_merges_all_partitions_in_key_order(remote: tuple[TaskId, ...]) -> None:
    world = _filled(remote=remote)
    page = world.reader.range("numbers", FIRST_KEY, None, limit=25)
    assert [decode_key(NUMBERS.key, key) for key, _ in page.entries] == [(n,) for n in range(25)]
    assert (page.version, page.consistent, page.more) == (1, True, True)


def test_the_last_page_knows_that_it_is() -> None:
    page = _filled().reader.range("numbers", FIRST_KEY, None, limit=40)
    assert (len(page.entries), page.more) == (40, False)


def test_replicas_that_are_ahead_answer_at_the_version_all_have() -> None:
    world = _filled(1)
    ahead = world.tasks[TaskId(1, 0)]
    ahead.write(2, "numbers", dict.fromkeys(ahead.versions[1]["numbers"]))  # version 2 deletes all it has
    page = world.reader.range("numbers", FIRST_KEY, None, limit=100)
    assert (page.version, page.consistent, len(page.entries)) == (1, True, 40)


def test_where_no_version_is_held_by_all_the_answer_says_so() -> None:
    world = _filled(1)
    ahead = world.tasks[TaskId(1, 0)]
    for version in range(2, 6):
        ahead.write(version, "numbers", dict.fromkeys(ahead.versions[max(ahead.versions)]["numbers"]))
    page = world.reader.range("numbers", FIRST_KEY, None, limit=100)
    assert (page.version, page.consistent) == (1, False)
    assert 0 < len(page.entries) < 40


def test_a_wanted_version_is_read_while_it_is_held_and_then_the_newest() -> None:
    world = _filled(1)
    world.commit(2, NUMBERS, {(3,): None})
    at_1 = world.reader.range("numbers", FIRST_KEY, None, limit=100, version=Version(1))
    assert (at_1.version, len(at_1.entries)) == (1, 40)
    for version in range(3, 8):
        world.commit(version, NUMBERS, {})
    later = world.reader.range("numbers", FIRST_KEY, None, limit=100, version=Version(1))
    assert (later.version, later.consistent, len(later.entries)) == (7, True, 39)


def test_a_probe_reads_each_partition_and_tells_which_failed() -> None:
    world = _filled()
    broken = NotReady("task 1_2 restores")
    world.tasks[TaskId(1, 2)].error = broken
    probes = world.reader.probe("numbers")
    assert [(str(probe.task), probe.version, probe.error) for probe in probes] == [
        ("1_0", 1, None),
        ("1_1", 1, None),
        ("1_2", None, broken),
    ]
    assert world.errors == [("numbers", broken)]


def test_a_probe_notices_a_damaged_value() -> None:
    world = World()
    for task in world.tasks.values():
        task.write(1, "numbers", {b"\x01key": b"\x09garbage"})
    assert all(isinstance(probe.error, HoldfastError) for probe in world.reader.probe("numbers"))


_keys = st.tuples(st.sampled_from(["", "a", "a\x00", "ab", "b", "ä"]), st.integers(-3, 3))


@settings(max_examples=50)
@given(st.dictionaries(_keys, st.integers(0, 9), max_size=30), _keys, _keys, st.integers(1, 12))
def test_pages_one_after_the_other_are_the_range(
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
