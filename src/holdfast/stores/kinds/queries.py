"""Queries of a kind of store over REST: the class of a kind lists them in `QUERIES`.

    GET /v1/stores/{store}/{name}/{key}?<parameters>&limit=
    GET /v1/stores/{store}/{name}?<parameters>&key_from=&key_to=&limit=&cursor=     if the query is for all keys too

`holdfast.query` makes the paths, parses the parameters and reads every partition; it knows no kinds. A query only
reads: it gets the view of the kind (`Store.VIEW`) of one partition at one version.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.errors import TopologyError

Item = dict[str, object]
"""One item of an answer: plain values by name. A stored value has the name `value`."""

TIME: Final = "time"
"""A parameter that is a time: milliseconds since 1970, an ISO time with a zone, or `-1h`, before the store's clock."""

_NAME: Final = re.compile(r"[a-z][a-z0-9-]*")
_PATHS: Final = ("keys", "range", "scan", "count", "top", "arrow", "hold", "watch", "rewriting")
_MEMBERS: Final = ("store", "key", "version", "committed", "event_time", "more", "consistent", "role", "instances")
_TAKEN: Final = frozenset((*_PATHS, *_MEMBERS, "missing", "tasks", "cursor"))
"""Our own paths, and the other members of an answer."""
_OWN_PARAMETERS: Final = ("limit", "partial", "fields", "cursor", "key_from", "key_to")
_FRESHNESS: Final = ("require", "max_lag", "at_least", "at", "wait")
_TAKEN_PARAMETERS: Final = frozenset((*_OWN_PARAMETERS, *_FRESHNESS))


@dataclass(frozen=True)
class Query:
    """A query for one key.

    >>> def bigger(view, key, *, least):
    ...     return ({"value": value} for value in view.values_of(key) if value >= least)
    >>> Query("bigger", bigger, required={"least": int}).path
    'bigger/{key}?least='
    """

    name: str
    """The name in the URL, and of the items in the answer."""
    items: Callable[..., Iterable[Item]]
    """Called with the view, the key and the parameters by name; yields the items in order."""
    required: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that must be given: the name, and `TIME` or a type that a key can have, such as str or int."""
    optional: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that are None unless given. A name that is a Python keyword ends with `_` here: `from_`."""
    key: Any = None
    """The type of the key in the URL, if it isn't the key type of the store."""
    order: Callable[[Item], Any] = lambda item: 0
    """The sort key of items if several partitions have items of a key; each item then names its `task`."""
    all_keys: Callable[..., Iterable[Item]] | None = None
    """The same for all keys: called with the view, the first and the last key, both included or None, and the
    parameters; yields items with their `key`, by key and then in `order`."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in _TAKEN:
            raise TopologyError(f"{self.name!r} can't name a query: it is taken, or can't be in a URL. Choose another.")
        if taken := _TAKEN_PARAMETERS.intersection(self.parameters):
            name = min(taken)
            raise TopologyError(f"query {self.name!r}: every query has the parameter {name}=. Choose another name.")

    @property
    def parameters(self) -> dict[str, tuple[str, Any]]:
        """The parameters by their names in the URL: the name in the call of `items`, and the type."""
        return {name.rstrip("_"): (name, type_) for name, type_ in {**self.required, **self.optional}.items()}

    @property
    def path(self) -> str:
        names = "&".join(f"{name}=" for name in self.parameters)
        return f"{self.name}/{{key}}" + (f"?{names}" if names else "")
