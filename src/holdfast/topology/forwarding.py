"""Where a processor forwards rows: its main output, and its named ones."""

from collections.abc import Callable, Mapping
from operator import itemgetter

from holdfast.errors import BadValue, TopologyError, did_you_mean, shown
from holdfast.stores.formats.types import Schema

OutputSchemas = Mapping[str | None, Schema]
"""The columns of each output of a processor by its name; None is the main output."""

Row = tuple[object, ...]
Pick = Callable[[Mapping[str, object]], Row]


class Outlet:
    """One output of a running processor: its columns, and the rows that were forwarded to it."""

    __slots__ = ("columns", "name", "picks", "rows", "schema", "width")

    def __init__(self, name: str | None, schema: Schema) -> None:
        self.name = name
        self.schema, self.columns, self.width = schema, schema.names, len(schema.names)
        self.rows: list[Row] = []
        self.picks: dict[int, Pick] = {}
        """By the number of columns that the key fills: what takes the others from a value."""

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

    def misfit(self, parts: Row, row: Mapping[str, object]) -> BadValue:
        to = "" if self.name is None else f" to {self.name!r}"
        return BadValue(
            f"ctx.forward(){to} got the key {shown(parts)} and the value {shown(dict(row))}; the output has the "
            f"columns {', '.join(self.columns)}. The key fills the first {len(parts)}, the value must have exactly "
            f"{', '.join(self.columns[len(parts) :]) or 'nothing'}."
        )


def outlets_of(outputs: OutputSchemas) -> dict[str | None, Outlet]:
    return {name: Outlet(name, schema) for name, schema in outputs.items()}


def unknown_output(to: str | None, known: Mapping[str | None, object]) -> TopologyError:
    """The error for an output that the processor doesn't have."""
    if to is None:
        return TopologyError(
            "ctx.forward() needs to know the output's columns. Name them: stream.process(..., output='player "
            "string, n bigint')."
        )
    names = [name for name in known if name is not None]
    has = f"The outputs are: {', '.join(names)}" if names else "There is none with a name"
    return TopologyError(
        f"ctx.forward(..., to={to!r}): there is no such output. {did_you_mean(to, names)}{has}. Name its columns: "
        f"stream.process(..., outputs={{{to!r}: 'player string, n bigint'}})."
    )
