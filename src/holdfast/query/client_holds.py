"""Holds that clients have made over REST, by an id that only their client knows, so that they can be released.

They are kept by the instance that was asked, until their time has passed. Replicas end them by themselves. A request
that ends while its version is being held gets no id, so what it would have held is released.
"""

import threading
from dataclasses import dataclass
from typing import Final

from holdfast.chance import new_id
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.instance.held_versions import TooManyHolds, TooManyHoldsOfCaller
from holdfast.query.columns import HeldStores

MOST: Final = 1_000
"""Holds of clients per instance. Each takes about a kilobyte; versions are counted by their replicas."""
MOST_OF_CALLER: Final = MOST // 2
"""Those of one client."""


class Handover:
    """Stores that a thread holds for a request, which may end meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: HeldStores | None = None
        self._ended = False

    def give(self, held: HeldStores) -> HeldStores:
        """On the thread: hands them over, or releases them if the request has ended."""
        with self._lock:
            self._held = held
            ended = self._ended
        if ended:
            held.release()
        return held

    def end(self) -> HeldStores | None:
        """The request has ended. What was handed over before is to be released by its caller."""
        with self._lock:
            self._ended = True
            return self._held


@dataclass(frozen=True)
class _ClientHold:
    caller: str
    store: str
    held: HeldStores
    until: float


class ClientHolds:
    """The holds of clients at one instance. Used on its event loop alone."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._holds: dict[str, _ClientHold] = {}

    def check(self, caller: str) -> None:
        """Raises if there is no room for another one of this client."""
        now = self._clock.monotonic()
        self._holds = {id: hold for id, hold in self._holds.items() if hold.until > now}
        what = "Release some (DELETE /v1/stores/STORE/hold/HOLD), or hold versions for fewer seconds."
        if sum(hold.caller == caller for hold in self._holds.values()) >= MOST_OF_CALLER:
            fact = f"This instance keeps {MOST_OF_CALLER:,} holds of {caller}, as many as one client may have."
            raise TooManyHoldsOfCaller(f"{fact} {what}")
        if len(self._holds) >= MOST:
            raise TooManyHolds(f"Clients have {MOST:,} holds at this instance, as many as it keeps. {what}")

    def add(self, caller: str, store: str, held: HeldStores, seconds: float) -> str:
        """The id of a new hold."""
        id = new_id()
        self._holds[id] = _ClientHold(caller, store, held, self._clock.monotonic() + seconds)
        return id

    def take(self, store: str, id: str) -> HeldStores | None:
        """The stores of a hold that is to be released; None if it has ended, or was never made here."""
        found = self._holds.get(id)
        if found is None or found.store != store or found.until <= self._clock.monotonic():
            return None
        del self._holds[id]
        return found.held
