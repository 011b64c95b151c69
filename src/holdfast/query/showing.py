"""Stored entries as members of answers: the key, the value, and its times.

An entry that can't be read has an `error` among others, and is an error alone.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.errors import RESTORE_AGAIN, HoldfastError
from holdfast.query.answers import Entry
from holdfast.query.keytext import render_key
from holdfast.query.problems import Problem
from holdfast.query.render import Renderer, answered, renderer
from holdfast.query.store_specs import StoreSpecs
from holdfast.stores.formats.cells import NEVER, NO_TIMESTAMP, Cell
from holdfast.stores.formats.keys import decode_key
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.spec import RowValues, StoreSpec

Fields = Sequence[str]
"""The fields of values that a request selects; none of them: all."""


def shown(render: Renderer, cell: Cell, fields: Fields = ()) -> dict[str, Any]:
    """A value with its timestamp and expiry, in milliseconds since 1970, where it has them."""
    members = answered(render(cell.payload, cell.schema))
    if fields:
        members["value"] = selected(members["value"], fields)
    if cell.timestamp != NO_TIMESTAMP:
        members["timestamp"] = cell.timestamp
    if cell.expires != NEVER:
        members["expires"] = cell.expires
    return members


def selected(value: object, fields: Fields) -> object:
    """Some fields of an object, those that it has. Any other value has no fields, and is shown whole.

    >>> selected({"points": 12, "best": 9}, ["best", "worst"]), selected(12, ["best"])
    ({'best': 9}, 12)
    """
    return {name: value[name] for name in fields if name in value} if isinstance(value, dict) else value


class Showing:
    """How the entries of an app's stores are shown, by the newest known app file."""

    def __init__(self, specs: StoreSpecs) -> None:
        self._specs = specs
        self._renderers: dict[str, tuple[StoreSpec, Renderer]] = {}

    def renderer(self, store: str) -> Renderer:
        spec = self._specs[store]
        known = self._renderers.get(store)
        if known is None or known[0] is not spec:
            known = self._renderers[store] = (spec, renderer(spec))
        return known[1]

    def cell(self, store: str, key: str, cell: Cell, fields: Fields = ()) -> dict[str, Any]:
        """The members of one value."""
        try:
            return shown(self.renderer(store), cell, fields)
        except HoldfastError as error:
            raise unreadable(store, key, error) from error

    def entry(self, spec: StoreSpec, key: bytes, value: bytes, fields: Fields = ()) -> Entry:
        """One entry among others, by its stored key and cell. It may read the log, for a schema that isn't known."""
        try:
            shown_key = render_key(spec.key, decode_key(spec.key, key))
        except (HoldfastError, ValueError, OverflowError) as error:
            return Entry(key=None, value=None, error=f"key {key.hex()} can't be read: {error}")
        try:
            cell = layout_of(spec).cell(value)
            self._specs.load_schema(spec.name, cell.schema)
            return Entry(key=shown_key, **shown(self.renderer(spec.name), cell, fields))
        except HoldfastError as error:
            return Entry(key=shown_key, value=None, error=unreadable(spec.name, str(shown_key), error).message)


def fields_of(spec: StoreSpec, text: str | None) -> Fields:
    """The fields that a request selects. Those of a table's rows are known, so others are refused."""
    if text is None:
        return ()
    fields = [name for name in text.split(",") if name]
    if not fields:
        raise Problem(400, "bad_parameter", f"fields={text[:100]!r} names no field.", "Write fields=a,b.")
    if isinstance(spec.value, RowValues):
        columns = [field.name for field in spec.value.shown.fields]
        if unknown := [name for name in fields if name not in columns]:
            fact = f"Rows of store {spec.name!r} have no column {unknown[0][:100]!r}."
            raise Problem(400, "bad_parameter", fact, f"Choose among {', '.join(columns)}.")
    return fields


def unreadable(store: str, key: str, error: Exception) -> Problem:
    return Problem(
        500,
        "damaged_data",
        f"The value of {key[:200]!r} in store {store!r} can't be read: {error}",
        f"Nothing you sent is at fault. {RESTORE_AGAIN}",
    )
