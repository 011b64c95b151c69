"""The client of an instance, for Spark's tasks, the driver and other instances.

Every call has a deadline. An instance that can't be reached, or doesn't answer in time, is `InstanceUnavailable`, of
category RETRY: another replica may answer. One that doesn't accept the credentials of this process, or whose own aren't
accepted here, is `NotAuthenticated`, of category INVALID. Many threads may share a client. It has to be made in the
process that uses it: gRPC's connections don't survive a fork.
"""

import contextlib
import copy
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight

from holdfast.clock import SYSTEM_CLOCK
from holdfast.instance import messages
from holdfast.instance.callers import header_of
from holdfast.instance.calls_under_way import CALLS
from holdfast.instance.config import Role
from holdfast.instance.credentials import NO_CREDENTIALS, Credentials, NotAuthenticated
from holdfast.instance.events import EventPage
from holdfast.instance.handshake import Handshake
from holdfast.instance.held_versions import HoldTerms
from holdfast.instance.messages import InstanceStatus, InstanceUnavailable, InstanceUnreachable, decode_error
from holdfast.instance.side_thread import SideThread
from holdfast.stores.access import ColumnBlock, Now
from holdfast.stores.formats.byte_columns import LARGEST, TooManyBytes, as_type, whole
from holdfast.stores.layouts.due import Due
from holdfast.stores.ranges import Ranges
from holdfast.words import TaskId, Version

T = TypeVar("T")

_FIRST_KEYS = 1_000
"""How many keys are asked for first. Their values show how many more fit into one message."""
_KEYS_PER_CALL = 1_000_000
_BYTES_PER_CALL = 64 << 20
_RANGES_PER_CALL = 1_000_000
_STREAM_SECONDS = 600.0
"""How long the entries of a scan may take to arrive, all of them: the caller decides how fast they are read."""
_BLOCK_SECONDS = 5.0
"""How long the next of them may take: the largest block takes less than 0.1 s."""
_SHORTEST_SECONDS = 0.001
"""A negative timeout would be none."""
_CONNECTING: Final = [("grpc.max_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 2_000)]
"""gRPC waits longer and longer, up to two minutes, before it connects again, and fails all calls meanwhile: an instance
that is back would not be reached. The second number is how long one attempt may take."""
_KEYS = pa.schema([pa.field("key", pa.binary())])
_RANGES = pa.schema([pa.field("start", pa.binary()), pa.field("stop", pa.binary())])


@dataclass(frozen=True)
class Scanned:
    """A range of one task's part of a store, and the version it is from."""

    version: Version
    keys: pa.BinaryArray
    values: pa.BinaryArray
    now: Now
    """The clocks of the version."""
    role: Role
    instance: str
    """The role of the replica, and the name of its instance."""
    commit: str
    """The id of the version's commit."""


class StateClient:
    """A connection to one instance.

    `deadline` bounds each call. Where the instance may have to catch up first, it gives up a little earlier than the
    caller does, so that its answer says why. With `log`, only an instance of that log answers: addresses are reused,
    and another app's store may have the same name.
    """

    def __init__(
        self,
        address: str,
        deadline: timedelta | float = 60.0,
        log: str | None = None,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self.address = address
        self._log = log
        self._headers = [header_of(token) for token in credentials.tokens[:1]]
        self._handshake = Handshake(self.address, credentials)
        tls: dict[str, object] = {}
        if (own := credentials.certificate) is not None:
            tls = {"tls_root_certs": own.ca, "cert_chain": own.cert, "private_key": own.key}
        self._deadline = deadline.total_seconds() if isinstance(deadline, timedelta) else float(deadline)
        self._until: float | None = None
        self._commit: str | None = None
        with self._asking("connect"):
            self._flight = flight.connect(credentials.address_for(address), generic_options=_CONNECTING, **tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._flight.close()

    def within(self, seconds: float) -> Self:
        """The same connection for one read, whose calls together may take this long."""
        client = copy.copy(self)
        client._until = SYSTEM_CLOCK.monotonic() + seconds
        return client

    def of_commit(self, commit: str) -> Self:
        """The same connection for reads of a version, all of the commit of this id."""
        client = copy.copy(self)
        client._commit = commit
        return client

    def get_many(self, task: TaskId, store: str, version: Version, keys: pa.Array) -> pa.BinaryArray:
        """The values of a binary column of keys at exactly `version`, null where absent. Sorted keys are faster."""
        ask = messages.Exchange(*self._ask(task, store, version), do="get")
        keys = as_type(keys, pa.binary())
        parts: list[pa.Array] = []
        rows, done, size = _FIRST_KEYS, 0, 0
        while done < len(keys) or not parts:
            part = keys.slice(done, rows)
            parts.append(whole(self._exchange(ask, pa.table([part], schema=_KEYS))["value"]))
            done += len(part)
            size += parts[-1].nbytes
            rows = rows_per_call(done, keys.nbytes * done // max(1, len(keys)) + size)
            if size > LARGEST:
                raise TooManyBytes(size)
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def get_one(self, task: TaskId, store: str, key: bytes, version: Version | None = None) -> messages.GotOne:
        """One key's value with the version and its clocks."""
        ask = messages.GetOne(*self._ask(task, store, version), key=key)
        return msgspec.json.decode(self._act("get", ask), type=messages.GotOne)

    def scan(
        self,
        task: TaskId,
        store: str,
        version: Version | None = None,
        start: bytes = b"",
        stop: bytes | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Scanned:
        """The entries with start <= key < stop in key order, or backwards; the first `limit` of them."""
        place = self._ask(task, store, version)
        ask = messages.Scan(*place, start=start, stop=stop, reverse=reverse, limit=limit)
        with self._asking("do_get"):
            reader = self._flight.do_get(flight.Ticket(msgspec.json.encode(ask)), self._options())
            table = reader.read_all()
        metadata = table.schema.metadata
        now = Now(*msgspec.json.decode(metadata[messages.CLOCKS_METADATA]))
        version = Version(int(metadata[messages.VERSION_METADATA]))
        role, instance = msgspec.json.decode(metadata[messages.SERVED_METADATA], type=tuple[Role, str])
        return Scanned(
            version,
            whole(table["key"]),
            whole(table["value"]),
            now,
            role,
            instance,
            metadata[messages.COMMIT_METADATA].decode(),
        )

    def columns(
        self, task: TaskId, store: str, version: Version, start: bytes, stop: bytes | None, reverse: bool = False
    ) -> Generator[ColumnBlock, None, None]:
        """The entries with start <= key < stop in blocks of keys and values, while they arrive.

        The instance holds the version until the last entry is read or the iterator is closed, however long that takes.
        Raises InstanceUnavailable if the next block doesn't arrive.
        """
        ask = messages.Scan(*self._ask(task, store, version), start=start, stop=stop, reverse=reverse, limit=None)
        options = flight.FlightCallOptions(timeout=_STREAM_SECONDS, headers=self._headers)
        ticket = flight.Ticket(msgspec.json.encode(ask))
        thread, reader = SideThread(), None
        try:
            with self._asking("do_get"):
                reader = self._in_time(thread, lambda: self._flight.do_get(ticket, options))
            while True:
                with self._asking("do_get"):
                    try:
                        batch = self._in_time(thread, reader.read_chunk).data
                    except StopIteration:
                        return
                yield ColumnBlock(*batch.columns)
        finally:
            thread.close()
            if reader is not None:
                reader.cancel()

    def _in_time(self, thread: SideThread, call: Callable[[], T]) -> T:
        """One step of a stream. Flight's deadline is for the whole stream, and an instance may freeze in between."""
        try:
            return thread.call(call, _BLOCK_SECONDS)
        except TimeoutError as error:
            raise InstanceUnavailable(
                f"the instance at {self.address} sent nothing of a scan for {_BLOCK_SECONDS:g} s. Ask another replica."
            ) from error

    def scan_many(self, task: TaskId, store: str, version: Version, ranges: Ranges) -> pa.Table:
        """The entries of many ranges at exactly `version`: columns `range`, `key` and `value`.

        `range` (int32) is the position of the range in the request, and ascends; within a range keys do. Sorted ranges
        are faster.
        """
        ask = messages.Exchange(*self._ask(task, store, version), do="scan")
        asked = pa.table([ranges.starts, ranges.stops], schema=_RANGES)
        parts = [
            _moved(self._exchange(ask, asked.slice(first, _RANGES_PER_CALL)), first)
            for first in range(0, max(1, asked.num_rows), _RANGES_PER_CALL)
        ]
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts)

    def approximate_count(self, task: TaskId, store: str, version: Version) -> int:
        """About how many keys a store has at `version`, those of indexes and notes included."""
        return msgspec.json.decode(self._act("count", messages.Count(*self._ask(task, store, version))), type=int)

    def hold(self, task: TaskId, store: str, version: Version, terms: HoldTerms) -> messages.HeldVersion:
        """Keeps a version readable for so long, or until `release`."""
        place = self._ask(task, store, version)
        ask = messages.HoldVersion(*place, seconds=terms.seconds, caller=terms.caller)
        return msgspec.json.decode(self._act("hold", ask), type=messages.HeldVersion)

    def release(self, held: messages.HeldVersion) -> None:
        self._act("release", held)

    def status(self) -> InstanceStatus:
        return msgspec.json.decode(self._act("status"), type=InstanceStatus)

    def committed(self, version: Version, commit: str | None = None) -> None:
        """Says that a version exists, as this commit. Returns at once; the instance catches up by itself."""
        self._act("committed", messages.Committed(version, commit))

    def due(self, version: Version, tasks: Iterable[TaskId]) -> dict[str, Due]:
        """By store, what is due next in these tasks, at exactly `version`."""
        ask = messages.DueAt(version, 0.9 * self._left(), tuple(map(str, tasks)), self._commit)
        return msgspec.json.decode(self._act("due", ask), type=dict[str, Due])

    def events(self, since: int, wait: float = 0.0, life: str | None = None) -> EventPage:
        """The events after a number of a life of the instance, waiting up to `wait` seconds for the first."""
        body = self._act("events", messages.EventsSince(since, wait, life), longer=wait)
        return msgspec.json.decode(body, type=EventPage)

    def app_state(self, state: str, cause: str | None = None, driver_metrics: str | None = None) -> None:
        """Sets what `GET /v1/state` says."""
        self._act("app_state", messages.AppStateMessage(state, cause, driver_metrics))

    def generation(self, number: int) -> None:
        """Says that there is this generation. Returns at once; the instance looks at the log by itself."""
        self._act("generation", messages.NewGeneration(number))

    def stop(self) -> None:
        """Asks the instance to end; returns before it has."""
        self._act("stop")

    def _ask(
        self, task: TaskId, store: str, version: Version | None
    ) -> tuple[str, str, Version | None, float, str | None, str | None]:
        """The fields of `messages.Ask`."""
        return str(task), store, version, 0.9 * self._left(), self._log, self._commit

    def _left(self) -> float:
        """The seconds that the next call may take."""
        left = self._deadline if self._until is None else self._until - SYSTEM_CLOCK.monotonic()
        return max(_SHORTEST_SECONDS, left)

    def _options(self, longer: float = 0.0) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=self._left() + longer, headers=self._headers)

    def _exchange(self, ask: messages.Exchange, asked: pa.Table) -> pa.Table:
        descriptor = flight.FlightDescriptor.for_command(msgspec.json.encode(ask))
        with self._asking("do_exchange"):
            writer, reader = self._flight.do_exchange(descriptor, self._options())
            with writer:
                writer.begin(asked.schema)
                writer.write_table(asked)
                writer.done_writing()
                return reader.read_all()

    def _act(self, name: str, message: msgspec.Struct | None = None, longer: float = 0.0) -> bytes:
        body = b"" if message is None else msgspec.json.encode(message)
        with self._asking(name):
            (result,) = self._flight.do_action(flight.Action(name, body), self._options(longer))
            data: bytes = result.body.to_pybytes()
            return data

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Turns Flight's errors into the instance's own error, or into InstanceUnavailable."""
        try:
            with CALLS.one():
                yield
        except flight.FlightTimedOutError as error:
            raise InstanceUnavailable(
                f"the instance at {self.address} didn't answer {what} in time. Ask another replica."
            ) from error
        except flight.FlightUnauthenticatedError as error:
            raise NotAuthenticated(self._refused()) from error
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            said = decode_error(getattr(error, "extra_info", b"") or b"")
            if said is not None:
                raise said from error
            if (refusal := self._handshake.refusal(self._left())) is not None:
                raise NotAuthenticated(refusal) from error
            kind = InstanceUnreachable if isinstance(error, flight.FlightUnavailableError) else InstanceUnavailable
            raise kind(
                f"the instance at {self.address} can't be reached ({what}: {_first_line(error)}). Ask another "
                "replica, or again in a moment."
            ) from error

    def _refused(self) -> str:
        if not self._headers:
            return (
                f"the instance at {self.address} asks for a token, and this process has none. Set security.token_file "
                "to a copy of the file that the instance has."
            )
        return (
            f"the instance at {self.address} doesn't accept the token of this process. The first token in "
            "security.token_file of this process must be in that of the instance: copy the file, and restart the one "
            "that had the old one."
        )


def rows_per_call(rows: int, size: int) -> int:
    """How many keys to ask for at once, after this many had `size` bytes with their values: messages stay small.

    >>> rows_per_call(1_000, 50_000), rows_per_call(1_000, 100 << 20), rows_per_call(1, 1 << 30)
    (1000000, 640, 1)
    """
    return max(1, min(_KEYS_PER_CALL, _BYTES_PER_CALL * max(1, rows) // max(1, size)))


def _moved(entries: pa.Table, first: int) -> pa.Table:
    """Entries of ranges that start at `first`, numbered among all ranges."""
    if not first:
        return entries
    return entries.set_column(0, "range", pc.add(entries["range"], pa.scalar(first, pa.int32())))


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
