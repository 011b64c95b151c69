"""Methods of PySpark and Kafka Streams on streams and tables: an error that names Holdfast's own."""

import copy
import pickle
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import records
from holdfast.topology.other_names import Named

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
