"""What an instance and a worker say to each other, over one socket: frames of a kind, a length and a body.

instance → worker    statement, then one schema per table
worker → instance    ready, once, when it has started
                     begun, when it has a statement and all schemas
                     scan, with a socket for the rows, which come as an Arrow IPC stream
                     rows (parts of an Arrow IPC stream, the result), and at the end done or failed
"""

import socket
import struct
import threading
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from holdfast.errors import ErrorCategory, HoldfastError

_HEADER: Final = struct.Struct(">BI")
_LARGEST: Final = 1 << 30

INDEXED: Final = b"holdfast.indexed"
"""In the metadata of a table's schema: the columns on which conditions save reads, separated by zero bytes."""

M = TypeVar("M")


class Kind(IntEnum):
    STATEMENT = 1
    SCHEMA = 2
    SCAN = 3
    ROWS = 4
    DONE = 5
    FAILED = 6
    READY = 7
    BEGUN = 8


_KINDS: Final = frozenset(map(int, Kind))


class Statement(msgspec.Struct, frozen=True):
    """A statement and its limits."""

    sql: str
    rows: int
    """How many rows the result may have; further ones are left out."""
    result_bytes: int
    memory: int
    seconds: float
    """How long it may run. The instance ends it then; its processor time is limited by it too."""
    threads: int
    tables: int
    """How many schemas follow."""


class Condition(msgspec.Struct, frozen=True):
    """A column of a table compared with constants. All kept rows meet it: `in` has several values, the others one.

    A timestamp is its microseconds since 1970.
    """

    column: str
    op: str
    values: tuple[Any, ...]
    """Texts, numbers, booleans or bytes. msgspec has no union of texts and bytes."""


class StoreScan(msgspec.Struct, frozen=True):
    """Which rows and columns of a table are needed."""

    table: str
    columns: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()


class Done(msgspec.Struct, frozen=True):
    """The end of a result. `more`: rows were left out."""

    more: bool


class StatementFailed(msgspec.Struct, frozen=True):
    """Why a statement failed: `kind` is the name of an error in `errors`."""

    kind: str
    message: str
    tables: tuple[str, ...] = ()
    """Those that aren't there."""


class Disconnected(HoldfastError):
    """The other side has ended."""

    category = ErrorCategory.CLOSED


class ResultFrame(NamedTuple):
    """A message, and the socket that came with it."""

    kind: Kind
    body: bytes
    passed: socket.socket | None


class Channel:
    """One end of the connection. Several threads may send; one receives."""

    def __init__(self, socket_: socket.socket) -> None:
        self.socket = socket_
        self._sending = threading.Lock()

    def send(self, kind: Kind, body: bytes = b"", pass_on: socket.socket | None = None) -> None:
        """Sends one frame, and with it a socket that the other side gets."""
        header = _HEADER.pack(kind, len(body))
        with self._sending:
            if pass_on is None:
                self.socket.sendall(header + body)
            else:
                socket.send_fds(self.socket, [header], [pass_on.fileno()])
                self.socket.sendall(body)

    def receive(self) -> ResultFrame:
        data, fds, _, _ = socket.recv_fds(self.socket, _HEADER.size, 1)
        passed = socket.socket(fileno=fds[0]) if fds else None
        try:
            if not data:
                raise Disconnected
            kind, size = _HEADER.unpack(data + self._exactly(_HEADER.size - len(data)))
            if size > _LARGEST or kind not in _KINDS:
                raise Disconnected
            return ResultFrame(Kind(kind), self._exactly(size), passed)
        except BaseException:
            if passed is not None:
                passed.close()
            raise

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(min(1 << 20, size - len(parts)))
            if not part:
                raise Disconnected
            parts += part
        return bytes(parts)


def decoded(body: bytes, type_: type[M]) -> M:
    try:
        return msgspec.msgpack.decode(body, type=type_)
    except msgspec.MsgspecError as error:
        raise Disconnected from error  # the other side is no longer what it was


def encoded(message: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(message)
