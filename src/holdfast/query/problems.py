"""Errors as answers.

Every answer that isn't a success has a JSON body with three members: `error`, a short name that doesn't change and that
programs may compare; `message`, the fact for people; `what_to_do`. Some have more, such as the names of all stores. The
status says who has to act: 4xx the client, 503 nobody (ask again, with Retry-After), 500 the operator.

The texts of other parts, and of users' code, may name files, hosts and the place of the log. They are for operators, so
they go into the instance's log (`report`), and the answer says so.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.chance import new_id
from holdfast.errors import RESTORE_AGAIN, BadKey, BadSpan, ErrorCategory, HoldfastError
from holdfast.instance.credentials import NotAuthenticated
from holdfast.instance.held_versions import TooManyHolds, TooManyHoldsOfCaller
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.query.cursor import BadCursor
from holdfast.query.grants import visible
from holdfast.query.keytext import BadKeyText
from holdfast.query.store_specs import UnknownStore
from holdfast.query.task_reader import (
    NoReplicaAnswers,
    NotFresh,
    NotHere,
    NotReady,
    Restoring,
    TooLarge,
    VersionAbandoned,
    VersionGone,
)
from holdfast.query.value_columns import NotAsColumns
from holdfast.query.wanted import NobodyWaits
from holdfast.sql.errors import SqlBusy, SqlError, SqlMissing
from holdfast.words import NOTHING

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1
REPORTED = "holdfast.reported"
"""In the scope of a request: the error that was answered, and is in the log if it has to be."""
_ID_DIGITS = 8
OVERLOADED: Final = "overloaded"
TOO_MANY: Final = "too_many_requests"


@dataclass
class Problem(Exception):
    """An answer that isn't a success. Endpoints raise it; `problem_of` makes one of other errors."""

    status: int
    error: str
    message: str
    what_to_do: str
    more: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        return {"error": self.error, "message": self.message, "what_to_do": self.what_to_do, **self.more}

    def response(self) -> Response:
        later = {"Retry-After": str(RETRY_AFTER_SECONDS)} if self.status in (429, 503) else {}
        return json_response(self.body(), self.status, {**later, **self.headers})


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return json_bytes(msgspec.json.encode(body), status, headers)


def json_bytes(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


def problem_of(error: Exception) -> Problem:
    """Any error as an answer.

    >>> problem_of(BadCursor("'x' is not a cursor. Start over.")).status
    400
    """
    match error:
        case Problem():
            return error
        case BadKeyText():
            more: dict[str, Any] = {"schema": error.schema, "example": error.example}
            return Problem(400, "bad_key", error.fact, error.what_to_do, more)
        case BadKey():
            return Problem(400, "bad_key", str(error), "Give a key that a store can hold.")
        case BadSpan():
            fact, _, what = str(error).partition(". ")
            return Problem(400, "bad_time", f"{fact}.", what)
        case BadCursor():
            return Problem(400, "bad_cursor", str(error), "Use an answer's cursor as it is, or start over without one.")
        case UnknownStore():
            what = "Ask for one of them." if error.stores else "Give the pipeline a store with .store(name)."
            return Problem(404, "unknown_store", str(error), what, {"stores": error.stores})
        case VersionGone():
            what = "Ask for a version that is held, or with at=latest."
            return Problem(410, "version_gone", str(error), what, {"oldest": error.oldest, "newest": error.newest})
        case VersionAbandoned():
            return Problem(410, "version_gone", str(error), "Start over, without the cursor.")
        case NotFresh():
            what = (
                "Ask again after the time in Retry-After, with a longer wait=, or for less: the parameters say how "
                "fresh it has to be."
            )
            return Problem(
                503, "not_fresh_enough", str(error), what, {"version": error.version, "wanted": error.wanted}
            )
        case Restoring():
            return _restoring(str(error), error.version, error.newest)
        case VersionNotAvailable(asked=None):
            return _restoring(str(error), NOTHING if error.held is None else error.held[1], None)
        case NotHere():
            what = "Ask again after the time in Retry-After. /v1/state of each instance shows its tasks."
            return Problem(503, "not_here", str(error), what)
        case SqlError():
            status = 501 if isinstance(error, SqlMissing) else 503 if isinstance(error, SqlBusy) else 400
            return Problem(status, error.error, str(error), "docs/sql.md has what a statement may do, and its limits.")
        case TooManyHolds():
            what = "Ask again after the time in Retry-After; docs/sql.md says what holds a version, and for how long."
            status = 429 if isinstance(error, TooManyHoldsOfCaller) else 503
            return Problem(status, "too_many_holds", str(error), what)
        case TooLarge():
            return Problem(413, "too_large", str(error), "Ask for fewer keys at a time, or for one.")
        case NotAsColumns():
            what = "Change the request, or ask the store by its own queries."
            return Problem(400, "not_as_columns", str(error), what)
        case HoldfastError() if error.category in (ErrorCategory.RETRY, ErrorCategory.CLOSED):
            what = (
                "Ask again after the time in Retry-After, or ask another instance. /health/ready says when it is ready."
            )
            fact = str(error) if isinstance(error, NotReady) else f"{_unread(error)}; the instance's log says why."
            return Problem(503, "not_ready", fact, what)
        case HoldfastError() if error.category is ErrorCategory.DATA:
            fact = "Stored data can't be read; the instance's log says which, and why."
            return Problem(500, "damaged_data", fact, f"Nothing you sent is at fault. {RESTORE_AGAIN}")
        case NotAuthenticated():
            what = "Nothing you sent is at fault. The instance's log says what differs; docs/security.md how to set it."
            return Problem(500, "not_authenticated", "Another instance of the app doesn't accept this one.", what)
        case HTTPException(status_code=404):
            return no_such_path()
        case HTTPException(status_code=405):
            allowed = (error.headers or {}).get("Allow", "GET").removesuffix(", HEAD").removeprefix("HEAD, ")
            return Problem(405, "method_not_allowed", "This path is asked in another way.", f"Use {allowed}.")
        case HTTPException():
            return Problem(error.status_code, "bad_request", error.detail, "Change the request.")
    what = "This is a fault of Holdfast. Please report it with the instance's log, which has the details."
    return Problem(500, "internal", "The request failed inside the instance.", what)


def _unread(error: HoldfastError) -> str:
    """What can't be read, without the text of the error, which may name addresses."""
    if isinstance(error, NoReplicaAnswers):
        return f"No instance with a replica of task {error.task} answers"
    return "This can't be read now"


def _restoring(fact: str, version: int, newest: int | None) -> Problem:
    more: dict[str, Any] = {"version": version}
    if newest:
        more |= {"of": newest, "progress": round(min(1.0, version / newest), 4)}
    what = "Ask again after the time in Retry-After, or ask another instance. /v1/state shows how far each task is."
    return Problem(503, "restoring", fact, what, more)


def of_users_code(name: str, what: str, place: str, error: BaseException) -> Problem:
    """The answer where code of the user has raised an error, by which the log has its text, its trace and its place.

    The text may name anything: a file, the host of a database, a password in its address.
    """
    id_ = new_id()[:_ID_DIGITS]
    step = f"The instance's log has its text and its trace, by the id {id_}."
    problem = Problem(500, name, f"{what} raised {type(error).__name__}.", step, {"id": id_})
    problem.add_note(f"Fix {place}.")
    return problem


def no_such_path(near: Sequence[str] = ()) -> Problem:
    """The answer for a path that nothing is at; `near` are some that are similar."""
    similar = f" Similar ones are {', '.join(near)}." if near else ""
    what = f"/v1/docs shows all paths, and /v1/openapi.json has them.{similar}"
    return Problem(404, "no_such_path", "There is nothing at this path.", what)


def report(error: Exception, problem: Problem, doing: str) -> None:
    """Has the log say what the answer doesn't."""
    if problem.status == 500:
        id_ = problem.more.get("id")
        log.error("%s failed%s", doing, f" ({id_})" if id_ else "", exc_info=error)
    elif problem.error == "not_ready" and not isinstance(error, Problem | NotReady | NobodyWaits):
        log.warning("%s was not answered: %s", doing, error)


async def answer_problem(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for everything."""
    if isinstance(error, UnknownStore):
        error = error.among(visible(request.scope, error.stores))
    problem = problem_of(error)
    report(error, problem, f"{request.method} {request.url.path}")
    request.scope[REPORTED] = error
    response = problem.response()
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response
