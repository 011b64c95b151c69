"""The app files of a log: reading one by its number, and writing a new one.

Files are numbered in the order they were written. A file takes effect with the first commit that names it; until then
it is only a start's intention. A start that finds its own intention in a file uses that file, so starts that fail
leave one file per intention, however often they are repeated.
"""

import logging

import msgspec

from holdfast.errors import DamagedObject, ErrorCategory, HoldfastError
from holdfast.log import appfile, names
from holdfast.log.appfile import AppSpec
from holdfast.log.documents import UnknownFormat
from holdfast.log.objects import Put, Storage

logger = logging.getLogger(__name__)


class ContradictoryAppFile(HoldfastError):
    """An app file that nothing could read. It is found before it is written."""

    category = ErrorCategory.BUG


class AppFiles:
    """The app files of one log."""

    def __init__(self, storage: Storage, log: str) -> None:
        self._storage = storage
        self._log = log

    def read(self, number: int) -> AppSpec:
        """The app file with this number."""
        data = self._storage.get(names.app(number))
        return appfile.decode(data, number, self._log, place=self._storage.place)

    def newest(self) -> int:
        """The largest number of an app file."""
        return max(self._numbers(), default=1)

    def recorded(self, wanted: AppSpec) -> AppSpec:
        """The file with this content: one that follows the same file and has no other content, or a new one."""
        while True:
            numbers = self._numbers()
            for number in (each for each in numbers if each > wanted.follows):
                found = self._intention(number)
                if found is not None and appfile.content(found) == appfile.content(wanted):
                    return found
            chosen = msgspec.structs.replace(wanted, number=max(numbers, default=0) + 1)
            if (fault := appfile.contradiction(chosen)) is not None:
                raise ContradictoryAppFile(
                    f"The app file of this start would contradict itself: {fault}. Nothing was written, and the app "
                    "can be started as it was before. Please report this with the output of app.plan()."
                )
            # EXISTS: another start has written this number, or this put was stored and its answer lost.
            if self._storage.create(names.app(chosen.number), appfile.encode(chosen)) is Put.CREATED:
                return chosen

    def _intention(self, number: int) -> AppSpec | None:
        """A file that no commit may ever name; None if it can't be read, since it isn't needed."""
        try:
            return self.read(number)
        except (DamagedObject, UnknownFormat) as error:
            logger.warning("%s No version needs it; this start writes another one.", error)
            return None

    def _numbers(self) -> list[int]:
        listed = self._storage.list_flat(names.APPS)
        return [number for name in listed if (number := names.number_of(name)) is not None]
