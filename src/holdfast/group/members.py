"""Members: what each instance writes about itself, as one small object that it replaces with every heartbeat.

Anyone who can write to the log can write such an object, so it is read with suspicion: one that is damaged, too large,
of another log or under another name than its own is ignored and named in a warning, once: the last one that could be
believed counts, so nobody is given up at once because someone else overwrote its heartbeat. No timestamp in it is
compared with another machine's clock: only that it changes counts.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from ipaddress import IPv6Address
from typing import Annotated

import msgspec

from holdfast.errors import DamagedObject, ErrorCategory, HoldfastError
from holdfast.group.side_by_side import Map, side_by_side
from holdfast.log import documents, names
from holdfast.log.objects import ObjectMissing, Storage
from holdfast.words import BadTaskName, TaskId

logger = logging.getLogger(__name__)

FORMAT = 1
LARGEST = 4 << 20
"""The bytes of a heartbeat that are read at most. One with 10,000 tasks has about 1 MiB."""
LARGEST_COUNT = 2**53
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
"""A number that every reader can count on: JSON has larger ones, and what is made from them could not be written."""
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_ADDRESS = re.compile(r"grpc(?:\+tls|\+tcp)?://([!-.0-~]+):([0-9]{1,5})")
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,63}")
_LONGEST_NAME = 253
_IPV6 = re.compile(r"\[([0-9A-Fa-f:.]+)(%[A-Za-z0-9._-]+)?\]")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class BadInstanceId(HoldfastError):
    category = ErrorCategory.INVALID

    def __init__(self, given: str) -> None:
        super().__init__(
            f"{given!r} can't be the id of an instance. Use up to 128 letters, digits, dots, dashes and underscores, "
            "beginning with a letter or a digit."
        )


class MemberState(StrEnum):
    """What an instance says about itself."""

    JOINED = "joined"
    LEAVING = "leaving"
    """It hands its active tasks over and gets nothing new. Its replicas are kept for it."""
    LEFT = "left"
    """It has ended. It may be started again within its session: until then its replicas are kept for it."""


class Hosted(msgspec.Struct, frozen=True, kw_only=True):
    """A replica on a member, as its last heartbeat has it."""

    version: Count
    running: bool
    """Whether it is caught up and can be read."""
    bytes: Count = 0
    loading: Count = 0
    """The bytes of the snapshot that is being loaded for it; 0 if none is. `bytes` has those that are here."""
    load: Rate | None = None
    """Keys and ranges that were read from it per second, over minutes; None until it was measured for long enough."""
    heavy: tuple[str, ...] = ()
    """A few keys with a notable share of the reads, as text for people, if the instance knows them."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One instance, as its heartbeat describes it."""

    format: int = msgspec.field(default_factory=lambda: FORMAT)
    log: str
    id: str
    incarnation: Count
    """Grows with each start under this id. A process that finds a higher one under its own id stops."""
    process: str
    """A random id of the process, which tells apart two that chose the same incarnation."""
    beat: Count
    """Counts the heartbeats of the incarnation."""
    pace: Rate = 0.0
    """The seconds until the next one, at most; 0 if it isn't known. Only people are told what follows from it."""
    address: str
    """Where tasks, the driver and other instances reach it, such as `grpc://10.0.0.7:7070`."""
    rest: str | None = None
    host: str = ""
    pid: Count = 0
    tags: dict[str, str] = {}
    state: MemberState = MemberState.JOINED
    generation: Count = 0
    """The newest generation whose tasks it hosts."""
    tasks: dict[str, Hosted] = {}

    def __str__(self) -> str:
        return f"instance {self.id!r} (process {self.pid} on {self.host})"


def check_id(id: str) -> str:
    """The id, if objects can be named by it.

    >>> check_id("game-0")
    'game-0'
    """
    if not _ID.fullmatch(id):
        raise BadInstanceId(id)
    return id


def is_host(text: str) -> bool:
    """Whether this can be a host in an address. Code that connects raises errors of many kinds for any other text.

    >>> is_host("pod-1.game.svc"), is_host("10.0.0.7"), is_host("[::1]"), is_host("a..b"), is_host("x" * 64)
    (True, True, True, False, False)
    """
    if (ipv6 := _IPV6.fullmatch(text)) is not None:
        try:
            IPv6Address(ipv6[1])
        except ValueError:
            return False
        return True
    return len(text) <= _LONGEST_NAME and all(map(_LABEL.fullmatch, text.removesuffix(".").split(".")))


def can_be_called(address: str) -> bool:
    """Whether this is an address of an instance. Whether anyone listens there is another matter.

    >>> can_be_called("grpc://10.0.0.7:7070"), can_be_called("grpc+tls://[::1]:1"), can_be_called("nonsense")
    (True, True, False)
    """
    found = _ADDRESS.fullmatch(address)
    return found is not None and is_host(found[1]) and 0 < int(found[2]) < 1 << 16


def check_tasks(tasks: Iterable[str], name: str, place: str) -> None:
    """Raises DamagedObject for an object that names something else than tasks, or a task in another way."""
    for task in tasks:
        try:
            known = str(TaskId.parse(task))
        except (BadTaskName, ValueError):
            known = ""
        if known != task:
            raise documents.damaged(name, place, f"it names {task[:40]!r}, which isn't a task")


def write(storage: Storage, member: Member) -> None:
    storage.replace(names.member(member.id), documents.encode(member))


def read(storage: Storage, log: str, id: str) -> Member | None:
    """A member's last heartbeat; None if it never wrote one. Raises DamagedObject for one that can't be believed."""
    name = names.member(id)
    try:
        member = documents.fetch(storage, name, Member, known=FORMAT, largest=LARGEST)
    except ObjectMissing:
        return None
    if (member.log, member.id) != (log, id):
        raise documents.damaged(name, storage.place, f"it holds (log, id) {(member.log, member.id)}")
    if not can_be_called(member.address):
        raise documents.damaged(name, storage.place, f"it says that the instance is at {member.address[:80]!r}")
    check_tasks(member.tasks, name, storage.place)
    return member


class Members:
    """The heartbeats of all members, read again and again. What can't be believed is ignored and warned about once.

    They are read side by side: one after the other, those of 100 members take longer than a session on object storage.
    """

    def __init__(self, storage: Storage, log: str, each: Map = side_by_side) -> None:
        self._storage = storage
        self._log = log
        self._each = each
        self._ignored: set[str] = set()
        self._believed: Mapping[str, Member] = {}
        self.draining: frozenset[str] = frozenset()
        """The members that an operator wants to be drained, at the last look."""

    def read(self) -> Mapping[str, Member]:
        """By id. Raises if the storage doesn't answer."""
        listed = list(self._storage.list_flat(names.MEMBERS))
        heartbeats = [name for name in listed if names.drained(name) is None]
        found: dict[str, Member] = {}
        for name, read in zip(heartbeats, self._each(self._read, heartbeats), strict=True):
            if isinstance(read, Member):
                found[read.id] = read
                self._ignored.discard(name)
            elif read is not None:
                self._warn(name, read)
                id = names.member_of(name)
                if id is not None and id in self._believed:
                    found[id] = self._believed[id]
        self._believed = found
        self.draining = frozenset(id for name in listed if (id := names.drained(name)) is not None)
        return found

    def _read(self, name: str) -> Member | HoldfastError | None:
        """A heartbeat, or why it can't be believed; None if it has just been deleted."""
        id = names.member_of(name)
        if id is None or not _ID.fullmatch(id):
            return documents.damaged(name, self._storage.place, "its name is not that of a member")
        try:
            return read(self._storage, self._log, id)
        except (DamagedObject, documents.UnknownFormat) as error:
            return error

    def _warn(self, name: str, error: HoldfastError) -> None:
        if name not in self._ignored:  # what is wrong with it may differ at each look
            self._ignored.add(name)
            logger.warning("a member is ignored: %s", error)
