"""Which static tables a driver still has to read: each is read once per start.

    start ─► unread ─► a version with the changes since the rows in the log ─► committed ─► read
                            │
                            └── failed, or another driver's commit took its number: read again, for the next version

Until this driver has committed, every version that it computes reads the tables again, so the rows that count are those
sealed in the version that exists.
"""

from collections.abc import Collection, Iterable, Mapping

from holdfast.stores.layouts.due import AT_ONCE, Due
from holdfast.topology.topology import StaticRows, SubTopology


class StaticTables:
    """The static tables of an app, since this driver's start."""

    def __init__(self, names: Collection[str]) -> None:
        self._unread = frozenset(names)

    @classmethod
    def of(cls, subtopologies: Iterable[SubTopology]) -> "StaticTables":
        origins = (branch.origin for each in subtopologies for branch in each.stream.branches)
        return cls({origin.name for origin in origins if isinstance(origin, StaticRows)})

    def is_unread(self, rows: StaticRows) -> bool:
        """Whether the next version has to read these rows."""
        return rows.name in self._unread

    def due(self) -> Mapping[str, Due]:
        """A table that is unread is due at once, although nothing arrives."""
        return {name: Due(tasks=AT_ONCE) for name in self._unread}

    def committed(self, *, own: bool) -> None:
        """A version was committed, by this driver or by one before it."""
        if own:
            self._unread = frozenset()
