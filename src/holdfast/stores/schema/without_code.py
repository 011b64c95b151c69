"""Typed values as who has no code for them can show them: by what the app's file says of their schemas.

The newest schema says what a field is called today and which fields there are. So one that was renamed goes by its new
name, and one that was lost is left out, as the code would have it. One that was gained since is missing: its default is
in the code. So is an upcaster. A value that has one before it stays as it was written, and says in which schema.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.stores.schema.text import FieldSchema, Record, ValueSchema, parse, text_of
from holdfast.stores.spec import NumberedSchema


@dataclass(frozen=True)
class AsWritten:
    """A value that is shown in the schema it was written in, since only code can make the newest of it."""

    value: Any
    schema: int


class SchemaDescription:
    """What the app's file says of a store's values.

    >>> first = NumberedSchema(1, "", "{user: str, score: int, old?: int}")
    >>> renamed = NumberedSchema(1, "", "{user/player: str, score: int, tags?: list[str]}")
    >>> SchemaDescription((first, renamed)).shown({"user": "Ann", "score": 3, "old": 1}, 1)
    {'player': 'Ann', 'score': 3}
    >>> tenths = NumberedSchema(2, "", "{user/player: str, score: float}", lifts=(1,))
    >>> SchemaDescription((first, renamed, tenths)).shown({"user": "Ann", "score": 3}, 1)
    AsWritten(value={'user': 'Ann', 'score': 3}, schema=1)
    """

    def __init__(self, schemas: Sequence[NumberedSchema]) -> None:
        self._newest = _newest(schemas)
        self._fields = () if self._newest is None else _named_fields(parse(self._newest.fields))

    def shown(self, plain: Any, schema: int) -> Any:
        """A plain value, written in the schema of this number, in the newest as far as that goes without code."""
        newest = self._newest
        if newest is None:
            return plain
        if schema > newest.number or any(number in newest.lifts for number in range(schema, newest.number)):
            return AsWritten(plain, schema)
        return _in_schema(plain, self._fields) if self._fields and isinstance(plain, dict) else plain


def newest_fields(schemas: Sequence[NumberedSchema]) -> str | None:
    """The newest schema as text, each field by its name of today; None where nothing is known.

    >>> newest_fields((NumberedSchema(1, "", "{user/player: str, tags?: list[str]}"),))
    '{player: str, tags?: list[str]}'
    """
    newest = _newest(schemas)
    if newest is None:
        return None
    schema = parse(newest.fields)
    if isinstance(schema, Record):
        schema = replace(schema, fields=tuple(replace(f, name=f.names[-1], also=()) for f in schema.fields))
    return text_of(schema)


def _newest(schemas: Sequence[NumberedSchema]) -> NumberedSchema | None:
    # Of several schemas with the highest number the last is the newest: the log adds them as they come.
    return max(reversed(schemas), key=lambda version: version.number, default=None)


def _named_fields(schema: ValueSchema) -> tuple[FieldSchema, ...]:
    return schema.fields if isinstance(schema, Record) and not schema.by_position else ()


def _in_schema(plain: dict[Any, Any], fields: Sequence[FieldSchema]) -> dict[Any, Any]:
    """The fields there are, each by its name of today. Of several names the first is the one it is stored under."""
    found = {}
    for field in fields:
        for name in field.names:
            if name in plain:
                found[field.names[-1]] = plain[name]
                break
    return found
