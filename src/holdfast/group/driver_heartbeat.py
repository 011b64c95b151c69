"""The driver's heartbeat, by which members know whether a driver coordinates them.

It is a document like a member's, in one object. As with members, only that it changes counts, by the clock of the
process that looks. A driver that ends says so, so that nobody waits for it.
"""

from collections.abc import Callable

import msgspec

from holdfast.errors import DamagedObject
from holdfast.group.failure_detector import FailureDetector, Liveness
from holdfast.group.members import FORMAT, LARGEST, Member, MemberState
from holdfast.log import documents, names
from holdfast.log.objects import ObjectMissing, Storage

DRIVER = "driver"


class DriverHeartbeat:
    """The side of the driver."""

    def __init__(
        self,
        storage: Storage,
        log: str,
        *,
        process: str,
        host: str,
        pid: int,
        is_outdated: Callable[[], bool] = lambda: False,
    ) -> None:
        """One that `is_outdated` writes nothing more: the heartbeat is that of its successor."""
        self._storage = storage
        self._is_outdated = is_outdated
        self._said = Member(log=log, id=DRIVER, incarnation=1, process=process, beat=0, address="", host=host, pid=pid)

    def beat(self) -> None:
        if not self._is_outdated():
            self._write(MemberState.JOINED)

    def end(self) -> None:
        """Says that this driver has ended, if the heartbeat is its own: another one may have started since."""
        if self._is_outdated():
            return
        try:
            found = read(self._storage, self._said.log)
        except (DamagedObject, documents.UnknownFormat):
            return  # it isn't known whose it is; members wait until the session ends
        if found is not None and found.process == self._said.process:
            self._write(MemberState.LEFT)

    def _write(self, state: MemberState) -> None:
        self._said = msgspec.structs.replace(self._said, beat=self._said.beat + 1, state=state)
        self._storage.replace(names.DRIVER_HEARTBEAT, documents.encode(self._said))


class DriverWatch:
    """The side of a member: whether a driver lives.

    As with members, the last heartbeat that could be believed counts while there is none: a driver isn't gone because
    someone overwrote or deleted its heartbeat, but because it was silent for a session.
    """

    def __init__(self, storage: Storage, log: str, interval: float, timeout: float) -> None:
        self._storage = storage
        self._log = log
        self._detector = FailureDetector(interval, timeout)
        self._believed: Member | None = None

    def is_gone(self, now: float, pace: float = 0.0) -> bool:
        """Whether there surely is no driver. One that was never seen to live is waited for as long as any other."""
        try:
            self._believed = read(self._storage, self._log) or self._believed
        except (DamagedObject, documents.UnknownFormat):
            self._believed = self._believed or _unreadable(self._log)
        self._detector.look(now, {} if self._believed is None else {DRIVER: self._believed}, pace)
        ended = self._believed is not None and self._believed.state is MemberState.LEFT
        return ended or self._detector.liveness(DRIVER) is Liveness.GONE


def _unreadable(log: str) -> Member:
    """A driver of which only a heartbeat that can't be believed was seen so far."""
    return Member(log=log, id=DRIVER, incarnation=0, process="", beat=0, address="")


def read(storage: Storage, log: str) -> Member | None:
    """The last heartbeat of a driver; None if there is none. Raises DamagedObject for one that can't be believed."""
    name = names.DRIVER_HEARTBEAT
    try:
        found = documents.fetch(storage, name, Member, known=FORMAT, largest=LARGEST)
    except ObjectMissing:
        return None
    if (found.log, found.id) != (log, DRIVER):
        raise documents.damaged(name, storage.place, f"it holds (log, id) {(found.log, found.id)}")
    return found
