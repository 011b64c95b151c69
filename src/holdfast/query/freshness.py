"""How fresh an answer has to be: what a request says, and what that demands of each replica.

    require=active      only the active replica of a task answers
    max_lag=3           at most 3 versions behind the newest one
    max_lag=5s          at least what was the newest version 5 seconds ago
    at_least=VERSION    that version or a later one: what a client has seen is never missing
    at=VERSION          exactly that version, of all partitions
    at=latest           one version of all partitions, the newest that can be read here
    wait=2s             how long replicas may take to come to such a version

A request is parsed once, into a `Freshness`. `needs_of` makes `ReadNeeds` of it, by the versions that are known now:
from there on there are only version numbers, whatever the request said.
"""

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from holdfast.clock import Clock
from holdfast.errors import SettingsError
from holdfast.instance.looks import Looks
from holdfast.log.commits import Commit
from holdfast.query.problems import Problem
from holdfast.query.task_reader import ANY_REPLICA, NotFresh, ReadNeeds
from holdfast.settings.units import parse_duration
from holdfast.words import NOTHING, Version

NAMES: Final = ("require", "max_lag", "at_least", "at", "wait")

DEFAULT_WAIT: Final = dt.timedelta(seconds=2)
LONGEST_WAIT: Final = dt.timedelta(seconds=30)

_LOOKED_AT: Final = 32
"""How many commits before the newest one `max_lag=` looks at for their times. Instances have about as many in memory; a
replica that is further behind waits until it isn't."""


_LOOK_SECONDS: Final = 3.0
"""Instances look at the log once per second, and sooner when the driver tells them. Only one that hasn't been able to
for this long may be cut off."""


class Latest(Enum):
    LATEST = "latest"


LATEST: Final = Latest.LATEST


@dataclass(frozen=True, kw_only=True)
class Freshness:
    """What a request demands. The default takes what the nearest replica has."""

    at: Version | Latest | None = None
    at_least: Version = NOTHING
    max_lag: int | dt.timedelta | None = None
    active: bool = False
    wait: dt.timedelta = DEFAULT_WAIT
    elsewhere: bool = False
    """Whether the wait may be for replicas of other instances. Known once those of this one have been awaited."""

    @property
    def first(self) -> Version:
        """The version that has to be committed before anything can be answered."""
        return max(self.at_least, NOTHING if self.at is None or self.at is LATEST else self.at)


ANY: Final = Freshness()


class KnownVersions(Protocol):
    """The versions that are known; `LogReader` of an instance has them."""

    @property
    def newest_known(self) -> Version: ...

    @property
    def looks(self) -> Looks: ...

    def commit(self, version: Version) -> Commit | None:
        """The commit of a version; None if the log no longer has it."""


def freshness_of(given: Mapping[str, str]) -> Freshness:
    """The freshness that the parameters of a request say.

    >>> freshness_of({"at": "latest"}).at, freshness_of({"at": "42"}).at
    (<Latest.LATEST: 'latest'>, 42)
    >>> freshness_of({"max_lag": "3"}).max_lag, freshness_of({"max_lag": "1m"}).max_lag
    (3, datetime.timedelta(seconds=60))
    """
    if not any(name in given for name in NAMES):
        return ANY
    at = given.get("at")
    other = next((name for name in ("at_least", "max_lag") if name in given), None)
    if at not in (None, "latest") and other is not None:
        raise _bad(other, given[other], f"at= names the version: leave {other}= out, or ask for at=latest.")
    if given.get("require", "active") != "active":
        raise _bad("require", given["require"], "Write require=active, or leave it out.")
    return Freshness(
        at=None if at is None else LATEST if at == "latest" else _version("at", at, ", or latest"),
        at_least=_version("at_least", given["at_least"]) if "at_least" in given else NOTHING,
        max_lag=_lag(given["max_lag"]) if "max_lag" in given else None,
        active="require" in given,
        wait=_wait(given["wait"]) if "wait" in given else DEFAULT_WAIT,
    )


def needs_of(freshness: Freshness, versions: KnownVersions, clock: Clock) -> ReadNeeds:
    """What the request demands of each replica, now. May read commits from the log where `max_lag` is a duration.

    Raises NotFresh if the log couldn't be read for longer than that: there may be versions that nobody here knows of.
    """
    if freshness is ANY:
        return ANY_REPLICA
    newest, lag = versions.newest_known, freshness.max_lag
    oldest = NOTHING
    if isinstance(lag, dt.timedelta):
        if is_cut_off(lag, versions, clock):
            raise _not_looked(versions, clock)
        # Where clocks differ, a commit's time may seem to be in the future: what was learned that long ago is older.
        oldest = max(
            newest_at(clock.now() - lag // dt.timedelta(milliseconds=1), versions),
            versions.looks.newest_at(clock.monotonic() - lag.total_seconds()),
        )
    elif lag is not None:
        oldest = Version(max(NOTHING, newest - lag))
    return ReadNeeds(
        at_least=max(freshness.at_least, oldest),
        active=freshness.active,
        until=clock.monotonic() + freshness.wait.total_seconds(),
    )


def is_cut_off(lag: dt.timedelta, versions: KnownVersions, clock: Clock) -> bool:
    """Whether there may be versions of more than this long ago that nobody here knows of."""
    return clock.monotonic() - versions.looks.looked_at > max(lag.total_seconds(), _LOOK_SECONDS)


def newest_at(time: int, versions: KnownVersions) -> Version:
    """The version that was the newest at a time of the commits, or a later one if that was long ago."""
    version = versions.newest_known
    last = max(NOTHING, version - _LOOKED_AT)
    while version > last and (commit := versions.commit(version)) is not None and commit.clocks.wall > time:
        version = Version(version - 1)
    return version


def not_committed(wanted: Version, newest: Version) -> NotFresh:
    """The refusal of a request for a version that isn't committed yet."""
    return NotFresh(f"Version {wanted} is asked for, and version {newest} is the newest one.", newest, wanted)


def _not_looked(versions: KnownVersions, clock: Clock) -> NotFresh:
    ago = clock.monotonic() - versions.looks.looked_at
    when = f"{ago:.1f} seconds ago" if math.isfinite(ago) else "never"
    return NotFresh(
        f"This instance doesn't know the newest version: it has last read the log {when}. Ask again in a moment, or "
        "another instance; /v1/state shows what is wrong.",
        versions.newest_known,
    )


def _version(name: str, text: str, more: str = "") -> Version:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise _bad(name, text, f"Give the number of a version, such as the `version` of an answer{more}.")
    return Version(int(text))


def _lag(text: str) -> int | dt.timedelta:
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    return _duration("max_lag", text, "Give a number of versions, or a duration such as 5s.")


def _wait(text: str) -> dt.timedelta:
    what = f"Give a duration such as 500ms, up to {LONGEST_WAIT.total_seconds():.0f}s."
    wait = _duration("wait", text, what)
    if wait > LONGEST_WAIT:
        raise _bad("wait", text, what)
    return wait


def _duration(name: str, text: str, what: str) -> dt.timedelta:
    try:
        return parse_duration(text)
    except SettingsError:
        raise _bad(name, text, what) from None


def _bad(name: str, text: str, what: str) -> Problem:
    return Problem(400, "bad_parameter", f"{name}={text[:100]!r} can't be used.", what)
