"""Your own endpoints: functions that answer paths of your own, from read-only views of the stores.

    @hf.endpoint("/api/state/users/{id}/session", reads=[Chat.sessions])
    def session(stores: hf.StoreViews, id: str) -> UserSession | None:
        return stores[Chat.sessions].get(id)

    app.serve(session)

The function gets the views of the stores that it names, all at one version, then the parts of the path and the
parameters of the query string, of the types in its signature. The log has the place of the function, `module:name`, and
every instance imports it from there. What can't work is refused here, on the line of the decorator.
"""

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, getdoc, signature
from types import NoneType, UnionType
from typing import Any, Final, Protocol, Union, get_args, get_origin, get_type_hints

from holdfast.errors import TopologyError
from holdfast.stores.kinds.base import View

RESERVED: Final = re.compile(r"v\d+|health|metrics")
"""First parts of paths that are Holdfast's own."""
PARAMETER_TYPES: Final = (str, int, float, bool, dt.date, dt.datetime)

_LITERAL = re.compile(r"[A-Za-z0-9._~-]+")
_PART = re.compile(r"\{([a-z_][a-z0-9_]*)\}")


class StoreViews(Protocol):
    """The views of the stores that an endpoint reads, by the store or its name. All are at one version."""

    @property
    def version(self) -> int:
        """The version that is read."""

    @property
    def time(self) -> int:
        """The event clock of that version, in milliseconds since 1970; the wall clock in an app without event times."""

    def __getitem__(self, store: View[Any, Any] | str) -> Any:
        """The read-only view of a store, over all its partitions."""


@dataclass(frozen=True)
class EndpointParameter:
    """A part of the path, or a parameter of the query string."""

    name: str
    type: Any
    in_path: bool
    required: bool
    default: Any = None


@dataclass(frozen=True)
class OwnEndpoint:
    """A function with its path, as `hf.endpoint` makes it. Called, it is the function: with any mapping of views."""

    path: str
    function: Callable[..., Any]
    reads: Mapping[str, View[Any, Any] | None]
    """The stores that it reads, by name, with their declarations where they were given."""
    parameters: tuple[EndpointParameter, ...]
    answer: Any
    """The type of what it returns."""

    @property
    def place(self) -> str:
        return f"{self.function.__module__}:{self.function.__qualname__}"

    @property
    def text(self) -> str:
        """What it is for: the first line of its docstring."""
        return (getdoc(self.function) or self.function.__name__).partition("\n")[0]

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.function(*args, **named)


def endpoint(
    path: str, *, reads: Sequence[View[Any, Any] | str] | View[Any, Any] | str
) -> Callable[[Callable[..., Any]], OwnEndpoint]:
    """Makes a function answer `GET path`.

    `reads` names the stores that it gets, as declared in a processor or by name. Values of a declared store are of its
    type, those of others plain dicts, lists and numbers. Every `{part}` of the path is a parameter of the function; its
    other parameters are those of the query string, and optional if they have a default. Types are str, int, float,
    bool, date and datetime. What the function returns is the JSON of the answer; None is status 404.
    """
    given = (reads,) if isinstance(reads, str | View) else tuple(reads)
    stores = {each if isinstance(each, str) else each.name: None if isinstance(each, str) else each for each in given}

    def decorate(function: Callable[..., Any]) -> OwnEndpoint:
        where = f"endpoint {path!r} ({function.__qualname__})"
        _check_path(path, where)
        if not stores:
            raise TopologyError(f"{where}: reads= names no store. Name those that it reads.")
        return OwnEndpoint(path, function, stores, _parameters(function, path, where), _answer_of(function))

    return decorate


def parts_of(path: str) -> tuple[str | None, ...]:
    """The parts of a path: texts, and None where a parameter is.

    >>> parts_of("/api/users/{id}")
    ('api', 'users', None)
    """
    return tuple(None if _PART.fullmatch(part) else part for part in path.split("/")[1:])


def check_endpoints(endpoints: Sequence[OwnEndpoint], stores: Sequence[str]) -> None:
    """Raises for two endpoints of one path, a store that the app doesn't have, a function that can't be imported."""
    seen: dict[tuple[str | None, ...], OwnEndpoint] = {}
    for each in endpoints:
        if each.place.startswith("__main__:") or "<locals>" in each.place:
            raise TopologyError(
                f"endpoint {each.path!r}: {each.place} is in the main program or within a function, where instances "
                "can't import it. Put it into a module of its own, at the top level."
            )
        other = seen.setdefault(parts_of(each.path), each)
        if other is not each:
            raise TopologyError(f"endpoints {other.place} and {each.place} both answer {each.path}. Change one path.")
        if missing := [store for store in each.reads if store not in stores]:
            has = f"It has {', '.join(sorted(stores))}." if stores else "It has none."
            raise TopologyError(f"endpoint {each.path!r} reads {missing[0]!r}, and the app has no such store. {has}")


def _check_path(path: str, where: str) -> None:
    first, *others = path.split("/")
    if first or not all(_LITERAL.fullmatch(part) or _PART.fullmatch(part) for part in others):
        raise TopologyError(
            f"{where}: a path is /part/part, each of letters, digits, '.', '_', '~' and '-', or {{name}} for a "
            "parameter. Change the path."
        )
    if not _LITERAL.fullmatch(others[0]) or RESERVED.fullmatch(others[0]) or len(others) < 2:
        raise TopologyError(
            f"{where}: /{others[0]} is Holdfast's own, or no prefix. Use one of your own, such as /api/state/..."
        )
    names = _PART.findall(path)
    if len(set(names)) < len(names):
        raise TopologyError(f"{where}: a name is in the path twice. Give each part its own.")


def _parameters(function: Callable[..., Any], path: str, where: str) -> tuple[EndpointParameter, ...]:
    _, *given = signature(function).parameters.values() or [None]
    types, in_path = _hints(function, where), _PART.findall(path)
    if missing := [name for name in in_path if name not in {each.name for each in given if each is not None}]:
        raise TopologyError(f"{where}: the function has no parameter {missing[0]!r}, which is in the path. Add it.")
    found = []
    for each in given:
        assert each is not None
        if each.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            raise TopologyError(f"{where}: the parameter {each.name!r} has no name of its own. Name each of them.")
        type_ = _plain(types.get(each.name))
        if type_ not in PARAMETER_TYPES:
            allowed = ", ".join(allowed.__name__ for allowed in PARAMETER_TYPES)
            raise TopologyError(f"{where}: the parameter {each.name!r} needs a type of these: {allowed}.")
        required = each.default is Parameter.empty
        if each.name in in_path and not required:
            raise TopologyError(f"{where}: {each.name!r} is in the path, so it is always given. Remove its default.")
        found.append(
            EndpointParameter(each.name, type_, each.name in in_path, required, None if required else each.default)
        )
    return tuple(found)


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError) as error:
        raise TopologyError(f"{where}: its types can't be read: {error}. Import what they name.") from error


def _plain(type_: Any) -> Any:
    """`X` of `X | None`."""
    if get_origin(type_) in (Union, UnionType):
        others = [each for each in get_args(type_) if each is not NoneType]
        return others[0] if len(others) == 1 else type_
    return type_


def _answer_of(function: Callable[..., Any]) -> Any:
    return _plain(get_type_hints(function).get("return", Any))


def checked_endpoints(given: Sequence[object]) -> list[OwnEndpoint]:
    """What `app.serve()` is given, if all of it are endpoints."""
    found = [each for each in given if isinstance(each, OwnEndpoint)]
    if len(found) < len(given):
        wrong = next(each for each in given if not isinstance(each, OwnEndpoint))
        raise TopologyError(f"app.serve() takes endpoints, not {wrong!r}. Decorate it with hf.endpoint(path).")
    return found
