"""Errors as answers.

Every answer that isn't a success has a JSON body with three members: `error`, a short name that doesn't change and that
programs may compare; `message`, the fact for people; `what_to_do`. Some have more, such as the names of all stores. The
status says who has to act: 4xx the client, 503 nobody (ask again, with Retry-After), 500 the operator.
"""

import logging
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import RESTORE_AGAIN, BadKey, ErrorCategory, HoldfastError
from holdfast.instance.credentials import NotAuthenticated
from holdfast.query.cursor import BadCursor
from holdfast.query.keytext import BadKeyText
from holdfast.query.store_specs import UnknownStore

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1

PATHS = (
    "/v1/stores",
    "/v1/stores/{store}/keys/{key}",
    "/v1/stores/{store}/range?from=&to=&limit=&cursor=",
    "/v1/stores/{store}/{windows, sessions, history or your own query}/{key}?from=&to=&limit=",
    "/v1/stores/{store}/rewriting",
    "/v1/state",
    "/health/live",
    "/health/ready",
    "/health/stores",
    "/metrics",
)


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
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def problem_of(error: Exception) -> Problem:
    """Any error as an answer.

    >>> problem_of(BadCursor("'x' is not a cursor. Start over.")).status
    400
    """
    match error:
        case Problem():
            return error
        case BadKeyText():
            more = {"schema": error.schema, "example": error.example}
            return Problem(400, "bad_key", error.fact, error.what_to_do, more)
        case BadKey():
            return Problem(400, "bad_key", str(error), "Give a key that a store can hold.")
        case BadCursor():
            return Problem(400, "bad_cursor", str(error), "Use an answer's cursor as it is, or start over without one.")
        case UnknownStore():
            what = "Ask for one of them." if error.stores else "Give the pipeline a store with .store(name)."
            return Problem(404, "unknown_store", str(error), what, {"stores": error.stores})
        case HoldfastError() if error.category in (ErrorCategory.RETRY, ErrorCategory.CLOSED):
            what = (
                "Ask again after the time in Retry-After, or ask another instance. /health/ready says when it is ready."
            )
            return Problem(503, "not_ready", str(error), what)
        case HoldfastError() if error.category is ErrorCategory.DATA:
            return Problem(500, "damaged_data", str(error), f"Nothing you sent is at fault. {RESTORE_AGAIN}")
        case NotAuthenticated():
            what = "Nothing you sent is at fault. The instance's log says what differs; docs/security.md how to set it."
            return Problem(500, "not_authenticated", "Another instance of the app doesn't accept this one.", what)
        case HTTPException(status_code=404):
            return Problem(404, "no_such_path", "There is nothing at this path.", f"The paths are {', '.join(PATHS)}.")
        case HTTPException(status_code=405):
            return Problem(405, "method_not_allowed", "Stores are read here, not written.", "Use GET.")
        case HTTPException():
            return Problem(error.status_code, "bad_request", error.detail, "Change the request.")
    what = "This is a fault of Holdfast. Please report it with the instance's log, which has the details."
    return Problem(500, "internal", "The request failed inside the instance.", what)


async def answer_problem(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for everything."""
    problem = problem_of(error)
    if problem.status == 500:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    response = problem.response()
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response
