"""`holdfast get`, `range`, `windows`, `sessions`, `top`, `watch` and `sql`: the stores of a running app in a terminal.

They are the calls of `hf.Client`, so they route, retry and fail over as it does. Keys are written as in a URL.
"""

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.group_command import AppOption, FileOption, LogOption, Target

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Iterator

    from holdfast.client.answers import AnswerPage, Spanned, StoreEntry
    from holdfast.client.client import Client, RemoteStore
    from holdfast.client.options import ReadOptions
    from holdfast.query_output import Format, Output

LOCAL = "http://127.0.0.1:8080"
"""Where REST of an app on this machine is, unless it is set otherwise."""
ADDRESS, TOKEN, CA_FILE = "HOLDFAST_CLIENT_ADDRESS", "HOLDFAST_CLIENT_TOKEN", "HOLDFAST_CLIENT_CA_FILE"
CERT_FILE, KEY_FILE = "HOLDFAST_CLIENT_CERT_FILE", "HOLDFAST_CLIENT_KEY_FILE"


class MissingKeys(HoldfastError):
    """Keys that the store doesn't have."""

    category = ErrorCategory.INVALID


class BadTokenFile(HoldfastError):
    """The file with the token can't be read."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True, kw_only=True)
class Connection:
    """What every query can be told: whom to ask, how fresh the answer has to be, and how it is printed."""

    address: Annotated[
        str | None,
        typer.Option(
            help=f"Addresses of REST, separated by commas. Without it and --app: {ADDRESS}, or {LOCAL}.",
            show_default=False,
        ),
    ] = None
    app: AppOption = None
    log: LogOption = None
    file: FileOption = None
    token_file: Annotated[
        Path | None, typer.Option(help=f"A file with the token to send. Without it, {TOKEN}.", show_default=False)
    ] = None
    ca_file: Annotated[
        Path | None, typer.Option(envvar=CA_FILE, help="The CA of the instances' certificates.", show_default=False)
    ] = None
    cert_file: Annotated[
        Path | None,
        typer.Option(envvar=CERT_FILE, help="The certificate to show, if instances ask for one.", show_default=False),
    ] = None
    key_file: Annotated[
        Path | None, typer.Option(envvar=KEY_FILE, help="The private key of --cert-file.", show_default=False)
    ] = None
    timeout: Annotated[
        str | None,
        typer.Option(help="How long it may take, with all attempts; 10s, sql 1m, unless given.", show_default=False),
    ] = None
    at: Annotated[
        str | None, typer.Option(help="A version, or latest: one version of all partitions.", show_default=False)
    ] = None
    at_least: Annotated[int | None, typer.Option(help="That version or a later one.", show_default=False)] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False

    @contextmanager
    def client(self) -> "Iterator[Client]":
        from holdfast.client.client import Client
        from holdfast.client.core import TIMEOUT

        with Client(self.addresses(), token=self.token(), tls=self.tls(), timeout=self.timeout or TIMEOUT) as client:
            yield client

    def token(self) -> str | None:
        from holdfast.client.tokens import token_of

        if self.token_file is None:
            return token_of(text, TOKEN) if (text := os.environ.get(TOKEN)) else None
        try:
            return token_of(self.token_file.read_text(encoding="utf-8"), f"--token-file {self.token_file}")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise BadTokenFile(
                f"--token-file {self.token_file} can't be read: {why}. Give a file with the token that you may read."
            ) from None

    def tls(self) -> "ssl.SSLContext | None":
        from holdfast.tls_files import TlsOptions, tls_of_files

        given = [None if each is None else str(each) for each in (self.ca_file, self.cert_file, self.key_file)]
        return tls_of_files(TlsOptions("--ca-file", "--cert-file", "--key-file"), *given)

    def addresses(self) -> list[str]:
        in_log = self.app is not None or self.log is not None
        if in_log and self.address is not None:
            raise typer.BadParameter("--address can't be combined with --app and --log. Give either of them.")
        if not in_log:
            given = self.address or os.environ.get(ADDRESS) or LOCAL
            return [each.strip() for each in given.split(",")]
        from holdfast.rest_calls import rest_addresses

        return rest_addresses(Target(self.app, self.log, self.file).opened()[0])

    @property
    def options(self) -> "ReadOptions":
        from holdfast.client.options import ReadOptions

        found = ReadOptions()
        if self.at is not None:
            found["at"] = "latest" if self.at == "latest" else _version(self.at)
        if self.at_least is not None:
            found["at_least"] = self.at_least
        return found

    @property
    def format(self) -> "Format":
        from holdfast.query_output import Format

        if self.as_json and self.as_csv:
            raise typer.BadParameter("both --json and --csv are given. Give one of them.")
        return Format.JSON if self.as_json else Format.CSV if self.as_csv else Format.TABLE

    def output(self, store: "RemoteStore[Any]") -> "Output":
        from holdfast.query_output import Output

        return Output(self.format, store.route().key.names)


def _version(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"--at {text!r} is not a version. Give a number, or latest.")
    return int(text)


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of `Connection`, which it gets as its first argument."""
    names = [field.name for field in fields(Connection)]
    common = inspect.signature(Connection).parameters
    own = list(inspect.signature(command).parameters.values())[1:]

    @wraps(command)
    def run(**given: Any) -> None:
        from holdfast.client.errors import ClientError
        from holdfast.query_advice import QueryError, in_a_terminal

        try:
            command(Connection(**{name: given.pop(name) for name in names}), **given)
        except ClientError as error:
            if (said := in_a_terminal(error)) is None:
                raise
            raise QueryError(said) from error

    del run.__wrapped__  # its signature is another one
    parameters = [*own, *(common[name] for name in names)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


Store = Annotated[str, typer.Argument(metavar="STORE", help="The name of a store.", show_default=False)]
Key = Annotated[
    str | None,
    typer.Argument(metavar="[KEY]", help="A key, such as alice or '[\"alice\",42]'.", show_default=False),
]
From = Annotated[str | None, typer.Option("--from", help="The first one.", show_default=False)]
To = Annotated[str | None, typer.Option("--to", help="The last one, which is included.", show_default=False)]
Limit = Annotated[int, typer.Option(min=1, help="How many at most.")]
Fields = Annotated[str, typer.Option(help="The fields of values to show, separated by commas.", show_default=False)]


@connected
def get(
    connection: Connection,
    store: Store,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys, as in a URL.", show_default=False)],
    fields: Fields = "",
) -> None:
    """Print the values of keys. Exit code 1: the store doesn't have one of them."""
    with connection.client() as client:
        found = client.store(store)
        page = found.entries([_key(found, text) for text in keys], fields=_split(fields), **connection.options)
        connection.output(found).print(map(_entry, [entry for entry in page if entry.found]), _read_at(page))
    if missing := [text for text, entry in zip(keys, page, strict=True) if not entry.found]:
        raise MissingKeys(
            f"Store {store!r} doesn't have {', '.join(missing)[:300]} at version {page.version}. "
            f"`holdfast range {store}` prints keys that it has."
        )


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
) -> None:
    """Print entries in the order of their keys."""
    if prefix is not None and (first is not None or last is not None or reverse):
        raise typer.BadParameter("--prefix can't be combined with --from, --to and --reverse.")
    with connection.client() as client:
        found = client.store(store)
        shown = _split(fields)
        if prefix is not None:
            entries = found.prefix(_part(found, prefix), limit=limit + 1, fields=shown, **connection.options)
        else:
            start, stop = _part(found, first), _part(found, last)
            entries = found.range(start, stop, reverse=reverse, limit=limit + 1, fields=shown, **connection.options)
        _print_first(connection, found, entries, limit, _entry)


@connected
def windows(
    connection: Connection, store: Store, key: Key = None, first: From = None, last: To = None, limit: Limit = 100
) -> None:
    """Print the windows of a key, or of all keys, that start in a span of time."""
    with connection.client() as client:
        found = client.store(store)
        if key is None:
            spans = found.all_windows(first, last, limit=limit + 1, **connection.options)
            _print_first(connection, found, spans, limit, _span)
        else:
            page = found.windows(_key(found, key), first, last, limit=limit, **connection.options)
            connection.output(found).print(map(_span, page), _read_at(page), more=page.more)


@connected
def sessions(
    connection: Connection, store: Store, key: Key = None, first: From = None, last: To = None, limit: Limit = 100
) -> None:
    """Print the sessions of a key, or of all keys, that overlap a span of time."""
    with connection.client() as client:
        found = client.store(store)
        if key is None:
            spans = found.all_sessions(first, last, limit=limit + 1, **connection.options)
            _print_first(connection, found, spans, limit, _span)
        else:
            page = found.sessions(_key(found, key), first, last, limit=limit, **connection.options)
            connection.output(found).print(map(_span, page), _read_at(page), more=page.more)


@connected
def top(
    connection: Connection,
    store: Store,
    group: Annotated[str, typer.Argument(metavar="[GROUP]", help="A group of the leaderboard.")] = "all",
    limit: Limit = 10,
) -> None:
    """Print the best rows of a leaderboard, the best one first."""
    with connection.client() as client:
        found = client.store(store)
        page = found.top(_key(found, group), limit, **connection.options)
        rows = ({"rank": n, "value": row} for n, row in enumerate(page, 1))
        connection.output(found).print(rows, _read_at(page), more=page.more)


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
    if connection.at is not None or connection.at_least is not None:
        raise typer.BadParameter("--at and --at-least are not for watch. Give --from-version, or none of them.")
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
    "windows": windows,
    "sessions": sessions,
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
) -> None:
    """Prints as many as `limit`. One more is asked for, so that it can say whether there are more."""
    found = list(items)
    note = f"version {found[-1].version}" if found else "no entries"
    connection.output(store).print(map(row, found[:limit]), note, more=len(found) > limit)


def _read_at(page: "AnswerPage[Any]") -> str:
    return f"version {page.version}" if len(page) else f"nothing at version {page.version}"
