"""The errors of clients: one class per name that REST gives to a problem, so that no program has to read a message.

    ClientError
    ├── NoAnswer           no instance has answered before the deadline
    ├── NotTrusted         no certificate of an instance was accepted
    ├── ClientClosed       the client was closed before
    ├── BadAddress         an address that a client was given can't be one
    ├── BadToken           a text that a client was given can't be a token
    ├── BadAnswer          something that isn't an instance of this release has answered
    ├── WrongType          a value doesn't fit the type that the program wants
    └── Refused            an instance has answered with a problem
        ├── KeyNotFound, UnknownStore, BadKey, WrongKind ...      INVALID   change the request
        ├── NotReady, Restoring, NotFreshEnough, TooManyRequests  RETRY     ask again later
        └── DamagedData, QueryFailed, Internal ...                tell the operator

A client asks again by itself, and elsewhere, while its deadline allows it. What it raises is the last answer.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast import errors
from holdfast.errors import ErrorCategory, HoldfastError

__all__ = [
    "AnotherApp",
    "BadAddress",
    "BadAnswer",
    "BadBody",
    "BadCursor",
    "BadEventId",
    "BadKey",
    "BadLimit",
    "BadParameter",
    "BadRequest",
    "BadTime",
    "BadToken",
    "ClientClosed",
    "ClientError",
    "DamagedData",
    "EndpointFailed",
    "EndpointNotFound",
    "Internal",
    "KeyNotFound",
    "KindNotFound",
    "MethodNotAllowed",
    "NoAnswer",
    "NoSuchPath",
    "NotAsColumns",
    "NotAuthenticated",
    "NotFound",
    "NotFreshEnough",
    "NotHere",
    "NotReady",
    "NotTrusted",
    "OutOfScope",
    "Overloaded",
    "QueryFailed",
    "Refused",
    "Restoring",
    "SlowRequest",
    "SlowWatcher",
    "SqlBusy",
    "SqlFailed",
    "SqlMissing",
    "SqlMistake",
    "SqlRefused",
    "SqlTooLarge",
    "Stopping",
    "StoresUnavailable",
    "TimedOut",
    "TokenExpired",
    "TokenMissing",
    "TokenUnknown",
    "TooLarge",
    "TooManyHolds",
    "TooManyRequests",
    "UnknownHold",
    "UnknownStore",
    "VersionGone",
    "WrongKind",
    "WrongType",
]


class ClientError(HoldfastError):
    """The base class of what clients raise."""

    category = ErrorCategory.BUG


class NoAnswer(ClientError):
    """No instance has answered before the deadline."""

    category = ErrorCategory.RETRY

    def __init__(self, seconds: float, tried: Mapping[str, str]) -> None:
        each = "; ".join(f"{address}: {reason}" for address, reason in tried.items()) or "none was tried"
        super().__init__(
            f"No instance has answered in {seconds:g} s ({each}). Check that the app runs and that these are addresses "
            "of its REST; `holdfast group` prints its instances. Or give it more time with timeout=."
        )
        self.tried = dict(tried)
        """Per address, what has happened there."""


class NotTrusted(ClientError):
    """No certificate of an instance was accepted. Asking again would not help."""

    category = ErrorCategory.INVALID

    def __init__(self, tried: Mapping[str, str]) -> None:
        each = "; ".join(f"{address}: {reason}" for address, reason in tried.items())
        super().__init__(
            f"No certificate of an instance was accepted ({each}). Name the CA of the instances: "
            'tls=ssl.create_default_context(cafile="ca.pem"), or --ca-file in a terminal; and give a host that the '
            "certificate is for."
        )
        self.tried = dict(tried)


class ClientClosed(ClientError):
    """The client was closed before the call, or during it."""

    category = ErrorCategory.CLOSED

    def __init__(self) -> None:
        super().__init__("The client is closed. Make the call within its `with` block, or before close().")


class BadAddress(ClientError):
    """An address that a client was given can't be one."""

    category = ErrorCategory.INVALID

    def __init__(self, fact: str) -> None:
        super().__init__(f"{fact} Give those of instances of the app, such as http://localhost:8080.")


class BadToken(ClientError):
    """A text that a client was given can't be a token. The text is not in the error."""

    category = ErrorCategory.INVALID


class BadAnswer(ClientError):
    """An answer that no instance of this release gives."""

    category = ErrorCategory.INVALID

    def __init__(self, address: str, status: int, what: str) -> None:
        super().__init__(
            f"{address} has answered with status {status} and {what}, as no instance of this release does. Check the "
            "address, and that client and instances are of the same release."
        )


class WrongType(ClientError):
    """A value doesn't fit the type that the store was asked for with."""

    category = ErrorCategory.INVALID

    def __init__(self, store: str, key: object, type_: object, reason: str) -> None:
        name = type_.__qualname__ if isinstance(type_, type) else str(type_)
        super().__init__(
            f"The value of key {key!r:.200} in store {store!r} doesn't fit the type {name}: {reason}. Give "
            "client.store() a type that fits all values of the store, with the fields that fields= selects, or none: "
            "then values are as JSON has them."
        )
        self.store = store
        self.key = key


class Refused(ClientError):
    """An instance has answered with a problem. Problems that this release doesn't know are of this class itself."""

    error: ClassVar[str] = ""
    """The name of the problem in the answer."""

    def __init__(self, message: str, what_to_do: str, status: int = 0, more: Mapping[str, Any] = {}) -> None:
        super().__init__(f"{message} {what_to_do}")
        self.message = message
        self.what_to_do = what_to_do
        self.status = status
        self.more = dict(more)
        """The other members of the answer, such as `stores`."""


class _Invalid(Refused):
    category = ErrorCategory.INVALID


class _Retry(Refused):
    category = ErrorCategory.RETRY


class _Data(Refused):
    category = ErrorCategory.DATA


class BadKey(_Invalid, errors.BadKey):
    """The key is not one of this store."""

    error = "bad_key"


class BadLimit(_Invalid):
    error = "bad_limit"


class BadCursor(_Invalid):
    error = "bad_cursor"


class BadParameter(_Invalid):
    error = "bad_parameter"


class BadTime(_Invalid):
    error = "bad_time"


class BadRequest(_Invalid):
    error = "bad_request"


class BadBody(_Invalid):
    error = "bad_body"


class BadEventId(_Invalid):
    error = "bad_event_id"


class WrongKind(_Invalid):
    """A store of this kind can't be asked this."""

    error = "wrong_kind"


class UnknownStore(_Invalid):
    """The app has no such store; `more["stores"]` has those it has."""

    error = "unknown_store"


class KeyNotFound(_Invalid, KeyError):
    """The store has no such key."""

    error = "key_not_found"

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError would quote it


class NoSuchPath(_Invalid):
    """The instance is of another release, or the address is that of something else."""

    error = "no_such_path"


class MethodNotAllowed(_Invalid):
    error = "method_not_allowed"


class AnotherApp(_Invalid):
    """The address is that of another app, or of the same one with a new log; `more` has `app` and `log`.

    A client doesn't raise it but asks the next address; `NoAnswer.tried` names it if there is no other.
    """

    error = "another_app"


class VersionGone(_Invalid):
    """The version can't be read any more; `more` has the oldest one that can."""

    error = "version_gone"


class UnknownHold(_Invalid):
    """The hold has ended, or another instance has made it."""

    error = "unknown_hold"


class NotAsColumns(_Invalid):
    """The values of the store have no columns."""

    error = "not_as_columns"


class TooLarge(_Invalid):
    error = "too_large"


class TokenMissing(_Invalid):
    """The app asks for a token, and the client has none."""

    error = "token_missing"


class TokenUnknown(_Invalid):
    error = "token_unknown"


class TokenExpired(_Invalid):
    error = "token_expired"


class OutOfScope(_Invalid):
    """The token isn't for this; `more["needs"]` has the scopes that are needed."""

    error = "out_of_scope"


class SqlFailed(_Invalid):
    """The statement has no result."""

    error = "sql_failed"


class SqlRefused(_Invalid):
    """It isn't one SELECT, or needs files, settings or extensions."""

    error = "sql_refused"


class SqlMistake(_Invalid):
    """A column that isn't there, a division by zero."""

    error = "sql_mistake"


class SqlTooLarge(_Invalid):
    """It needed more time, memory or room for its result than it may have."""

    error = "sql_too_large"


class SqlMissing(_Invalid):
    """The instance has no DuckDB."""

    error = "sql_missing"


class SqlBusy(_Retry):
    """As many statements as may run at once are running."""

    error = "sql_busy"


class TooManyHolds(_Retry):
    """A task holds as many versions as it may, of all clients or of this one."""

    error = "too_many_holds"


class TooManyRequests(_Retry):
    """This client has too many requests under way."""

    error = "too_many_requests"


class Overloaded(_Retry):
    error = "overloaded"


class TimedOut(_Retry):
    """The instance has no answer within its own limit."""

    error = "timed_out"


class SlowRequest(_Retry):
    error = "slow_request"


class NotReady(_Retry):
    """A task can't be read now."""

    error = "not_ready"


class NotHere(_Retry):
    """No instance is known to have the task."""

    error = "not_here"


class Restoring(_Retry):
    """The task is being restored; `more` has the progress."""

    error = "restoring"


class NotFreshEnough(_Retry):
    """No replica is as fresh as the request demands."""

    error = "not_fresh_enough"


class StoresUnavailable(_Retry):
    error = "stores_unavailable"


class Stopping(_Retry):
    error = "stopping"


class SlowWatcher(_Retry):
    """The watcher has read so slowly that it was cut off. Clients connect again by themselves."""

    error = "slow_watcher"


class DamagedData(_Data):
    """A stored value can't be read."""

    error = "damaged_data"


class KindNotFound(Refused):
    """The instance can't import the class of the store's kind."""

    error = "kind_not_found"


class QueryFailed(Refused):
    """A query of the app's own has raised an error."""

    error = "query_failed"


class EndpointFailed(Refused):
    """An endpoint of the app's own has raised an error."""

    error = "endpoint_failed"


class EndpointNotFound(Refused):
    """The instance can't import an endpoint of the app's own."""

    error = "endpoint_not_found"


class NotFound(Refused):
    """An endpoint of the app's own has found nothing for what is in its path."""

    error = "not_found"


class NotAuthenticated(Refused):
    """The instances of the app don't accept each other."""

    error = "not_authenticated"


class Internal(Refused):
    error = "internal"


def _known(base: type[Refused]) -> dict[str, type[Refused]]:
    found = {base.error: base} if base.error else {}
    for each in base.__subclasses__():
        found |= _known(each)
    return found


PROBLEMS: Mapping[str, type[Refused]] = _known(Refused)
"""The classes by the names of problems."""


def refused(status: int, body: Mapping[str, Any]) -> Refused:
    """The error of an answer.

    >>> refused(404, {"error": "key_not_found", "message": "There is no 'bob'.", "what_to_do": "Check it."})
    KeyNotFound("There is no 'bob'. Check it.")
    """
    more = {name: value for name, value in body.items() if name not in ("error", "message", "what_to_do")}
    kind = PROBLEMS.get(str(body.get("error")), _Retry if status in (429, 503) else Refused)
    return kind(str(body.get("message", "")), str(body.get("what_to_do", "")), status, more)
