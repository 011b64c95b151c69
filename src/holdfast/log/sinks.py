"""Sink positions: how far each sink has been written.

After a sink has written all of version `v`, `sinks/<sink>/<v>.json` is created. At a start every sink continues from
its newest position. Cleaning never deletes what the slowest sink still needs.
"""

import msgspec

from holdfast.log import documents, names
from holdfast.log.objects import ObjectMissing, Storage
from holdfast.words import NOTHING, Version

FORMAT = 1


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """A sink has written all versions up to and including this one."""

    format: int = FORMAT
    log: str
    sink: str
    version: int


class SinkPositions:
    """The positions in one log. Remembers those it has read, so that it lists only newer ones the next time."""

    def __init__(self, storage: Storage, log: str) -> None:
        self._storage = storage
        self._log = log
        self._seen: dict[str, Version] = {}

    def newest(self, sink: str) -> Version | None:
        """The newest version the sink has written, or None."""
        seen = self._seen.get(sink)
        after = None if seen is None else names.sink_position(sink, seen)
        listed = self._storage.list(names.sink_positions(sink), after=after)
        for name in reversed(listed):
            if (version := names.version_of(name)) is not None and self._verified(sink, version):
                self._seen[sink] = max(version, self._seen.get(sink, NOTHING))
                break
        return self._seen.get(sink)

    def mark(self, sink: str, version: Version) -> None:
        """Records that the sink has durably written all versions up to and including this one."""
        position = Position(log=self._log, sink=sink, version=version)
        self._storage.create(names.sink_position(sink, version), documents.encode(position))
        self._seen[sink] = max(version, self._seen.get(sink, NOTHING))

    def _verified(self, sink: str, version: Version) -> bool:
        name = names.sink_position(sink, version)
        try:
            data = self._storage.get(name)
        except ObjectMissing:
            return False
        position = documents.decode(data, Position, name=name, place=self._storage.place, known=FORMAT)
        found = (position.log, position.sink, position.version)
        if found != (self._log, sink, version):
            raise documents.damaged(name, self._storage.place, f"it holds (log, sink, version) {found}")
        return True
