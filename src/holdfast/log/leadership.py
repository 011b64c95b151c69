"""Leadership: which driver of an app commits, delivers to sinks and cleans.

A start creates `leader/<epoch>.json` with the next free epoch and reads the newest commit only after that. From then on
the driver of the epoch before is outdated. It finds out by asking for the next epoch's object, which it does before
each commit, before each delivery to sinks, before each cleaning, and once per second while nothing happens. It reads
its own record, too: a log that was set back to a backup from before this driver's start gives its epoch again.

This is not a lock. A put or a delivery that was under way at the takeover may still arrive, and a driver that slept may
wake up at any step. So the commit, created if absent, still decides which version exists: the new driver accepts a
version that an older epoch committed after the takeover (`accepts`), and a commit under a number that was cleaned is
not believed (see `Log.newest`).

Records are small and only the newest ones are kept. A driver that slept through more starts than that finds neither
the next epoch nor its own record.
"""

import logging
import os
import socket
from collections.abc import Iterable

import msgspec

from holdfast.errors import DamagedObject, ErrorCategory, HoldfastError, StorageUnavailable
from holdfast.log import documents, identity, names
from holdfast.log.commits import Writer
from holdfast.log.objects import ObjectMissing, Storage
from holdfast.words import Millis

logger = logging.getLogger(__name__)

FORMAT = 1
KEPT = 1000
"""How many records of leaders cleaning keeps."""


class OutdatedDriver(HoldfastError):
    """Another driver of the app was started later and has taken over."""

    category = ErrorCategory.INVALID


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """The driver of an epoch, and when it was started (wall clock, milliseconds)."""

    format: int = msgspec.field(default_factory=lambda: FORMAT)
    log: str
    driver: Writer
    started: int


def next_epoch(listed: Iterable[str]) -> int:
    """The epoch after all that there are.

    >>> next_epoch([]), next_epoch([names.leader(9), names.leader(10)])
    (1, 11)
    """
    return max((number for name in listed if (number := names.number_of(name)) is not None), default=0) + 1


def accepts(own: Writer, found: Writer) -> bool:
    """Whether a driver goes on after another commit took the version it was about to commit.

    Its own put, late, is its own version. One of an older epoch was under way at the takeover: it is the log's newest
    version, and nothing else of that driver follows.

    >>> new, old = Writer("b", "host", 2, epoch=5), Writer("a", "host", 1, epoch=4)
    >>> accepts(new, old), accepts(new, new), accepts(old, new)
    (True, True, False)
    """
    return found.epoch < own.epoch or found == own


def outdated(own: Writer, winner: str, place: str) -> OutdatedDriver:
    return OutdatedDriver(
        f"This driver, {own}, is outdated: {winner} was started later on {place} and has taken over. This one has "
        "stopped and nothing is lost. If both should run, give them different app ids; otherwise start this app again "
        "to take over."
    )


_leading: set[str] = set()
"""The ids of the drivers of this process that have not ended."""


def may_be_led(storage: Storage, log: str, after: Writer | None = None) -> bool:
    """Whether a driver of this log may be running. Surely not if the last one was on this host and has ended.

    `after` wrote the newest commit: it counts too, in case someone has deleted the records. Containers that share a
    host's name and not its processes are mistaken for an ended driver.
    """
    epoch = next_epoch(storage.list_flat(names.LEADERS)) - 1
    if after is not None and after.epoch > epoch:
        driver = after
    elif epoch == 0:
        return False
    else:
        try:
            driver = _read(storage, log, epoch).driver
        except HoldfastError as error:
            logger.warning("it isn't known whether another driver runs: %s", error)
            return True
    if driver.host != socket.gethostname():
        return True
    return driver.id in _leading if driver.pid == os.getpid() else _is_running(driver.pid)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # that of another user
    return True


class Leadership:
    """One driver's epoch, and whether it is still the newest."""

    def __init__(self, storage: Storage, leader: Leader) -> None:
        self._storage = storage
        self._leader = leader
        self.is_outdated = False
        """Whether it is known that another driver has taken over. `check` finds out."""

    @property
    def driver(self) -> Writer:
        """This driver, as its commits name it."""
        return self._leader.driver

    @classmethod
    def take_over(
        cls, storage: Storage, log: str, driver: str, now: Millis, after: Writer | None = None
    ) -> "Leadership":
        """Makes this process the app's driver, under a random id. The driver of the epoch before is outdated.

        `after` wrote the newest commit: its epoch counts too, in case someone has deleted the records.
        """
        epoch = max(next_epoch(storage.list_flat(names.LEADERS)), after.epoch + 1 if after else 1)
        while True:
            leader = Leader(log=log, driver=Writer.here(driver, epoch), started=now)
            storage.create(names.leader(epoch), documents.encode(leader))
            # Read back: a put can be stored and be answered with an error, or another start was first.
            if _read(storage, log, epoch).driver == leader.driver:
                _leading.add(driver)
                return cls(storage, leader)
            epoch += 1

    def end(self) -> None:
        """The driver has ended, so that a later start in this process knows it."""
        _leading.discard(self.driver.id)

    def explain(self, error: BaseException) -> BaseException:
        """The error of a part of this driver, or OutdatedDriver: a newer one cleans what an outdated one reads."""
        if isinstance(error, OutdatedDriver):
            return error
        try:
            self.check()
        except OutdatedDriver as outdated:
            return outdated
        except HoldfastError as unknown:
            logger.warning("it isn't known whether another driver has taken over: %s", unknown)
        return error

    def check(self) -> None:
        """Raises OutdatedDriver if another driver has taken over. Two requests, without a put."""
        if (found := self._look()) is not None:
            self.is_outdated = True
            raise found from None  # the error that led here says nothing more

    def _look(self) -> OutdatedDriver | None:
        own, place = self.driver, self._storage.place
        following = own.epoch + 1
        if self._storage.exists(names.leader(following)):
            newest = next_epoch(self._storage.list_flat(names.LEADERS)) - 1
            return outdated(own, str(self._found(max(newest, following))), place)
        try:
            found = self._found(own.epoch)
        except ObjectMissing:
            if identity.read(self._storage) is None:  # a volume that isn't mounted
                raise StorageUnavailable(f"There is no log at {place}. Mount its volume, or restore it.") from None
            return OutdatedDriver(
                f"This driver, {own}, is outdated: {place} no longer has its record {names.leader(own.epoch)}. Either "
                "the log was set back to a backup from before its start, or many drivers were started since. This one "
                "has stopped. If no other one runs, start this app again."
            )
        return None if found == own else outdated(own, str(found), place)

    def _found(self, epoch: int) -> Writer | str:
        """The driver of an epoch, or what there is to say about one whose record can't be read."""
        try:
            return _read(self._storage, self._leader.log, epoch).driver
        except (DamagedObject, documents.UnknownFormat) as error:
            return f"a driver whose record can't be read ({error})"


def _read(storage: Storage, log: str, epoch: int) -> Leader:
    name = names.leader(epoch)
    leader = documents.decode(storage.get(name), Leader, name=name, place=storage.place, known=FORMAT)
    if (leader.log, leader.driver.epoch) != (log, epoch):
        raise documents.damaged(name, storage.place, f"it holds (log, epoch) {(leader.log, leader.driver.epoch)}")
    return leader
