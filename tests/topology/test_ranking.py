"""The processor of a leaderboard, without Spark: equal to sorting all rows after each version."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.formats.types import Field, Schema
from holdfast.testing import ProcessorTest
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
