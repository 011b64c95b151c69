"""A worker: runs one statement after the other, each in a database of its own that has nothing but views of the stores.

DuckDB is closed in three ways. Its configuration has no files, no network and no extensions, and is locked before the
statement is seen. Only a single SELECT is run. And the process has limits of the system: on memory, on processor time
per statement, on open files (a few more than it has) and on written ones (it can write nothing), and it dies with its
instance. Its environment is empty, and its directory is one in which nobody can make a file: DuckDB lets every
statement see the path of its database, and read it, also of one in memory. Nothing of the system keeps the process from
reading a file or opening a socket, as the user that the instance runs as: that rests on DuckDB's configuration alone.
"""

import ctypes
import io
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Final
from weakref import WeakSet

import duckdb
import pyarrow as pa

from holdfast.sql.errors import SqlError, SqlMistake, SqlNoTable, SqlRefused, SqlTooLarge
from holdfast.sql.messages import (
    Channel,
    Disconnected,
    Done,
    Kind,
    Statement,
    StatementFailed,
    StoreScan,
    decoded,
    encoded,
)
from holdfast.sql.scans import TableSource, register

_DIES_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG
_OVERHEAD: Final = 3 << 30
"""The address space of the process beside what DuckDB may use: libraries, stacks and arenas that are never touched."""
_BATCH_ROWS: Final = 8_192
_SLACK_SECONDS: Final = 2.0
"""Processor time beside that of DuckDB's threads."""
SCANS: Final = 64
"""How many scans a statement may have open at once. Each is a file here, and a thread of the instance."""
_SPARE_FILES: Final = 16
_DIRECTORY: Final = "/proc"
IDLE_SECONDS: Final = 60.0
"""A worker without a statement ends after this long."""
_CONFIG: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}


def main() -> None:
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    _close_the_door(memory=int(sys.argv[2]))
    try:
        channel.send(Kind.READY)
        while True:
            channel.socket.settimeout(IDLE_SECONDS)
            statement = decoded(channel.receive().body, Statement)
            channel.socket.settimeout(None)
            schemas = dict(_schema(channel.receive().body) for _ in range(statement.tables))
            channel.send(Kind.BEGUN)
            _limit_processor_time(statement)
            _answer(channel, statement, schemas)
    except (Disconnected, OSError):
        os._exit(0)  # the instance has ended, or has no statement: nothing here needs to be closed


def _answer(channel: Channel, statement: Statement, schemas: dict[str, pa.Schema]) -> None:
    try:
        with _as_ours():
            more = _run(channel, statement, schemas)
    except SqlError as error:
        tables = error.tables if isinstance(error, SqlNoTable) else ()
        channel.send(Kind.FAILED, encoded(StatementFailed(type(error).__name__, str(error), tables)))
    else:
        channel.send(Kind.DONE, encoded(Done(more)))


def _run(channel: Channel, statement: Statement, schemas: dict[str, pa.Schema]) -> bool:
    """Sends the rows of a statement. Returns whether some were left out."""
    limits = {"memory_limit": f"{statement.memory}B", "threads": str(statement.threads)}
    scans = _Scans(channel)
    with closing(duckdb.connect(":memory:", config={**_CONFIG, **limits})) as connection, scans.within_limit():
        for name, schema in schemas.items():
            register(connection, name, TableSource(name, schema, scans.opened))
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET lock_configuration = true")
        query = _only_select(connection, statement.sql)
        # Not `execute`, which would hold the whole result before the first row is taken.
        try:
            result = connection.sql(query)
        except duckdb.CatalogException as error:
            if not (missing := _missing(connection, statement.sql, schemas)):
                raise  # a function, or something else that isn't there
            raise SqlNoTable(_mistake(str(error)[:2_000]), missing) from error
        return _send_result(channel, result.to_arrow_reader(_BATCH_ROWS), statement)


def _missing(connection: duckdb.DuckDBPyConnection, sql: str, schemas: Iterable[str]) -> list[str]:
    """The tables that a statement names and that aren't there; none where DuckDB can't say."""
    there = {name.casefold() for name in schemas}
    try:
        return sorted(name for name in connection.get_table_names(sql) if name.casefold() not in there)
    except duckdb.Error:
        return []


def _limit_processor_time(statement: Statement) -> None:
    """Ends the process if the instance, which watches the time, is stopped or stuck."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = used.ru_utime + used.ru_stime + statement.seconds * statement.threads + _SLACK_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), resource.RLIM_INFINITY))


def _only_select(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise SqlRefused(f"The text has {len(statements)} statements. Send one SELECT at a time.")
    if statements[0].type is not duckdb.StatementType.SELECT:
        raise SqlRefused(
            f"{statements[0].type.name} is not possible here: stores are read, not written, and settings are fixed. "
            "Write one SELECT."
        )
    return statements[0]


class _Scans:
    """The scans that DuckDB has open for a statement. It may open several of a table; each has a socket of its own."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._open: WeakSet[io.IOBase] = WeakSet()
        self._refused: SqlTooLarge | None = None

    def opened(self, scan: StoreScan) -> pa.RecordBatchReader:
        """The rows of a scan."""
        if len(self._open) >= SCANS:
            self._refused = SqlTooLarge(
                f"The statement reads stores at more than {SCANS} places at once, the limit. Read a store once where "
                "it names it several times, such as with CASE, FILTER or GROUP BY in place of UNION ALL."
            )
            raise self._refused
        ours, theirs = socket.socketpair()
        with theirs:
            self._channel.send(Kind.SCAN, encoded(scan), pass_on=theirs)
        rows = ours.makefile("rb", buffering=1 << 16)
        self._open.add(rows)
        return pa.ipc.open_stream(rows)

    @contextmanager
    def within_limit(self) -> Iterator[None]:
        """DuckDB makes an error of its own of one that `opened` raises."""
        try:
            yield
        except (duckdb.Error, SqlError) as error:
            raise (self._refused or error) from error


def _send_result(channel: Channel, result: pa.RecordBatchReader, statement: Statement) -> bool:
    sent = size = 0
    with _frames(channel, result.schema) as writer:
        for batch in _batches(result):
            left = statement.rows - sent
            if batch.num_rows > left:
                writer.write_batch(batch.slice(0, left))
                return True
            sent, size = sent + batch.num_rows, size + batch.nbytes
            if size > statement.result_bytes:
                raise SqlTooLarge(
                    f"The result has more than {statement.result_bytes:,} bytes, the limit. Select fewer columns or "
                    "rows."
                )
            writer.write_batch(batch)
    return False


def _batches(result: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The batches of a result. What DuckDB finds wrong after the first one is an error of Arrow with DuckDB's text."""
    try:
        yield from result
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, MemoryError) or str(error).startswith("Out of Memory Error"):
            raise _too_much_memory() from error
        raise SqlMistake(_mistake(str(error)[:2_000])) from error


class _Rows:
    """A file whose parts are sent as frames."""

    closed = False

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def write(self, data: bytes) -> int:
        self._channel.send(Kind.ROWS, bytes(data))
        return len(data)

    def flush(self) -> None:
        pass


@contextmanager
def _frames(channel: Channel, schema: pa.Schema) -> Iterator[pa.ipc.RecordBatchStreamWriter]:
    writer = pa.ipc.new_stream(_Rows(channel), schema)
    yield writer
    writer.close()


@contextmanager
def _as_ours() -> Iterator[None]:
    """DuckDB's errors as ours. Those about files have paths of this machine in them, so they are not shown."""
    try:
        yield
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        raise _too_much_memory() from error
    except (duckdb.PermissionException, duckdb.IOException) as error:
        raise SqlRefused("Files, the network and extensions can't be used here. Select from the stores.") from error
    except (duckdb.InternalException, duckdb.FatalException) as error:
        raise SqlMistake(f"DuckDB failed: {_first_line(error)}. Write the statement in another way.") from error
    except duckdb.Error as error:
        raise SqlMistake(_mistake(str(error)[:2_000])) from error


def _too_much_memory() -> SqlTooLarge:
    return SqlTooLarge(
        "The statement needs more memory than sql.memory allows. Select fewer columns or rows, or group by fewer keys."
    )


def _mistake(text: str) -> str:
    """What DuckDB says, which may end with a line that has only a caret."""
    if 'syntax error at or near "-"' in text:
        text += '\nA name with a - is written in double quotes: "by-shop".'
    if "\n" in text:
        return f"{text}\n"
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


def _schema(body: bytes) -> tuple[str, pa.Schema]:
    name, _, data = body.partition(b"\x00")
    return name.decode(), pa.ipc.read_schema(pa.py_buffer(data))


def _close_the_door(memory: int) -> None:
    """Limits of the system. They hold whatever a statement finds in DuckDB."""
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    os.environ.clear()
    os.chdir(_DIRECTORY)
    os.nice(5)  # lookups come first
    duckdb.connect(":memory:").close()  # loads what it needs while it can
    opened = len(os.listdir("/proc/self/fd"))
    for what, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_AS, memory + _OVERHEAD),
        (resource.RLIMIT_NOFILE, opened + SCANS + _SPARE_FILES),
    ):
        resource.setrlimit(what, (limit, limit))


if __name__ == "__main__":
    main()
