"""Nulls inside arrays, maps and structs: Spark finds just those records that msgspec could not make an event of."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from holdfast.pipeline.nulls import unusable_nulls
from holdfast.pipeline.unusable import cases_of, dead_letter
from holdfast.stores.formats.types import Field
from holdfast.topology.events import EventShape, shape_of
from tests.stores.schemas import Opaque


@dataclass
class Home:
    city: str
    near: list["Home"] | None = None
    floors: tuple[int, ...] = ()


class Price(TypedDict):
    cents: int
    note: str | None


class Order(msgspec.Struct):
    tags: list[str]
    loose: list[str | None]
    either: list[int | str]
    grid: list[list[int] | None] | None
    pair: tuple[int, int]
    stock: dict[str, int | None]
    prices: dict[str, Annotated[Price, msgspec.Meta(title="of one thing")]]
    home: Home | None
    kind: list[Literal["a", None]]
    any: list[Any]


class Inner(msgspec.Struct):
    stored: int = msgspec.field(name="n")


class Wrapped(msgspec.Struct):
    inner: Inner | None = None
    absent: list[str] = field(default_factory=list)


def shape(annotation: Any, columns: StructType) -> EventShape:
    def process(self: Any, key: Any, event: Any, ctx: Any) -> None: ...

    process.__annotations__["event"] = annotation
    return shape_of(process, {each.name: each.dataType.simpleString() for each in columns.fields})


HOME = "struct<city: string, floors: array<int>, near: array<struct<city: string, unknown: string>>>"
COLUMNS = (
    "player string, tags array<string>, loose array<string>, either array<int>, grid array<array<int>>, "
    f"pair array<int>, stock map<string, int>, prices map<string, struct<cents: int, note: string>>, home {HOME}, "
    "kind array<string>, any array<int>"
)
FULL: dict[str, Any] = {
    "player": "ann",
    "tags": ["a", "b"],
    "loose": ["a"],
    "either": [1],
    "grid": [[1], [2, 3]],
    "pair": [1, 2],
    "stock": {"a": 1},
    "prices": {"tea": {"cents": 1, "note": "hot"}},
    "home": {"city": "Oslo", "floors": [1], "near": [{"city": "Rome", "unknown": "x"}]},
    "kind": ["a"],
    "any": [1],
}
CHANGES: list[tuple[str, Any, str | None]] = [
    ("tags", [], None),
    ("tags", ["a", None], "tags[]"),
    ("tags", None, "tags"),
    ("loose", ["a", None], None),
    ("either", [1, None], "either[]"),
    ("grid", None, None),
    ("grid", [None, [1]], None),
    ("grid", [None, [1, None]], "grid[][]"),
    ("pair", [1, None], "pair[]"),
    ("stock", {"a": None}, None),
    ("prices", {"tea": None}, "prices{}"),
    ("prices", {"tea": {"cents": 1, "note": None}}, None),
    ("prices", {"tea": {"cents": 1, "note": "x"}, "milk": {"cents": None, "note": "x"}}, "prices{}.cents"),
    ("home", None, None),
    ("home", {"city": None, "floors": [1], "near": []}, "home.city"),
    ("home", {"city": "Oslo", "floors": None, "near": []}, "home.floors"),
    ("home", {"city": "Oslo", "floors": [None], "near": []}, "home.floors[]"),
    ("home", {"city": "Oslo", "floors": [], "near": None}, None),
    ("home", {"city": "Oslo", "floors": [], "near": [None]}, "home.near[]"),
    ("home", {"city": "Oslo", "floors": [], "near": [{"city": None, "unknown": "x"}]}, "home.near[].city"),
    ("home", {"city": "Oslo", "floors": [], "near": [{"city": "Rome", "unknown": None}]}, None),
    ("kind", [None], None),
    ("any", [None], None),
]


@pytest.mark.spark
def test_spark_finds_what_could_be_no_event(spark: SparkSession) -> None:
    rows = [(FULL, None), *(({**FULL, column: value}, found) for column, value, found in CHANGES)]
    frame = spark.createDataFrame([row for row, _ in rows], COLUMNS)
    cases = unusable_nulls(shape(Order, frame.schema), frame.schema)
    key = cases_of((Field("player", "string"),), None, 0, 0)
    letters = frame.selectExpr(f"{dead_letter([*key, *cases])} AS dead").collect()
    for (row, found), letter in zip(rows, letters, strict=True):
        said = None if letter.dead is None else msgspec.json.decode(letter.dead)
        place = None if said is None else said["reason"].removeprefix("no value: ").split(" is null")[0]
        assert place == found, f"{row}: {said}"
        assert said is None or said["record"] == row
        try:
            msgspec.convert(row, Order)
        except msgspec.ValidationError:
            assert said is not None, "an event that could not be made would stop the app"
        else:
            assert said is None, "a record that could be used was not"


def test_places_that_spark_says_have_no_null_are_not_looked_at() -> None:
    """Nor are those that no column is for, or that msgspec can't look into."""
    sure = StructType([StructField("tags", ArrayType(StringType(), containsNull=False))])
    only = msgspec.defstruct("Only", [("tags", list[str])])
    assert [reason for _, reason in unusable_nulls(shape(only, sure), sure)] == [
        "no value: tags is null, and Only.tags can't be None"
    ]
    own = msgspec.defstruct("Own", [("tags", list[Opaque] | None)])
    assert unusable_nulls(shape(own, sure), sure) == []
    inner = StructType([StructField("inner", StructType([StructField("n", LongType()), StructField("m", LongType())]))])
    assert unusable_nulls(shape(Wrapped, inner), inner) == [
        (
            "(`inner` IS NOT NULL AND `inner`.`n` IS NULL)",
            "no value: inner.n is null, and Wrapped.inner has no None there",
        )
    ]
    assert unusable_nulls(shape(Any, inner), inner) == []
