"""The operations of REST: one table, of which the routes, the checks of parameters and the OpenAPI document are made.

An `Operation` says everything about a path: how it is asked, with which parameters, what it answers, and the function
that does it. A feature lists its own operations, and `rest.create_app` puts the lists together. A request comes to the
function as a `Call`: its parameters are known, given once, and of their types.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from holdfast.query import freshness
from holdfast.query.freshness import Freshness, freshness_of
from holdfast.query.measuring import ANSWERED, Answered
from holdfast.query.problems import Problem

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 10_000

JSON: Final = "application/json"
PLAIN: Final = "text/plain"
REFUSALS: Final = (400, 404, 503)
"""The statuses of an operation that reads a store, beside its success."""


class _AnyText(Convertor[str]):
    """A part of the path that has everything up to its end. Starlette's own `path` ends at a line break."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any", _AnyText())


@dataclass(frozen=True)
class Type:
    """How a parameter is written."""

    schema: Mapping[str, Any]
    """In JSON schema."""
    parse: Callable[[str, str], Any]
    """From the parameter's name and text to its value; raises a Problem."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of the query string."""

    name: str
    type: Type
    text: str
    required: bool = False
    many: bool = False
    """Whether it may be given several times; its value is then a tuple."""


def _text(name: str, text: str) -> str:
    return text


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise Problem(400, "bad_parameter", f"{name}={text[:100]!r} can't be used.", "Write true or false.")
    return text == "true"


def _limit(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MAX_LIMIT):
        what = f"Give a number from 1 to {MAX_LIMIT}. Further entries: continue with the cursor, or with a later from."
        raise Problem(400, "bad_limit", f"{name}={text[:100]!r} is not a limit.", what)
    return int(text)


TEXT: Final = Type({"type": "string"}, _text)
_DURATION: Final = r"([0-9]{1,9}(us|ms|s|m|h|d))+"
_MOMENT: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})"
TIME: Final = Type(
    {
        "type": "string",
        "pattern": f"^(-?[0-9]{{1,19}}|-{_DURATION}|{_MOMENT})$",
        "examples": ["1769860800000", "2026-01-31T12:00:00Z", "-1h"],
    },
    _text,
)
"""Parsed where the clock of the store is known, since it may be relative to it."""
FLAG: Final = Type({"type": "string", "enum": ["true", "false"]}, _flag)
LIMIT: Final = Type({"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}, _limit)

FIELDS: Final = Parameter("fields", TEXT, "Which fields of values are shown, separated by commas.")
LIMITED: Final = Parameter("limit", LIMIT, "How many at most.")
PARTIAL: Final = Parameter(
    "partial", FLAG, "true: answer without the partitions that can't be read now; `missing` names them."
)
WAIT: Final = Parameter(
    "wait",
    Type({"type": "string", "pattern": f"^{_DURATION}$"}, _text),
    "How long to wait for such a version, 2s unless given, at most 30s.",
)
FRESH: Final = (
    Parameter("require", Type({"type": "string", "enum": ["active"]}, _text), "active: no standby answers."),
    Parameter(
        "max_lag",
        Type({"type": "string", "pattern": f"^([0-9]{{1,18}}|{_DURATION})$"}, _text),
        "How old the answer may be: a number of versions, or a duration such as 5s.",
    ),
    Parameter("at_least", Type({"type": "integer", "minimum": 0}, _text), "That version or a later one; waits for it."),
    Parameter(
        "at",
        Type({"type": "string", "pattern": "^([0-9]{1,18}|latest)$"}, _text),
        "Exactly that version, or latest: one version of all partitions.",
    ),
    WAIT,
)
assert tuple(each.name for each in FRESH) == freshness.NAMES


@dataclass(frozen=True)
class Call:
    """A request whose parameters are checked."""

    request: Request
    given: Mapping[str, Any]
    """The parameters that are given, by name. `Freshness` has its own."""
    freshness: Freshness

    @property
    def store(self) -> str:
        return str(self.request.path_params["store"])

    def demanding(self, freshness: Freshness) -> "Call":
        """The same request with another freshness."""
        return self if freshness is self.freshness else replace(self, freshness=freshness)

    def measure(self, answered: Answered) -> None:
        """Says where the answer came from; its time is measured apart."""
        self.request.scope[ANSWERED] = answered

    @property
    def limit(self) -> int:
        return int(self.given.get("limit", DEFAULT_LIMIT))

    @property
    def partial(self) -> bool:
        return bool(self.given.get("partial"))


Endpoint = Callable[[Call], Awaitable[Response]]
_EVERYWHERE: Final = (FIELDS, PARTIAL, *FRESH)


@dataclass(frozen=True)
class Operation:
    """One path with one method."""

    name: str
    path: str
    """As Starlette has it: a part `{key:any}` may have slashes and line breaks."""
    text: str
    endpoint: Endpoint
    answer: Any
    """The type of the answer's JSON; None where it isn't JSON."""
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    """The statuses of refusals."""
    method: str = "GET"
    body: Any = None
    """The type of the JSON that is sent."""
    body_example: Callable[[str, str], Mapping[str, Any]] | None = None
    """What may be sent, by media type, for a store and one of its keys."""
    plain_body: bool = False
    """Whether a text may be sent instead, as text/plain."""
    media: str = JSON
    other_media: tuple[str, ...] = ()
    """Types of the answer that `Accept` may ask for instead."""
    headers: tuple[Parameter, ...] = ()
    """Headers of the request that the function reads."""
    answer_headers: tuple[str, ...] = ()
    """Headers of the answer beside those of HTTP."""
    stores: Callable[[], Sequence[str]] | None = None
    """The names that `{store}` may have, if not all stores can be asked for it."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """Of other parts of the path."""
    key_example: Callable[[str], str] | None = None
    """A key of a store as it is asked for here, if that isn't the store's own key."""
    late: bool = False
    """Whether the function checks the parameters itself, when it knows the store."""
    listed: bool = True
    """Whether it is in the OpenAPI document."""
    tag: str = ""
    """The group of operations in the OpenAPI document: one of `openapi.TAGS`."""
    returns: str = ""
    """What a success answers, in words."""

    @property
    def template(self) -> str:
        """The path as OpenAPI and the metrics have it."""
        return self.path.replace(":any", "")

    @property
    def shown(self) -> str:
        """The path with its own parameters, as people are told what there is."""
        own = [each.name for each in self.parameters if each not in _EVERYWHERE]
        query = f"?{'&'.join(f'{name}=' for name in own)}" if own else ""
        return f"{self.template}{query}{'' if self.method == 'GET' else f' ({self.method})'}"

    def call(self, request: Request) -> Call:
        """The request, checked."""
        return Call(request, {}, freshness.ANY) if self.late else checked(request, self.parameters)


def checked(request: Request, parameters: Sequence[Parameter]) -> Call:
    """The request with its parameters: each known, of its type, and given once unless it may be given often.

    An unknown parameter is rejected: the answer would be to another question.
    """
    names = [each.name for each in parameters]
    what = f"The parameters here are {', '.join(names)}." if names else "This path takes no parameters."
    try:
        pairs = parse_qsl(request.scope["query_string"].decode(), keep_blank_values=True, errors="strict")
    except ValueError:
        fact = "The query string is not percent-encoded UTF-8."
        raise _bad(fact, f"Percent-encode text as UTF-8, such as %C3%A9 for é. {what}") from None
    texts: dict[str, list[str]] = {}
    for name, text in pairs:
        texts.setdefault(name, []).append(text)
    if unknown := [name for name in texts if name not in names]:
        raise _bad(f"There is no parameter {unknown[0][:100]!r} here.", what)
    given: dict[str, Any] = {}
    for each in parameters:
        sent = texts.get(each.name)
        if sent is None:
            if each.required:
                raise _bad(f"The parameter {each.name!r} is missing.", what)
        elif each.many:
            given[each.name] = tuple(each.type.parse(each.name, text) for text in sent)
        elif len(sent) > 1:
            raise _bad(f"The parameter {each.name!r} is given twice.", "Give it once.")
        else:
            given[each.name] = each.type.parse(each.name, sent[0])
    return Call(request, given, freshness_of({name: given.pop(name) for name in freshness.NAMES if name in given}))


def _bad(fact: str, what: str) -> Problem:
    return Problem(400, "bad_parameter", fact, what)
