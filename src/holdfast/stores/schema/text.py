"""A schema: what a stored value looks like, as a tree that can be written down and compared.

A store's history is kept in the app's file as text, so that code which no longer has an old class still knows what it
looked like:

    {player: str, score/points: int, tags?: list[str], best?: float | null}

A field is written under the name it is stored by; names after a slash are read as well. A question mark says that it
may be missing. `{...}!` takes no fields it doesn't know, `row{...}` is stored by position, `^1` is the record around.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import xxhash

from holdfast.errors import DamagedObject

_WORD = re.compile(r"[A-Za-z_0-9]+(\(\d+,\d+\))?")
_TOKEN = re.compile(r'\s*([A-Za-z_0-9]+(?:\(\d+,\d+\))?|"(?:[^"\\]|\\.)*"|-?\d+|\^\d+|[{}\[\]:,?!|/])')


@dataclass(frozen=True)
class Scalar:
    name: str


@dataclass(frozen=True)
class Many:
    """A list, a set, a tuple of any length: the same bytes."""

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
    """Some values, of an enum or a Literal."""

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
    """A record that this stands in, so many levels up: how a type that contains itself is told."""

    levels: int


ValueSchema = Scalar | Many | Fixed | Mapped | Choices | Record | OneOf | Around

ANY = Scalar("any")
NULL = Scalar("null")


def text_of(schema: ValueSchema, *, also: bool = True) -> str:
    """The schema as text; `also=False` leaves out what changes no stored byte.

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
    """The schema a text tells of.

    >>> text_of(parse("{a?: list[int | null], b: enum[1, \\"x\\"]}!"))
    '{a?: list[int | null], b: enum[1, "x"]}!'
    """
    parser = _Parser(text)
    schema = parser.schema()
    parser.take("")
    return schema


def one_of(members: Mapping[str, ValueSchema]) -> ValueSchema:
    """A union in one order, whatever order the type had; one member is no union."""
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
            return Choices(tuple(self._listed_values()))
        inside = self._listed_schemas()
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

    def _listed_schemas(self) -> list[ValueSchema]:
        found: list[ValueSchema] = []
        while not self.took("]"):
            if found:
                self.take(",")
            found.append(self.schema())
        return found

    def _listed_values(self) -> list[str | int | None]:
        found: list[str | int | None] = []
        while not self.took("]"):
            if found:
                self.take(",")
            try:
                found.append(msgspec.json.decode(self._take_any(), type=str | int | None))
            except msgspec.DecodeError as error:
                raise self._damaged() from error
        return found

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
