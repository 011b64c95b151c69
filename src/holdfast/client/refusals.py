"""Errors that are answers: one class per name that REST gives to a problem."""

from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast import errors
from holdfast.client.advice import in_python
from holdfast.client.failures import ClientError
from holdfast.errors import ErrorCategory


class Refused(ClientError):
    """An instance has answered with a problem. Problems that this release doesn't know are of this class itself."""

    error: ClassVar[str] = ""
    """The name of the problem in the answer."""

    def __init__(self, message: str, what_to_do: str, status: int = 0, more: Mapping[str, Any] = {}) -> None:
        super().__init__(f"{message} {in_python(self.error, what_to_do)}")
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


class HostRefused(_Invalid):
    """The instance doesn't accept requests for the host that it was asked by."""

    error = "host_refused"


class OriginRefused(_Invalid):
    """The instance doesn't accept this from pages of that origin."""

    error = "origin_refused"


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
