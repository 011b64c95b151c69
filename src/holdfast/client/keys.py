"""Keys and values of one store between Python and REST.

A key of one component is a Python value, a key of several a tuple. The store's key schema, from the routing, decides
how it is written and to which partition it belongs, exactly as on the server.
"""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.client.errors import BadKey, WrongType
from holdfast.errors import BadKey as NotAKey
from holdfast.query.keytext import example, key_text, parse_key, render_scalar
from holdfast.query.routes import StoreRoute
from holdfast.stores.formats.partition import partition_of


class StoreKeys:
    """The keys of one store."""

    def __init__(self, route: StoreRoute) -> None:
        self.route = route
        self._schema = route.key
        self._single = len(route.key.fields) == 1
        self._plain = self._single and route.key.fields[0].type in ("string", "bigint", "int")

    def values(self, key: object) -> tuple[object, ...]:
        """The components of a key."""
        if isinstance(key, tuple | list):
            return tuple(key)
        return (key,)

    def task(self, key: object) -> str | None:
        """The task of a key; None if every instance has it."""
        if self.route.everywhere:
            return None
        try:
            partition = partition_of(self._schema, self.values(key), self.route.partitions)
        except NotAKey as error:
            raise self._misfit(key, error) from error
        return self.route.task(partition)

    def task_if_key(self, key: object) -> str | None:
        """The task of a key, if it is one: a kind may declare another key for a query."""
        try:
            return self.task(key)
        except BadKey:
            return None

    def text(self, key: object) -> str:
        """A key, or the first components of one, before percent-encoding."""
        values = self.values(key)
        if self._single:
            return key_text(self._schema, values)
        return msgspec.json.encode([render_scalar(value) for value in values]).decode()

    def member(self, key: object) -> object:
        """A key in the JSON of a request."""
        values = [render_scalar(value) for value in self.values(key)]
        return values[0] if self._single else values

    def python(self, member: Any) -> Any:
        """The key of an answer as Python values."""
        if self._plain or member is None:
            return member
        text = member if isinstance(member, str) and self._single else msgspec.json.encode(member).decode()
        found = parse_key(self._schema, text)
        return found[0] if self._single else found

    def _misfit(self, key: object, error: NotAKey) -> BadKey:
        fact = f"{key!r:.200} is not a key of store {self.route.store!r}, which has the key ({self._schema})"
        fact += f": {error}" if len(self.values(key)) == len(self._schema.fields) else "."
        return in_python(BadKey(fact, "", 400, {"schema": str(self._schema), "example": example(self._schema)}))


def in_python(refused: BadKey) -> BadKey:
    """The refusal of a key, with its example as Python has it.

    >>> in_python(BadKey("'ann' is not a JSON array.", "", 400, {"example": '["ann",7]'})).what_to_do
    "Give a tuple of its components, such as ('ann', 7)."
    """
    text = str(refused.more.get("example", ""))
    several = text.startswith("[")
    what = (
        f"a tuple of its components, such as {tuple(msgspec.json.decode(text))!r}" if several else f"one such as {text}"
    )
    return BadKey(refused.message, f"Give {what}.", refused.status, refused.more)


def loose_text(key: object) -> str:
    """A key as it is written, whatever the key schema is.

    >>> loose_text("home"), loose_text(7), loose_text(("ann", 7))
    ('home', '7', '["ann",7]')
    """
    if isinstance(key, tuple | list):
        return msgspec.json.encode([render_scalar(value) for value in key]).decode()
    rendered = render_scalar(key)
    return rendered if isinstance(rendered, str) else msgspec.json.encode(rendered).decode()


def in_path(text: str) -> str:
    """A text as the last part of a path.

    >>> in_path("a/b c"), in_path("..")
    ('a%2Fb%20c', '%2E%2E')
    """
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def converter(store: str, type_: Any) -> Callable[[Any, object], Any]:
    """From the JSON of a value, and its key, to a Python type; without a type the value stays as it is.

    >>> from decimal import Decimal
    >>> converter("scores", dict[str, Decimal])({"paid": "3.50"}, "ann")
    {'paid': Decimal('3.50')}
    """
    if type_ is None:
        return lambda value, key: value

    def converted(value: Any, key: object) -> Any:
        if value is None:
            return None
        try:
            # Not strict: NaN and infinities are texts in JSON, and so are keys of mappings.
            return msgspec.convert(value, type_, strict=False)
        except (msgspec.ValidationError, TypeError) as error:  # TypeError: of a type that JSON can't be converted to
            raise WrongType(store, key, type_, str(error)) from error

    return converted


def query_string(parameters: Sequence[tuple[str, str]]) -> str:
    """
    >>> query_string([("from", "a b"), ("limit", "2")])
    '?from=a%20b&limit=2'
    """
    joined = "&".join(f"{name}={quote(text, safe='')}" for name, text in parameters)
    return f"?{joined}" if joined else ""
