"""Refusals in the OpenAPI document: which statuses an operation may answer with, and what they mean."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

_STATUSES: Final = {
    400: "The request can't be used.",
    401: "There is no valid token.",
    403: "The token isn't for this, or the request names a host or an origin that is not accepted.",
    404: "There is no such store, key, hold or path.",
    408: "The body didn't arrive in time.",
    410: "The version is gone.",
    413: "The body, or the answer, is too large.",
    421: "This is an instance of another app.",
    429: "The caller has too many requests under way, streams or holds; Retry-After says when to ask again.",
    500: "Stored data, or code of the app, can't be used; the instance's log says more.",
    501: "The instance lacks a package for it.",
    503: "It can't be answered now; Retry-After says when to ask again.",
}
_COMMON: Final = (400, 401, 403, 421, 429, 500, 503)
"""Those of every operation: of tokens, limits, unknown parameters and what an instance can't do now."""


def refusals(*others: int) -> dict[str, Any]:
    """The responses of an operation that aren't a success: those of every one, and others.

    >>> refusals(404)["404"]
    {'$ref': '#/components/responses/Status404'}
    """
    return {str(status): {"$ref": f"#/components/responses/Status{status}"} for status in sorted({*_COMMON, *others})}


def refusal_components(problem: Mapping[str, Any], media: str) -> dict[str, Any]:
    """What the responses refer to; `problem` is the schema of their bodies."""
    content = {media: {"schema": problem}}
    return {f"Status{status}": {"description": text, "content": content} for status, text in _STATUSES.items()}


def with_body(statuses: Iterable[int]) -> tuple[int, ...]:
    """The statuses of an operation that takes a body."""
    return (*statuses, 408, 413)
