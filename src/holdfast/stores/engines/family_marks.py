"""Marks as the families of one engine store them, so that a flush writes nothing for a store that didn't change.

A family gets a mark only in the versions that change it; the engine's own family, which holds no store, gets one in
every version. After a kill, each family has the first of its writes, and a different number of them. So a family whose
own mark is old may lack changes, or may have had none. To tell these apart, each mark has the version of the last
change of every family:

    own family   at 90, counts changed at 90, names at 12
    counts       at 85                       lacks changes: it is at 85
    names        at 12                       has had no change since: it is at 90

The order of writes in an apply of version w:

    1. *applying w* in a family            before its first change
    2. the changes, in chunks
    3. *at w* in the changed families and in the engine's own, which from here on name w as these families' last change

A version that combines several counts as the last change of a family that any of them changed. That is later than the
truth at most, and a family then counts as older than it is, never as newer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.errors import DamagedObject
from holdfast.stores.engines.base import Mark, applying
from holdfast.words import NOTHING, Version


@dataclass(frozen=True)
class FamilyMark:
    """A mark in one family. `changed`: the last change of each family that the engine had then."""

    mark: Mark
    changed: Mapping[str, Version] = field(default_factory=dict)

    def covers(self, family: str, own: Version) -> bool:
        """Whether the family, whose own mark is at this version, lacks nothing of this mark's version."""
        return family in self.changed and self.changed[family] <= own


def combined(families: Mapping[str, FamilyMark | None], engine: FamilyMark | None) -> FamilyMark | None:
    """The engine's mark and the last change of each family, from the marks found after opening.

    >>> def at(version, **changed):
    ...     return FamilyMark(Mark(Version(version), f"c{version}", "L"), changed)
    >>> combined({"counts": at(85), "names": at(12)}, at(90, counts=90, names=12)).mark
    Mark(version=85, commit='c85', log='L', applying=90)
    >>> combined({"counts": at(90), "names": at(12)}, at(90, counts=90, names=12)).mark
    Mark(version=90, commit='c90', log='L', applying=None)
    """
    found = [each for each in (*families.values(), engine) if each is not None]
    if not found:
        return None
    nothing = Mark(NOTHING, "", found[0].mark.log)
    reached = [_reached(family, own, found) or nothing for family, own in families.items()]
    smallest = min(reached, key=lambda mark: mark.version)
    changed = {
        family: NOTHING if own is None else min(own.mark.version, smallest.version) for family, own in families.items()
    }
    return FamilyMark(applying(smallest, [each.mark for each in found]), changed)


def _reached(family: str, own: FamilyMark | None, found: Iterable[FamilyMark]) -> Mark | None:
    """The newest mark whose version the family has completely; None for a family that no mark knows."""
    at = NOTHING if own is None else own.mark.version
    complete = [each.mark for each in found if each is own or each.covers(family, at)]
    return max(complete, key=lambda mark: mark.version, default=None)


class _StoredMark(msgspec.Struct, frozen=True, omit_defaults=True):
    format: int
    version: int
    commit: str
    log: str
    wall: int
    changed: dict[str, int]
    applying: int | None = None
    event: int | None = None
    applying_commit: str = ""


_MARKS = msgspec.json.Decoder(_StoredMark)


def pack_mark(found: FamilyMark) -> bytes:
    """A mark as stored.

    >>> pack_mark(FamilyMark(Mark(Version(7), "c7", "log-1"), {"counts": Version(5)}))
    b'{"format":1,"version":7,"commit":"c7","log":"log-1","wall":0,"changed":{"counts":5}}'
    """
    mark = found.mark
    return msgspec.json.encode(
        _StoredMark(
            1,
            mark.version,
            mark.commit,
            mark.log,
            mark.wall,
            dict(found.changed),
            mark.applying,
            mark.event,
            mark.applying_commit,
        )
    )


def unpack_mark(data: bytes) -> FamilyMark:
    try:
        stored = _MARKS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedObject(f"a mark can't be read: {error}. Delete the state; it is restored from the log.") from error
    if stored.format != 1:
        raise DamagedObject(
            f"a mark has format {stored.format} and this release reads 1. Use the release that wrote it, or delete the "
            "state; it is restored from the log."
        )
    ahead = None if stored.applying is None else Version(stored.applying)
    mark = Mark(
        Version(stored.version), stored.commit, stored.log, ahead, stored.applying_commit, stored.wall, stored.event
    )
    return FamilyMark(mark, {family: Version(version) for family, version in stored.changed.items()})
