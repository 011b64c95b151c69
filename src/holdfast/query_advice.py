"""Next steps of errors in a terminal: options and commands, instead of Python's arguments and REST's paths."""

import re
from collections.abc import Sequence
from typing import Final

from holdfast.client.errors import (
    BadParameter,
    ClientError,
    NoAnswer,
    NotFreshEnough,
    TokenExpired,
    TokenMissing,
    TokenUnknown,
    VersionGone,
    WrongKind,
)
from holdfast.errors import ErrorCategory, HoldfastError

_PATH: Final = re.compile(r"/v1/stores/([^/]+)/(keys|range|windows|sessions)(/\{key\})?[^,. ]*")
_TOKEN: Final = "Name the file of a token that is accepted with --token-file, or set HOLDFAST_CLIENT_TOKEN."


class QueryError(HoldfastError):
    """A query has failed; the next step is one of the terminal."""

    category = ErrorCategory.INVALID


def in_a_terminal(error: ClientError) -> str | None:
    """The error with another next step; None where its own is right here too.

    >>> in_a_terminal(WrongKind("'h' is a window store.", "Ask /v1/stores/h/windows/{key}?from=&to=."))
    "'h' is a window store. Ask `holdfast windows h KEY`."
    >>> in_a_terminal(VersionGone("Version 1 is gone.", "Ask for a version that is held, or with at=latest."))
    'Version 1 is gone. Ask for a version that is held, or with --at latest.'
    """
    match error:
        case NoAnswer():
            return str(error).replace("timeout=", "--timeout")
        case TokenMissing() | TokenUnknown() | TokenExpired():
            return f"{error.message} {_TOKEN}"
        case NotFreshEnough():
            message = error.message.replace("require=active", "--require active")
            return f"{message} Give it more time with --timeout, or ask for less."
        case VersionGone():
            return f"{error.message} {error.what_to_do.replace('at=latest', '--at latest')}"
        case BadParameter() if error.message.startswith("timeout="):
            return f"--{error.message} Give a number with a unit, such as 10s or 250ms."
        case WrongKind():
            return f"{error.message} {_PATH.sub(_command, error.what_to_do)}"
    return None


def said_of_missing(store: str, keys: Sequence[str], version: int) -> str:
    """The error of keys that a store doesn't have.

    >>> said_of_missing("players", ["ann"], 7)
    "Store 'players' doesn't have ann at version 7. `holdfast range players` prints keys that it has."
    >>> said_of_missing("players", ["ann"], 0)
    "Store 'players' doesn't have ann at version 0. No batch is committed yet. Ask again when one is."
    """
    next_step = (
        f"`holdfast range {store}` prints keys that it has."
        if version
        else "No batch is committed yet. Ask again when one is."
    )
    return f"Store {store!r} doesn't have {', '.join(keys)[:300]} at version {version}. {next_step}"


def _command(path: re.Match[str]) -> str:
    store, query, key = path.groups()
    return f"`holdfast {'get' if query == 'keys' else query} {store}{' KEY' if key else ''}`"
