"""Declared schemas: what a value type declares, and the text in the app's file."""

from dataclasses import dataclass, field, make_dataclass
from numbers import Number
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import DamagedObject, TopologyError
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.codecs.values import codec_of
from holdfast.stores.schema.compatibility import obstacles
from holdfast.stores.schema.declared import declared, describe_type
from holdfast.stores.schema.history import unreadable
from holdfast.stores.schema.text import parse, text_of
from tests.stores.schemas import First, Opaque, Renamed, Tenths, spec_of


def test_a_schema_is_described_as_text() -> None:
    class Leaf(msgspec.Struct, tag="leaf", forbid_unknown_fields=True):
        kind: Literal["a", "b"]
        at: tuple[int, str] = (0, "")

    @dataclass
    class Tree:
        leaf: Leaf
        children: list["Tree"]
        sizes: dict[str, float | None] = field(default_factory=dict)
        anything: Any = None

    Tree.__annotations__["children"] = list[Tree]
    assert describe_type(Tree).fields == (
        '{leaf: {type: enum["leaf"], kind: enum["a", "b"], at?: tuple[int, str]}!, children: list[^1], '
        "sizes?: dict[str, float | null], anything?: any}"
    )
    assert describe_type(Renamed).fields == "{user/player: str, score: int, tags?: list[str]}"
    assert describe_type(int).fields == "int"


_NAMES = st.sampled_from(["a", "b", "c", "a b", 'quo"te', "1", "é", "row", "list"])
_SCALARS = st.sampled_from(["int", "str", "float", "bytes", "null", "any", "decimal(10,2)", 'enum["x", 1, null]', "^1"])
_SHAPES: st.SearchStrategy[str] = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        inner.map(lambda item: f"list[{item}]"),
        st.tuples(inner, inner).map(lambda pair: f"dict[{pair[0]}, {pair[1]}]"),
        st.lists(inner, max_size=3).map(lambda items: f"tuple[{', '.join(items)}]"),
        st.lists(inner, min_size=2, max_size=3).map(" | ".join),
        st.tuples(
            st.dictionaries(_NAMES, st.tuples(st.booleans(), inner), max_size=3), st.booleans(), st.booleans()
        ).map(lambda made: _record_text(*made)),
    ),
    max_leaves=8,
)


def _record_text(fields: dict[str, tuple[bool, str]], closed: bool, by_position: bool) -> str:
    inside = ", ".join(
        f"{name if name.isascii() and name.isalnum() else msgspec.json.encode(name).decode()}{'?' * optional}: {shape}"
        for name, (optional, shape) in fields.items()
    )
    return f"{'row' * by_position}{{{inside}}}{'!' * closed}"


@given(_SHAPES)
def test_the_text_of_a_schema_is_parsed_back(text: str) -> None:
    assert text_of(parse(text)) == text
    assert obstacles(parse(text), parse(text)) == []


@pytest.mark.parametrize("text", ["", "{", "{a}", "{a: int", "list[int", "int int", "dict[int]", "{a: int}}", "#", "|"])
def test_text_that_is_not_a_schema_is_an_error(text: str) -> None:
    with pytest.raises(DamagedObject, match="is not a schema"):
        parse(text)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"number": 0}, "numbers go from 1"),
        ({"number": 65536}, "numbers go from 1"),
        ({"number": 2, "upcasters": {2: lambda old: old}}, "use number=3"),
        ({"number": 2, "upcasters": {0: lambda old: old}}, "upcaster from 0"),
        ({"upcasters": {1: lambda old: old}}, "has schema number 1 and an upcaster from 1.* use number=2 or higher"),
        ({"aliases": {"nothing": "old"}}, "no field 'nothing'"),
        ({"aliases": {"user": "score"}}, "'score' is a field"),
        ({"aliases": {"user": "old", "score": "old"}}, "alias of two fields"),
    ],
)
def test_an_impossible_declaration_is_refused_on_its_own_line(options: dict[str, Any], told: str) -> None:
    with pytest.raises(TopologyError, match=told):
        hf.schema(**options)(make_dataclass("Score", [("user", str), ("score", int)]))


class Lifted(msgspec.Struct):
    score: int

    @hf.upcast(from_=2)
    @staticmethod
    def lift(old: dict[str, int]) -> dict[str, int]:
        return old


@pytest.mark.parametrize("type_", [Lifted, list[Lifted], make_dataclass("Outer", [("best", Lifted | None)])])
@pytest.mark.parametrize("codec", [None, "json", Opaque.id])
def test_an_upcaster_in_a_class_without_a_number_is_refused(type_: Any, codec: str | None) -> None:
    with pytest.raises(TopologyError, match=r"^Lifted has an upcaster from schema 2 .* Put @hf.schema\(number=3\) on"):
        hf.KeyValueStore("scores", value=type_, codec=codec)


class Plain:
    """A class that msgspec doesn't know."""


@pytest.mark.parametrize(
    ("type_", "inside"),
    [
        (Plain, ""),
        (list[Plain], ", which is inside list.*Plain.,"),
        (make_dataclass("Outer", [("best", dict[str, Plain | None])]), ", which is inside Outer,"),
    ],
)
@pytest.mark.parametrize("codec", [None, "json", "avro"])
def test_a_plain_class_is_refused_where_a_store_is_declared(type_: Any, inside: str, codec: str | None) -> None:
    with pytest.raises(TopologyError, match=f"^Plain{inside} can't be stored.* Make Plain one of .* or .* codec="):
        hf.KeyValueStore("scores", value=type_, codec=codec)


def test_an_own_codec_takes_any_class_and_msgspec_those_it_reads() -> None:
    class Subclassed(dict[str, int]):
        """Would be read as a dict, which it isn't."""

    hf.KeyValueStore("scores", value=Plain, codec=Opaque.id)
    hf.KeyValueStore("scores", value=list[Plain], codec=Opaque())
    for class_ in (object, Number, list[Number]):
        store = hf.KeyValueStore("scores", value=class_).bind(DictBytes(), Now(wall=0))
        store["ann"] = [3] if class_ == list[Number] else 3
        assert store["ann"] in (3, [3])
    with pytest.raises(TopologyError, match="^Subclassed can't be stored"):
        hf.KeyValueStore("scores", value=Subclassed)


@pytest.mark.parametrize(
    ("type_", "codec", "told"),
    [
        (str, "bytes", "value=bytes"),
        (Plain, "bytes", "value=bytes"),
        (int, "protobuf", "protoc"),
        (dict[int, str], "avro", "Avro has no type"),
        (Any, "avro", "Avro has no type"),
    ],
)
def test_a_type_that_the_codec_cannot_encode_is_refused_at_the_declaration(type_: Any, codec: str, told: str) -> None:
    with pytest.raises(TopologyError, match=told):
        hf.KeyValueStore("scores", value=type_, codec=codec)


def test_only_records_can_declare_a_schema() -> None:
    with pytest.raises(TopologyError, match="dataclass or a msgspec Struct"):
        hf.schema(number=2)(dict)

    class Row(msgspec.Struct, array_like=True):
        a: int

    with pytest.raises(TopologyError, match="array_like"):
        hf.schema(aliases={"a": "b"})(Row)


T = TypeVar("T")


class Inner(msgspec.Struct):
    deep: dict[str, list[Tenths]] = {}


class InStruct(msgspec.Struct):
    inner: Inner


@dataclass
class InDataclass:
    best: Renamed | None = None


class InTypedDict(TypedDict):
    one: Tenths


class InNamedTuple(NamedTuple):
    one: Tenths


@hf.schema(number=2)
@dataclass
class Page(Generic[T]):
    items: list[T]


@pytest.mark.parametrize("codec", ["msgpack", "json", "avro", Opaque.id])
@pytest.mark.parametrize(
    ("type_", "inner"),
    [
        (list[Tenths], "Tenths"),
        (list[Renamed], "Renamed"),
        (dict[str, Tenths], "Tenths"),
        (Tenths | None, "Tenths"),
        (Tenths | int, "Tenths"),
        (tuple[int, Tenths], "Tenths"),
        (tuple[Tenths, ...], "Tenths"),
        (dict[str, list[Tenths | None]], "Tenths"),
        (Annotated[Tenths, msgspec.Meta(title="score")], "Tenths"),
        (InStruct, "Tenths"),
        (InDataclass, "Renamed"),
        (InTypedDict, "Tenths"),
        (InNamedTuple, "Tenths"),
        (Page[int], "Page"),
    ],
    ids=str,
)
def test_a_declaration_inside_another_type_is_refused(type_: Any, inner: str, codec: str) -> None:
    """Its upcasters and aliases would never be used, and defaults would replace stored values."""
    with pytest.raises(TopologyError, match=rf"{inner}(\[int\])? has @hf.schema and is inside .* itself"):
        hf.KeyValueStore("scores", value=type_, codec=codec).spec()


def test_aliases_are_refused_in_a_type_that_contains_itself() -> None:
    @dataclass
    class Tree:
        name: str = ""
        children: list["Tree"] = field(default_factory=list)

    Tree.__annotations__["children"] = list[Tree]
    hf.schema(number=2, upcasters={1: lambda old: old})(Tree)
    assert describe_type(Tree).fields == "{name?: str, children?: list[^1]}"
    hf.schema(aliases={"name": "title"})(Tree)
    with pytest.raises(TopologyError, match="Tree has aliases and contains itself"):
        describe_type(Tree)


def test_the_advised_upcaster_reads_stored_values() -> None:
    @hf.schema(number=2, upcasters={1: lambda old: {"of": {who: each["score"] / 10 for who, each in old.items()}}})
    @dataclass
    class Scores:
        of: dict[str, float]

    bytes_ = DictBytes()
    hf.KeyValueStore("scores", value=dict[str, First]).bind(bytes_, Now(wall=0))["a"] = {"ann": First("Ann", 25)}
    now = hf.KeyValueStore("scores", value=Scores)
    assert unreadable(spec_of(dict[str, First]), now.spec()) == []
    assert now.bind(bytes_, Now(wall=0))["a"] == Scores({"ann": 2.5})


def test_an_inner_struct_is_renamed_by_its_field() -> None:
    class Old(msgspec.Struct):
        user: str = ""

    class New(msgspec.Struct):
        player: str = msgspec.field(name="user", default="")

    bytes_ = DictBytes()
    hf.KeyValueStore("scores", value=list[Old]).bind(bytes_, Now(wall=0))["a"] = [Old("Ann")]
    assert unreadable(spec_of(list[Old]), spec_of(list[New])) == []
    assert hf.KeyValueStore("scores", value=list[New]).bind(bytes_, Now(wall=0))["a"] == [New("Ann")]


def test_a_field_of_a_struct_is_refused_in_a_dataclass() -> None:
    @dataclass
    class New:
        player: str = msgspec.field(name="user", default="")

    with pytest.raises(TopologyError, match=r"New.player is a msgspec.field\(\).*Make New a Struct"):
        hf.KeyValueStore("scores", value=list[New]).spec()


def test_a_subclass_does_not_inherit_the_declaration() -> None:
    class Other(Tenths):
        pass

    assert declared(Other).number == 1
    assert declared(Tenths).number == 2


def test_aliases_and_upcasters_need_a_codec_with_plain_values() -> None:
    with pytest.raises(TopologyError, match="has no plain values"):
        codec_of(spec_of(Renamed, Opaque.id), Renamed, Opaque())
