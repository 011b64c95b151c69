"""The processor of a leaderboard, without Spark: equal to sorting all rows after each version."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.stores.formats.keys import decode_key, encode_key, encode_keys
from holdfast.stores.formats.scalars import from_whole_number
from holdfast.stores.formats.types import Field, Schema
from holdfast.testing import ProcessorTest, TestDriver, records
from holdfast.topology.ranking import Columns, ranking_of

COLUMNS = Columns(Schema.of(game="string"), Schema.of(player="string"), Field("points", "bigint"), ("city",))

changes = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from("xy"),
            st.sampled_from("abcde"),
            st.none() | st.integers(-3, 3),
            st.sampled_from(["Bern", None]),
            st.booleans(),
        ),
        max_size=6,
    ),
    max_size=8,
)


Rows = dict[tuple[str, str], tuple[int, str | None]]
"""Points and city per game and player."""


def best_of(rows: Rows, game: str) -> list[dict[str, Any]] | None:
    own = sorted(((points, player, city) for (of, player), (points, city) in rows.items() if of == game), reverse=True)
    return [{"player": player, "points": points, "city": city} for points, player, city in own[:2]] or None


@given(changes)
def test_the_best_rows_follow_every_change(versions: list[list[tuple[str, str, int | None, str | None, bool]]]) -> None:
    test = ProcessorTest(ranking_of("top", 2, COLUMNS))
    rows: Rows = {}
    for version in versions:
        for game, player, points, city, deleted in version:
            row = {"player": player, "points": points, "city": city, "_deleted": deleted}
            test.pipe(game, row, timestamp=1)
            rows.pop((game, player), None)
            if points is not None and not deleted:
                rows[game, player] = points, city
        test.commit()
        for game in "xy":
            found = test.store("top").get(game)
            assert (None if found is None else found.value) == best_of(rows, game)
    scores = test.store("top-scores")
    assert dict(scores.scan()) == {row: points for row, (points, _) in rows.items()}
    for game, player in rows:
        own = rows[game, player][0], player
        better = [each for of, each in rows if of == game and (rows[of, each][0], each) > own]
        assert scores.rank((game, player)) == 1 + len(better)
    assert len(list(test.store("top-ranking").scan())) == len(rows), "no entry of a former score is left"


def test_a_row_whose_score_is_not_a_number_has_none() -> None:
    columns = Columns(Schema.of(game="string"), Schema.of(player="string"), Field("points", "double"))
    test = ProcessorTest(ranking_of("top", 2, columns))
    for player, points in (("a", 1.5), ("b", float("nan")), ("c", float("-inf"))):
        test.pipe("x", {"player": player, "points": points, "_deleted": False}, timestamp=1)
    test.pipe("x", {"player": "a", "points": float("nan"), "_deleted": False}, timestamp=1)
    test.commit()
    assert test.store("top").get("x").value == [{"player": "c", "points": float("-inf")}]
    assert dict(test.store("top-scores").scan()) == {("x", "c"): float("-inf")}


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamp_ntz"])
def test_every_date_and_time_is_a_score_a_key_and_a_column(kind: str) -> None:
    """Python has none before the year 1 and after 9999: these are texts, in the order of their times."""
    app = hf.App("games", settings=hf.Settings())
    schema = f"day {kind}, player {kind}, score {kind}, seen {kind}, at timestamp"
    table = app.table(records(schema), "players", key=["day", "player"], timestamp="at")
    table.top(3, by="score", per="day", name="best")
    field, bits = Field("score", kind), 32 if kind == "date" else 64
    year = 365 if kind == "date" else 365 * 86_400_000_000
    times = [-(1 << bits - 1), 1 - (1 << bits - 1), -1970 * year, -1, 0, 8_100 * year, (1 << bits - 1) - 1]
    moments = pa.array(times, pa.int32() if kind == "date" else pa.int64()).view(field.field_type.arrow)
    driver, day = TestDriver(app), len(times) - 1
    rows = [
        {"day": moments[day], "player": moments[n], "score": moments[(n * 3) % 7], "seen": moments[n], "at": 0}
        for n in range(len(times))
    ]
    driver.pipe("players", rows)
    driver.pipe("players", [{**rows[0], "score": None, "at": 1}, {**rows[1], "score": moments[6], "at": 1}])
    scores = {n: times[(n * 3) % 7] for n in range(2, 7)} | {1: times[6]}
    ranked = sorted(scores, key=lambda n: (scores[n], times[n]), reverse=True)

    def value(number: int) -> Any:
        return from_whole_number(field, number)

    def text(number: int) -> str:
        found = value(number)
        return found if isinstance(found, str) else found.isoformat().replace("+00:00", "Z")

    best = driver.store("best").get(value(times[day])).value
    assert [(row["player"], row["score"], row["seen"]) for row in best] == [
        (text(times[n]), text(scores[n]), text(times[n])) for n in ranked[:3]
    ]
    stored = driver.store("best-scores")
    assert [stored.rank((value(times[day]), value(times[n]))) for n in ranked] == [1, 2, 3, 4, 5, 6]
    assert len(list(driver.store("best-ranking").scan())) == 6, "no entry of a former score is left"


@given(st.sampled_from(["date", "timestamp", "timestamp_ntz"]), st.integers(-(2**63), 2**63 - 1))
def test_the_value_of_every_date_and_time_has_its_key(kind: str, number: int) -> None:
    schema = Schema((Field("at", kind),))
    number = number >> 32 if kind == "date" else number
    column = pa.array([number], pa.int32() if kind == "date" else pa.int64()).view(schema.arrow[0].type)
    stored = encode_keys(schema, [column])[0].as_py()
    assert encode_key(schema, decode_key(schema, stored)) == stored
