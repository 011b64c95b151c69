"""Tasks of windowed aggregations give the results of an oracle, for random records and any batch boundaries."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import TopologyError
from holdfast.topology.windows import (
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    Window,
    every,
    hopping,
    session,
    sliding,
    tumbling,
)
from tests.pipeline.windowed import Record, WindowedApp, WindowOf, result_of, results_in, window_of

BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(-100, 100), st.integers(-5, 5)), max_size=12), max_size=6
)


def in_time_windows(
    windows: TimeWindows, batches: Sequence[Sequence[Record]]
) -> tuple[dict[WindowOf, list[tuple[int, int]]], int]:
    """What each window gets, and how many records are late, by the clock of the batch before."""
    found: dict[WindowOf, list[tuple[int, int]]] = {}
    late, event = 0, None
    for batch in batches:
        for key, time, value in batch:
            is_open = [each for each in windows.windows_of(time) if event is None or windows.closes(each) > event]
            late += not is_open
            for window in is_open:
                found.setdefault((key, *window), []).append((time, value))
        event = max([time for _, time, _ in batch] + ([] if event is None else [event]), default=None)
    return found, late


TIME_WINDOWS = [
    tumbling("10ms", grace="3ms"),
    tumbling("7ms"),
    hopping("10ms", every="5ms", grace="4ms"),
    hopping("10ms", every="4ms"),
    hopping("30ms", every="10ms", grace="60ms"),
]


@pytest.mark.parametrize("windows", TIME_WINDOWS, ids=str)
@settings(max_examples=settings().max_examples // 2)
@given(batches=BATCHES)
def test_tumbling_and_hopping_windows(windows: TimeWindows, batches: list[list[Record]]) -> None:
    app = WindowedApp(windows)
    sent: dict[WindowOf, dict[str, object]] = {}
    for batch in batches:
        for row in app.run(batch):
            sent[window_of(row)] = results_in(row)
    values, late = in_time_windows(windows, batches)
    expected = {window: result_of(records) for window, records in values.items()}
    assert app.stored() == expected
    assert sent == expected
    assert app.late == late


def test_the_documented_example_of_tumbling_windows() -> None:
    """Kafka Streams: windows of 5 minutes are [0;300000), [300000;600000), ... and the end belongs to the next."""
    assert tumbling("5m").windows_of(0) == tumbling("5m").windows_of(299_999) == [Window(0, 300_000)]
    assert tumbling("5m").windows_of(300_000) == [Window(300_000, 600_000)]


def test_the_documented_example_of_hopping_windows() -> None:
    """Kafka Streams: 5 minutes, every minute: windows are [0;300000), [60000;360000), ..."""
    app = WindowedApp(hopping("5m", every="1m"))
    app.run([("ann", 400_000, 1)])
    starts = [120_000, 180_000, 240_000, 300_000, 360_000]
    assert {window: value["n"] for window, value in app.stored().items()} == {
        ("ann", start, start + 300_000): 1 for start in starts
    }


def test_a_record_is_late_for_the_windows_that_have_closed_alone() -> None:
    app = WindowedApp(hopping("10s", every="5s"))
    app.run([("ann", 11_000, 1)])
    app.run([("ann", 7_000, 1)])  # 0 to 10 has closed, 5 to 15 is open
    assert {start: value["n"] for (_, start, _), value in app.stored().items()} == {5_000: 2, 10_000: 1}
    app.run([("ann", 20_000, 1)])
    assert app.late == 0
    app.run([("ann", 7_000, 1)])
    assert app.late == 1


@pytest.mark.parametrize("windows", TIME_WINDOWS[::2], ids=str)
@settings(max_examples=settings().max_examples // 2)
@given(batches=BATCHES)
def test_a_final_row_comes_once_in_the_version_after_the_window_has_closed(
    windows: TimeWindows, batches: list[list[Record]]
) -> None:
    app = WindowedApp(windows, {"final": True})
    sent: dict[WindowOf, dict[str, object]] = {}
    for batch in [*batches, []]:  # the last version is one that the driver makes on its own
        event = app.event
        app.run(batch)
        for row in app.sent[-1]:
            window = window_of(row)
            assert window not in sent
            assert event is not None and windows.closes(Window(*window[1:])) <= event
            sent[window] = results_in(row)
    stored, event = app.stored(), app.event
    assert sent == {w: v for w, v in stored.items() if event is not None and windows.closes(Window(*w[1:])) <= event}
    assert app.waiting == len(stored) - len(sent)


@pytest.mark.parametrize("windows", [tumbling, sliding, session], ids=["tumbling", "sliding", "session"])
@pytest.mark.parametrize("graces", [("60ms", "5ms"), ("5ms", "60ms")], ids=["shorter", "longer"])
def test_a_window_that_waits_while_the_grace_changes_is_sent_once(windows: Any, graces: tuple[str, str]) -> None:
    app = WindowedApp(windows("10ms", grace=graces[0]), {"final": True})
    app.run([("a", 1, 1), ("a", 5, 1)])
    app.windows = windows("10ms", grace=graces[1])
    app.run([("a", 5, 1), ("a", 6, 1)])
    for clock in range(20, 200, 10):
        app.run([("b", clock, 1)])
    rows = [window_of(row) for rows in app.sent for row in rows if row["player"] == "a"]
    stored = [window for window in app.stored() if window[0] == "a"]
    assert (sorted(rows), len(stored)) == (sorted(stored), len(set(rows)))
    assert app.waiting == len(list(app.state.stores["games"].scan(b"\x06", b"\x07")))


def test_a_window_that_waits_since_before_the_first_event_time_is_sent_once() -> None:
    """With several sources there may be records before the app has an event clock, and it may then leap."""
    app = WindowedApp(tumbling("20ms"), {"emit": every("5ms")})
    app.run([("a", 30, 1)])
    app.event = 2  # that of a slower source
    app.run([("a", 31, 1)])
    app.event = 50
    app.run([])
    assert [(window_of(row), row["n"]) for row in app.sent[-1]] == [(("a", 20, 40), 2)]


def test_a_clock_that_leaps_past_the_retention_loses_no_final_row() -> None:
    app = WindowedApp(tumbling("10s"), {"final": True, "retention": "10s"})
    app.run([("ann", 1_000, 1), ("bob", 2_000, 1)])
    app.run([("ann", 100_000_000, 1)])
    app.run([])
    assert sorted((row["player"], row["n"]) for row in app.sent[-1]) == [("ann", 1), ("bob", 1)]


def test_a_window_waits_on_if_the_grace_has_grown() -> None:
    app = WindowedApp(tumbling("10s", grace="5s"), {"final": True})
    app.run([("ann", 1_000, 1), ("ann", 14_000, 1)])
    app.windows = tumbling("10s", grace="20s")
    app.run([("ann", 16_000, 1)])
    app.run([("ann", 2_000, 1), ("ann", 30_000, 1)])
    assert app.sent == [[], [], []] and app.waiting == 3
    app.run([])
    assert [(window_of(row), row["n"]) for row in app.sent[-1]] == [(("ann", 0, 10_000), 2)]


def sessions_after(
    windows: SessionWindows, batches: Sequence[Sequence[Record]]
) -> tuple[dict[WindowOf, list[tuple[int, int]]], int]:
    """The sessions by the rules in words: each batch joins the open sessions, and closed ones never change."""
    found: dict[WindowOf, list[tuple[int, int]]] = {}
    late, event = 0, None
    for batch in batches:
        for key in sorted({key for key, _, _ in batch}):
            is_open = {w for w in found if w[0] == key and (event is None or windows.closes(Window(*w[1:])) > event)}
            values = [pair for window in is_open for pair in found[window]]
            values += [(time, value) for each, time, value in batch if each == key]
            for found_one in windows.windows(time for time, _ in values):
                inside = [pair for pair in values if found_one.start <= pair[0] <= found_one.end]
                if event is not None and windows.closes(found_one) <= event:
                    late += len(inside)
                    continue
                for window in [w for w in is_open if found_one.start <= w[1] and w[2] <= found_one.end]:
                    found.pop(window, None)
                found[(key, *found_one)] = inside
        event = max([time for _, time, _ in batch] + ([] if event is None else [event]), default=None)
    return found, late


SESSIONS = [session("5ms"), session("3ms", grace="10ms"), session("1ms", grace="200ms")]


@pytest.mark.parametrize("windows", SESSIONS, ids=str)
@settings(max_examples=settings().max_examples // 2)
@given(batches=BATCHES)
def test_sessions(windows: SessionWindows, batches: list[list[Record]]) -> None:
    app = WindowedApp(windows, {"final": True})
    sent: dict[WindowOf, dict[str, object]] = {}
    final: dict[WindowOf, dict[str, object]] = {}
    for batch in [*batches, []]:
        event = app.event
        for row in sorted(app.run(batch), key=lambda row: not row["_deleted"]):
            if row["_deleted"]:
                del sent[window_of(row)]
            else:
                sent[window_of(row)] = results_in(row)
        for row in app.sent[-1]:
            assert window_of(row) not in final
            assert event is not None and windows.closes(Window(*window_of(row)[1:])) <= event
            final[window_of(row)] = results_in(row)
    values, late = sessions_after(windows, batches)
    expected = {window: result_of(records) for window, records in values.items()}
    assert app.stored() == expected
    assert sent == expected
    assert app.late == late
    event = app.event
    assert final == {w: v for w, v in expected.items() if event is not None and windows.closes(Window(*w[1:])) <= event}
    assert app.waiting == len(expected) - len(final)


def test_the_documented_example_of_sessions() -> None:
    """Kafka Streams: with a gap of 5 minutes, two sessions become one when a record arrives late between them."""
    minute = 60_000
    app = WindowedApp(session("5m", grace="30m"))
    app.run([("green", 0, 1), ("blue", 0, 1), ("blue", 4 * minute, 1), ("green", 6 * minute, 1)])
    assert {window: value["n"] for window, value in app.stored().items()} == {
        ("blue", 0, 4 * minute): 2,
        ("green", 0, 0): 1,
        ("green", 6 * minute, 6 * minute): 1,
    }
    rows = app.run([("green", 5 * minute, 1)])  # exactly a gap after the first one
    assert {window: value["n"] for window, value in app.stored().items()} == {
        ("blue", 0, 4 * minute): 2,
        ("green", 0, 6 * minute): 3,
    }
    assert {window_of(row): row["n"] for row in rows} == {
        ("green", 0, 0): None,
        ("green", 6 * minute, 6 * minute): None,
        ("green", 0, 6 * minute): 3,
    }


@pytest.mark.parametrize(
    "windows", [tumbling("10ms", grace="30ms"), hopping("10ms", every="5ms"), SESSIONS[1]], ids=str
)
@settings(max_examples=settings().max_examples // 2)
@given(batches=BATCHES)
def test_a_window_is_sent_at_most_once_per_step_and_in_the_end_as_it_is(
    windows: TimeWindows | SessionWindows, batches: list[list[Record]]
) -> None:
    app = WindowedApp(windows, {"emit": every("20ms")})
    sent: dict[WindowOf, dict[str, object]] = {}
    steps: set[tuple[WindowOf, int]] = set()
    far: list[list[Record]] = [[("z", 1_000, 1)], [("z", 2_000, 1)], []]
    for batch in [*batches, *far]:
        stored, event = app.stored(), app.event
        app.run(batch)
        assert len({window_of(row) for row in app.sent[-1]}) == len(app.sent[-1]), "one row per window and version"
        for row in app.sent[-1]:
            if row.get("_deleted"):
                sent.pop(window_of(row), None)
                continue
            assert event is not None
            assert (window_of(row), event // 20) not in steps
            steps.add((window_of(row), event // 20))
            sent[window_of(row)] = results_in(row)
            assert stored[window_of(row)] == results_in(row)
    assert {w: v for w, v in sent.items() if w[0] != "z"} == {w: v for w, v in app.stored().items() if w[0] != "z"}
    assert app.waiting <= 1 + windows.overlap * 5


def test_a_window_that_waits_to_be_sent_must_be_kept_that_long() -> None:
    with pytest.raises(TopologyError, match='retention="40s" or more'):
        WindowedApp(tumbling("10s"), {"emit": every("30s"), "retention": "30s"})


def sliding_after(
    windows: SlidingWindows, batches: Sequence[Sequence[Record]]
) -> tuple[dict[WindowOf, list[tuple[int, int]]], int]:
    """Record by record, as Kafka Streams does it, with the clock of the batch before."""
    found: dict[WindowOf, list[tuple[int, int]]] = {}
    taken: dict[str, list[tuple[int, int]]] = {}
    late, event = 0, None
    for batch in batches:
        for key, time, value in batch:
            if event is not None and time + 1 + windows.size_ms + windows.grace_ms <= event:
                late += 1
                continue
            taken.setdefault(key, []).append((time, value))
            for window in windows.windows(each for each, _ in taken[key]):
                inside = [pair for pair in taken[key] if window.start <= pair[0] <= window.end]
                if event is None or windows.closes(window) > event:
                    found[(key, *window)] = inside
        event = max([time for _, time, _ in batch] + ([] if event is None else [event]), default=None)
    return found, late


@pytest.mark.parametrize(
    "windows", [sliding("10ms"), sliding("7ms", grace="9ms"), sliding("20ms", grace="300ms")], ids=str
)
@settings(max_examples=settings().max_examples // 2)
@given(batches=BATCHES)
def test_sliding_windows(windows: SlidingWindows, batches: list[list[Record]]) -> None:
    app = WindowedApp(windows, {"final": True})
    sent: dict[WindowOf, dict[str, object]] = {}
    final: dict[WindowOf, dict[str, object]] = {}
    for batch in [*batches, []]:
        sent |= {window_of(row): results_in(row) for row in app.run(batch)}
        for row in app.sent[-1]:
            assert window_of(row) not in final
            final[window_of(row)] = results_in(row)
    values, late = sliding_after(windows, batches)
    expected = {window: result_of(records) for window, records in values.items()}
    assert app.stored() == expected
    assert sent == expected
    assert app.late == late
    event = app.event
    assert final == {w: v for w, v in expected.items() if event is not None and windows.closes(Window(*w[1:])) <= event}


def test_the_documented_example_of_sliding_windows() -> None:
    """Kafka Streams: records of 8000, 9200 and 12400 ms, with a time difference of 5000 ms, are in five windows."""
    app = WindowedApp(sliding("5s", grace="30s"))
    app.run([("ann", 8_000, 1), ("ann", 9_200, 1)])
    app.run([("ann", 12_400, 1)])
    assert {window[1:]: value["n"] for window, value in app.stored().items()} == {
        (3_000, 8_000): 1,
        (4_200, 9_200): 2,
        (7_400, 12_400): 3,
        (8_001, 13_001): 2,
        (9_201, 14_201): 1,
    }
