"""Typed values without their code: how queries show them, by the schemas in the app's file.

The newest schema has the present fields and their names. So a renamed field has its new name, and a removed one is left
out, as in the code. A field that was added later is missing, because its default is in the code. Upcasters are in the
code too: a value that needs one is shown as it was written, with its schema number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.stores.schema.text import FieldSchema, Record, ValueSchema, parse, text_of
from holdfast.stores.spec import NumberedSchema


@dataclass(frozen=True)
class AsWritten:
    """A value in the schema it was written in, because only code can turn it into the newest."""

    value: Any
    schema: int


class SchemaDescription:
    """What the app's file says of a store's values.

    >>> first = NumberedSchema(1, "", "{user: str, score: int, old?: int}")
    >>> renamed = NumberedSchema(1, "", "{user/player: str, score: int, tags?: list[str]}")
    >>> SchemaDescription((first, renamed)).shown({"user": "Ann", "score": 3, "old": 1}, 1)
    {'player': 'Ann', 'score': 3}
    >>> tenths = NumberedSchema(2, "", "{user/player: str, score: float}", upcast_from=(1,))
    >>> SchemaDescription((first, renamed, tenths)).shown({"user": "Ann", "score": 3}, 1)
    AsWritten(value={'user': 'Ann', 'score': 3}, schema=1)
    """

    def __init__(self, schemas: Sequence[NumberedSchema]) -> None:
        self._newest = _newest(schemas)
        self._fields = () if self._newest is None else _named_fields(parse(self._newest.fields))

    def needs_code(self, schema: int) -> bool:
        """Whether only code can turn a value of this schema number into the newest schema."""
        newest = self._newest
        if newest is None:
            return False
        return schema > newest.number or any(number in newest.upcast_from for number in range(schema, newest.number))

    def shown(self, plain: Any, schema: int) -> Any:
        """A plain value of this schema number in the newest schema, as far as that is possible without code."""
        if self._newest is None:
            return plain
        if self.needs_code(schema):
            return AsWritten(plain, schema)
        return _in_schema(plain, self._fields) if self._fields and isinstance(plain, dict) else plain


def newest_schema(schemas: Sequence[NumberedSchema]) -> ValueSchema | None:
    """The newest schema; None if no schema is known."""
    newest = _newest(schemas)
    return None if newest is None else parse(newest.fields)


def newest_fields(schemas: Sequence[NumberedSchema]) -> str | None:
    """The newest schema as text, each field by its present name; None if no schema is known.

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
    # Of several schemas with the highest number the last is the newest: the log appends them.
    return max(reversed(schemas), key=lambda version: version.number, default=None)


def _named_fields(schema: ValueSchema) -> tuple[FieldSchema, ...]:
    return schema.fields if isinstance(schema, Record) and not schema.by_position else ()


def _in_schema(plain: dict[Any, Any], fields: Sequence[FieldSchema]) -> dict[Any, Any]:
    """The present fields by their present names. Of several names the first is the stored one."""
    found = {}
    for field in fields:
        for name in field.names:
            if name in plain:
                found[field.names[-1]] = plain[name]
                break
    return found
