"""Where a processor forwards rows: its main output, and its named ones."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from holdfast.errors import BadValue, TopologyError, did_you_mean, shown
from holdfast.stores.formats.types import Schema

OutputSchemas = Mapping[str | None, Schema]
"""The columns of each output of a processor by its name; None is the main output."""

Row = tuple[Any, ...]
Pick = Callable[[Mapping[str, object]], Row]


_PLAIN: Mapping[str, tuple[type | None, int]] = {
    "string": (str, 0),
    "double": (float, 0),
    "boolean": (bool, 0),
    "int": (int, 1 << 31),
    "bigint": (int, 1 << 63),
}
"""Types of columns whose Python values are checked without Arrow; of whole numbers also the first that is too large."""


class Outlet:
    """One output of a running processor: its columns, and the rows that were forwarded to it."""

    __slots__ = ("columns", "name", "picks", "plain", "rows", "schema", "times", "width")

    def __init__(self, name: str | None, schema: Schema) -> None:
        self.name = name
        self.schema, self.columns, self.width = schema, schema.names, len(schema.names)
        self.plain = [_PLAIN.get(field.type, (None, 0)) for field in schema.fields]
        self.rows: list[Row] = []
        self.times: list[int] = []
        """The event time of each row: that of the record for which it was forwarded."""
        self.picks: dict[int, Pick] = {}
        """By the number of columns that the key fills: what takes the others from a value."""

    def surely_fits(self, row: Row) -> bool:
        """Whether the values of a row are of the types of the columns; false where that isn't plain to see.

        >>> outlet = Outlet(None, Schema.of(player="string", n="int"))
        >>> outlet.surely_fits(("ann", 3)), outlet.surely_fits(("ann", 2**40)), outlet.surely_fits(("ann", "x"))
        (True, False, False)
        """
        for value, (kind, most) in zip(row, self.plain, strict=True):
            if value is None:
                continue
            given: object = type(value)
            if given is not kind or (kind is str and not value.isascii()) or (most and not -most <= value < most):
                return False
        return True

    def picker(self, parts: int) -> Pick:
        """Takes the columns after the first `parts` from a value."""
        rest = self.columns[parts:]
        if len(rest) == 0:
            pick: Pick = lambda row: ()  # noqa: E731
        elif len(rest) == 1:
            only = rest[0]
            pick = lambda row: (row[only],)  # noqa: E731
        else:
            pick = itemgetter(*rest)
        self.picks[parts] = pick
        return pick

    def repeats_key(self, parts: Row, row: Mapping[str, object]) -> bool:
        """Whether what a value has beside its own columns is what the key has in these columns.

        >>> outlet = Outlet(None, Schema.of(player="string", n="int"))
        >>> [outlet.repeats_key(("ann",), {"player": name, "n": 3}) for name in ("ann", "bob")]
        [True, False]
        """
        by_key, own = dict(zip(self.columns, parts, strict=False)), self.columns[len(parts) :]
        others = {name: value for name, value in row.items() if name not in own}
        return all(name in by_key and by_key[name] == value for name, value in others.items())

    def misfit(self, parts: Row, row: Mapping[str, object]) -> BadValue:
        to = "" if self.name is None else f" to {self.name!r}"
        return BadValue(
            f"ctx.forward(){to} got the key {shown(parts)} and the value {shown(dict(row))}; the output has the "
            f"columns {', '.join(self.columns)}. The key fills the first {len(parts)}, the value must have exactly "
            f"{', '.join(self.columns[len(parts) :]) or 'nothing'}; it may repeat what the key has."
        )


def outlets_of(outputs: OutputSchemas) -> dict[str | None, Outlet]:
    return {name: Outlet(name, schema) for name, schema in outputs.items()}


def unknown_output(to: str | None, known: Mapping[str | None, object], key: str) -> TopologyError:
    """The error for an output that the processor doesn't have. `key` are the columns of its stream's key."""
    if to is None:
        return TopologyError(
            f"ctx.forward() needs to know the output's columns. Name them: stream.process(..., output='{key}, n "
            "bigint')."
        )
    names = [name for name in known if name is not None]
    has = f"The outputs are: {', '.join(names)}" if names else "There is none with a name"
    return TopologyError(
        f"ctx.forward(..., to={to!r}): there is no such output. {did_you_mean(to, names)}{has}. Name its columns: "
        f"stream.process(..., outputs={{{to!r}: '{key}, n bigint'}})."
    )
