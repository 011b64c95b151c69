"""The state service: Arrow Flight, for Spark's tasks, for the driver and for other instances.

    do_exchange   keys in, values out, or ranges in, entries out, at exactly the requested version; one message for a
                  task's whole batch
    do_get        a range at a version
    do_action     get, count, hold, release, status, committed, due, events, app_state, generation, stop

Nothing is decided here: a call is authenticated, finds its replica, takes a read view, reads and sends. The keys of an
exchange are read completely before the first value is sent, since two sides that both write first would wait for each
other forever.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from holdfast import metrics
from holdfast.errors import USER_ERRORS, Closed, HoldfastError
from holdfast.instance import messages
from holdfast.instance.callers import CALLERS, Callers
from holdfast.instance.credentials import Credentials
from holdfast.instance.range_reads import IN_RANGES
from holdfast.instance.read_views import ReadView
from holdfast.stores.engines.base import DamagedState
from holdfast.stores.formats.byte_columns import as_type, whole
from holdfast.stores.ranges import Ranges
from holdfast.words import TaskId, Version

if TYPE_CHECKING:
    from holdfast.instance.instance import Instance

    _ServerBase = object
else:
    _ServerBase = flight.FlightServerBase

_LOG = logging.getLogger(__name__)
_SEND_ROWS = 65_536
_FIRST_SCAN_ROWS, _SCAN_ROWS = 128, 8_192
"""The rows of the first batch of a scan, and of the largest: most readers want a few entries, and some want all."""
_READS = 3
_SAME_RELEASE = "Use the client of the same release."
VALUES = pa.schema([pa.field("value", pa.binary())])
ENTRIES = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary())])

_keys_read = metrics.counter("holdfast_state_keys_read", "Keys that tasks asked for in bulk.", ["task"])
_ranges_read = metrics.counter("holdfast_state_ranges_read", "Ranges that tasks asked for in bulk.", ["task"])
_read_seconds = metrics.histogram("holdfast_state_read_seconds", "How long a task's bulk read took.")

M = TypeVar("M")


def forget_task(task: TaskId) -> None:
    """Removes the metrics of a task that is no longer here."""
    for counter in (_keys_read, _ranges_read):
        with contextlib.suppress(KeyError):  # it was never read
            counter.remove(str(task))


class StateService(_ServerBase):
    """The Flight server of one instance. It listens as soon as it is constructed."""

    def __init__(self, instance: "Instance", address: str, credentials: Credentials) -> None:
        self._instance = instance
        self._callers = Callers(credentials.tokens)
        tls: dict[str, object] = {}
        if (own := credentials.certificate) is not None:
            tls = {"tls_certificates": [(own.cert, own.key)], "verify_client": True, "root_certificates": own.ca}
        super().__init__(location=address, middleware={CALLERS: self._callers}, **tls)  # type: ignore[call-arg]

    def stop(self, timeout: float) -> None:
        """Ends within the timeout, also if a client doesn't take its answer."""
        ending = threading.Thread(target=self.shutdown, name="flight-shutdown", daemon=True)  # type: ignore[attr-defined]
        ending.start()
        ending.join(timeout)

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: "flight.MetadataRecordBatchReader",
        writer: "flight.MetadataRecordBatchWriter",
    ) -> None:
        self._callers.check(context)
        with _encoding_errors():
            asked = _read_all(reader)
            ask = _decoded(descriptor.command, messages.Exchange)
            (self._get_many if ask.do == "get" else self._scan_many)(ask, asked, writer)

    def _get_many(self, ask: messages.Exchange, asked: pa.Table, writer: "flight.MetadataRecordBatchWriter") -> None:
        keys = _binary(asked, 0)
        with _read_seconds.time():
            values = self._read(ask, lambda view: view.get_many(ask.store, keys))
        _keys_read.labels(ask.task).inc(len(keys))
        writer.begin(VALUES)
        for start in range(0, len(values), _SEND_ROWS):
            writer.write_batch(pa.record_batch([values.slice(start, _SEND_ROWS)], schema=VALUES))
        self._instance.count_reads(ask.task, len(keys), ask.store, keys)

    def _scan_many(self, ask: messages.Exchange, asked: pa.Table, writer: "flight.MetadataRecordBatchWriter") -> None:
        ranges = Ranges(_binary(asked, 0), _binary(asked, 1))
        with self._reading(ask) as view:
            writer.begin(IN_RANGES)
            for batch in view.scan_many(ask.store, ranges):
                writer.write_batch(batch)
        _ranges_read.labels(ask.task).inc(len(ranges))
        self._instance.count_reads(ask.task, len(ranges))

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        self._callers.check(context)
        with _encoding_errors():
            ask = _decoded(ticket.ticket, messages.Scan)
            view = self._view(ask)
            clocks = msgspec.json.encode((view.now.wall, view.now.event))
            metadata = {
                messages.VERSION_METADATA: str(view.version).encode(),
                messages.CLOCKS_METADATA: clocks,
                messages.COMMIT_METADATA: view.commit.encode(),
                messages.SERVED_METADATA: msgspec.json.encode(self._instance.served(TaskId.parse(ask.task))),
            }
            schema = ENTRIES.with_metadata(metadata)
            many = not ask.reverse and (ask.limit is None or ask.limit > _SCAN_ROWS)
            batches = self._columns(view, ask, schema) if many else self._scanned(view, ask, schema)
            return flight.GeneratorStream(schema, batches)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        self._callers.check(context)
        with _encoding_errors():
            answer = self._act(action.type, b"" if action.body is None else action.body.to_pybytes())
            return iter([flight.Result(pa.py_buffer(b"" if answer is None else msgspec.json.encode(answer)))])

    def _act(self, name: str, body: bytes) -> object:
        """The answer to an action; None if there is nothing to answer."""
        instance = self._instance
        match name:
            case "get":
                return self._get(_decoded(body, messages.GetOne))
            case "count":
                ask = _decoded(body, messages.Count)
                return self._read(ask, lambda view: view.approximate_count(ask.store))
            case "hold":
                hold = _decoded(body, messages.HoldVersion)
                with self._view(hold) as view:
                    replica = instance.replica(TaskId.parse(hold.task))
                    return messages.HeldVersion(hold.task, *replica.published.hold(view, hold.terms))
            case "release":
                held = _decoded(body, messages.HeldVersion)
                instance.replica(TaskId.parse(held.task)).published.held.release(held.hold)
            case "status":
                return instance.status()
            case "committed":
                made = _decoded(body, messages.Committed)
                instance.committed(Version(made.version), made.commit)
            case "due":
                due = _decoded(body, messages.DueAt)
                return instance.due(Version(due.version), map(TaskId.parse, due.tasks), due.wait, due.commit)
            case "events":
                asked = _decoded(body, messages.EventsSince)
                return instance.events.since(asked.since, asked.wait, life=asked.life)
            case "app_state":
                instance.app_state = _decoded(body, messages.AppStateMessage)
            case "generation":
                instance.look_at_group(_decoded(body, messages.NewGeneration).number)
            case "stop":
                instance.request_stop()
            case _:
                raise messages.InstanceRefused(f"there is no action {name!r}. {_SAME_RELEASE}")
        return None

    def _read(self, ask: messages.Ask, read: Callable[[ReadView], M]) -> M:
        """Reads, and tries again if the replica was opened again meanwhile, as a damaged one is."""
        for _ in range(_READS - 1):
            with contextlib.suppress(Closed, messages.InstanceUnavailable), self._reading(ask) as view:
                return read(view)
        with self._reading(ask) as view:
            return read(view)

    @contextlib.contextmanager
    def _reading(self, ask: messages.Ask, view: ReadView | None = None) -> Iterator[ReadView]:
        """A view for the request. A replica whose state turns out to be damaged is rebuilt: the log has it all."""
        try:
            with view or self._view(ask) as found:
                yield found
        except DamagedState as error:
            _LOG.warning("a read of task %s found damaged state: %s", ask.task, error)
            self._instance.damaged(TaskId.parse(ask.task), error)
            raise messages.InstanceUnavailable(f"{error} It is being rebuilt; ask again in a moment.") from error

    def _view(self, ask: messages.Ask) -> ReadView:
        serves = self._instance.log.id
        if ask.log is not None and ask.log != serves:
            raise messages.InstanceUnavailable(
                f"this instance serves the log {serves}, and {ask.log} was asked for. Another app has taken the "
                "address; ask again when the app's own instance is back."
            )
        task = TaskId.parse(ask.task)
        replica = self._instance.replica(task)
        hosted = self._instance.hosted_task(task)
        if ask.version is None and not (hosted is not None and hosted.readable):
            name, newest = self._instance.config.name, self._instance.source.newest_known
            raise messages.ReplicaRestoring(ask.task, name, replica.version, newest)
        if ask.store not in replica.stores:
            raise messages.InstanceRefused(
                f"task {task} has no store {ask.store!r}. It has {', '.join(sorted(replica.stores))}."
            )
        return replica.read_view(None if ask.version is None else Version(ask.version), ask.wait, ask.commit)

    def _scanned(self, view: ReadView, ask: messages.Scan, schema: pa.Schema) -> Generator[pa.RecordBatch, None, None]:
        with _encoding_errors(), self._reading(ask, view):
            entries = view.scan(ask.store, ask.start, ask.stop, reverse=ask.reverse)
            with contextlib.closing(entries):
                limited, rows = islice(entries, ask.limit), _FIRST_SCAN_ROWS
                while block := list(islice(limited, rows)):
                    rows = min(_SCAN_ROWS, 4 * rows)
                    keys, values = zip(*block, strict=True)
                    yield pa.record_batch([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=schema)

    def _columns(self, view: ReadView, ask: messages.Scan, schema: pa.Schema) -> Generator[pa.RecordBatch, None, None]:
        with (
            _encoding_errors(),
            self._reading(ask, view),
            contextlib.closing(view.columns(ask.store, ask.start, ask.stop)) as blocks,
        ):
            left = ask.limit
            for block in blocks:
                found = pa.record_batch(list(block), schema=schema).slice(0, left)
                yield found
                if left is not None and (left := left - found.num_rows) == 0:
                    return

    def _get(self, ask: messages.GetOne) -> messages.GotOne:
        def got(view: ReadView) -> messages.GotOne:
            value = view.get(ask.store, ask.key)
            served = self._instance.served(TaskId.parse(ask.task))
            return messages.GotOne(view.version, value, view.now.wall, view.now.event, *served, view.commit)

        if (hosted := self._instance.hosted_task(TaskId.parse(ask.task))) is not None:
            hosted.count_lookup(ask.store, ask.key)
        return self._read(ask, got)


@contextlib.contextmanager
def _encoding_errors() -> Iterator[None]:
    """Sends errors to the client as what they are."""
    try:
        yield
    except HoldfastError as error:
        raise flight.FlightServerError(str(error), messages.encode_error(error)) from error
    except (pa.ArrowException, OSError) as error:
        # The client went away, or the connection failed. Sent as it is, it would have the stack trace.
        _LOG.info("a call ended early: %s", error)
        unavailable = messages.InstanceUnavailable(f"the call ended early ({type(error).__name__}). Ask again.")
        raise flight.FlightServerError(str(unavailable), messages.encode_error(unavailable)) from error
    except USER_ERRORS as error:  # a user's engine may raise anything
        _LOG.exception("a call failed")
        raise flight.FlightServerError(str(error), messages.encode_error(error)) from error


def _decoded(data: bytes, kind: type[M]) -> M:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise messages.InstanceRefused(f"a {kind.__name__} request can't be read: {error}. {_SAME_RELEASE}") from error


def _read_all(reader: "flight.MetadataRecordBatchReader") -> pa.Table:
    try:
        return reader.read_all()
    except (pa.ArrowException, EOFError) as error:
        raise messages.InstanceRefused(f"a request can't be read: {error}. {_SAME_RELEASE}") from error


def _binary(table: pa.Table, place: int) -> pa.Array:
    if place >= table.num_columns or table.schema.types[place] != pa.binary():
        raise messages.InstanceRefused(f"a request has no binary column {place}. {_SAME_RELEASE}")
    return as_type(whole(table.column(place)), pa.binary())
