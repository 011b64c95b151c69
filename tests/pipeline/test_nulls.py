"""Nulls inside arrays, maps and structs: Spark finds exactly the records that msgspec can't convert to events."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from holdfast.pipeline.nulls import unusable_nulls
from holdfast.pipeline.unusable import Case, cases_of, dead_letter
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
def test_spark_finds_records_that_cannot_be_events(spark: SparkSession) -> None:
    rows = [(FULL, None), *(({**FULL, column: value}, found) for column, value, found in CHANGES)]
    frame = spark.createDataFrame([row for row, _ in rows], COLUMNS)
    cases = unusable_nulls(shape(Order, frame.schema), frame.schema)
    key = cases_of((Field("player", "string"),), None, 0, 0)
    letters = frame.select(dead_letter([*key, *cases]).alias("dead")).collect()
    for (row, found), letter in zip(rows, letters, strict=True):
        refused = None if letter.dead is None else msgspec.json.decode(letter.dead)
        place = None if refused is None else refused["reason"].removeprefix("no value: ").split(" is null")[0]
        assert place == found, f"{row}: {refused}"
        assert refused is None or refused["record"] == row
        try:
            msgspec.convert(row, Order)
        except msgspec.ValidationError:
            assert refused is not None, "an event that can't be converted would stop the app"
        else:
            assert refused is None, "a valid record was refused"


def test_fields_that_cannot_be_null_are_not_checked() -> None:
    """Neither are fields without a column, or inside types that msgspec doesn't know."""
    sure = StructType([StructField("tags", ArrayType(StringType(), containsNull=False))])
    only = msgspec.defstruct("Only", [("tags", list[str])])
    assert [case.reason for case in unusable_nulls(shape(only, sure), sure)] == [
        "no value: tags is null, and Only.tags can't be None"
    ]
    own = msgspec.defstruct("Own", [("tags", list[Opaque] | None)])
    assert unusable_nulls(shape(own, sure), sure) == []
    inner = StructType([StructField("inner", StructType([StructField("n", LongType()), StructField("m", LongType())]))])
    assert unusable_nulls(shape(Wrapped, inner), inner) == [
        Case(
            "(`inner` IS NOT NULL AND `inner`.`n` IS NULL)",
            "no value: inner.n is null, and Wrapped.inner has no None there",
        )
    ]
    assert unusable_nulls(shape(Any, inner), inner) == []


def test_the_reason_of_a_null_key_names_its_columns() -> None:
    player, level = Field("player", "string"), Field("level", "int")
    assert cases_of([player], None, 0, 0)[0].reason == "no key: player is null"
    assert cases_of([player, level], None, 0, 0)[0].reason == "no key: one of player, level is null"
