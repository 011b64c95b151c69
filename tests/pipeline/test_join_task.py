"""Tasks of joins give the rows of an oracle, for random records and any batch boundaries."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.topology.join_windows import JoinWindow, join_window
from holdfast.topology.joining import HOWS, How
from tests.pipeline.joined import JoinedApp, Oracle, Record, Row

RECORDS = st.builds(Record, st.booleans(), st.sampled_from("ab"), st.integers(-100, 100), st.integers(0, 9))
BATCHES = st.lists(st.lists(RECORDS, max_size=10), max_size=6)
LONG_AGO = 10_000

WINDOWS = [
    join_window("10ms", grace="5ms"),
    join_window("0ms"),
    join_window(before="3ms", after="20ms"),
    join_window(before="40ms", grace="200ms"),
]


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=repr)


def left(key: str, time: int, value: int = 0) -> Record:
    return Record(True, key, time, value)


def right(key: str, time: int, value: int = 0) -> Record:
    return Record(False, key, time, value)


@given(how=st.sampled_from(HOWS), window=st.sampled_from(WINDOWS), batches=BATCHES)
def test_rows_are_those_of_an_oracle(how: How, window: JoinWindow, batches: list[list[Record]]) -> None:
    app, oracle = JoinedApp(window, how), Oracle(window, how)
    for batch in [*batches, [], [left("z", LONG_AGO)], []]:
        assert in_order(app.run(batch)) == in_order(oracle.run(batch))
    assert app.late == oracle.late


@given(records=st.lists(RECORDS, max_size=40), cuts=st.sets(st.integers(0, 40)))
def test_batch_boundaries_change_nothing_while_no_record_is_late(records: list[Record], cuts: set[int]) -> None:
    window = join_window("10ms", grace="1s")
    whole, parts = JoinedApp(window, "outer"), JoinedApp(window, "outer")
    whole.run(records)
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 40], strict=True):
        parts.run(records[start:stop])
    for app in (whole, parts):
        app.run([left("z", LONG_AGO)])
        app.run([])
    assert in_order(list(chain(*whole.emitted))) == in_order(list(chain(*parts.emitted)))


DOCUMENTED = [  # second, left, right, pairs
    (3, "A", None, []),
    (4, None, "a", ["Aa"]),
    (5, "B", None, ["Ba"]),
    (6, None, "b", ["Ab", "Bb"]),
    (9, "C", None, ["Ca", "Cb"]),
    (10, None, "c", ["Ac", "Bc", "Cc"]),
    (14, None, "d", ["Ad", "Bd", "Cd"]),
    (15, "D", None, ["Da", "Db", "Dc", "Dd"]),
]


@pytest.mark.parametrize(("how", "alone"), [("inner", ""), ("left", "EF"), ("outer", "EFf")])
def test_the_table_of_kafka_streams_documentation(how: How, alone: str) -> None:
    """Join windows of 15 s with a grace of 5 s. Records without a value, which it ignores, are left out.

    The documentation has E come out with the record at 60, as F does at 80 and f at 100. Both ends of a join window are
    in it, so these are the last moments at which a match could arrive: they come out a millisecond later.
    """
    app = JoinedApp(join_window("15s", grace="5s"), how)

    def after(second: float, value: str, *, is_left: bool, key: str = "k") -> list[str]:
        rows = app.run([Record(is_left, key, round(second * 1000), ord(value))])
        rows += app.run([])  # the version that the driver makes when nothing arrives
        found = ("".join(chr(each) for each in (a, b) if each is not None) for key, a, b, _ in rows if key == "k")
        return sorted(found)

    def passing(second: float) -> str:
        return "".join(after(second, "x", is_left=True, key="another key"))

    for second, one, other, pairs in DOCUMENTED:
        assert after(second, one or other or "", is_left=one is not None) == sorted(pairs)
    assert after(40, "E", is_left=True) == []
    assert after(60, "F", is_left=True) == []
    came_out = passing(60.001)
    assert after(80, "f", is_left=False) == []
    came_out += passing(80.001)
    assert after(100, "G", is_left=True) == []
    assert came_out + passing(100.001) == alone


def test_an_unmatched_record_comes_out_once_when_its_window_has_closed() -> None:
    app = JoinedApp(join_window("10s", grace="1s"), "left")
    assert app.run([left("ann", 0, 1), right("bob", 0, 2)]) == []
    assert app.run([right("eve", 11_000)]) == []
    assert app.run([]) == [], "at the end of window and grace, it still takes a match"
    assert app.run([right("eve", 11_001)]) == []
    assert app.run([]) == [("ann", 1, None, 0)]
    assert app.run([]) == []
    assert app.run([right("ann", 0, 3)]) == [], "late"
    assert app.late == 1


def test_a_record_is_no_match_once_its_window_has_closed() -> None:
    """Otherwise a record could come out without a match first, and with one later."""
    app = JoinedApp(join_window("10s"), "left")
    app.run([left("ann", 85_000, 1), left("eve", 100_000)])
    assert app.run([right("ann", 92_000, 2)]) == [("ann", 1, None, 85_000)]
    assert app.late == 0, "its own window is open"
    assert app.run([left("ann", 99_000, 3)]) == [("ann", 3, 2, 99_000)]


@pytest.mark.parametrize("batch", [1, 50])
def test_a_key_with_many_records(batch: int) -> None:
    """Its buckets spill. All records are found, and an arriving one rewrites only some of them."""
    app = JoinedApp(join_window("1m"))
    records = [left("ann", n, n) for n in range(400)]
    for n in range(0, len(records), batch):
        app.run(records[n : n + batch])
    assert in_order(app.run([right("ann", 200, 7)])) == in_order([("ann", n, 7, max(n, 200)) for n in range(400)])
    stored = app.state.stores["pairs-left"].entries
    sizes = [len(cell) for key, cell in stored.items() if key[:1] == b"\x02"]
    assert len(sizes) > 5 and max(sizes) < 50 * (32 + batch)
