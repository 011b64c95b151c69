"""What every query in a terminal can be told: whom to ask, how fresh the answer has to be, and how it is printed."""

import inspect
import os
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.group_command import APP, AppOption, FileOption, LogOption, Target

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from holdfast.client.client import Client, RemoteStore
    from holdfast.client.options import ReadOptions
    from holdfast.query_output import Format, Output

LOCAL = "http://127.0.0.1:8080"
"""Where REST of an app on this machine is, unless it is set otherwise."""
ADDRESS, TOKEN, CA_FILE = "HOLDFAST_CLIENT_ADDRESS", "HOLDFAST_CLIENT_TOKEN", "HOLDFAST_CLIENT_CA_FILE"
CERT_FILE, KEY_FILE = "HOLDFAST_CLIENT_CERT_FILE", "HOLDFAST_CLIENT_KEY_FILE"


class BadTokenFile(HoldfastError):
    """The file with the token can't be read."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True, kw_only=True)
class Connection:
    """The options of all queries."""

    address: Annotated[
        str | None,
        typer.Option(
            help=f"Addresses of REST, separated by commas. Without it and --app: {ADDRESS}, {APP}, the only app in "
            f"this folder, or {LOCAL}.",
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
    max_lag: Annotated[
        str | None,
        typer.Option(help="How far behind the newest version it may be: 3 versions, or 5s.", show_default=False),
    ] = None
    require: Annotated[
        Literal["active"] | None, typer.Option(help="active: no standby answers.", show_default=False)
    ] = None
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
        elsewhere = self.address or os.environ.get(ADDRESS)
        target = Target(self.app, self.log, self.file)
        if not in_log and (elsewhere or not target.is_known()):
            given = elsewhere or LOCAL
            return [each.strip() for each in given.split(",")]
        from holdfast.rest_calls import rest_addresses

        return rest_addresses(target.opened()[0])

    @property
    def options(self) -> "ReadOptions":
        from holdfast.client.options import ReadOptions

        found = ReadOptions()
        if self.at is not None:
            found["at"] = "latest" if self.at == "latest" else _version(self.at)
        if self.at_least is not None:
            found["at_least"] = self.at_least
        if self.max_lag is not None:
            found["max_lag"] = self.max_lag
        if self.require is not None:
            found["require"] = self.require
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
