"""Which schema can be read as which other, by the two schemas alone."""

import pytest

from holdfast.stores.schema.compatibility import obstacles
from holdfast.stores.schema.text import parse


def lines(old: str, new: str) -> list[str]:
    return obstacles(parse(old), parse(new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{a: int}", "{a: int, b?: str}"),
        ("{a: int, b: str}", "{a: int}"),
        ("{a: int}", "{a: float | null}"),
        ("{a: list[int]}", "{a: list[float]}"),
        ("{a: tuple[int, int]}", "{a: list[int]}"),
        ("{a: enum[1, 2]}", "{a: float}"),
        ('{a: enum["x"]}', '{a: enum["x", "y"]}'),
        ('{a: enum["x"]}', "{a: str}"),
        ("{old: int}", "{old/new: int}"),
        ("{new: int}", "{old/new: int}"),
        ("row{a: int}", "row{z: int, b?: int}"),
        ("row{a: int, b: str}", "row{a: int}"),
        ("{a: {b: int}}", "{a: {b: int, c?: int}}"),
        ("dict[str, int]", "dict[str, int | str]"),
        ("{a: str}", "any"),
    ],
)
def test_a_compatible_schema_has_no_obstacles(old: str, new: str) -> None:
    assert lines(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("{a: int}", "{a: int, b: str}", "b has no default, and was not written"),
        ("{a?: int}", "{a: int}", "a has no default, and may not have been written"),
        ("{a: float}", "{a: int}", "a was written as float and is read as int"),
        ("{a: int | null}", "{a: int}", "a was written as null and is read as int"),
        ("{a: {b: str}}", "{a: {b: int}}", "a.b was written as str and is read as int"),
        ("{a: list[str]}", "{a: list[int]}", "an item of a was written as str"),
        ('{a: enum["x", "y"]}', '{a: enum["x"]}', "a may hold 'y'"),
        ("{a: str}", '{a: enum["x"]}', "a was written as str"),
        ("{a: int, b: int}", "{a: int}!", "the code forbids fields it doesn't know"),
        ("row{a: int}", "row{a: int, b: int}", "the value[1] (b) has no default"),
        ("row{a: int, b: int}", "row{a: int}!", "forbids more than it has"),
        ("row{a: int}", "{a: int}", "was written as row{a: int}"),
        ("tuple[int, int]", "tuple[int]", "the value was written as tuple[int, int]"),
        ("any", "{a: int}", "the value was written as any"),
        ("{a: ^1 | null}", "{b?: {a: ^2 | null}, a: ^2 | null}", "a was written as ^1"),
    ],
)
def test_obstacles_name_what_cannot_be_read(old: str, new: str, told: str) -> None:
    assert any(told in line for line in lines(old, new)), lines(old, new)
