"""The workers of an instance: started when there is a statement, reused while they are well, killed when they are not.

The instance's side of a statement is one loop over what the worker says. A scan is streamed by a thread of its own into
the socket that came with it, so the worker's pace is that of the read. A read that fails cuts its stream; the worker
can't tell that from its end, so the statement fails here with the error of the read, whatever the worker made of it.

DuckDB doesn't count all of its memory: a list or a text that a function makes may have any size. So the memory of the
process is watched too, as its time is.
"""

import logging
import math
import os
import resource
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, Generic, Protocol, TypeVar

import pyarrow as pa

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import USER_ERRORS, ErrorCategory, HoldfastError
from holdfast.settings.sql import SqlSettings
from holdfast.sql.errors import KINDS, SqlBusy, SqlError, SqlMissing, SqlNoTable, SqlTooLarge
from holdfast.sql.messages import (
    Channel,
    Disconnected,
    Done,
    Kind,
    ResultFrame,
    Statement,
    StatementFailed,
    StoreScan,
    decoded,
    encoded,
)

log = logging.getLogger(__name__)

RESULT_BYTES: Final = 64 << 20
"""The most that a result may have, as columns and as JSON or CSV."""
_THREADS: Final = 2
_START_SECONDS: Final = 30.0
_BEGIN_SECONDS: Final = 5.0
"""How long a worker that was kept may take to begin with its statement. Then it is frozen, and a new one gets it."""
_LOOK_SECONDS: Final = 0.05
"""How often a statement asks whether its result is still wanted, and looks at the memory of its process."""
_OWN_BYTES: Final = 128 << 20
"""What the process may have beside the memory of a statement: Python, and rows on their way. 40 MiB if it has none."""
_KEPT: Final = 1
"""How many workers are kept without a statement."""
_SAFE_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class OpenTables(Protocol):
    """Tables at one version."""

    def schema(self, scan: StoreScan) -> pa.Schema: ...

    def rows(self, scan: StoreScan) -> Generator[pa.RecordBatch, None, None]: ...


T = TypeVar("T", bound=OpenTables)
T_co = TypeVar("T_co", bound=OpenTables, covariant=True)


class Tables(Protocol[T_co]):
    """What statements select from."""

    def schemas(self) -> Mapping[str, pa.Schema]:
        """All tables, with the columns in `scans.INDEXED` on which conditions save reads."""

    def open(self, names: Sequence[str]) -> AbstractContextManager[T_co]:
        """These tables at one version, for the length of a block."""


@dataclass(frozen=True)
class Result(Generic[T]):
    """The rows of a statement. `more`: there were more than the limit, and the rest was left out."""

    rows: pa.Table
    more: bool
    tables: T
    """What they were selected from. It is closed."""


class Workers:
    """Runs statements. Many threads may."""

    def __init__(self, settings: SqlSettings) -> None:
        self._settings = settings
        self._slots = threading.BoundedSemaphore(settings.statements)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._closed = False

    @property
    def seconds(self) -> float:
        """How long a statement may run."""
        return self._settings.time_limit.total_seconds()

    def run(
        self, sql: str, tables: Tables[T], rows: int | None = None, check_wanted: Callable[[], None] = lambda: None
    ) -> Result[T]:
        """The result of one statement, with so many rows at most.

        The statement ends when `check_wanted` raises, which is asked while it runs.
        """
        if find_spec("duckdb") is None:
            raise SqlMissing("SQL needs DuckDB, which isn't installed on the instance. Install holdfast[sql] there.")
        if not self._slots.acquire(blocking=False):
            raise SqlBusy(
                f"{self._settings.statements} statements are running, as many as sql.statements allows. Ask again in a "
                "moment."
            )
        try:
            most = self._settings.rows if rows is None else min(rows, self._settings.rows)
            try:
                with self._worker() as worker:
                    run = _Run(worker, tables, self._settings, check_wanted, begins_within=_BEGIN_SECONDS)
                    return run.result(sql, most)
            except _NotBegun:
                log.info("a worker ended or froze before it had its statement; the statement goes to a new one")
            with self._worker(new=True) as worker:
                return _Run(worker, tables, self._settings, check_wanted).result(sql, most)
        except _NotBegun as error:
            raise SqlError("The process for the statement ended at once. The instance's log says why.") from error
        finally:
            self._slots.release()

    def close(self) -> None:
        """Ends all workers. Statements that are running fail."""
        with self._lock:
            self._closed, workers, self._idle = True, [*self._idle, *self._busy], []
        for worker in workers:
            worker.end()

    @contextmanager
    def _worker(self, *, new: bool = False) -> "Iterator[_Worker]":
        """A worker, which is kept if the statement ended in order."""
        with self._lock:
            found = self._idle.pop() if self._idle and not new else None
        if found is not None and not found.is_alive:
            found.kill()
            found = None
        worker = found or _Worker(self._settings.memory)
        with self._lock:
            self._busy.add(worker)
        try:
            yield worker
        finally:
            self._keep(worker)

    def _keep(self, worker: "_Worker") -> None:
        with self._lock:
            self._busy.discard(worker)
            if worker.is_in_order and not self._closed and len(self._idle) < _KEPT:
                self._idle.append(worker)
                return
        worker.kill()


class _Worker:
    """One child process."""

    def __init__(self, memory: int) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        self.is_in_order = True
        """Whether the last statement has ended, so that the next one can follow."""
        environment = {name: os.environ[name] for name in _SAFE_ENVIRONMENT if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(each) for each in sys.path if each)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.sql.worker", str(theirs.fileno()), str(memory)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        ours.settimeout(_START_SECONDS)
        try:
            self.channel.receive()
        except (Disconnected, OSError) as error:
            self.kill()
            raise SqlError("The process for the statement didn't start. The instance's log says why.") from error

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def bytes(self) -> int:
        """The memory that the process has touched, without the files it has mapped."""
        try:
            with open(f"/proc/{self._process.pid}/statm", "rb") as file:
                _, resident, of_files, *_ = map(int, file.read().split())
        except (FileNotFoundError, ProcessLookupError):
            return 0  # it has ended, which its socket says
        return (resident - of_files) * resource.getpagesize()

    def end(self) -> None:
        """Ends the process. Its statement notices, if it has one."""
        self._process.kill()

    def kill(self) -> None:
        self.channel.socket.close()
        self._process.kill()
        self._process.wait()


class _Run(Generic[T]):
    """One statement on one worker."""

    def __init__(
        self,
        worker: _Worker,
        tables: Tables[T],
        settings: SqlSettings,
        check_wanted: Callable[[], None],
        begins_within: float = math.inf,
    ) -> None:
        self._worker, self._channel = worker, worker.channel
        self._tables, self._settings = tables, settings
        self._check_wanted = check_wanted
        self._until = SYSTEM_CLOCK.monotonic() + settings.time_limit.total_seconds()
        self._begins_within = begins_within
        self._scans: list[_Streaming] = []
        self._rows: list[bytes] = []
        self._has_begun = False

    def result(self, sql: str, rows: int) -> Result[T]:
        with ExitStack() as closing:
            schemas = self._tables.schemas()
            opened = closing.enter_context(self._tables.open(_named(sql, schemas)))
            try:
                self._start(sql, rows, schemas)
                while not (ended := self._step(opened)):
                    pass
            except TimeoutError:
                seconds = self._settings.time_limit.total_seconds()
                raise SqlTooLarge(
                    f"The statement ran for {seconds:g} s, the limit (sql.time_limit), and was ended. Select fewer "
                    "rows, or by conditions on the key."
                ) from None
            except (Disconnected, ConnectionError) as error:
                if not self._has_begun:
                    raise _NotBegun from error
                raise SqlTooLarge(
                    "The statement's process ended: it needed more memory than sql.memory allows, used up its "
                    "processor time, or DuckDB failed. Select fewer columns or rows, or write the statement in another "
                    "way."
                ) from None
            finally:
                if not self._worker.is_in_order:
                    self._worker.kill()  # before the scans are waited for: they write to it
                for scan in self._scans:
                    scan.end()
        for scan in self._scans:
            if scan.error is not None:
                raise scan.error
        return self._found(ended, opened)

    def _start(self, sql: str, rows: int, schemas: Mapping[str, pa.Schema]) -> None:
        seconds = self._settings.time_limit.total_seconds()
        limits = (rows, RESULT_BYTES, self._settings.memory, seconds, _THREADS, len(schemas))
        self._channel.socket.settimeout(self._left())
        self._worker.is_in_order = False
        self._channel.send(Kind.STATEMENT, encoded(Statement(sql, *limits)))
        for name, schema in schemas.items():
            self._channel.send(Kind.SCHEMA, name.encode() + b"\x00" + schema.serialize().to_pybytes())

    def _step(self, opened: OpenTables) -> ResultFrame | None:
        """Does what the worker says next. Returns its last word."""
        self._wait_for_frame()
        self._channel.socket.settimeout(self._left())
        frame = self._channel.receive()
        match frame.kind:
            case Kind.BEGUN:
                self._has_begun = True
            case Kind.SCAN if frame.passed is not None:
                self._scans.append(_Streaming(opened, decoded(frame.body, StoreScan), frame.passed))
            case Kind.ROWS:
                self._rows.append(frame.body)
            case Kind.DONE | Kind.FAILED:
                self._worker.is_in_order = True
                return frame
            case _:
                raise Disconnected
        return None

    def _wait_for_frame(self) -> None:
        # A timeout of `receive` may lose the first bytes of a frame, so the waiting is done before it.
        arriving = select.poll()
        arriving.register(self._channel.socket, select.POLLIN)
        frozen_at = math.inf if self._has_begun else SYSTEM_CLOCK.monotonic() + self._begins_within
        self._check_wanted()
        self._check_memory()
        while not arriving.poll(min(_LOOK_SECONDS, self._left()) * 1_000):
            self._check_wanted()
            self._check_memory()
            if SYSTEM_CLOCK.monotonic() > frozen_at:
                raise Disconnected

    def _check_memory(self) -> None:
        if self._worker.bytes > self._settings.memory + _OWN_BYTES:
            raise SqlTooLarge(
                f"The statement needs more memory than sql.memory allows ({self._settings.memory:,} bytes), and was "
                "ended. Select fewer columns or rows, or make shorter lists and texts."
            )

    def _found(self, last: ResultFrame, opened: T) -> Result[T]:
        if last.kind is Kind.FAILED:
            failed = decoded(last.body, StatementFailed)
            if failed.tables:
                raise SqlNoTable(failed.message, failed.tables)
            raise KINDS.get(failed.kind, SqlError)(failed.message)
        table = pa.ipc.open_stream(pa.py_buffer(b"".join(self._rows))).read_all()
        return Result(table, decoded(last.body, Done).more, opened)

    def _left(self) -> float:
        left = self._until - SYSTEM_CLOCK.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _named(sql: str, tables: Iterable[str]) -> list[str]:
    """The tables whose names are in a statement: all that it can need, and perhaps more.

    >>> _named('SELECT * FROM Players JOIN "all-teams" USING (team)', ["all-teams", "players", "prices"])
    ['all-teams', 'players']
    """
    text = sql.lower()
    return [name for name in tables if name in text]


class _Streaming:
    """A scan that is being sent."""

    def __init__(self, tables: OpenTables, scan: StoreScan, to: socket.socket) -> None:
        self.error: BaseException | None = None
        self._tables, self._scan, self._to = tables, scan, to
        # In the context of the request, so that the scan ends with it.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._send,), name="holdfast-sql-scan", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Waits until nothing is read any more. The worker has ended, or has closed its side."""
        with suppress(OSError):
            self._to.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _send(self) -> None:
        rows = self._tables.rows(self._scan)
        try:
            with suppress(ConnectionError, _Unread), self._to, self._to.makefile("wb", buffering=1 << 16) as file:
                self._write(rows, pa.ipc.new_stream(file, self._tables.schema(self._scan)))
        except USER_ERRORS as error:  # whatever it is: without it, the worker's result would look complete
            self.error = error
        finally:
            rows.close()

    def _write(self, rows: Iterator[pa.RecordBatch], writer: pa.ipc.RecordBatchStreamWriter) -> None:
        for batch in rows:
            try:
                writer.write_batch(batch)
            except OSError:
                raise _Unread from None
        writer.close()


class _NotBegun(HoldfastError):
    """The worker ended before it had the statement, as one does that was idle for long."""

    category = ErrorCategory.RETRY


class _Unread(HoldfastError):
    """The worker reads no more of a scan, as with LIMIT."""

    category = ErrorCategory.CLOSED
