"""The clock of a store's retention: it never changes, so that expired entries never come back.

An app's first event time may come late and be long before its wall clock, from another stream or a later release.
"""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.instance.config import Role
from holdfast.instance.read_views import StoreBytes
from holdfast.log.appfile import AppChanged
from holdfast.query.opening import OpenPart, StorePart
from holdfast.query.queries import Asked, Kinds
from holdfast.query.task_reader import ANY_REPLICA, Served, TaskStore
from holdfast.stores.access import Now
from holdfast.words import TaskId, Version
from tests.instance.test_limits_change import KINDS, Clock, Code, Instance, written

START, STEP = 1_000_000, 1_000


def now_of(number: int) -> Now:
    """No event time for twenty versions, then one that is twelve seconds behind."""
    wall = START + STEP * number
    return Now(wall, None if number < 20 else wall - 12 * STEP)


@pytest.mark.parametrize("clock", ["wall", "event"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_apps_first_event_time_shows_no_expired_entry_again(kind: str, clock: Clock, tmp_path: Path) -> None:
    code = Code(KINDS[kind]("4s"), "memory", clock=clock)
    always = Instance(tmp_path / "always", code)
    expected: list[list[Any]] = [[]]
    for number in range(32):
        now = now_of(number)
        version = code.commit(now, written(code.store, START + STEP * number))
        expected.append(code.expected(version, now))
        always.catch_up(version)
        assert always.shown(version) == expected[version]
        if kind != "versioned":  # a value's end changes with the next value
            assert len({*map(repr, expected[version])} - {*map(repr, expected[version - 1])}) == 1, (
                "only the put is new"
            )
    fresh = Instance(tmp_path / "fresh", code)
    fresh.catch_up(version)
    for shown in (always, fresh):
        for each in map(Version, shown.versions()):
            assert shown.shown(each) == expected[each], f"version {each}"
    # In wall time four seconds are kept; in event time all before the first event time, then 16 s.
    left = {"wall": (4, 4), "event": (20, 16)}[clock]
    # A value that was valid when the history starts is kept, and so is a session that ends exactly there.
    more = 0 if kind == "window" else 1
    assert (len(expected[20]), len(expected[32])) == (min(20, left[0] + more), left[1] + more)


@pytest.mark.parametrize(
    ("log", "now", "message"),
    [("wall", "event", "the wall clock, .* in the log and by event time"), ("event", "wall", "event time in the log")],
)
def test_another_clock_is_refused_with_advice(log: Clock, now: Clock, message: str) -> None:
    code = Code(KINDS["window"]("4s"), "memory", clock=log)
    code.commit(now_of(0))
    with pytest.raises(
        AppChanged, match=f"store 'kept' measures retention by {message}.*Leave the stream's timestamp= as it was; or"
    ):
        Code(KINDS["window"]("4s"), "memory", code, clock=now)


def test_relative_times_in_a_query_are_measured_by_the_stores_clock(tmp_path: Path) -> None:
    code = Code(KINDS["window"]("8s"), "memory", clock="wall")
    instance = Instance(tmp_path, code)
    for number in range(18, 24):
        instance.catch_up(code.commit(now_of(number), written(code.store, START + STEP * number)))
    kinds = Kinds([code.spec])
    asked = Asked(kinds, code.spec, kinds.query(code.spec, "windows"), "ann", {"from": "-2s"})
    with instance.replica.read_view() as view:
        bytes_: Any = StoreBytes(view, "kept")
        not_held: Any = None
        store = TaskStore(view.version, view.now, bytes_, Served(Role.ACTIVE, "game-0"), lambda terms: not_held)
        reader: Any = SimpleNamespace(local=True, at=lambda *place: nullcontext(store))
        part = OpenPart(StorePart("kept", TaskId(0, 0)), reader, None, ANY_REPLICA)
        found = list(asked.placed(instance.specs.at("kept", view.version), part))
    assert [each.item["start"] for each in found] == [START + STEP * number for number in (21, 22, 23)]
