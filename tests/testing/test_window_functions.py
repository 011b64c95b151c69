"""Sliding windows, steps of event time and changes of the grace, for values of a user's own functions."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.stores.access import DictBytes
from holdfast.stores.layouts.areas import WAITING_AREA
from holdfast.testing import TestDriver, records
from holdfast.topology.plain_frames import PlainFrame
from holdfast.topology.windows import Window
from tests.testing.test_driver import GAMES, START, at, game, without_spark
from tests.testing.test_shared_stores import started_after
from tests.testing.test_windows import KINDS, one_task, windows_in

__all__ = ["without_spark"]  # a fixture for all tests here

SIZE, GRACE = 10, 15


class Letter(msgspec.Struct):
    letter: str


def milliseconds(time: datetime) -> int:
    return (time - START) // timedelta(milliseconds=1)


def letters(old: str | None, event: Any) -> str | None:
    """Depends on the order of records; a "x" deletes."""
    return None if event.letter == "x" else (old or "") + event.letter


def letters_app(**options: Any) -> hf.App:
    app = hf.App("letters", settings=hf.Settings(partitions=1))
    stream = app.stream(
        records("k string, letter string, at timestamp, n bigint"), key="k", timestamp="at", position="n"
    )
    windowed = stream.group_by().window(hf.sliding(f"{SIZE}ms", grace=f"{GRACE}ms"))
    windowed.aggregate_with(str, letters, value=str).store("letters", **options)
    return app


class Oracle:
    """Sliding windows by their definition: each open window recomputed from all records that were not late."""

    def __init__(self) -> None:
        self.windows = hf.sliding(f"{SIZE}ms", grace=f"{GRACE}ms")
        self.clock: int | None = None
        self.taken: dict[str, list[tuple[int, str]]] = {"a": [], "b": []}
        self.values: dict[tuple[str, int], str] = {}
        self.late = 0

    def batch(self, rows: list[tuple[str, int, str]]) -> None:
        for key, time, letter in rows:
            if self._is_open(Window(time, time + SIZE)):
                self.taken[key].append((time, letter))
            else:
                self.late += 1
        for key, taken in self.taken.items():
            taken.sort(key=lambda each: each[0])
            for window in filter(self._is_open, self.windows.windows(time for time, _ in taken)):
                value = self._folded([letter for time, letter in taken if window.start <= time <= window.end])
                self.values.pop((key, window.start), None)
                if value is not None:
                    self.values[key, window.start] = value
        self.clock = max([*([] if self.clock is None else [self.clock]), *(time for _, time, _ in rows)])

    def _is_open(self, window: Window) -> bool:
        return self.clock is None or self.windows.closes(window) > self.clock

    @staticmethod
    def _folded(found: list[str]) -> str | None:
        value: str | None = None
        for letter in found:
            value = letters(value, Letter(letter))
        return value


LETTERS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.sampled_from("pqrx")), max_size=25)


@pytest.mark.parametrize("emit", [None, "updates"])
@given(rows=LETTERS, data=st.data())
def test_sliding_windows_of_a_function_are_as_defined(
    emit: str | None, rows: list[tuple[str, int, str]], data: st.DataObject
) -> None:
    """For records in any order, with deletes, and any batches: each value has its records in the order of times."""
    driver, oracle, sent = TestDriver(letters_app(emit=emit)), Oracle(), dict[tuple[str, int], str]()
    late = 0
    while rows:
        number = data.draw(st.integers(1, len(rows)))
        batch, rows = rows[:number], rows[number:]
        oracle.batch(batch)
        rows_of = [
            {"k": k, "letter": letter, "at": at(time / 1000), "n": n} for n, (k, time, letter) in enumerate(batch)
        ]
        driver.pipe("main", rows_of)
        late += driver.counts.get("late/letters", 0)
        for row in driver.output("letters"):
            place = row["k"], milliseconds(row["window_start"])
            if row["_deleted"]:
                del sent[place]
            else:
                sent[place] = msgspec.json.decode(row["value"])
    epoch = int(START.timestamp() * 1000)
    stored = {(key, start - epoch): value for (key, start, _), value in driver.store("letters").items()}
    assert (stored, sent, late) == (oracle.values, oracle.values, oracle.late)


def test_kafka_streams_example_of_sliding_windows_with_a_reducer() -> None:
    """Kafka Streams: records at 8.0, 9.2 and 12.4 s with a time difference of 5 s are in five windows.

    In whatever order they come, a value has them in the order of their event times.
    """
    app, games = one_task()
    windowed = games.group_by().window(hf.sliding("5s", grace="1m"))
    windowed.reduce(lambda old, new: old * 10 + new, of="points").store("joined")
    assert "windows sliding 5s, grace 1m" in app.describe() and "store joined-records (window" in app.describe()
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 3, 12.4)])
    driver.pipe("games", [game("ann", 1, 8), game("bob", 7, 9)])
    driver.crash().pipe("games", [game("ann", 2, 9.2)])
    values = {(key, (start - START.timestamp() * 1000) / 1000): value for (key, start, _), value in stored(driver)}
    assert values == {
        ("ann", 3.0): 1,
        ("ann", 4.2): 12,
        ("ann", 7.4): 123,
        ("ann", 8.001): 23,
        ("ann", 9.201): 3,
        ("bob", 4.0): 7,
    }


def stored(driver: TestDriver) -> list[tuple[Any, Any]]:
    return driver.store("joined").items()


class Played(msgspec.Struct):
    points: int
    at: datetime


def add_played(value: list[str], event: Played) -> list[str]:
    return [*value, f"{event.points} at {milliseconds(event.at)}"]


def test_an_event_of_a_sliding_window_is_what_the_function_names() -> None:
    app, games = one_task()
    table = games.group_by().window(hf.sliding("5s", grace="1m")).aggregate_with(list, add_played, value=list[str])
    table.store("played").final()
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 2, 2)])
    driver.pipe("games", [game("ann", 1, 1)])
    driver.advance(stream="1h")
    rows = windows_in(driver.output("final"), "value")
    assert rows == [
        ("ann", -4, 1, '["1 at 1000"]'),
        ("ann", -3, 2, '["1 at 1000","2 at 2000"]'),
        ("ann", 1.001, 6.001, '["2 at 2000"]'),
    ]


def test_columns_of_every_type_are_kept_for_sliding_windows() -> None:
    fields: dict[str, Any] = {
        "k": pa.string(),
        "at": pa.timestamp("us", "UTC"),
        "cost": pa.decimal128(10, 2),
        "days": pa.list_(pa.date32()),
        "inner": pa.struct([("local", pa.timestamp("us")), ("rates", pa.map_(pa.string(), pa.decimal128(4, 1)))]),
        "raw": pa.binary(),
    }
    frame: Any = PlainFrame.of_arrow(pa.schema(fields))
    app = hf.App("types", settings=hf.Settings(partitions=1))
    stream = app.stream(frame, key="k", timestamp="at")

    def seen(value: list[str], event: Any) -> list[str]:
        return [*value, repr((event.cost, event.days, event.inner, event.raw))]

    stream.group_by().window(hf.sliding("5s", grace="1m")).aggregate_with(list, seen, value=list[str]).store("seen")
    driver = TestDriver(app)
    days = [date(2030, 1, 2), None]
    inner = {"local": at(5).replace(tzinfo=None), "rates": {"a": Decimal("1.5"), "b": None}}
    full = {"k": "a", "at": at(3), "cost": Decimal("1.10"), "days": days, "inner": inner, "raw": b"\x00"}
    driver.pipe("main", [full])
    driver.pipe("main", [{"k": "a", "at": at(2), "cost": None, "days": None, "inner": None, "raw": None}])
    expected = [repr((None, None, None, None)), repr((Decimal("1.10"), days, inner, b"\x00"))]
    assert expected in [value for _, value in driver.store("seen").items()]


def test_several_streams_keep_one_value_per_sliding_window() -> None:
    app, games = one_task()
    moves = app.stream(records("who string, city string, at timestamp"), key="who", timestamp="at", name="moves")
    both = hf.cogroup(
        (games.group_by(), lambda value, event: [*value, str(event.points)]),
        (moves.group_by(), lambda value, event: [*value, event.city]),
    )
    both.window(hf.sliding("10s", grace="1m")).aggregate_with(list, value=list[str]).store("both")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 2, 5)])
    driver.pipe_all({"games": [game("ann", 1, 1)], "moves": [{"who": "ann", "city": "Bern", "at": at(3)}]})
    assert [value for _, value in driver.store("both").items()] == [
        ["1"],
        ["1", "Bern"],
        ["1", "Bern", "2"],
        ["Bern", "2"],
        ["2"],
    ]


def test_a_record_that_fails_in_one_sliding_window_is_in_none() -> None:
    app, games = one_task()

    def fussy(value: int, event: Any) -> int:
        if value + int(event.points) == 13:
            raise ValueError("unlucky")
        return value + int(event.points)

    windowed = games.group_by().window(hf.sliding("5s", grace="1m"))
    windowed.aggregate_with(int, fussy, value=int, on_error="dead_letter").store("sums").final()
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 10, 5)])
    driver.pipe("games", [game("ann", 3, 4), game("ann", 1, 3), game("ann", 4, 9)])
    assert [value for _, value in driver.store("sums").items()] == [1, 11, 10, 14, 4]
    assert len(driver.store("sums-records").items()) == 3
    assert driver.counts["waiting/sums"] == 5
    (letter,) = driver.dead_letters()
    assert "ValueError: unlucky" in letter["reason"]


def test_a_record_that_is_kept_for_later_windows_fails_when_it_comes() -> None:
    """Its own windows have closed, so none of them calls the function with it."""
    app, games = one_task()

    def fussy(value: int, event: Any) -> int:
        if event.points == 13:
            raise ValueError("unlucky")
        return value + int(event.points)

    windowed = games.group_by().window(hf.sliding("10s", grace="1s"))
    windowed.aggregate_with(int, fussy, value=int, on_error="dead_letter").store("sums")
    driver = TestDriver(app)
    driver.pipe("games", [game("zoe", 1, 20)])
    driver.pipe("games", [game("ann", 13, 15), game("ann", 2, 16)])
    assert [letter["record"]["points"] for letter in driver.dead_letters()] == [13]
    assert driver.counts.get("late/sums", 0) == 0
    driver.pipe("games", [game("ann", 3, 21)])
    assert driver.dead_letters() == []
    assert driver.store("sums").fetch("ann", at(11)) == 5


@pytest.mark.parametrize("of_functions", [False, True], ids=["aggregate", "function"])
def test_a_session_that_is_due_in_the_version_that_deletes_it_is_not_sent_before(of_functions: bool) -> None:
    app, games = one_task()
    grouped = games.group_by().window(hf.session("10s", grace="1m"))
    sums = (
        grouped.reduce(lambda old, new: old + new, of="points")
        if of_functions
        else grouped.aggregate(value=hf.sum("points"))
    )
    sums.store("sums", emit=hf.every("15s"))
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 1), game("bob", 1, 1)])
    driver.pipe("games", [game("zoe", 1, 16)])
    driver.pipe("games", [game("ann", 2, 5)])
    rows = [(player, end, value and int(value)) for player, _, end, value in windows_in(driver.output("sums"), "value")]
    assert sorted(rows, key=str) == [("ann", 1, None), ("bob", 1, 1), ("zoe", 16, 1)], "ann has another one"
    driver.advance(stream="30s")
    assert ("ann", 1, 5, "3") in [(*row[:3], str(row[3])) for row in windows_in(driver.output("sums"), "value")]


def test_a_column_that_a_later_release_adds_is_null_in_the_records_before() -> None:
    def release(columns: str) -> hf.App:
        app = hf.App("games", settings=hf.Settings(partitions=1))
        games = app.stream(records(columns), key="player", timestamp="at", name="games")
        windowed = games.group_by().window(hf.sliding("5s", grace="1m"))

        def seen(value: list[str], event: Any) -> list[str]:
            return [*value, f"{event.points} {getattr(event, 'city', '-')}"]

        windowed.aggregate_with(list, seen, value=list[str]).store("seen")
        return app

    driver = TestDriver(release(GAMES))
    driver.pipe("games", [game("ann", 2, 2)])
    driver = started_after(driver, release(f"{GAMES}, city string"))
    driver.pipe("games", [{**game("ann", 1, 1), "city": "Ulm"}])
    assert driver.store("seen").fetch("ann", at(-3)) == ["1 Ulm", "2 None"]


@pytest.mark.parametrize("windows", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("seed", range(2))
def test_functions_send_what_aggregates_send(windows: Any, seed: int) -> None:
    """Every so often, and when a window closes; with crashes in between."""
    random = Random(seed)
    app, games = one_task()
    grouped = games.group_by().window(replace(windows, grace_ms=60_000))
    grouped.aggregate(value=hf.sum("points")).store("sums-every", emit=hf.every("15s"))
    grouped.reduce(lambda old, new: old + new, of="points").store("reduced-every", emit=hf.every("15s"))
    grouped.aggregate(value=hf.sum("points")).store("sums").final()
    grouped.reduce(lambda old, new: old + new, of="points").store("reduced").final()
    driver, second, rows = TestDriver(app), 0.0, 0
    for _ in range(30):
        batch = []
        for _ in range(random.randint(0, 3)):
            second += random.random() * 6
            batch.append(game(random.choice("ab"), random.randint(1, 9), second - random.choice([0, 0, 5, 30])))
        driver.pipe("games", batch)
        if random.random() < 0.3:
            driver.crash()
        for one, other in [("sums-every", "reduced-every"), ("sums/final", "reduced/final")]:
            expected = sorted(windows_in(driver.output(one), "value"), key=str)
            found = windows_in(driver.output(other), "value")
            assert sorted(((*row[:3], row[3] and int(row[3])) for row in found), key=str) == expected
            rows += len(found)
        for store in ("sums", "sums-every"):
            assert driver.counts[f"waiting/{store}"] == driver.counts[f"waiting/{store.replace('sums', 'reduced')}"]
    assert rows > 20


@pytest.mark.parametrize("windows", [hf.tumbling, hf.sliding, hf.session], ids=["tumbling", "sliding", "session"])
@pytest.mark.parametrize("graces", [("60s", "5s"), ("5s", "60s")], ids=["shorter", "longer"])
def test_a_window_that_waits_while_the_grace_changes_is_sent_once(windows: Any, graces: tuple[str, str]) -> None:
    """Also one that is deleted and comes again after the change."""

    def release(grace: str) -> hf.App:
        app, games = one_task()
        windowed = games.group_by().window(windows("10s", grace=grace))
        function = windowed.reduce(lambda old, new: None if new == 0 else old + new, of="points")
        function.store("sums").final()
        return app

    driver = TestDriver(release(graces[0]))
    driver.pipe("games", [game("ann", 1, 1), game("bob", 1, 1), game("cid", 1, 5)])
    assert driver.counts["waiting/sums"] == 3
    driver = started_after(driver, release(graces[1]))
    driver.pipe("games", [game("ann", 0, 1)])
    driver.pipe("games", [game("ann", 5, 1), game("bob", 2, 1)])
    assert driver.counts["waiting/sums"] == 3
    for clock in range(20, 200, 20):
        driver.pipe("games", [game("zoe", 1, clock)])
    sent = [row for row in driver.output("final") if row["player"] != "zoe"]
    assert sorted((row["player"], row["value"]) for row in sent) == [("ann", "5"), ("bob", "3"), ("cid", "1")]
    assert driver.counts["waiting/sums"] == sum(1 for state in driver._states.of_store("sums") for _ in waiting(state))


def test_a_window_that_waits_while_the_grace_changes_twice_is_sent_once() -> None:
    """It waits by the second grace, without a change of its own, when the third one comes."""

    def release(grace: str) -> hf.App:
        app, games = one_task()
        windowed = games.group_by().window(hf.tumbling("10s", grace=grace))
        windowed.reduce(lambda old, new: None if new == 0 else old + new, of="points").store("sums").final()
        return app

    driver = TestDriver(release("5s"))
    driver.pipe("games", [game("ann", 1, 1)])
    driver.pipe("games", [game("zoe", 1, 16)])
    driver = started_after(driver, release("60s"))
    driver.pipe("games", [game("zoe", 1, 17)])
    driver = started_after(driver, release("30s"))
    driver.pipe("games", [game("ann", 0, 2)])
    driver.pipe("games", [game("ann", 5, 1)])
    for clock in range(20, 200, 10):
        driver.pipe("games", [game("zoe", 1, clock)])
    assert [row["value"] for row in driver.output("final") if row["player"] == "ann"] == ["5"]


def waiting(state: DictBytes) -> Iterator[tuple[bytes, bytes]]:
    return state.scan(WAITING_AREA, None)
