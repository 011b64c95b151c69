"""A table with a history: its latest and former results, in the same bytes as a versioned store."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import holdfast as hf
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.codecs.values import codec_of
from holdfast.stores.formats.cells import Cell, pack
from holdfast.stores.kinds.versioned import ReadOnlyVersionedKeyValueStore, VersionedKeyValueStore
from holdfast.stores.layouts.slices import kept_after, slices_to_drop
from holdfast.stores.spec import StoreSpec
from tests.pipeline.tables import OneTask, key_of, spec_with

SECOND = 1_000
START = 1_000_000

BATCHES = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(["a", "b", "c\x00", ""]), st.integers(-15 * SECOND, 5 * SECOND)),
        st.booleans(),
    ),
    max_size=25,
)
"""Players of each batch, how far from the clock their records are, and whether a replica drops slices before it."""


def view_of(task: OneTask, now: Now) -> ReadOnlyVersionedKeyValueStore[str, dict[str, Any]]:
    bytes_ = DictBytes()
    bytes_.entries.update(task.cells)
    return ReadOnlyVersionedKeyValueStore(task.spec, bytes_, now)


def versioned(spec: StoreSpec, bytes_: DictBytes, now: Now) -> VersionedKeyValueStore[str, dict[str, Any]]:
    declared: VersionedKeyValueStore[str, dict[str, Any]] = hf.VersionedKeyValueStore(
        "scores", value=dict[str, Any], retention="1s"
    )
    return declared.bind(bytes_, now, spec=spec)


@given(BATCHES, st.sampled_from(["1s", "4s", "20s"]), st.integers(1, 4))
def test_a_table_with_retention_has_the_bytes_of_a_versioned_store(
    batches: list[tuple[dict[str, int], bool]], retention: str, chunk: int
) -> None:
    task, twin = OneTask(spec_with(retention=retention)), DictBytes()
    rows: dict[str, tuple[int, int]] = {}
    event: int | None = None
    for players, drop in batches:
        now = Now(START, event)
        if drop and (hidden := slices_to_drop(task.spec, START, event)) is not None:
            for cells in (task.cells, twin.entries):
                for key in [key for key in cells if hidden[0] <= key < hidden[1]]:
                    del cells[key]
        at = {player: (START if event is None else event) + away for player, away in players.items()}
        task.step({player: (7, time) for player, time in at.items()}, START, event=event, chunk_rows=chunk)
        store = versioned(task.spec, twin, now)
        for player, time in at.items():
            n, before = rows.get(player, (0, time))
            since = max(before, time)
            rows[player] = (n + 1, since)
            row = {"n": n + 1, "total": 7 * n + 7}
            if since >= kept_after(task.spec, now):
                assert store.put(player, row, since)
            else:  # older than the history: a typed store refuses it, and a table counts every record
                twin.put(key_of(player), pack(Cell(codec_of(task.spec).encode(row), since)))
        event = max([*at.values(), *([] if event is None else [event])], default=None)
        assert task.cells == dict(twin.entries)
        assert {row["player"]: row["n"] for row in task.sent()} == {player: rows[player][0] for player in players}


def test_old_rows_are_kept_for_the_retention_and_the_latest_forever() -> None:
    task = OneTask(spec_with(retention="10s"))
    task.step({"ann": (1, 1_000), "bob": (5, 1_000)}, START)
    task.step({"ann": (2, 4_000)}, START, event=1_000)
    task.step({"ann": (3, 2_500)}, START, event=4_000)  # late: counted now, and the past stays as it was
    task.step({"ann": (4, 9_000)}, START, event=4_000)
    view = view_of(task, Now(START, event=9_000))
    assert [(record.value["total"], record.timestamp, record.valid_to) for record in view.history("ann")] == [
        (1, 1_000, 4_000),
        (6, 4_000, 9_000),
        (10, 9_000, None),
    ]
    later = view_of(task, Now(START, event=14_000))
    assert [record.value["total"] for record in later.history("ann")] == [6, 10]
    assert later.get("ann", as_of=3_000) is None
    bob = view_of(task, Now(START, event=99_000)).get("bob", as_of=1_000)
    assert bob is not None and bob.value["total"] == 5
    assert task.sent() == [{"player": "ann", "n": 4, "total": 10}]


def test_without_event_time_the_wall_clock_measures_the_history() -> None:
    task = OneTask(structs.replace(spec_with(retention="10s"), clock="wall"), timed=False)
    for seconds in (0, 4, 9):
        task.step({"ann": (1, 0)}, START + seconds * SECOND)
    found = view_of(task, Now(START + 11 * SECOND)).history("ann")
    assert [(record.value["n"], record.timestamp - START) for record in found] == [(1, 0), (2, 4_000), (3, 9_000)]
    found = view_of(task, Now(START + 14 * SECOND)).history("ann")
    assert [record.value["n"] for record in found] == [2, 3]


def test_a_stream_without_event_time_uses_the_wall_clock_in_any_app() -> None:
    task = OneTask(structs.replace(spec_with(retention="10s"), clock="wall"), timed=False)
    for seconds in (0, 4, 9):
        # The event clock is another stream's: an hour behind, and it stands still.
        task.step({"ann": (1, 0)}, START + seconds * SECOND, event=START - 3_600 * SECOND)
    found = view_of(task, Now(START + 14 * SECOND, event=START - 3_600 * SECOND)).history("ann")
    assert [record.value["n"] for record in found] == [2, 3]


def test_two_records_of_the_same_time_leave_one_row() -> None:
    task = OneTask(spec_with(retention="10s"))
    task.step({"ann": (1, 1_000)}, START)
    task.step({"ann": (1, 1_000)}, START, event=1_000)
    assert len(task.cells) == 1 and task.sent() == [{"player": "ann", "n": 2, "total": 2}]
