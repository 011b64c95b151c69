"""A store with `ttl_to_sinks=True`: a key that expires is deleted, in the log and in the sinks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.pipeline.results import of_store
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.cells import unpack
from holdfast.stores.layouts.expiry import AT_MOST, index_key
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.spec import differences
from tests.pipeline.tables import OneTask, key_of, spec_with

START = 1_000_000
BATCHES = st.lists(st.tuples(st.integers(0, 5_000), st.sets(st.sampled_from("abcdef"))), max_size=25)


def told(task: OneTask) -> dict[str, tuple[int, int] | None]:
    """What sinks get of the last version: rows, and None for deleted keys."""
    return {row["player"]: None if row["_deleted"] else (row["n"], row["total"]) for row in task.sent()}


@given(BATCHES, st.sampled_from(["1s", "4s", "9s"]), st.integers(1, 4))
def test_sinks_keep_a_dictionary_whose_entries_expire(
    batches: list[tuple[int, set[str]]], ttl: str, chunk: int
) -> None:
    task = OneTask(spec_with(ttl=ttl, ttl_to_sinks=True))
    model: dict[str, tuple[int, int]] = {}
    expires: dict[str, int] = {}
    copy: dict[str, tuple[int, int] | None] = {}
    wall = START
    for passed, players in batches:
        wall += passed
        for player in [player for player, time in expires.items() if time <= wall]:
            del model[player], expires[player]
        for player in players:
            n, total = model.get(player, (0, 0))
            model[player], expires[player] = (n + 1, total + 7), wall + task.spec.ttl_ms
        counts = task.step(dict.fromkeys(players, (7, wall)), wall, chunk_rows=chunk).counts
        removed = counts.get(of_store("scores", "removed"), 0)
        changed = told(task)
        copy.update(changed)
        assert {player: row for player, row in copy.items() if row is not None} == model
        assert removed == sum(row is None for row in changed.values())
        stored = {key: unpack(cell).expires for key, cell in task.area(1).items()}
        assert stored == {key_of(player): time for player, time in expires.items()}
        assert set(task.area(3)) == {index_key(time, key) for key, time in stored.items()}


def test_a_version_removes_a_limited_number_of_entries_and_the_next_ones_the_rest() -> None:
    task = OneTask(spec_with(ttl="1s", ttl_to_sinks=True))
    task.step({f"player-{n}": (1, 0) for n in range(AT_MOST + 5)}, START, chunk_rows=100_000)
    task.step({}, START + 2_000)
    assert len(told(task)) == AT_MOST
    task.step({"player-0": (1, 0)}, START + 2_000)
    assert len(task.cells) == 2, "one entry and its row"


def test_a_processors_store_removes_expired_entries_when_a_version_begins() -> None:
    declared = hf.KeyValueStore("seen", value=int, ttl="5s", ttl_to_sinks=True)
    bytes_ = DictBytes()
    first = declared.bind(bytes_, Now(START))
    first.put("ann", 1)
    first.put("bob", 2, ttl="1s")
    first.update({"cleo": 3})
    later = declared.bind(bytes_, Now(START + 2_000))
    later.begin_version()
    assert dict(later.items()) == {"ann": 1, "cleo": 3}
    last = declared.bind(bytes_, Now(START + 5_000))
    last.begin_version()
    assert not bytes_.entries


def test_it_needs_a_ttl_and_cannot_change() -> None:
    with pytest.raises(TopologyError, match=r"ttl_to_sinks=True .* Say ttl=\.\.\. too"):
        hf.KeyValueStore("seen", value=int, ttl_to_sinks=True)
    before, after = spec_with(ttl="1h"), spec_with(ttl="1h", ttl_to_sinks=True)
    assert "ttl_to_sinks none in the log and True in the code" in differences(before, after)[0]
    assert "ttl_to_sinks True in the log and none in the code" in differences(after, before)[0]


def test_with_max_entries_sinks_get_expired_keys_anyway() -> None:
    both, one = spec_with(ttl="1h", ttl_to_sinks=True, max_entries=3), spec_with(ttl="1h", max_entries=3)
    assert both == one
    assert layout_of(one).deletes
