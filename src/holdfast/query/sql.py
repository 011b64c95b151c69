"""POST /v1/sql: one SELECT over the stores, all of them at one version.

    {"sql": "SELECT player, points FROM players ORDER BY points DESC LIMIT 10", "limit": 100}

The body may also be the statement alone, as text/plain. The answer is JSON, or with `Accept` CSV or an Arrow stream.

The tables are the stores that the request may read. Others don't exist for the statement, and a worker that asks for
one gets nothing of it.
"""

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from starlette.responses import Response

from holdfast.instance.config import Role
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.query.answers import MORE_HEADER, SOURCE_HEADERS, from_parts, source_headers
from holdfast.query.arrow import ARROW_TYPE
from holdfast.query.columns import ColumnReader, HeldStores
from holdfast.query.freshness import Freshness
from holdfast.query.grants import check_covered, visible
from holdfast.query.operations import FRESH, JSON, PLAIN, Call, Operation
from holdfast.query.problems import Problem, json_response
from holdfast.query.pruning import indexed, key_ranges, masked, times_of
from holdfast.query.result_texts import csv_of, json_rows
from holdfast.query.task_reader import ReadInterrupted
from holdfast.query.wanted import check_wanted
from holdfast.sql.errors import SqlNoTable, SqlRefused
from holdfast.sql.messages import INDEXED, StoreScan
from holdfast.sql.workers import RESULT_BYTES, Result, Workers

SQL_PATH: Final = "/v1/sql"
_LONGEST: Final = 100_000
_MARGIN_SECONDS: Final = 5.0
_CSV: Final = "text/csv"
_NO_SOURCE: Final = {"version": None, "committed": None, "event_time": None, "role": None, "instances": ()}
"""What the answer of a statement without stores says in place of these members of `FromParts`."""


Visible = Callable[[Iterable[str]], Sequence[str]]
"""Those of these stores that a request may read."""


class SqlAsk(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request."""

    sql: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None = None


class ResultColumn(msgspec.Struct, frozen=True):
    """A column of a result."""

    name: str
    type: str
    """As Arrow writes it."""


class SqlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a statement. Values are by position: two columns may have one name."""

    columns: list[ResultColumn]
    rows: list[list[Any]]
    version: int | None
    """Null for a statement that reads no store, as are the next three."""
    committed: int | None
    event_time: int | None
    role: Role | None
    """Standby if any partition was answered by one."""
    instances: tuple[str, ...]
    more: bool
    """Whether rows beyond the limit were left out."""


@dataclass(frozen=True)
class StoresAtVersion:
    """The tables of a statement, at the version that their tasks hold."""

    columns: ColumnReader
    held: HeldStores | None
    """None for a statement that names no store."""
    visible: Visible

    def schema(self, scan: StoreScan) -> pa.Schema:
        table = self.columns.table(scan.table)
        return pa.schema([table.schema.field(name) for name in scan.columns])

    def rows(self, scan: StoreScan) -> Generator[pa.RecordBatch, None, None]:
        if not self.visible([scan.table]):
            raise SqlRefused(f"The statement reads {scan.table!r}, which isn't a table of this request.")
        table = self.columns.table(scan.table)
        names = list(dict.fromkeys([*scan.columns, *(each.column for each in scan.conditions)]))
        ranges, times = key_ranges(table, scan.conditions), times_of(table, scan.conditions)
        if self.held is None:
            raise SqlRefused(
                f"The statement reads {scan.table!r} without naming it. Write the name of the store in it."
            )
        batches = self.columns.batches(scan.table, self.held, columns=names, keys=ranges, times=times)
        for batch in batches:
            found = masked(batch, scan.conditions)
            if found.num_rows:
                yield found.select(scan.columns)


@dataclass(frozen=True)
class StoreTables:
    """All stores that can be tables, at a version or at the newest one that their tasks have."""

    columns: ColumnReader
    freshness: Freshness
    seconds: float
    """How long the version is held at most."""
    visible: Visible

    def schemas(self) -> dict[str, pa.Schema]:
        tables = self.columns.tables()
        return {
            store: tables[store].schema.with_metadata({INDEXED: "\x00".join(indexed(tables[store])).encode()})
            for store in self.visible(tables)
        }

    @contextmanager
    def open(self, names: Sequence[str]) -> Iterator[StoresAtVersion]:
        if not names:
            yield StoresAtVersion(self.columns, None, self.visible)
            return
        with self.columns.held(names, self.freshness, self.seconds) as held:
            yield StoresAtVersion(self.columns, held, self.visible)


class SqlEndpoint:
    """The function behind the path."""

    def __init__(self, columns: ColumnReader, workers: Workers) -> None:
        self._columns = columns
        self._workers = workers

    def operations(self) -> list[Operation]:
        text = "The result of one SELECT, with all stores at one version. As CSV or Arrow if `Accept` says so."
        errors = (400, 410, 413, 501, 503)
        return [
            Operation(
                "sql",
                SQL_PATH,
                text,
                self.run,
                SqlAnswer,
                FRESH,
                errors,
                method="POST",
                body=SqlAsk,
                body_example=_example,
                plain_body=True,
                other_media=(_CSV, ARROW_TYPE),
                answer_headers=(*SOURCE_HEADERS, MORE_HEADER),
                tag="Columns and SQL",
                returns="The columns and rows of the result, and the version of all stores in it.",
            )
        ]

    async def run(self, call: Call) -> Response:
        check_covered(call.request.scope, ())
        headers, body = call.request.headers, await call.request.body()
        if len(body) > _LONGEST:
            fact = f"The body has more than {_LONGEST:,} bytes."
            raise Problem(413, "too_large", fact, "Write a shorter statement.")
        ask = _asked(headers.get("content-type", ""), body)
        # Which stores it reads is known when the statement runs. Few run at once (sql.statements).
        try:
            result = await self._result(call, ask, await self._columns.awaited(call.freshness))
        except SqlNoTable as error:
            check_covered(call.request.scope, error.tables)  # 403 for any other table, whether it is a store or not
            raise
        if result.tables.held is not None:
            call.measure(result.tables.held.source.answered)
        return await asyncio.to_thread(_answered, result, headers.get("accept", ""))

    async def _result(self, call: Call, ask: SqlAsk, freshness: Freshness) -> Result[StoresAtVersion]:
        shown = partial(visible, call.request.scope)
        tables = StoreTables(self._columns, freshness, self._workers.seconds + _MARGIN_SECONDS, shown)
        retries = self._columns.retries(freshness)
        run = partial(self._workers.run, ask.sql, tables, ask.limit, check_wanted)
        while True:
            try:
                return await self._columns.threads.run(freshness, run)
            except (ReadInterrupted, VersionNotAvailable) as error:
                retries.check(error)


def _asked(content_type: str, body: bytes) -> SqlAsk:
    what = 'Send {"sql": "SELECT ..."} as application/json, or the statement alone as text/plain.'
    try:
        if content_type.partition(";")[0].strip() == PLAIN:
            return SqlAsk(body.decode())
        return msgspec.json.decode(body, type=SqlAsk)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Problem(400, "bad_body", f"The body can't be read: {error}.", what) from None


def _answered(result: Result[StoresAtVersion], accept: str) -> Response:
    headers = {MORE_HEADER: "true" if result.more else "false"}
    if result.tables.held is not None:
        headers |= source_headers(result.tables.held.source)
    if ARROW_TYPE in accept:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, result.rows.schema) as writer:
            writer.write_table(result.rows)
        return Response(sink.getvalue().to_pybytes(), headers=headers, media_type=ARROW_TYPE)
    if _CSV in accept:
        return Response(csv_of(result.rows, RESULT_BYTES), headers=headers, media_type=_CSV)
    return json_response(_shown(result), headers=headers)


def _shown(result: Result[StoresAtVersion]) -> SqlAnswer:
    columns = [ResultColumn(field.name, str(field.type)) for field in result.rows.schema]
    held = result.tables.held
    source: dict[str, Any] = _NO_SOURCE if held is None else from_parts("", held.source)
    rows: Any = msgspec.Raw(json_rows(result.rows, RESULT_BYTES))  # JSON already
    return SqlAnswer(columns=columns, rows=rows, more=result.more, **{name: source[name] for name in _NO_SOURCE})


def _example(store: str, key: str) -> dict[str, Any]:
    statement = f'SELECT * FROM "{store}" LIMIT 10'
    return {JSON: {"sql": statement}, PLAIN: statement}
