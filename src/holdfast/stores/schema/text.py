"""Schemas as trees and as text: what a stored value looks like.

The app's file has the schemas of a store as text, so that code without the old class still knows its fields:

    {player: str, score/points: int, tags?: list[str], best?: float | null}

The first name of a field is the one it is stored under; names after a slash are read as well. A question mark means
that the field may be missing. `{...}!` rejects unknown fields, `row{...}` is stored by position, `^1` is the
enclosing record.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import xxhash

from holdfast.errors import DamagedObject

T = TypeVar("T")

_WORD = re.compile(r"[A-Za-z_0-9]+(\(\d+,\d+\))?")
_TOKEN = re.compile(r'\s*([A-Za-z_0-9]+(?:\(\d+,\d+\))?|"(?:[^"\\]|\\.)*"|-?\d+|\^\d+|[{}\[\]:,?!|/])')


@dataclass(frozen=True)
class Scalar:
    name: str


@dataclass(frozen=True)
class Many:
    """A list, a set or a tuple of any length: they have the same bytes."""

    item: "ValueSchema"


@dataclass(frozen=True)
class Fixed:
    """A tuple of a fixed length."""

    items: tuple["ValueSchema", ...]


@dataclass(frozen=True)
class Mapped:
    key: "ValueSchema"
    value: "ValueSchema"


@dataclass(frozen=True)
class Choices:
    """The values of an enum or a Literal."""

    values: tuple[str | int | None, ...]


@dataclass(frozen=True)
class FieldSchema:
    name: str
    schema: "ValueSchema"
    optional: bool = False
    also: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.also)


@dataclass(frozen=True)
class Record:
    fields: tuple[FieldSchema, ...]
    closed: bool = False
    by_position: bool = False


@dataclass(frozen=True)
class OneOf:
    members: tuple["ValueSchema", ...]


@dataclass(frozen=True)
class Around:
    """An enclosing record, this many levels up: how a type contains itself."""

    levels: int


ValueSchema = Scalar | Many | Fixed | Mapped | Choices | Record | OneOf | Around

ANY = Scalar("any")
NULL = Scalar("null")


def text_of(schema: ValueSchema, *, also: bool = True) -> str:
    """The schema as text; `also=False` leaves out further names, which change no stored byte.

    >>> text_of(Record((FieldSchema("score", Scalar("int"), also=("points",)), FieldSchema("a b", Many(ANY), True))))
    '{score/points: int, "a b"?: list[any]}'
    """
    match schema:
        case Scalar(name):
            return name
        case Many(item):
            return f"list[{text_of(item, also=also)}]"
        case Fixed(items):
            return f"tuple[{', '.join(text_of(item, also=also) for item in items)}]"
        case Mapped(key, value):
            return f"dict[{text_of(key, also=also)}, {text_of(value, also=also)}]"
        case Choices(values):
            return f"enum[{', '.join(msgspec.json.encode(value).decode() for value in values)}]"
        case OneOf(members):
            return " | ".join(text_of(member, also=also) for member in members)
        case Around(levels):
            return f"^{levels}"
        case Record(fields, closed, by_position):
            inside = ", ".join(_field_text(field, also) for field in fields)
            return f"{'row' if by_position else ''}{{{inside}}}{'!' if closed else ''}"


def fingerprint_of(schema: ValueSchema) -> str:
    """Sixteen hex digits that are equal where stored bytes mean the same.

    >>> fingerprint_of(parse("{score/points: int}")) == fingerprint_of(parse("{score: int}"))
    True
    """
    return xxhash.xxh3_64_hexdigest(text_of(schema, also=False).encode())


def parse(text: str) -> ValueSchema:
    """The schema of a text.

    >>> text_of(parse("{a?: list[int | null], b: enum[1, \\"x\\"]}!"))
    '{a?: list[int | null], b: enum[1, "x"]}!'
    """
    parser = _Parser(text)
    schema = parser.schema()
    parser.take("")
    return schema


def one_of(members: Mapping[str, ValueSchema]) -> ValueSchema:
    """A union with its members sorted by their texts; a single member is returned itself."""
    ordered = tuple(members[text] for text in sorted(members))
    return ordered[0] if len(ordered) == 1 else OneOf(ordered)


def _field_text(field: FieldSchema, also: bool) -> str:
    names = "/".join(_name_text(name) for name in (field.names if also else (field.name,)))
    return f"{names}{'?' if field.optional else ''}: {text_of(field.schema, also=also)}"


def _name_text(name: str) -> str:
    return name if _WORD.fullmatch(name) else msgspec.json.encode(name).decode()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._next = self._token()

    def schema(self) -> ValueSchema:
        members = [self._term()]
        while self.took("|"):
            members.append(self._term())
        return members[0] if len(members) == 1 else OneOf(tuple(members))

    def take(self, wanted: str) -> None:
        if not self.took(wanted):
            raise self._damaged()

    def took(self, wanted: str) -> bool:
        if self._next != wanted:
            return False
        self._next = self._token() if wanted else ""
        return True

    def _term(self) -> ValueSchema:
        if self._next == "{":
            return self._record(by_position=False)
        word = self._take_any()
        if word.startswith("^"):
            return Around(int(word[1:]))
        if word == "row" and self._next == "{":
            return self._record(by_position=True)
        if self._next != "[":
            if not _WORD.fullmatch(word):
                raise self._damaged()
            return Scalar(word)
        self.take("[")
        if word == "enum":
            return Choices(tuple(self._listed(self._value)))
        inside = self._listed(self.schema)
        match word, len(inside):
            case "list", 1:
                return Many(inside[0])
            case "dict", 2:
                return Mapped(inside[0], inside[1])
            case "tuple", _:
                return Fixed(tuple(inside))
        raise self._damaged()

    def _record(self, *, by_position: bool) -> Record:
        self.take("{")
        fields: list[FieldSchema] = []
        while not self.took("}"):
            if fields:
                self.take(",")
            names = [self._name()]
            while self.took("/"):
                names.append(self._name())
            optional = self.took("?")
            self.take(":")
            fields.append(FieldSchema(names[0], self.schema(), optional, tuple(names[1:])))
        return Record(tuple(fields), closed=self.took("!"), by_position=by_position)

    def _listed(self, item: Callable[[], T]) -> list[T]:
        found: list[T] = []
        while not self.took("]"):
            if found:
                self.take(",")
            found.append(item())
        return found

    def _value(self) -> str | int | None:
        try:
            return msgspec.json.decode(self._take_any(), type=str | int | None)
        except msgspec.DecodeError as error:
            raise self._damaged() from error

    def _name(self) -> str:
        word = self._take_any()
        if word.startswith('"'):
            return msgspec.json.decode(word, type=str)
        if not _WORD.fullmatch(word):
            raise self._damaged()
        return word

    def _take_any(self) -> str:
        word = self._next
        if not word:
            raise self._damaged()
        self._next = self._token()
        return word

    def _token(self) -> str:
        match = _TOKEN.match(self._text, self._place)
        if match is None:
            if self._text[self._place :].strip():
                raise self._damaged()
            return ""
        self._place = match.end()
        return match[1]

    def _damaged(self) -> DamagedObject:
        return DamagedObject(f"{self._text[:200]!r} is not a schema, at {self._place}. Restore the app's file.")
