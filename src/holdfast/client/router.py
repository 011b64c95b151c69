"""Whom to ask: the routing as it was last read, and which instances have not answered lately.

Where a replica is never decides whether an answer is right: any instance answers anything. So an old routing costs a
hop, and the rules here are about time only:

- the replicas of the key's task are asked first, the active one before its standbys, then all other instances; what
  isn't about one key is asked of all of them in turn;
- an address of the routing that the client may not follow (`may_follow`) is left out: the seeds are asked instead;
- an instance that hasn't answered is asked last for a while;
- the log of the first routing is the log of the client: an address that another app has got is one that doesn't answer;
- the routing is read again when an instance doesn't answer, or is slower than a hedged read allows twice in a row, when
  another one has served a key than the one that was asked, and when a task has no known place; at most once per second.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from holdfast.client.addresses import may_follow
from holdfast.client.effects import Request
from holdfast.clock import Clock
from holdfast.query.routes import LOG_HEADER, Routing

SUSPECT_SECONDS = 5.0
"""How long an instance that didn't answer is asked last: about as long as a restart takes."""
SLOW_SECONDS = 1.0
"""How long one that was slower than a hedged read allows is asked last."""
REFRESH_SECONDS = 1.0


class Router:
    """What a client knows about the instances of its app. All threads of a client share one."""

    def __init__(self, seeds: Sequence[str], clock: Clock) -> None:
        self._seeds = tuple(seeds)
        self._clock = clock
        self._suspects: dict[str, float] = {}
        self._names: dict[str, str] = {}
        """The instances by those of their addresses that may be asked."""
        self._slow = set[str]()
        self._outdated = False
        self._tried = -REFRESH_SECONDS
        self._turns = count()
        self.routing: Routing | None = None

    def order(self, task: str | None = None) -> list[str]:
        """All known instances, in the order in which they are asked for a task."""
        routing = self.routing
        found: dict[str, None] = {}
        if routing is not None:
            if task is not None:
                found |= dict.fromkeys(address for address in routing.addresses(task) if address in self._names)
            instances = [*self._names]
            turn = next(self._turns) % max(1, len(instances))
            found |= dict.fromkeys(instances[turn:] + instances[:turn])
        found |= dict.fromkeys(self._seeds)
        if not self._suspects:
            return list(found)
        return sorted(found, key=self._is_suspect)  # stable: only suspects move

    def is_due(self, task: str | None = None) -> bool:
        """Whether the routing should be read before the next question."""
        if self.routing is None:
            return True
        unplaced = task is not None and not self.routing.addresses(task)
        return (self._outdated or unplaced) and self._clock.monotonic() - self._tried >= REFRESH_SECONDS

    def trying(self) -> None:
        """The routing is about to be read, so that other threads needn't."""
        self._tried = self._clock.monotonic()
        self._outdated = False

    def learn(self, routing: Routing) -> bool:
        """Takes a routing that was read, unless an instance that is behind has given it; False if of another log."""
        known = self.routing
        if known is not None and known.log != routing.log:
            return False
        if known is None or routing.generation >= known.generation:
            self.routing = routing
            named = routing.instances.items()
            self._names = {address: name for name, address in named if may_follow(self._seeds, address)}
        return True

    def addressed(self, request: Request) -> Request:
        """A request for instances of the client's log only, as soon as that is known."""
        if self.routing is None or not self.routing.log:
            return request
        return replace(request, headers={**request.headers, LOG_HEADER: self.routing.log})

    def lost(self, address: str) -> None:
        """It hasn't answered."""
        self._suspects[address] = self._clock.monotonic() + SUSPECT_SECONDS
        self._outdated = True

    def slow(self, address: str) -> None:
        """Another instance was faster, although it was asked later.

        A host that is gone refuses no connection, and a hedged read doesn't wait until its time has passed. So one that
        is slow again, without an answer in between, may have lost its tasks.
        """
        if address in self._slow:
            self._outdated = True
        self._slow.add(address)
        until = self._clock.monotonic() + SLOW_SECONDS
        self._suspects[address] = max(until, self._suspects.get(address, until))

    def answered(self, address: str) -> None:
        if self._suspects:
            self._suspects.pop(address, None)
        if self._slow:
            self._slow.discard(address)

    def served(self, address: str, task: str, instance: str) -> None:
        """A key of a task was served by this instance after that address was asked."""
        routing = self.routing
        if routing is None or self._names.get(address) == instance:
            return
        if address in routing.addresses(task):
            self._outdated = True

    def _is_suspect(self, address: str) -> bool:
        until = self._suspects.get(address)
        if until is None:
            return False
        if until < self._clock.monotonic():
            self._suspects.pop(address, None)
            return False
        return True
