"""Time passes when nothing arrives: the driver makes a version of its own when something is due.

    quiet for idle_interval ─► ask what is due next ─► wait for that time ─► a version without a Spark batch

While batches arrive, each of them moves the clocks, and nothing here does anything. In a quiet app the instances are
asked once per version; while nothing is due, no version is made. A version of the driver goes through the same lock,
commit and sinks as a batch. It runs tasks only where entries have to be removed one by one or punctuators fire;
otherwise it is one small object in the log, with the new wall clock.

`catch_up` doesn't wait for the app to be quiet: it asks for the versions that are due at that moment, all of them, and
returns when they are made. What becomes due later is left for later.

The wall clock of versions never goes back. Where this machine's is behind it, because it was set back or because the
driver before ran elsewhere, nothing becomes due by the wall clock until it has come that far. What is due by event time
is due all the same, and whether the app is quiet can't be told, so the instances are asked also between batches.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from holdfast.clock import ClockJumped, WallClock
from holdfast.ending import BATCH, Ending
from holdfast.errors import HoldfastError, Interrupted
from holdfast.log.commits import Commit
from holdfast.pipeline.driver import BatchResult, Driver, Step
from holdfast.pipeline.protocol import next_wall
from holdfast.retry import is_retryable
from holdfast.settings.units import format_duration
from holdfast.stores.layouts.due import Due
from holdfast.words import Millis, Version

logger = logging.getLogger(__name__)

_BATCH_SECONDS = 0.02
"""Between two looks whether a batch has ended, while someone waits for the versions that are due."""
_LOOK_SECONDS = 1.0
"""Between two looks while someone waits for the versions that are due, unless the interval is shorter."""
_BEHIND = timedelta(seconds=10)
"""How far this machine's clock may be behind that of the newest version before it is said: clocks differ a little."""


@dataclass(frozen=True)
class NothingDue:
    """Nothing to do for this many milliseconds at most."""

    millis: int


@dataclass(frozen=True)
class AskWhatIsDue:
    """The app is quiet, and it is not known what is due next at this version."""

    version: Version


@dataclass(frozen=True)
class MakeVersion:
    """A version is due. The tasks of these sub-topologies have to run."""

    subtopologies: frozenset[str] = frozenset()


def decide(
    newest: Commit | None, known: tuple[Version, Mapping[str, Due]] | None, now: Millis, interval_ms: int
) -> NothingDue | AskWhatIsDue | MakeVersion:
    """What to do now. `known` is what is due next per sub-topology, and the version at which that was asked."""
    if newest is None:
        return NothingDue(interval_ms)
    wall = next_wall(newest, now)
    quiet = now - newest.clocks.wall
    if 0 <= quiet < interval_ms:
        return NothingDue(interval_ms - quiet)
    if known is None or known[0] != newest.version:
        return AskWhatIsDue(Version(newest.version))
    first = Due.soonest(known[1].values()).first if known[1] else None
    if first is None or first > wall:
        # A batch that arrives meanwhile is noticed at the next look, which costs nothing.
        return NothingDue(interval_ms if first is None else min(first - now, interval_ms))
    due = known[1].items()
    return MakeVersion(frozenset(name for name, each in due if each.tasks is not None and each.tasks <= wall))


@dataclass(eq=False)
class IdleVersions:
    """Makes the versions of a quiet app, in a thread of its own."""

    driver: Driver
    due: Callable[[Version], Mapping[str, Due]]
    """What is due next at a version, per sub-topology."""
    compute: Callable[[Collection[str], Step], BatchResult]
    clock: WallClock
    interval: timedelta
    ending: Ending
    is_paused: Callable[[], bool] = lambda: False
    begin: Callable[[], None] = lambda: None
    """Called first in the thread in which versions are made."""
    cancel: Callable[[], None] = lambda: None
    """Ends what the tasks of a version do, from another thread."""
    _known: tuple[Version, Mapping[str, Due]] | None = field(default=None, init=False)
    _problem: type[HoldfastError] | None = field(default=None, init=False)
    _behind: bool = field(default=False, init=False)
    """Whether the clock was behind at the last look, which is said once."""
    _making: threading.Lock = field(default_factory=threading.Lock, init=False)
    _asking: threading.Lock = field(default_factory=threading.Lock, init=False)
    _asked: int = field(default=0, init=False)
    """How many times `catch_up` was called."""
    _seen: int = field(default=0, init=False)
    """How many of those calls the last step has seen."""
    _goal: tuple[int, Millis] | None = field(default=None, init=False)
    """The calls that are being answered, and the time until which everything due is made for them."""
    _answered: int = field(default=0, init=False)

    def run(self) -> None:
        """Runs until the app stops. An error that doesn't pass ends the app, as that of a batch does."""
        pause = self._pause()
        try:
            self.begin()
            while not self.ending.wait(pause, lambda: self._asked > self._seen) and not self.ending.failed:
                pause = self.step()
        except Interrupted:
            return
        except Exception as error:  # noqa: BLE001  a thread that ends unnoticed would stop the clock
            self.ending.fail(error)

    def catch_up(self) -> None:
        """Returns when the versions are made that are due now, or when the app stops or has failed.

        Due is what would be due if no record came any more: by the event clock of the newest version, and by the wall
        clock of this moment. `run` makes the versions, also while the app isn't quiet.
        """
        with self._asking:
            self._asked += 1
            own = self._asked
        self.ending.wake()
        self.ending.wait(None, lambda: self._answered >= own or self.ending.failed)

    def stop(self) -> None:
        """Lets a version under way end in its time, and then cancels it. None is made after that."""
        if self._making.acquire(timeout=self.ending.left(BATCH)):
            self._making.release()
        else:
            self.cancel()

    def step(self) -> float:
        """Does what is to be done now, and returns the seconds until the next look.

        What fails and may work later is tried again for as long as the app runs: no records wait for it.
        """
        self._seen = self._asked
        if self.is_paused():
            return self._pause()
        try:
            pause = self._step()
        except HoldfastError as error:
            if not is_retryable(error):
                raise
            if type(error) is not self._problem and not isinstance(error, ClockJumped):  # the clock reports that
                logger.warning("time stands still, and this is tried again: %s", error)
            self._problem = type(error)
            return self._pause()
        self._problem = None
        return pause

    def _step(self) -> float:
        newest = self.driver.newest
        now = self.clock.now()  # after it: no clock that goes right is behind
        self._say_if_behind(newest, now)
        if self._goal is None and self._asked > self._answered:
            self._goal = self._asked, now
        until, interval = now, self.interval // timedelta(milliseconds=1)
        if self._goal is not None:
            until, interval = self._goal[1], 0
        match decide(newest, self._known, until, interval):
            case NothingDue() if self._goal is not None:
                self._answered, self._goal = self._goal[0], None
                self.ending.wake()
                return 0.0
            case NothingDue(millis):
                return millis / 1000
            case AskWhatIsDue(version):
                self._known = version, self.due(version)
                return 0.0
            case MakeVersion(subtopologies):
                return self._make(subtopologies)

    def _say_if_behind(self, newest: Commit | None, now: Millis) -> None:
        behind = timedelta(milliseconds=newest.clocks.wall - now) if newest else timedelta(0)
        if behind > _BEHIND and not self._behind:
            logger.warning(
                "the wall clock of this machine is %s behind that of the newest version. Until it has come that far, "
                "nothing expires by a TTL, no punctuator of the wall clock fires, and no source becomes idle. If the "
                "clock is wrong, fix it",
                format_duration(timedelta(seconds=round(behind / timedelta(seconds=1)))),
            )
        self._behind = behind > _BEHIND

    def _make(self, subtopologies: Collection[str]) -> float:
        with self._making:
            if self.ending.has_begun():
                raise Interrupted("The app stops. The next start makes the version.")
            made = self.driver.advance(lambda step: self.compute(subtopologies, step))
        if made is None:
            return _BATCH_SECONDS if self._goal is not None else self._pause()
        logger.debug("version %d: time passes", made.version)
        return 0.0 if self._goal is not None else self._pause()

    def _pause(self) -> float:
        """The seconds until the next look when nothing can be done now."""
        pause = self.interval / timedelta(seconds=1)
        return pause if self._asked == self._answered else min(pause, _LOOK_SECONDS)
