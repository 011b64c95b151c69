"""Shapes: what a value type says of itself, in words that the app's file keeps."""

from dataclasses import dataclass, field, make_dataclass
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import DamagedObject, TopologyError
from holdfast.stores.compat import obstacles
from holdfast.stores.shapes import declared, describe_type, shape_of
from holdfast.stores.shapetext import parse, text_of
from holdfast.stores.values import codec_of
from tests.stores.shaping import Opaque, Renamed, Tenths, spec_of


def test_a_shape_is_told_in_words() -> None:
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
def test_a_shape_is_read_as_it_is_written(text: str) -> None:
    assert text_of(parse(text)) == text
    assert obstacles(parse(text), parse(text)) == []


@pytest.mark.parametrize("text", ["", "{", "{a}", "{a: int", "list[int", "int int", "dict[int]", "{a: int}}", "#", "|"])
def test_what_is_no_shape_is_an_error(text: str) -> None:
    with pytest.raises(DamagedObject, match="is no shape"):
        parse(text)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"version": 0}, "versions go from 1"),
        ({"version": 65536}, "versions go from 1"),
        ({"version": 2, "upcasters": {2: lambda old: old}}, "say version=3"),
        ({"version": 2, "upcasters": {0: lambda old: old}}, "upcaster from 0"),
        ({"aliases": {"nothing": "old"}}, "no field 'nothing'"),
        ({"aliases": {"user": "score"}}, "'score' is a field"),
        ({"aliases": {"user": "old", "score": "old"}}, "alias of two fields"),
    ],
)
def test_what_cannot_be_declared_is_told_on_the_line_that_declares_it(options: dict[str, Any], told: str) -> None:
    with pytest.raises(TopologyError, match=told):
        hf.shape(**options)(make_dataclass("Score", [("user", str), ("score", int)]))


def test_only_records_have_shapes_and_only_the_value_type_has_a_version() -> None:
    with pytest.raises(TopologyError, match="dataclass or a msgspec Struct"):
        hf.shape(version=2)(dict)

    @dataclass
    class Outer:
        inner: Tenths

    with pytest.raises(TopologyError, match="Tenths is under @hf.shape and stands inside Outer"):
        shape_of(Outer)

    class Row(msgspec.Struct, array_like=True):
        a: int

    with pytest.raises(TopologyError, match="array_like"):
        hf.shape(aliases={"a": "b"})(Row)


def test_a_subclass_says_it_anew() -> None:
    class Other(Tenths):
        pass

    assert declared(Other).version == 1
    assert declared(Tenths).version == 2


def test_aliases_and_upcasters_need_a_codec_that_has_a_plain_form() -> None:
    with pytest.raises(TopologyError, match="no plain form"):
        codec_of(spec_of(Renamed, Opaque.id), Renamed, Opaque())
