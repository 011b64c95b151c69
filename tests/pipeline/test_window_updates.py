"""One result per record: tasks send what an oracle sends, for random records and any batch boundaries."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings

from holdfast.topology.windows import (
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    Window,
    hopping,
    session,
    sliding,
    tumbling,
)
from tests.pipeline.test_windowed_task import BATCHES, SESSIONS, sliding_after
from tests.pipeline.windowed import Record, WindowedApp, WindowOf, result_of, results_in, window_of


@pytest.mark.parametrize("windows", [tumbling("10ms", grace="30ms"), hopping("10ms", every="4ms")], ids=str)
@settings(max_examples=settings().max_examples // 2)
@given(batches=BATCHES)
def test_each_record_has_a_result_of_its_own(windows: TimeWindows, batches: list[list[Record]]) -> None:
    app = WindowedApp(windows, {"updates": True})
    values: dict[WindowOf, list[tuple[int, int]]] = {}
    for batch in batches:
        event, expected = app.event, []
        for key, time, value in sorted(batch, key=lambda record: record[1]):
            for window in windows.windows_of(time):
                if event is None or windows.closes(window) > event:
                    inside = values.setdefault((key, *window), [])
                    inside.append((time, value))
                    expected.append(((key, *window), result_of(inside)))
        app.run(batch)
        assert [(window_of(row), results_in(row)) for row in app.sent[-1]] == expected
    assert app.stored() == {window: result_of(records) for window, records in values.items()}


def session_updates(
    windows: SessionWindows, found: dict[WindowOf, list[tuple[int, int]]], batch: Sequence[Record], event: int | None
) -> list[tuple[WindowOf, dict[str, object] | None]]:
    """What a batch sends, record by record in the order of times, as Kafka Streams does it; None is a delete.

    A session that a record doesn't change is not deleted first. Which records are late is that of the whole batch.
    """
    sent: list[tuple[WindowOf, dict[str, object] | None]] = []
    is_open = {w for w in found if event is None or windows.closes(Window(*w[1:])) > event}
    taken = []
    for key in sorted({key for key, _, _ in batch}):
        times = [time for each, time, _ in batch if each == key]
        times += [time for w in is_open if w[0] == key for time, _ in found[w]]
        kept = [w for w in windows.windows(times) if event is None or windows.closes(w) > event]
        taken += [r for r in batch if r[0] == key and any(w.start <= r[1] <= w.end for w in kept)]
    for key, time, value in sorted(taken, key=lambda record: (record[1], batch.index(record))):
        near = [w for w in is_open if w[0] == key and w[1] - windows.gap_ms <= time <= w[2] + windows.gap_ms]
        new = (key, min([time, *(w[1] for w in near)]), max([time, *(w[2] for w in near)]))
        inside = [pair for w in near for pair in found.pop(w)] + [(time, value)]
        sent += [(w, None) for w in sorted(near, key=lambda w: (w[2], w[1])) if w != new]
        found[new] = inside
        is_open = is_open - set(near) | {new}
        sent.append((new, result_of(inside)))
    return sent


@pytest.mark.parametrize("windows", SESSIONS, ids=str)
@given(batches=BATCHES)
def test_each_record_has_a_session_of_its_own(windows: SessionWindows, batches: list[list[Record]]) -> None:
    app = WindowedApp(windows, {"updates": True})
    found: dict[WindowOf, list[tuple[int, int]]] = {}
    for batch in batches:
        batch = list(dict.fromkeys(batch))  # equal records have no order
        expected = session_updates(windows, found, batch, app.event)
        app.run(batch)
        rows = [(window_of(row), None if row["_deleted"] else results_in(row)) for row in app.sent[-1]]
        assert rows == expected
    assert app.stored() == {window: result_of(records) for window, records in found.items()}


def test_updates_of_sessions_that_a_longer_grace_has_opened_again() -> None:
    """Two stored sessions are near each other: one had closed when the other began. A record makes them one."""
    app = WindowedApp(session("5ms"), {"updates": True})
    app.run([("a", 0, 1), ("a", 5, 1), ("b", 11, 1)])
    app.run([("a", 8, 1)])
    app.windows = session("5ms", grace="1h")
    app.run([("a", 1, 1), ("a", 20, 1)])
    rows = [row for rows in app.sent for row in rows]
    left = {window_of(row): None if row["_deleted"] else results_in(row) for row in rows}
    assert {window: value for window, value in left.items() if value is not None} == app.stored()
    assert [window[1:] for window in app.stored()] == [(0, 8), (20, 20), (11, 11)]


@pytest.mark.parametrize(
    "windows", [sliding("10ms"), sliding("7ms", grace="9ms"), sliding("20ms", grace="300ms")], ids=str
)
@given(batches=BATCHES)
def test_each_record_has_sliding_windows_of_its_own(windows: SlidingWindows, batches: list[list[Record]]) -> None:
    """As Kafka Streams does it: the windows that a record is in, and a window after it that is new."""
    app = WindowedApp(windows, {"updates": True})
    taken: dict[str, list[tuple[int, int]]] = {}
    for batch in batches:
        event, expected = app.event, []
        for key, time, value in sorted(batch, key=lambda record: record[1]):
            if event is not None and time + 1 + windows.size_ms + windows.grace_ms <= event:
                continue
            before = windows.windows(each for each, _ in taken.setdefault(key, []))
            taken[key].append((time, value))
            for window in windows.windows(each for each, _ in taken[key]):
                is_changed = window.start <= time <= window.end or (window.start == time + 1 and window not in before)
                if is_changed and (event is None or windows.closes(window) > event):
                    inside = [pair for pair in taken[key] if window.start <= pair[0] <= window.end]
                    expected.append(((key, *window), result_of(inside)))
        app.run(batch)
        assert [(window_of(row), results_in(row)) for row in app.sent[-1]] == expected
    values, _ = sliding_after(windows, batches)
    assert app.stored() == {window: result_of(records) for window, records in values.items()}
