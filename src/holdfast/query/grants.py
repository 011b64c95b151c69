"""What a token allows its holder, and the grant of a request: endpoints ask here what they may show.

A token may be taken away or expire while a long answer is sent. So those who send one ask again with each piece.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

from holdfast.words import Millis

ADMIN: Final = "admin"
"""The scope of what is about the app itself: its state, its metrics, the health of its stores."""
READ_ALL: Final = "read:*"
_GRANT: Final = "holdfast.grant"
_RECHECK: Final = "holdfast.recheck"
_DEMAND: Final = "holdfast.demand"


def read(store: str) -> str:
    """The scope that one store needs."""
    return f"read:{store}"


@dataclass(frozen=True)
class Grant:
    """What the holder of a token may ask.

    >>> grant = Grant("dashboard", frozenset({"read:scores"}))
    >>> grant.covers("read:scores"), grant.covers("read:levels"), grant.covers("admin")
    (True, False, False)
    """

    name: str
    scopes: frozenset[str]
    expires: Millis | None = None

    def covers(self, scope: str) -> bool:
        return scope in self.scopes or (scope != ADMIN and READ_ALL in self.scopes)

    @property
    def reads(self) -> bool:
        """Whether it covers any store."""
        return any(scope != ADMIN for scope in self.scopes)


Demand = Callable[[Sequence[str]], object]
"""Raises if the grant of a request doesn't cover all of these scopes."""


def admit(request: Scope, grant: Grant, recheck: Callable[[], object], demand: Demand) -> None:
    """Notes the grant of a request. `recheck` raises if the request would be refused by now."""
    request[_GRANT] = grant
    request[_RECHECK] = recheck
    request[_DEMAND] = demand


def check_covered(request: Scope, stores: Sequence[str]) -> None:
    """Raises a Problem if the request may not read all of these stores; without stores, if it may read none at all."""
    grant: Grant | None = request.get(_GRANT)
    if grant is not None and (stores or not grant.reads):
        request[_DEMAND]([read(store) for store in stores] or [READ_ALL])


def check_admitted(request: Scope) -> None:
    """Raises a Problem if the request would be refused by now. Called on the event loop."""
    recheck: Callable[[], object] | None = request.get(_RECHECK)
    if recheck is not None:
        recheck()


def visible(request: Scope, stores: Iterable[str]) -> list[str]:
    """Those of these stores that the request may know of: all, where clients need no token."""
    grant: Grant | None = request.get(_GRANT)
    return [store for store in stores if grant is None or grant.covers(read(store))]


def caller(request: Scope) -> str:
    """Who asks: the name of the token, or the address where there is none."""
    grant: Grant | None = request.get(_GRANT)
    return address(request) if grant is None else f"the token of {grant.name!r}"


def address(request: Scope) -> str:
    """Where the request is from."""
    client = request.get("client")
    return str(client[0]) if client else "an unknown address"
