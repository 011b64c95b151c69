"""Versions of a replica that stay readable until a time, for readers that come back.

A replica keeps its last few versions, which may be seconds. A reader of several stores, several instances or several
steps needs one version for longer: it holds it, reads it as often as it likes, and releases it. A hold that nobody
releases ends by itself. What costs is the version, whose files and runs are kept, not the number of its readers: so
there are only so many versions, and each is kept until the last of its holds ends. Clients may forget to release
theirs; the last few places are for the instance's own reads, which end with their request. One client has a share of
the others, so that it can't take them from all other clients.
"""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.words import TaskId, Version

if TYPE_CHECKING:
    from holdfast.instance.read_views import ReadView

MOST: Final = 64
"""Versions that a replica holds at most."""
RESERVED: Final = 16
"""How many of them clients can't hold."""
MOST_OF_CALLER: Final = (MOST - RESERVED) // 2
"""How many of the others one client holds at most."""
LONGEST_SECONDS: Final = 600.0


class TooManyHolds(HoldfastError):
    """A replica can't hold another version now."""

    category = ErrorCategory.RETRY


class TooManyHoldsOfCaller(TooManyHolds):
    """One client can't hold another version now; others can."""


@dataclass(frozen=True)
class HoldTerms:
    """For how long a version is held at most, and for whom."""

    seconds: float
    caller: str | None = None
    """The client that has asked for it, which may not release it; None if an instance has, for a read of its own."""


class Hold(NamedTuple):
    """One hold of a version, which may have others."""

    version: Version
    number: int


@dataclass(frozen=True)
class _HeldVersion:
    """A version that is held: its view, and when each of its holds ends."""

    view: "ReadView"
    ends: dict[int, float] = field(default_factory=dict)
    callers: dict[int, str | None] = field(default_factory=dict)
    """Whose each hold is."""

    def lasts(self, now: float) -> bool:
        """Whether the time of any hold is left."""
        return any(end > now for end in self.ends.values())


class HeldVersions:
    """The holds of one replica."""

    def __init__(self, task: TaskId, clock: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self._task = task
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._held: dict[Version, _HeldVersion] = {}

    def add(self, view: "ReadView", terms: HoldTerms) -> Hold:
        """Holds the version of a view for so long at most. The view belongs to the hold from here on."""
        self.end_old()
        with self._lock:
            held = self._held.get(view.version)
            is_first = held is None
            refused = self._refusal(view.version, terms)
            if refused is None:
                held = held or self._held.setdefault(view.version, _HeldVersion(view))
                number, seconds = next(self._numbers), min(terms.seconds, LONGEST_SECONDS)
                held.ends[number] = self._clock() + seconds
                held.view.pinned.keep_for(seconds)
                held.callers[number] = terms.caller
        if refused is not None or not is_first:
            view.close()
        if refused is not None:
            raise refused
        return Hold(view.version, number)

    def _refusal(self, version: Version, terms: HoldTerms) -> TooManyHolds | None:
        """Why a version can't be held, if it can't. Called with the lock."""
        if terms.caller is not None:
            own = {each for each, held in self._held.items() if terms.caller in held.callers.values()}
            if version not in own and len(own) >= MOST_OF_CALLER:
                return TooManyHoldsOfCaller(
                    f"{MOST_OF_CALLER} versions of task {self._task} are held for {terms.caller}, as many as one "
                    "client may hold. Release those that are read (DELETE /v1/stores/STORE/hold/HOLD), or ask for one "
                    f"of them with at=; each ends by itself, after {LONGEST_SECONDS:g} s at most."
                )
        most = MOST if terms.caller is None else MOST - RESERVED
        return None if version in self._held or len(self._held) < most else self._too_many(most, terms)

    def _too_many(self, most: int, terms: HoldTerms) -> TooManyHolds:
        fact = f"{most} versions of task {self._task} are held, as many as"
        if terms.caller is not None:
            return TooManyHolds(
                f"{fact} clients may hold. Release those that are read (DELETE /v1/stores/STORE/hold/HOLD), or ask for "
                f"one of them with at=; each ends by itself, after {LONGEST_SECONDS:g} s at most."
            )
        return TooManyHolds(f"{fact} a replica holds. Ask again when a statement or a stream has ended.")

    def find(self, version: Version) -> "ReadView | None":
        """A view of a version that is held, for another reader, who closes it."""
        with self._lock:
            held = self._held.get(version)
            if held is None or not held.lasts(self._clock()):
                return None
            held.view.pinned.hold()
            return held.view

    def has(self, version: Version) -> bool:
        with self._lock:
            held = self._held.get(version)
            return held is not None and held.lasts(self._clock())

    def release(self, hold: Hold) -> None:
        """Ends a hold. One that has ended is fine."""
        with self._lock:
            held = self._held.get(hold.version)
            if held is None or held.ends.pop(hold.number, None) is None:
                return
            del held.callers[hold.number]
            if held.ends:
                return
            del self._held[hold.version]
        held.view.close()

    def end_old(self) -> None:
        """Ends the holds whose time has passed. In a quiet app no version does, so the updater calls it, too."""
        if not self._held:
            return
        now = self._clock()
        with self._lock:
            old = [
                Hold(version, number)
                for version, held in self._held.items()
                for number, end in held.ends.items()
                if end <= now
            ]
        for hold in old:
            self.release(hold)

    def end_all(self) -> None:
        with self._lock:
            gone, self._held = self._held, {}
        for held in gone.values():
            held.view.close()
