"""Sink positions: how far each sink has been written.

After a sink has taken version `v` in full, `sinks/<sink>/<v>.json` is created. At start each sink goes on from its
newest position; cleaning never passes the slowest.
"""

import msgspec

from holdfast.log import documents, names
from holdfast.log.objects import ObjectMissing, Storage
from holdfast.words import NOTHING, Version

FORMAT = 1


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """A sink has everything up to and with this version."""

    format: int = FORMAT
    log: str
    sink: str
    version: int


class SinkPositions:
    """The positions in one log. Remembers what it has seen, so that a later look lists only what is newer."""

    def __init__(self, storage: Storage, log: str) -> None:
        self._storage = storage
        self._log = log
        self._seen: dict[str, Version] = {}

    def newest(self, sink: str) -> Version | None:
        """The version up to which the sink is written, or None for a sink that has nothing yet."""
        seen = self._seen.get(sink)
        after = None if seen is None else names.sink_position(sink, seen)
        listed = self._storage.list(names.sink_positions(sink), after=after)
        for name in reversed(listed):
            if (version := names.version_of(name)) is not None and self._verified(sink, version):
                self._seen[sink] = max(version, self._seen.get(sink, NOTHING))
                break
        return self._seen.get(sink)

    def mark(self, sink: str, version: Version) -> None:
        """The sink has everything up to and with `version`, durably."""
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
        held = (position.log, position.sink, position.version)
        if held != (self._log, sink, version):
            raise documents.damaged(name, self._storage.place, f"it holds (log, sink, version) {held}")
        return True
