"""A table with a TTL: a key without records is hidden at once and dropped with its slice."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.formats.cells import unpack
from holdfast.stores.layouts.slices import live_slices, slices_to_drop, split_sliced
from tests.pipeline.tables import OneTask, key_of, spec_with

SECOND = 1_000
BATCHES = st.lists(
    st.tuples(st.integers(0, 5 * SECOND), st.sets(st.sampled_from("abcdef")), st.booleans()), max_size=25
)


@given(BATCHES, st.sampled_from(["1s", "4s", "9s"]), st.integers(1, 4))
def test_a_table_with_a_ttl_equals_a_dictionary_whose_entries_expire(
    batches: list[tuple[int, set[str], bool]], ttl: str, chunk: int
) -> None:
    task = OneTask(spec_with(ttl=ttl))
    model: dict[str, tuple[int, int, int]] = {}
    wall = 1_000_000
    for passed, players, drop in batches:
        wall += passed
        if drop and (hidden := slices_to_drop(task.spec, wall, None)) is not None:
            start, stop = hidden
            task.cells = {key: value for key, value in task.cells.items() if not start <= key < stop}
        task.step(dict.fromkeys(players, (7, wall)), wall, chunk_rows=chunk)
        for player in players:
            n, total, expires = model.get(player, (0, 0, 0))
            n, total = (n, total) if expires > wall else (0, 0)
            model[player] = (n + 1, total + 7, wall + task.spec.ttl_ms)
        sent = {row["player"]: (row["n"], row["total"]) for row in task.sent()}
        assert sent == {player: model[player][:2] for player in players}
    for player, (_, _, expires) in model.items():
        found = [
            unpack(cell).expires
            for number in live_slices(task.spec, wall)
            for key, cell in task.cells.items()
            if split_sliced(key) == (number, key_of(player))
        ]
        assert bool(found and found[0] > wall) == (expires > wall)


def test_slices_are_read_newest_first_and_only_for_missing_keys() -> None:
    task = OneTask(spec_with(ttl="8s"))
    task.step({"old": (1, 0)}, 1_000_000)
    task.step({"new": (1, 0)}, 1_004_000)
    task.asked.clear()
    task.step({"old": (1, 0), "new": (1, 0), "never": (1, 0)}, 1_005_000)
    assert task.asked == [3, 3, 2, 2, 2, 2, 1, 1, 1]
    assert {row["player"]: row["n"] for row in task.sent()} == {"old": 2, "new": 2, "never": 1}


def test_an_aggregate_starts_over_at_the_millisecond_of_its_expiry() -> None:
    task = OneTask(spec_with(ttl="10s"))
    task.step({"ann": (1, 0)}, 1_000_000)
    task.step({"ann": (1, 0)}, 1_009_999)
    assert task.sent() == [{"player": "ann", "n": 2, "total": 2}]
    task.step({"ann": (1, 0)}, 1_019_999)
    assert task.sent() == [{"player": "ann", "n": 1, "total": 1}]


def test_nothing_is_deleted_so_sinks_have_no_column_for_it() -> None:
    task = OneTask(spec_with(ttl="1h"))
    task.step({"ann": (1, 5)}, 1_000_000)
    assert list(task.sent()[0]) == ["player", "n", "total"]
    [(key, cell)] = task.cells.items()
    assert split_sliced(key) == (1_000_000 // task.spec.slice_ms, key_of("ann"))
    assert (unpack(cell).timestamp, unpack(cell).expires) == (5, 1_000_000 + 3_600_000)
