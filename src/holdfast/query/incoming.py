"""Bytes of requests that wait: of heads that aren't whole, and of requests behind one that isn't answered.

They are in memory before anybody has looked at a token, so they are limited per address and for all connections
together. Beyond a limit the largest connection is refused: an ordinary head comes whole, and never counts here.
"""

from collections import Counter
from typing import Final, Protocol

from holdfast.query.problems import OVERLOADED, TOO_MANY, Problem
from holdfast.settings.units import format_size

MOST_HEADERS: Final = 100
"""Of one request. Browsers and proxies send 10 to 40."""
HEADER_BYTES: Final = 200
"""What Python takes for a header beside its bytes."""
REQUEST_BYTES: Final = 4_000
"""What a request takes that waits for the answer to another one."""
_SHARE: Final = 4
"""One address may have a part of what all have: 1/4."""


class Requester(Protocol):
    """A connection, as far as its requests take memory."""

    address: str
    incoming: int
    """What counts of it."""

    def refuse_incoming(self, problem: Problem) -> None: ...


class Incoming:
    """What waits on all connections of a server."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._total = 0
        self._by: Counter[str] = Counter()
        self._senders: dict[Requester, None] = {}

    def count(self, sender: Requester, bytes_: int) -> None:
        """So much waits on a connection now. Refuses the largest ones while it is too much."""
        more = bytes_ - sender.incoming
        if not more:
            return
        sender.incoming = bytes_
        self._total += more
        self._by[sender.address] += more
        if bytes_:
            self._senders[sender] = None
        else:
            self._senders.pop(sender, None)
            if not self._by[sender.address]:
                del self._by[sender.address]
        if more > 0 and self._total > self._most:
            self._refuse(self._by.most_common(1)[0][0], 503, self._most, "together")
        elif more > 0 and self._by[sender.address] > self._most // _SHARE:
            self._refuse(sender.address, 429, self._most // _SHARE, f"from {sender.address}")

    def _refuse(self, address: str, status: int, most: int, whose: str) -> None:
        largest = max((each for each in self._senders if each.address == address), key=lambda each: each.incoming)
        fact = f"Unfinished requests {whose} have {format_size(most)}, as much as this instance keeps."
        what = "Send a request at once and as a whole, and ask again after the time in Retry-After."
        self.count(largest, 0)
        largest.refuse_incoming(Problem(status, OVERLOADED if status == 503 else TOO_MANY, fact, what))
