"""The messages between an instance and its clients, beside the Arrow data itself.

Small ones are JSON by msgspec, with bytes as base64, so that a capture can be read by eye. An error that clients
handle has a message of its own; of every other error, the category and the text travel.
"""

from typing import Annotated, Literal

import msgspec

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance.config import Phase, Role
from holdfast.instance.held_versions import Hold, HoldTerms, TooManyHolds, TooManyHoldsOfCaller
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.words import Version

VERSION_METADATA = b"holdfast.version"
"""In the metadata of the schema of a scan's answer: the version it is from."""
CLOCKS_METADATA = b"holdfast.clocks"
"""The same for the version's wall and event clock, as a JSON array."""
COMMIT_METADATA = b"holdfast.commit"
"""The same for the id of the version's commit."""
SERVED_METADATA = b"holdfast.served"
"""The same for the role of the replica and the name of its instance."""


Seconds = Annotated[float, msgspec.Meta(le=86_400)]
"""How long a call may wait. Beyond about 300 years Python's own waits raise."""
Number = Annotated[int, msgspec.Meta(ge=-1, le=1 << 62)]
"""A position, which may still be added to before it passes the 64 bits of a C library."""


class Ask(msgspec.Struct, frozen=True):
    """Which store is read, at a version or the newest, waiting for the version up to `wait` seconds.

    With `log`, only an instance of that log answers; with `commit`, only the version of that commit is read.
    """

    task: str
    store: str
    version: int | None
    wait: Seconds = 0.0
    log: str | None = None
    commit: str | None = None


class Exchange(Ask, frozen=True, kw_only=True):
    """do_exchange: "get" the values of the keys that follow, or "scan" the entries of the ranges that follow."""

    do: Literal["get", "scan"]


class Scan(Ask, frozen=True, kw_only=True):
    """do_get: the entries with start <= key < stop, the first `limit` of them."""

    start: bytes
    stop: bytes | None
    reverse: bool
    limit: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] | None


class GetOne(Ask, frozen=True, kw_only=True):
    """do_action get: the value of one key."""

    key: bytes


class GotOne(msgspec.Struct, frozen=True):
    version: int
    value: bytes | None
    wall: int = 0
    event: int | None = None
    """The clocks of the version, which decide which entries have expired."""
    role: Role = Role.ACTIVE
    instance: str = ""
    """The role of the replica, and the name of its instance."""
    commit: str = ""
    """The id of the version's commit."""


class Count(Ask, frozen=True):
    """do_action count: about how many keys a store has."""


class HoldVersion(Ask, frozen=True, kw_only=True):
    """do_action hold: keep the version readable for so many seconds, or until it is released."""

    seconds: float
    caller: str | None = None

    @property
    def terms(self) -> HoldTerms:
        return HoldTerms(self.seconds, self.caller)


class HeldVersion(msgspec.Struct, frozen=True):
    """The answer, and do_action release of the hold."""

    task: str
    version: int
    number: int

    @property
    def hold(self) -> Hold:
        return Hold(Version(self.version), self.number)


class Committed(msgspec.Struct, frozen=True):
    """do_action committed: this version exists, as this commit."""

    version: int
    commit: str | None = None


class DueAt(msgspec.Struct, frozen=True):
    """do_action due: what is due next in each store of these tasks, at this version, waiting up to `wait` seconds."""

    version: int
    wait: Seconds
    tasks: tuple[str, ...]
    commit: str | None = None


class EventsSince(msgspec.Struct, frozen=True):
    """do_action events: the events after `since` of a life, waiting up to `wait` seconds for the first."""

    since: Number
    wait: Seconds
    life: str | None = None


class AppStateMessage(msgspec.Struct, frozen=True):
    """do_action app_state: for `GET /v1/state` the app's state, the cause of an error, and the driver's metrics."""

    state: str
    cause: str | None = None
    driver_metrics: str | None = None


class NewGeneration(msgspec.Struct, frozen=True):
    """do_action generation: there is this one, so look at the log at once."""

    number: int


class TaskStatus(msgspec.Struct, frozen=True):
    task: str
    role: Role
    phase: Phase
    version: int
    """How far the replica is."""
    readable_from: int | None
    readable_to: int | None
    """The versions that can be read; None while there are none."""
    error: str | None
    failures: int = 0
    """How many updates in a row have failed."""
    error_category: ErrorCategory | None = None
    readable: bool = False
    """Whether lookups may read it. One that has been caught up since it was opened is read, also while it is behind."""
    commit: str = ""
    """The id of the commit of `readable_to`."""


class InstanceStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    process: str
    """The random id of the process in its heartbeats: processes of two containers may have the same pid."""
    app: str
    log: str
    pid: int
    host: str
    ready: bool
    """Every task is caught up and every store was read once."""
    newest: int
    """The newest version this instance knows of."""
    app_state: str | None
    tasks: tuple[TaskStatus, ...]
    generation: int = 0
    """The newest generation whose tasks it hosts."""


class InstanceUnavailable(HoldfastError):
    """An instance can't be reached or didn't answer in time. Another one, or this one in a moment, may."""

    category = ErrorCategory.RETRY


class InstanceUnreachable(InstanceUnavailable):
    """The connection to an instance was refused or reset: it has probably ended."""


class InstanceRefused(HoldfastError):
    """An instance can't do what the request wants."""

    category = ErrorCategory.INVALID


class InstanceDamaged(HoldfastError):
    """An instance found damaged data."""

    category = ErrorCategory.DATA


class TaskNotHere(HoldfastError):
    """This instance doesn't host the task."""

    category = ErrorCategory.RETRY


class ReplicaRestoring(HoldfastError):
    """A replica was asked for its newest version and is being restored: it is at `version` of `newest`."""

    category = ErrorCategory.RETRY

    def __init__(self, task: str, instance: str, version: int, newest: int) -> None:
        super().__init__(f"task {task} is being restored on instance {instance!r}: version {version} of {newest}.")
        self.task = task
        self.instance = instance
        self.version = version
        self.newest = newest


class EncodedReplicaRestoring(msgspec.Struct, frozen=True, tag="replica_restoring"):
    task: str
    instance: str
    version: int
    newest: int


class EncodedVersionNotAvailable(msgspec.Struct, frozen=True, tag="version_not_available"):
    message: str
    asked: int | None = None
    held: tuple[int, int] | None = None


class EncodedTaskNotHere(msgspec.Struct, frozen=True, tag="task_not_here"):
    message: str


class EncodedError(msgspec.Struct, frozen=True, tag="other"):
    message: str
    category: ErrorCategory


class EncodedTooManyHolds(msgspec.Struct, frozen=True, tag="too_many_holds"):
    message: str
    of_caller: bool = False


_Encoded = (
    EncodedVersionNotAvailable | EncodedReplicaRestoring | EncodedTaskNotHere | EncodedTooManyHolds | EncodedError
)


def encode_error(error: BaseException) -> bytes:
    """An error as bytes.

    >>> encode_error(TaskNotHere("task 0_9 isn't here."))
    b'{"type":"task_not_here","message":"task 0_9 isn\\'t here."}'
    """
    match error:
        case VersionNotAvailable():
            return msgspec.json.encode(EncodedVersionNotAvailable(str(error), error.asked, error.held))
        case ReplicaRestoring():
            encoded = EncodedReplicaRestoring(error.task, error.instance, error.version, error.newest)
            return msgspec.json.encode(encoded)
        case TaskNotHere():
            return msgspec.json.encode(EncodedTaskNotHere(str(error)))
        case TooManyHolds():
            return msgspec.json.encode(EncodedTooManyHolds(str(error), isinstance(error, TooManyHoldsOfCaller)))
    category = error.category if isinstance(error, HoldfastError) else ErrorCategory.BUG
    return msgspec.json.encode(EncodedError(str(error), category))


def decode_error(data: bytes) -> HoldfastError | None:
    """The error in these bytes; None if they aren't one.

    >>> decode_error(encode_error(TaskNotHere("task 0_9 isn't here.")))
    TaskNotHere("task 0_9 isn't here.")
    """
    try:
        sent: _Encoded = msgspec.json.decode(data, type=_Encoded)
    except msgspec.MsgspecError:
        return None
    match sent:
        case EncodedVersionNotAvailable(message, asked, held):
            return VersionNotAvailable(message, asked, held)
        case EncodedReplicaRestoring(task, instance, version, newest):
            return ReplicaRestoring(task, instance, version, newest)
        case EncodedTaskNotHere(message):
            return TaskNotHere(message)
        case EncodedTooManyHolds(message, of_caller):
            return TooManyHoldsOfCaller(message) if of_caller else TooManyHolds(message)
        case EncodedError(message, ErrorCategory.RETRY | ErrorCategory.CLOSED):
            return InstanceUnavailable(message)
        case EncodedError(message, ErrorCategory.DATA):
            return InstanceDamaged(message)
        case EncodedError(message):
            return InstanceRefused(message)
