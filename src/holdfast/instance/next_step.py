"""What a replica does next, decided without any I/O.

Restore, standby and normal running are one loop: look where the replica is, ask `next_step`, do that, look again.
`check_state` decides whether the state found on disk can be used. The loop around them reads, applies and reports, and
decides nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.stores.engines.base import Mark
from holdfast.words import NOTHING, Version


@dataclass(frozen=True)
class Wait:
    """The replica is where it should be."""


@dataclass(frozen=True)
class LoadSnapshot:
    version: Version


@dataclass(frozen=True)
class ApplySegment:
    version: Version


@dataclass(frozen=True)
class Unreachable:
    """The next version's objects are gone and no snapshot leads past them."""

    at: Version
    committed: Version


def next_step(
    at: Version,
    committed: Version,
    snapshots: Sequence[Version],
    *,
    begin: Version = NOTHING,
    next_there: bool = True,
) -> Wait | LoadSnapshot | ApplySegment | Unreachable:
    """The next thing to do for a replica at `at` that aims for `committed`.

    At `begin` it is empty, and starts with a snapshot if there is one. `next_there` is false if the commit or a segment
    after `at` is gone: it was cleaned, because a snapshot covers it.

    >>> next_step(Version(4), Version(6), [])
    ApplySegment(version=5)
    >>> next_step(NOTHING, Version(6), [Version(3), Version(5), Version(9)])
    LoadSnapshot(version=5)
    >>> next_step(Version(2), Version(6), [Version(5)], next_there=False)
    LoadSnapshot(version=5)
    """
    if at >= committed:
        return Wait()
    usable = [version for version in snapshots if at < version <= committed]
    if usable and (at <= begin or not next_there):
        return LoadSnapshot(max(usable))
    if not next_there:
        return Unreachable(at, committed)
    return ApplySegment(Version(at + 1))


@dataclass(frozen=True)
class Usable:
    """The state is a part of this log's history. It is at version `at`, and complete again from `whole_from` on."""

    at: Version
    whole_from: Version


@dataclass(frozen=True)
class Unusable:
    """The state can't be used. The log has everything that was in it."""

    reason: str


def check_state(
    mark: Mark | None,
    *,
    log: str,
    newest: Version,
    commit: str | None,
    applying: str | None,
    begin: Version = NOTHING,
) -> Usable | Unusable:
    """Whether state with this mark can be used. Without a mark it is empty, at `begin`.

    `commit` is the id of the log's commit at the mark's version, and `applying` that of the version of which the state
    may have a part. Either is None if the log doesn't know it any more, or never did.

    >>> check_state(None, log="L", newest=Version(3), commit=None, applying=None)
    Usable(at=0, whole_from=0)
    >>> check_state(Mark(Version(2), "c2", "L"), log="L", newest=Version(3), commit="c2", applying=None)
    Usable(at=2, whole_from=2)
    """
    if mark is None:
        return Usable(begin, begin)
    if mark.log != log:
        return Unusable(f"it belongs to log {mark.log!r}, and this is log {log!r}")
    reaches = max(mark.version, mark.applying or NOTHING)
    if reaches > newest:
        return Unusable(f"it reaches version {reaches}, and the log's newest is {newest}")
    if mark.commit:
        if commit is None:
            return Unusable(f"version {mark.version} is no longer in the log, so it can't be brought forward")
        if commit != mark.commit:
            return Unusable(f"its version {mark.version} is commit {mark.commit!r}, and the log's is {commit!r}")
    if mark.applying is not None and mark.applying_commit != applying:
        return Unusable(
            f"it has a part of version {mark.applying} of commit {mark.applying_commit!r}, and the log's is "
            f"{'gone' if applying is None else repr(applying)}"
        )
    return Usable(mark.version, reaches)
