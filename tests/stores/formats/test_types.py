"""Types: Spark's names, and the Arrow and Python types that follow from them."""

import msgspec
import pyarrow as pa
import pytest

from holdfast.errors import TopologyError
from holdfast.stores.formats.types import Field, FieldType, Schema
from tests.stores.making import KEY_TYPES


@pytest.mark.parametrize("text", [*KEY_TYPES, "decimal(10,2)", "decimal(38,38)"])
def test_a_type_is_parsed_and_written_alike(text: str) -> None:
    kind = FieldType.parse(text)
    assert str(kind) == text
    assert FieldType.of_arrow(kind.arrow) == kind


def test_other_names_become_sparks_names() -> None:
    assert [Field("f", text).type for text in ("long", "INTEGER", "byte", "short", " Decimal( 10 , 2 )")] == [
        "bigint",
        "int",
        "tinyint",
        "smallint",
        "decimal(10,2)",
    ]


@pytest.mark.parametrize("text", ["", "text", "decimal", "decimal(39,0)", "decimal(3,4)", "decimal(0,0)", "array<int>"])
def test_an_unknown_type_is_rejected_with_the_known_ones(text: str) -> None:
    with pytest.raises(TopologyError, match=r"string|38 digits"):
        FieldType.parse(text)


def test_an_arrow_type_without_a_store_type_is_rejected() -> None:
    with pytest.raises(TopologyError, match="Cast the column"):
        FieldType.of_arrow(pa.list_(pa.int8()))


def test_a_schema_survives_json() -> None:
    schema = Schema.of(player="string", day="date", spent="decimal(10,2)")
    data = msgspec.json.encode(schema)
    assert data == (
        b'{"fields":[{"name":"player","type":"string"},{"name":"day","type":"date"},'
        b'{"name":"spent","type":"decimal(10,2)"}]}'
    )
    assert msgspec.json.decode(data, type=Schema) == schema
    assert Schema.of_arrow(schema.arrow) == schema


def test_a_field_named_twice_is_rejected() -> None:
    with pytest.raises(TopologyError, match="more than once"):
        Schema((Field("a", "int"), Field("a", "string")))
