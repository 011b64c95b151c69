"""Whole stores over HTTP: an Arrow IPC stream at one version, and holds for readers that ask several times.

    GET  /v1/stores/{store}/arrow?columns=a,b&partition=N
    POST /v1/stores/{store}/hold?seconds=60
    DELETE /v1/stores/{store}/hold/{hold}

The stream has the version, and a store without entries still has its schema. Batches are sent as they are read, so the
memory of the instance stays bounded however large the store is. If a read fails after the first batch was sent, the
connection is cut before the stream's end marker: a client that checks for it never takes a part for the whole.
"""

import asyncio
from collections.abc import Generator, Sequence
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa
from starlette.responses import Response

from holdfast.instance.held_versions import LONGEST_SECONDS, HoldTerms
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.query.answers import SOURCE_HEADERS, FromParts, from_parts, source_headers
from holdfast.query.client_holds import ClientHolds, Handover
from holdfast.query.columns import ColumnReader
from holdfast.query.grants import caller
from holdfast.query.operations import FRESH, REFUSALS, TEXT, Call, Operation, Parameter, Type
from holdfast.query.problems import Problem, json_response
from holdfast.query.streaming import streamed
from holdfast.query.task_reader import ReadInterrupted
from holdfast.words import TaskId

ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
_HOLD_SECONDS: Final = 60
_MOST_PARTITIONS: Final = 1_000_000


def _number(most: int, name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) <= most):
        fact = f"{name}={text[:100]!r} is not a number up to {most}."
        raise Problem(400, "bad_parameter", fact, f"Give a number from 0 to {most}.")
    return int(text)


def _up_to(most: int) -> Type:
    return Type({"type": "integer", "minimum": 0, "maximum": most}, partial(_number, most))


_COLUMNS: Final = Parameter("columns", TEXT, "Which columns, separated by commas; all unless given.")
_PARTITION: Final = Parameter("partition", _up_to(_MOST_PARTITIONS), "One partition; all unless given.")
_SECONDS: Final = Parameter(
    "seconds", _up_to(int(LONGEST_SECONDS)), f"How long the version is held, {_HOLD_SECONDS} unless given."
)


class HoldAnswer(FromParts, frozen=True, kw_only=True):
    """A version that all partitions of a store hold for so many seconds."""

    hold: str
    """By which it is released, at the same instance."""
    partitions: int
    seconds: int


class ReleaseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A hold that was released. The version is kept while others hold it."""

    hold: str
    store: str
    version: int


class ArrowEndpoints:
    """The functions behind the paths of whole stores."""

    def __init__(self, columns: ColumnReader) -> None:
        self._columns = columns
        self._holds = ClientHolds()

    def operations(self) -> list[Operation]:
        gone = (*REFUSALS, 410)
        return [
            Operation(
                "get_arrow",
                "/v1/stores/{store}/arrow",
                "The entries of a store as an Arrow IPC stream, all at one version.",
                self.arrow,
                None,
                (_COLUMNS, _PARTITION, *FRESH),
                gone,
                media=ARROW_TYPE,
                answer_headers=SOURCE_HEADERS,
                stores=self._tables,
                tag="Columns and SQL",
                returns="Record batches. Without the end marker of the format the stream was cut off.",
            ),
            Operation(
                "hold",
                "/v1/stores/{store}/hold",
                "Holds a version of a store, for a reader that asks several times with at=.",
                self.hold,
                HoldAnswer,
                (_SECONDS, *FRESH),
                gone,
                method="POST",
                tag="Columns and SQL",
                returns="The id of the hold, its version, and when it ends.",
            ),
            Operation(
                "release",
                "/v1/stores/{store}/hold/{hold}",
                "Releases a version that is held, at the instance that has answered the POST.",
                self.release,
                ReleaseAnswer,
                (),
                REFUSALS,
                method="DELETE",
                tag="Columns and SQL",
                returns="The id of the hold that has ended.",
                examples={"hold": "0123456789abcdef"},
            ),
        ]

    async def arrow(self, call: Call) -> Response:
        store, columns = call.store, self._columns
        table = columns.table(store)
        names = table.columns(call.given["columns"].split(",") if "columns" in call.given else None)
        schema, tasks = pa.schema([table.schema.field(name) for name in names]), self._tasks(call)
        headers: dict[str, str] = {}

        def pieces() -> Generator[bytes, None, None]:
            with columns.held([store], call.freshness, LONGEST_SECONDS, tasks) as held:
                headers.clear()  # of an attempt that failed
                headers.update(source_headers(held.source))
                call.measure(held.source.answered)
                yield from ipc_chunks(schema, columns.batches(store, held, columns=names, tasks=tasks))

        call = call.demanding(await columns.awaited(call.freshness, store))
        retries, begin = columns.retries(call.freshness), partial(columns.threads.run, call.freshness)
        while True:
            try:
                return await streamed(call.request, pieces(), ARROW_TYPE, headers, begin=begin)
            except (ReadInterrupted, VersionNotAvailable) as error:
                retries.check(error)

    async def hold(self, call: Call) -> Response:
        store, seconds = call.store, call.given.get("seconds", _HOLD_SECONDS)
        partitions, who = len(self._columns.tasks_of(store)), caller(call.request.scope)
        terms = HoldTerms(float(seconds), caller=who)
        self._holds.check(who)
        freshness = await self._columns.awaited(call.freshness, store)
        handover = Handover()
        try:
            held = await self._columns.threads.run(
                freshness, lambda: handover.give(self._columns.hold([store], freshness, terms))
            )
        except asyncio.CancelledError:  # nobody will know the id
            if (unclaimed := handover.end()) is not None:
                asyncio.get_running_loop().run_in_executor(None, unclaimed.release)
            raise
        call.measure(held.source.answered)
        hold = self._holds.add(who, store, held, terms.seconds)
        return json_response(
            HoldAnswer(**from_parts(store, held.source), hold=hold, partitions=partitions, seconds=seconds)
        )

    async def release(self, call: Call) -> Response:
        store, hold = call.store, call.request.path_params["hold"]
        self._columns.tasks_of(store)  # an unknown store is an error of its own
        if (held := self._holds.take(store, hold)) is None:
            fact = f"This instance has no hold {hold[:100]!r} of {store!r}: it has ended, or another instance made it."
            raise Problem(
                404, "unknown_hold", fact, "Nothing has to be done if it has ended. Ask the instance it is of."
            )
        await asyncio.to_thread(held.release)
        return json_response(ReleaseAnswer(hold=hold, store=store, version=held.version))

    def _tables(self) -> Sequence[str]:
        return sorted(self._columns.tables())

    def _tasks(self, call: Call) -> list[TaskId]:
        tasks = self._columns.tasks_of(call.store)
        if (partition := call.given.get("partition")) is None:
            return tasks
        if partition >= len(tasks):
            fact = f"partition={partition} is asked for, and {call.store!r} has {len(tasks)} partitions."
            raise Problem(400, "bad_parameter", fact, f"Give a number from 0 to {len(tasks) - 1}.")
        return [tasks[partition]]


class _Written:
    """A file that keeps what was written until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes | memoryview) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def ipc_chunks(schema: pa.Schema, batches: Generator[pa.RecordBatch, None, None]) -> Generator[bytes, None, None]:
    """An Arrow IPC stream, one chunk per batch. While a chunk is sent, its batch is not held."""
    file = _Written()
    try:
        writer = pa.ipc.new_stream(file, schema)
        while (batch := next(batches, None)) is not None:
            writer.write_batch(batch)
            del batch
            yield file.taken()
        writer.close()
        yield file.taken()
    finally:
        batches.close()
