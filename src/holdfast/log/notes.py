"""What to know before a start, found by its newest commit: the wall clock, and sinks that are new or come back.

A plan shows these notes, and a start logs them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from holdfast.log.chain import CommitChain
from holdfast.log.commits import Commit
from holdfast.log.sinks import FOLDER
from holdfast.settings.units import format_duration
from holdfast.stores.spec import StoreSpec
from holdfast.words import Millis, Version


def sink_notes(sinks: Iterable[str], newest: Commit, chain: CommitChain) -> list[str]:
    """The sinks of an app that are new, come back, or are no longer there, one sentence each."""
    recorded, current = chain.sinks.at(newest), list(sinks)
    starts = [sink_start(sink, recorded, newest, chain) for sink in current]
    former = sorted((sink, at) for sink, at in recorded.items() if sink not in current and not sink.startswith(FOLDER))
    gone = [sink for sink, at in former if at >= newest.version - 1]
    return [
        *(start.note for start in starts if start.note is not None),
        *(f"sink {sink!r} is not in the code any more: it gets no further versions" for sink in gone),
    ]


@dataclass(frozen=True)
class SinkStart:
    """The version after which a sink starts, and what a user should know about it."""

    after: Version
    note: str | None = None


def sink_start(sink: str, recorded: Mapping[str, Version], newest: Commit, chain: CommitChain) -> SinkStart:
    """Where a sink starts: at its position in the log. A new sink starts at the log's newest version.

    A commit waits until the sinks have written the version before it. So only a sink that the app didn't have for a
    while can be further behind, and find that versions it has missed were cleaned.
    """
    at = Version(newest.version)
    if (known := recorded.get(sink)) is None:
        return SinkStart(at, f"sink {sink!r} is new: it gets the versions after version {at}")
    if known >= at - 1:
        return SinkStart(known)
    back = f"sink {sink!r} is back after the app ran without it"
    if chain.commit(Version(known + 1)) is not None:
        return SinkStart(known, f"{back}. The log still has what it lacks: it gets versions {known + 1} to {at} first")
    oldest = chain.oldest()
    missed = f"{back}. It has missed versions {known + 1} to {oldest - 1}, which are no longer in the log"
    return SinkStart(Version(oldest - 1), f"{missed}, and goes on with version {oldest}")


def clock_notes(newest: Commit, stores: Iterable[StoreSpec], now: Millis, usual: timedelta) -> list[str]:
    """A wall clock that differs from that of the newest version by more than is usual.

    After a long downtime it is right, and nothing tells that from a clock that is wrong. So the start goes on.
    """
    ahead = timedelta(milliseconds=now - newest.clocks.wall)
    measured = sorted(store.name for store in stores if store.ttl_ms or (store.retention_ms and store.clock == "wall"))
    if abs(ahead) <= usual or not measured:
        return []
    here = f"The wall clock of this machine says {_date(now)}, and version {newest.version} was made at"
    then = _date(newest.clocks.wall)
    named = ", ".join(map(repr, measured))
    if ahead > timedelta(0):
        note = (
            f"{here} {then}, {_length(ahead)} before. With the next version, entries of {named} expire whose TTL or "
            "retention ended meanwhile, and that can't be undone. If the clock is wrong, fix it before the start"
        )
    else:
        note = (
            f"{here} {then}, {_length(-ahead)} later. Until this clock has come that far, no entry of {named} expires "
            "by time. If the clock is wrong, fix it"
        )
    return [note]


def _length(time: timedelta) -> str:
    """A duration in seconds or longer units: nobody judges a downtime by its milliseconds."""
    return format_duration(timedelta(seconds=round(time.total_seconds())))


def _date(wall: int) -> str:
    return datetime.fromtimestamp(wall / 1000, UTC).isoformat(" ", "seconds")
