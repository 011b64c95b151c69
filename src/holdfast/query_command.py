"""`holdfast get`, `range`, `windows`, `sessions`, `top`, `watch` and `sql`: the stores of a running app in a terminal.

They are the calls of `hf.Client`, so they route, retry and fail over as it does. Keys are written as in a URL.
"""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.query_connection import Connection, connected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.client.answers import AnswerPage, Spanned, StoreEntry
    from holdfast.client.client import RemoteStore
    from holdfast.query_output import Row


class MissingKeys(HoldfastError):
    """Keys that the store doesn't have."""

    category = ErrorCategory.INVALID


Store = Annotated[str, typer.Argument(metavar="STORE", help="The name of a store.", show_default=False)]
Key = Annotated[
    str | None,
    typer.Argument(metavar="[KEY]", help="A key, such as alice or '[\"alice\",42]'.", show_default=False),
]
From = Annotated[str | None, typer.Option("--from", help="The first one.", show_default=False)]
To = Annotated[str | None, typer.Option("--to", help="The last one, which is included.", show_default=False)]
Limit = Annotated[int, typer.Option(min=1, help="How many at most.")]
Fields = Annotated[str, typer.Option(help="The fields of values to show, separated by commas.", show_default=False)]
Partial = Annotated[bool, typer.Option("--partial", help="Leave out partitions that can't be read now, and name them.")]


@connected
def get(
    connection: Connection,
    store: Store,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys, as in a URL.", show_default=False)],
    fields: Fields = "",
    partial: Partial = False,
) -> None:
    """Print the values of keys. Exit code 1: the store doesn't have one of them."""
    from holdfast.query_advice import said_of_missing

    with connection.client() as client:
        found = client.store(store)
        wanted = [_key(found, text) for text in keys]
        page = found.entries(wanted, fields=_split(fields), partial=partial, **connection.options)
        _print_page(connection, found, page, [_entry(entry) for entry in page if entry.found])
    if missing := [text for text, entry in zip(keys, page, strict=True) if not entry.found]:
        raise MissingKeys(said_of_missing(store, missing, page.version))


@connected
def range_(
    connection: Connection,
    store: Store,
    first: From = None,
    last: To = None,
    prefix: Annotated[str | None, typer.Option(help="The beginning of the keys.", show_default=False)] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="From the last key to the first.")] = False,
    limit: Limit = 100,
    fields: Fields = "",
    partial: Partial = False,
) -> None:
    """Print entries in the order of their keys."""
    if prefix is not None and (first is not None or last is not None or reverse):
        raise typer.BadParameter("--prefix can't be combined with --from, --to and --reverse.")
    with connection.client() as client:
        found = client.store(store)
        shown, options = _split(fields), connection.options
        if prefix is not None:
            entries = found.prefix(_part(found, prefix), limit=limit + 1, fields=shown, partial=partial, **options)
        else:
            start, stop = _part(found, first), _part(found, last)
            entries = found.range(
                start, stop, reverse=reverse, limit=limit + 1, fields=shown, partial=partial, **options
            )
        _print_first(connection, found, entries, limit, _entry, partial=partial)


def _spans(kind: Literal["windows", "sessions"], which: str) -> Callable[..., None]:
    """The command for the windows or the sessions."""

    def command(
        connection: Connection,
        store: Store,
        key: Key = None,
        first: From = None,
        last: To = None,
        limit: Limit = 100,
        fields: Fields = "",
        partial: Partial = False,
    ) -> None:
        shown, options = _split(fields), connection.options
        with connection.client() as client:
            found = client.store(store)
            if key is None:
                read_all = found.all_windows if kind == "windows" else found.all_sessions
                spans = read_all(first, last, limit=limit + 1, fields=shown, partial=partial, **options)
                _print_first(connection, found, spans, limit, _span, partial=partial)
            else:
                read = found.windows if kind == "windows" else found.sessions
                page = read(_key(found, key), first, last, limit=limit, fields=shown, partial=partial, **options)
                _print_page(connection, found, page, map(_span, page))

    command.__doc__ = f"Print the {kind} of a key, or of all keys, {which}."
    return connected(command)


@connected
def top(
    connection: Connection,
    store: Store,
    group: Annotated[str, typer.Argument(metavar="[GROUP]", help="A group of the leaderboard.")] = "all",
    limit: Limit = 10,
    fields: Fields = "",
    partial: Partial = False,
) -> None:
    """Print the best rows of a leaderboard, the best one first."""
    with connection.client() as client:
        found = client.store(store)
        page = found.top(_key(found, group), limit, fields=_split(fields), partial=partial, **connection.options)
        _print_page(connection, found, page, ({"rank": n, "value": row} for n, row in enumerate(page, 1)))


@connected
def watch(
    connection: Connection,
    store: Store,
    key: Key = None,
    prefix: Annotated[str | None, typer.Option(help="The beginning of the keys.", show_default=False)] = None,
    from_version: Annotated[int | None, typer.Option(help="The first version to print.", show_default=False)] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="End after this many.", show_default=False)] = None,
) -> None:
    """Print the changes of a store as they are committed, until Ctrl-C."""
    if connection.options:
        raise typer.BadParameter(
            "--at, --at-least, --max-lag and --require are not for watch. Give --from-version, or none of them."
        )
    with connection.client() as client:
        found = client.store(store)
        output = connection.output(found)
        wanted = {"key": None if key is None else _key(found, key), "prefix": _part(found, prefix)}
        try:
            changes = found.watch(**wanted, from_version=from_version, timeout=connection.timeout)
            for n, change in enumerate(changes, 1):
                spanned = {} if change.start is None else {"start": change.start, "end": change.end}
                said = {"deleted": change.deleted, "value": change.value, "error": change.error}
                output.print_change(change.version, change.key, {**spanned, **said})
                if n == limit:
                    return
        except KeyboardInterrupt:
            return


@connected
def sql(
    connection: Connection,
    statement: Annotated[
        str,
        typer.Argument(metavar="STATEMENT", help='One SELECT, such as "SELECT * FROM players". - reads stdin.'),
    ],
    limit: Limit = 1_000,
) -> None:
    """Print the rows of a SELECT over the stores, all at one version. The instances need DuckDB, the extra `sql`."""
    from holdfast.query_output import print_result

    options = connection.options
    if connection.timeout is not None:
        options["timeout"] = connection.timeout
    text = sys.stdin.read() if statement == "-" else statement
    with connection.client() as client:
        found = client.sql(text, limit=limit, **options)
    version = "no store was read" if found.version is None else f"version {found.version}"
    print_result(connection.format, found.arrow, version, more=found.more)


COMMANDS = {
    "get": get,
    "range": range_,
    "windows": _spans("windows", "that start in a span of time"),
    "sessions": _spans("sessions", "that overlap a span of time"),
    "top": top,
    "watch": watch,
    "sql": sql,
}


def add_to(app: typer.Typer) -> None:
    """Adds the commands to those of `holdfast`."""
    for name, command in COMMANDS.items():
        app.command(name)(command)


def _key(store: "RemoteStore[Any]", text: str) -> Any:
    """A key from its text."""
    from holdfast.query.keytext import parse_key

    values = parse_key(store.route().key, text)
    return values[0] if len(values) == 1 else values


def _part(store: "RemoteStore[Any]", text: str | None) -> Any:
    """A key, or the first components of one."""
    from holdfast.query.keytext import parse_key

    if text is None:
        return None
    schema = store.route().key
    values = parse_key(schema, text, whole=False)
    return values[0] if len(schema.fields) == 1 else values


_Read = TypeVar("_Read", "StoreEntry[Any]", "Spanned[Any]")


def _split(fields: str) -> Sequence[str]:
    return tuple(field.strip() for field in fields.split(",")) if fields else ()


def _entry(entry: "StoreEntry[Any]") -> dict[str, Any]:
    others = {"timestamp": entry.timestamp, "expires": entry.expires, "error": entry.error}
    return {"key": entry.key, "value": entry.value, **{name: each for name, each in others.items() if each is not None}}


def _span(each: "Spanned[Any]") -> dict[str, Any]:
    return {"key": each.key, "start": each.start, "end": each.end, "value": each.value}


def _print_first(
    connection: Connection,
    store: "RemoteStore[Any]",
    items: "Iterable[_Read]",
    limit: int,
    row: "Callable[[_Read], dict[str, Any]]",
    *,
    partial: bool,
) -> None:
    """Prints as many as `limit`. One more is asked for, so that it can say whether there are more."""
    found = list(items)
    nothing = "no entries in the partitions that can be read now" if partial else "no entries"
    note = f"version {found[-1].version}" if found else nothing
    missing = {task for each in found for task in each.source.missing}
    connection.output(store).print(map(row, found[:limit]), note, more=len(found) > limit, missing=missing)


def _print_page(
    connection: Connection, store: "RemoteStore[Any]", page: "AnswerPage[Any]", rows: "Iterable[Row]"
) -> None:
    note = f"version {page.version}" if len(page) else f"nothing at version {page.version}"
    connection.output(store).print(rows, note, more=page.more, missing=page.source.missing)
