"""Methods of PySpark and Kafka Streams on streams and tables: an error that names Holdfast's own."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.testing import TestDriver, records
from holdfast.topology.other_names import Named
from holdfast.topology.plain_frames import PlainFrame

CASES = {
    ("stream", "groupBy"): "A stream has no method 'groupBy'. Its name here is group_by(...).",
    ("stream", "groupby"): "Its name here is group_by(...).",
    ("stream", "withColumn"): "Its name here is with_column(...).",
    ("stream", "flatMap"): "Its name here is flat_map(...).",
    ("stream", "agg"): "Write group_by",
    ("stream", "orderBy"): "in the order of their event times",
    ("stream", "toDF"): "transform(lambda df: df.toDF(...))",
    ("stream", "dropna"): "transform(lambda df: df.dropna(...))",
    ("stream", "unionByName"): "merge(...)",
    ("stream", "goup_by"): "'Stream' object has no attribute 'goup_by'. Did you mean 'group_by'?",
    ("grouped", "agg"): "A grouped stream has no method 'agg'.",
    ("grouped", "sum"): 'Write aggregate(sum=hf.sum("column")).',
    ("grouped", "windowedBy"): "Its name here is window(...).",
    ("table", "toStream"): "A table has no method 'toStream'. Its name here is to_stream(...).",
    ("table", "groupBy"): "to_stream().group_by(...)",
    ("table", "filter"): "to_stream().filter(...)",
    ("table", "show"): "table.sink(hf.console())",
    ("windowed", "suppress"): "table.final()",
    ("reduced", "withColumn"): "to_stream().with_column(...)",
    ("late", "where"): "An output has no method 'where'. Its rows are a stream too: to_stream().where(...).",
    ("joined", "where"): "A join has no method 'where'.",
}


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    app = hf.App("names")
    stream = app.stream(records("player string, points bigint, at timestamp"), key="player", timestamp="at")
    grouped = stream.group_by()
    windowed = grouped.window(hf.tumbling("1m")).count().store("minutes")
    table = grouped.count().store("counts")
    return {
        "stream": stream,
        "grouped": grouped,
        "table": table,
        "windowed": windowed,
        "late": windowed.late,
        "reduced": grouped.reduce(max, of="points").store("best"),
        "joined": stream.join(table, name="joined"),
    }


@pytest.mark.parametrize(("what", "name"), CASES, ids=map(".".join, CASES))
def test_a_method_of_another_library_is_an_error_with_ours(objects: dict[str, Any], what: str, name: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(objects[what], name)
    assert CASES[what, name] in str(raised.value)
    assert not hasattr(objects[what], name)


def test_copies_and_introspection_are_as_before(objects: dict[str, Any]) -> None:
    assert copy.copy(objects["stream"]) == objects["stream"]
    assert getattr(objects["stream"], "__wrapped__", None) is None
    assert "group_by" in dir(objects["stream"]) and objects["stream"].filter.__name__ == "where"
    assert pickle.loads(pickle.dumps(Plain(3))) == Plain(3) == copy.deepcopy(Plain(3))


class Plain(Named):
    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]

    @property
    def broken(self) -> int:
        return self.number.missing  # type: ignore[attr-defined, no-any-return]


def test_a_property_that_fails_shows_its_own_error() -> None:
    with pytest.raises(AttributeError, match="'int' object has no attribute 'missing'"):
        _ = Plain(3).broken


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("max_by", r"no attribute 'max_by'. Keep it by a function of your own: group_by\(\).aggregate_with"),
        (
            "count_distinct",
            r"no attribute 'count_distinct'. About how many there are: hf.approx_count_distinct\('column'",
        ),
        ("countDistinct", "hf.approx_count_distinct"),
        ("collect_list", "hf.collect"),
        ("tumblin", "Did you mean 'tumbling'"),
    ],
)
def test_a_function_of_pyspark_that_is_not_here_is_an_error_with_what_is(name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        getattr(hf, name)
    assert not hasattr(hf, "__wrapped__")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.group_by(hf.tumbling("10s")), r"this is a window. Write group_by\(\).window\(...\)"),
        (lambda s: s.group_by(["player", "city"]), r"each as an argument of its own: group_by\('game', 'player'\)"),
        (lambda s: s.key_by(7), r"key_by\(7\): it takes names of columns"),
        (lambda s: s.select("player", "points * 2 AS p"), r"with_column\('p', 'points \* 2'\) before it, and 'p' here"),
        (lambda s: s.select("player", "upper(city)"), r"with_column\('name', 'upper\(city\)'\) before it"),
    ],
)
def test_what_is_not_the_name_of_a_column_is_an_error_that_says_what_to_write(call: Any, message: str) -> None:
    stream = hf.App("names").stream(records("player string, city string, points bigint"), key="player")
    with pytest.raises(TopologyError, match=message):
        call(stream)


@pytest.mark.spark
@pytest.mark.parametrize("plain", [True, False], ids=["in a test driver", "on Spark"])
def test_fields_of_a_struct_are_selected_whatever_their_names_are(
    spark: SparkSession, tmp_path: Path, plain: bool
) -> None:
    types = "player string, `a b` bigint, place struct<city: string, `zip-code`: string, `x y`: struct<z: bigint>>"
    frame = spark.readStream.schema(types).json(str(tmp_path))
    stream = hf.App("names").stream(PlainFrame(frame.schema) if plain else frame, key="player")
    for columns, found in (
        (("player", "place.*"), ["player", "city", "zip-code", "x y"]),
        (("*",), ["player", "a b", "place"]),
        (("place.`zip-code`", "place.city"), ["zip-code", "city"]),
        (("place.zip-code", "place.x y.z"), ["zip-code", "z"]),
        (("a b", "A B", "`a b`"), ["a b", "A B", "a b"]),
    ):
        assert stream.select(*columns).columns == found
    for column, message in (
        ("place.city || 'x'", r"with_column\('name', \"place.city \|\| 'x'\"\) before it"),
        ("upper(`a b`) AS c", r"with_column\('c', 'upper\(`a b`\)'\) before it"),
        ("place.`no-code`", r"no-code"),
        ("away.*", r"away"),
    ):
        with pytest.raises(TopologyError, match=message) as raised:
            stream.select("place.*", column)
        assert ("no column but an expression" in str(raised.value)) == ("before it" in message)


@pytest.mark.spark
def test_expressions_are_of_one_record_and_groups_are_columns(spark: SparkSession) -> None:
    stream = hf.App("names").stream(records("player string, points bigint, at timestamp"), key="player")
    with pytest.raises(TopologyError, match=r"group_by\(Column<'date_format.*\): .* Name it first: stream.with_column"):
        stream.group_by(F.date_format("at", "yyyy"))  # type: ignore[arg-type]
    with pytest.raises(
        TopologyError, match=r"the expression 'max_by\(player, points\)' isn't computed from one record"
    ):
        stream.group_by().aggregate(best=hf.max("max_by(player, points)"))
    assert stream.select("player", "at").columns == ["player", "at"]


def test_every_output_is_a_stream_by_its_own_key_or_by_another_one() -> None:
    class Passing(hf.Processor):
        def process(self, key: Any, event: Any, ctx: hf.Context) -> None:
            ctx.forward(key, event)

    stream = hf.App("keys").stream(records("player string, city string, points bigint"), key="player")
    table = stream.group_by().aggregate(city=hf.max("city")).store("cities")
    reduced = stream.group_by().reduce(max, of="points").store("best")
    joined = stream.join(table, name="joined", prefix="t_")
    passed = stream.process(Passing, output="player string, city string, points bigint")
    for each, other in ((table, "city"), (reduced, "value"), (joined, "city"), (passed, "city")):
        assert each.to_stream().key == ("player",)
        assert each.to_stream(key=other).key == (other,)
    renamed = stream.process(Passing, output="who string, n bigint", name="renamed")
    with pytest.raises(TopologyError, match=r"lacks 'player' of the key .* to_stream\(key='who'\)"):
        renamed.to_stream()


def test_select_keeps_what_orders_the_records() -> None:
    app = hf.App("kafka")
    columns = "player string, points bigint, at timestamp, partition int, offset bigint"
    stream = app.stream(records(columns), key="player", timestamp="at", name="games")
    points = stream.select("points", "player")
    assert points.columns == ["points", "player", "at", "partition", "offset"]
    last = points.group_by().aggregate(points=hf.last("points")).store("last")
    last.to_stream().select("player", "points").group_by("points").count().store("counts")
    driver = TestDriver(app)
    game = {"player": "ann", "at": 1_893_456_000_000, "partition": 0}
    driver.pipe("games", [{**game, "points": 5, "offset": 8}, {**game, "points": 3, "offset": 7}])
    assert driver.store("last").get("ann") == {"points": 5}, "by position"
    assert driver.store("counts").items() == [(5, {"count": 1})], "the rows of a table have a time and position too"
    with pytest.raises(TopologyError, match=r"drop\('offset'\): records are ordered by .* Leave it in"):
        stream.drop("player", "offset")


@pytest.mark.spark
def test_select_of_expressions_keeps_what_orders_the_records(spark: SparkSession) -> None:
    stream = hf.App("names").stream(records("player string, n bigint, at timestamp"), key="player", timestamp="at")
    assert stream.select("player", F.expr("n * 2 AS n")).columns == ["player", "n", "at"]
    assert stream.select("player", F.expr("at + INTERVAL 1 DAY AS at")).columns == ["player", "at"]
