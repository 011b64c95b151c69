"""The built-in sinks: files, memory, the console, and a user's function."""

import io
import json
import os
import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table as RichTable

from holdfast.errors import ErrorCategory, HoldfastError, TopologyError
from holdfast.log.objects import Put, Storage
from holdfast.log.storage import open_storage
from holdfast.topology.sink import Rows
from holdfast.words import Version

Format = Literal["parquet", "json"]

VERSION: Final = "_version"
"""The column in which rows have their version, where a sink is asked for it."""


_SAME_SCHEMES = {"s3a": "s3", **dict.fromkeys(("azure", "abfs", "abfss"), "az")}
"""Other names of a storage, as `open_storage` takes them."""


class Files:
    """Parquet or JSON files under `path`, a folder or an `s3://` address: each version exactly once.

    A version's files are named by version, task and number and created if absent, so writing it again changes nothing.
    When all of them exist, `_versions/<version>.json` lists them; a reader of whole versions uses only listed files. A
    version without rows writes nothing. Spark and Arrow ignore folders that start with an underscore. With
    `version_column=True` each row has its version in the column `_version`, so that a reader of the whole folder finds
    the newest row of a key.
    """

    kind = "files"

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: Format = "parquet",
        options: Mapping[str, str] | None = None,
        *,
        version_column: bool = False,
    ) -> None:
        if format not in ("parquet", "json"):
            raise TopologyError(f"files(format={format!r}): there are 'parquet' and 'json'.")
        self._path = os.fspath(path)
        self._format = format
        self._options = dict(options or {})
        self.version_column = version_column
        self._storage: Storage | None = None

    def __repr__(self) -> str:
        return f"files({self._path!r})"

    @property
    def folder(self) -> str:
        """The folder, the same for every way to write it.

        >>> Files("out/../out").folder == Files("./out/").folder == os.path.realpath("out")
        True
        >>> Files("s3a://bucket/new/../my%20out/").folder
        's3://bucket/my out'
        >>> Files("abfss://box@account.dfs.core.windows.net/out").folder
        'az://box@account/out'
        """
        parts = urlsplit(self._path)
        if parts.scheme in ("", "file"):
            return os.path.realpath(os.path.expanduser(unquote(parts.path) if parts.scheme else self._path))
        container, at, host = parts.netloc.partition("@")
        place = f"{container}{at}{host.partition('.')[0]}"
        path = posixpath.normpath(f"/{unquote(parts.path).lstrip('/')}")
        return f"{_SAME_SCHEMES.get(parts.scheme, parts.scheme)}://{place}{path}".rstrip("/")

    def open(self, log: str) -> None:
        """Claims the folder for this log, since two logs use the same names of files."""
        self._storage = open_storage(self._path, self._options)
        if self._storage.create("_log.json", json.dumps({"log": log}).encode()) is Put.EXISTS:
            found = _log_in(self._storage.get("_log.json"))
            if found is None:
                raise FolderTaken(
                    f"{self._storage.place} has a damaged _log.json, which should say that its files are those of log "
                    f"{log}. If they are, delete _log.json; otherwise give the sink another folder."
                )
            if found != log:
                raise FolderTaken(
                    f"{self._storage.place} has the files of another log ({found}); this one is {log}. Give the sink "
                    "another folder, or empty this one."
                )

    def write(self, version: Version, rows: Iterator[Rows]) -> None:
        assert self._storage is not None
        written = []
        for part in rows:
            name = f"{version:020d}-{part.task}-{part.number}.{self._format}"
            table = with_version(part.table, version) if self.version_column else part.table
            self._storage.create(name, self._encode(table))
            written.append({"file": name, "rows": part.table.num_rows})
        if not written:
            return
        mark = {"version": version, "files": written}
        self._storage.create(f"_versions/{version:020d}.json", json.dumps(mark).encode())

    def _encode(self, table: pa.Table) -> bytes:
        if self._format == "json":
            return msgspec.json.Encoder(decimal_format="string").encode_lines(_json_rows(table))
        buffer = io.BytesIO()
        # Rows of changed keys rarely repeat a value, so a dictionary costs time and saves no space.
        pq.write_table(table, buffer, compression="snappy", use_dictionary=False)
        return buffer.getvalue()


def _log_in(data: bytes) -> object:
    """The log that a folder belongs to; None if the bytes don't say it.

    >>> _log_in(b'{"log": "1f"}'), _log_in(b"")
    ('1f', None)
    """
    try:
        return msgspec.json.decode(data, type=dict[str, str]).get("log")
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def with_version(table: pa.Table, version: Version) -> pa.Table:
    """The rows with their version in one more column.

    >>> with_version(pa.table({"player": ["alice"]}), Version(7)).to_pylist()
    [{'player': 'alice', '_version': 7}]
    """
    check_version_column(table.column_names)
    return table.append_column(VERSION, pa.repeat(pa.scalar(version, pa.int64()), table.num_rows))


def check_version_column(columns: Iterable[str]) -> None:
    if VERSION in columns:
        raise TopologyError(
            f"version_column=True adds the column {VERSION!r}, and the rows have one of that name. Give yours another "
            "name, or leave version_column out."
        )


class FolderTaken(HoldfastError):
    """A file sink's folder belongs to another log."""

    category = ErrorCategory.INVALID


_NOT_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _json_rows(table: pa.Table) -> list[dict[str, object]]:
    """Rows for JSON: numbers that JSON does not have are text, as in queries."""
    rows: list[dict[str, object]] = table.to_pylist()
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column)).as_py():
            for row in rows:
                row[name] = _NOT_NUMBERS.get(str(row[name]), row[name])
    return rows


class _Unprepared:
    kind: str

    def __repr__(self) -> str:
        """What the log shows.

        >>> Memory()
        memory
        """
        return self.kind

    def open(self, log: str) -> None:
        """Nothing to prepare."""


class Memory(_Unprepared):
    """Rows in this process, for tests: `sink.versions` has the rows of each version that has any, `sink.rows()` all."""

    kind = "memory"

    def __init__(self) -> None:
        self.versions: dict[Version, list[dict[str, object]]] = {}
        self._lock = threading.Lock()

    def write(self, version: Version, rows: Iterator[Rows]) -> None:
        taken = [row for part in rows for row in part.table.to_pylist()]
        if taken:
            with self._lock:
                self.versions[version] = taken

    def rows(self) -> list[dict[str, object]]:
        """Every row of every version so far, in the order of versions."""
        with self._lock:
            return [row for version in sorted(self.versions) for row in self.versions[version]]


class ConsoleSink(_Unprepared):
    """The first rows of each version as a table in the terminal."""

    kind = "console"

    def __init__(self, limit: int = 20) -> None:
        self._limit = limit
        self._console = Console()

    def write(self, version: Version, rows: Iterator[Rows]) -> None:
        tables = [part.table for part in rows]
        if not tables:
            return
        table = pa.concat_tables(tables)
        shown = RichTable(title=f"version {version}: {table.num_rows} rows", title_justify="left")
        for name in table.column_names:
            shown.add_column(name)
        for row in table.slice(0, self._limit).to_pylist():
            shown.add_row(*[str(value) for value in row.values()])
        self._console.print(shown)


class Foreach(_Unprepared):
    """A user's function, called with each version and an Arrow table: `hf.foreach(lambda version, rows: ...)`.

    It is called at least once per version: after a crash it gets the last version again. `examples/sqlite_upsert.py`
    shows how to write each version exactly once. With `version_column=True` the table has the column `_version`.
    """

    kind = "function"

    def __init__(self, function: Callable[[int, pa.Table], None], *, version_column: bool = False) -> None:
        self._function = function
        self.version_column = version_column

    def write(self, version: Version, rows: Iterator[Rows]) -> None:
        tables = [part.table for part in rows]
        if tables:
            table = pa.concat_tables(tables)
            self._function(version, with_version(table, version) if self.version_column else table)


files, memory, console, foreach = Files, Memory, ConsoleSink, Foreach
