"""Sink positions: the newest version that each sink has written.

Positions travel in the next commit, so they cost no put of their own. At a clean stop there is no next commit, and all
of them are written once, as `sinks/<newest version>.json`, with the id of that version's commit: in a log that was set
back, another version may get this number. After a crash the sinks get the newest version again. Cleaning never deletes
what the slowest sink still needs.
"""

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.errors import DamagedObject
from holdfast.log import documents, names
from holdfast.log.commits import Commit
from holdfast.log.objects import ObjectMissing, Storage
from holdfast.words import Version

logger = logging.getLogger(__name__)

FORMAT = 1
FOLDER: Final = "folder:"
"""Before the id of a file sink's folder, which has a position too: a sink may be given another folder, and it back."""


class Positions(msgspec.Struct, frozen=True, kw_only=True):
    """The positions of all sinks when the app stopped at a version."""

    format: int = FORMAT
    log: str
    version: int
    commit: str
    sinks: dict[str, int]


class SinkPositions:
    """The positions in one log."""

    def __init__(self, storage: Storage, log: str) -> None:
        self._storage = storage
        self._log = log

    def at(self, newest: Commit | None) -> dict[str, Version]:
        """The positions known to a log that ends with this commit."""
        if newest is None:
            return {}
        try:
            found = self._at_stop(newest)
        except DamagedObject as error:
            logger.warning("%s The sinks get version %d again instead.", error, newest.version)
            found = None
        return {sink: Version(at) for sink, at in (newest.sinks if found is None else found.sinks).items()}

    def mark(self, newest: Commit, positions: dict[str, Version]) -> None:
        """Writes the positions at a clean stop, when every sink of the app has written the newest version."""
        document = Positions(log=self._log, version=newest.version, commit=newest.id, sinks={**positions})
        self._storage.create(names.sink_positions(Version(newest.version)), documents.encode(document))

    def _at_stop(self, newest: Commit) -> Positions | None:
        version = Version(newest.version)
        name = names.sink_positions(version)
        try:
            data = self._storage.get(name)
        except ObjectMissing:
            return None
        positions = documents.decode(data, Positions, name=name, place=self._storage.place, known=FORMAT)
        if (positions.log, positions.version) != (self._log, version):
            found = f"it is of log {positions.log}, version {positions.version}"
            raise documents.damaged(name, self._storage.place, found)
        return positions if positions.commit == newest.id else None


def folders_in(positions: Mapping[str, Version]) -> dict[str, Version]:
    """The positions of folders, by the id of the folder.

    >>> folders_in({"points.files": Version(7), "folder:1f": Version(7)})
    {'1f': 7}
    """
    return {name.removeprefix(FOLDER): at for name, at in positions.items() if name.startswith(FOLDER)}
