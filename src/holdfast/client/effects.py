"""What the core asks of a shell, and what it gets back.

The core of the client does no I/O. Everything it does is a `Flow`: a generator that yields effects, is sent their
outcomes and returns a result. A shell performs effects, with blocking calls (`blocking`) or on an event
loop (`awaited`), and has no rules of its own.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """A request, to be sent to any instance."""

    path: str
    """With its query string, percent-encoded."""
    method: str = "GET"
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Send:
    """Sends the request and receives the whole answer: `Reply` or `Lost`."""

    address: str
    request: Request
    seconds: float
    """The time for all of it."""
    silence: float | None = None
    """How long nothing may arrive; without it, as long as all of it may take."""
    in_all: float | None = None
    """The time that the call has left, with that until its turn comes if many requests of this client are under way at
    the address; without it, `seconds`."""
    waits: bool = False
    """Whether the instance may wait before it answers. Others don't wait for its turn to end."""
    first: bool = False
    """Whether it doesn't wait for its turn: all others may wait for its answer."""


@dataclass(frozen=True)
class Once:
    """Performs a flow for all flows of this client that ask for it meanwhile: one performs it, the others wait.

    Gets its result, or raises its error; None if it isn't there after `seconds`."""

    flow: "Flow[Any]"
    seconds: float


@dataclass(frozen=True)
class Race:
    """Sends the first request and, if it isn't answered after a while, the second too. The first good answer counts.

    Gets the outcomes that there are by then, the one that counts first.
    """

    first: Send
    second: Send
    after: float


@dataclass(frozen=True)
class Listen:
    """Sends the request and leaves the answer open: `Reply` with an empty body if its status is 200, and `Receive` gets
    the rest. With any other status it is received at once. An answer that was open before is closed."""

    address: str
    request: Request
    seconds: float
    silence: float
    """How long nothing may arrive."""


@dataclass(frozen=True)
class Receive:
    """The next bytes of the open answer; empty at its end. `Lost` if the connection was."""


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Emit:
    """Hands an item to the user."""

    item: Any


@dataclass(frozen=True)
class Reply:
    """An answer, of any status."""

    address: str
    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def good(self) -> bool:
        """Whether no other instance has to be asked: the answer, or a refusal that would be the same anywhere."""
        return self.status not in RETRIED


@dataclass(frozen=True)
class Lost:
    """There is no answer: the connection was refused or lost, or took too long."""

    address: str
    reason: str
    untrusted: bool = False
    """Whether its certificate was not accepted."""
    crowded: bool = False
    """Whether it was never asked, because so many requests of this client were under way there."""

    good: ClassVar[bool] = False


MISDIRECTED = 421
"""The status of an instance of another app."""
RETRIED = frozenset({MISDIRECTED, 429, 502, 503, 504})
"""The statuses after which another instance, or the same one later, may answer. 502 and 504 are those of proxies."""

Effect = Send | Race | Listen | Receive | Pause | Once | Emit
Outcome = Reply | Lost
Raced = tuple[Outcome, ...]
Flow = Generator[Effect, Any, T]
"""Is sent `Outcome` for Send and Listen, `Raced` for Race, `bytes | Lost` for Receive, what Once says, and None for the
others."""


def counted_first(outcomes: Sequence[Outcome]) -> Raced:
    """The outcomes of a race with the one that counts first."""
    return tuple(sorted(outcomes, key=lambda each: not each.good))
