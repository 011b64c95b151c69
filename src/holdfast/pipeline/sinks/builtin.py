"""The built-in sinks: files, memory, the console, and a user's function."""

import io
import json
import logging
import os
import posixpath
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table as RichTable

from holdfast.errors import ErrorCategory, HoldfastError, TopologyError
from holdfast.log.names import padded
from holdfast.log.objects import Put, Storage
from holdfast.log.storage import open_storage
from holdfast.stores.formats.arrow_values import python_rows
from holdfast.topology.sink import CLEANED, OtherTimeline, Rows, Timeline, takes
from holdfast.words import Version

logger = logging.getLogger(__name__)

Format = Literal["parquet", "json"]

VERSION: Final = "_version"
"""The column in which rows have their version, where a sink is asked for it."""

_MARKS = "_versions/"
_NAME = re.compile(rf"(?:{_MARKS})?(\d{{20}})(?:-([0-9a-f]+)-\d+_\d+-\d+)?\.")
"""The name of a file or of a mark: its version, and the commit of a file."""
_MOST_LISTED = 8

_SAME_SCHEMES = {"s3a": "s3", **dict.fromkeys(("azure", "abfs", "abfss"), "az")}
"""Other names of a storage, as `open_storage` takes them."""


class Files:
    """Parquet or JSON files under `path`, a folder or an `s3://` address: each version exactly once.

    A version's files are named by version, commit, task and number and created if absent, so writing it again changes
    nothing. When all of them exist, `_versions/<version>.json` lists them; a reader of whole versions uses only listed
    files. A version without rows writes nothing. Spark and Arrow ignore folders that start with an underscore. With
    `version_column=True` each row has its version in the column `_version`, so that a reader of the whole folder finds
    the newest row of a key.

    Files of versions that the log has lost, because it was set back to an older state, are refused when the sink is
    opened: each version in the folder is one of this log.
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

    def open(self, timeline: Timeline) -> None:
        """Claims the folder for this log, and refuses files of versions that the log doesn't have."""
        self._storage = open_storage(self._path, self._options)
        log = timeline.log
        if self._storage.create("_log.json", json.dumps({"log": log}).encode()) is Put.CREATED:
            if timeline.position:
                logger.warning(
                    "%s is new or was emptied, and its sink has a position in the log, which belongs to the sink's "
                    "name: version %d. The folder gets the versions after that; earlier ones stay where they were "
                    "written. For a sink that begins after the newest version, %d, give it another name=.",
                    *(self._storage.place, timeline.position, timeline.newest),
                )
            return
        found = _text_in(self._storage.get("_log.json"), "log")
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
        _check_timeline(self._storage, timeline)

    def write(self, version: Version, commit: str, rows: Iterator[Rows]) -> None:
        assert self._storage is not None
        written = []
        for part in rows:
            name = f"{padded(version)}-{commit}-{part.task}-{part.number}.{self._format}"
            table = with_version(part.table, version) if self.version_column else part.table
            self._storage.create(name, self._encode(table))
            written.append({"file": name, "rows": part.table.num_rows})
        if not written:
            return
        mark = {"version": version, "commit": commit, "files": written}
        name = f"{_MARKS}{padded(version)}.json"
        if self._storage.create(name, json.dumps(mark).encode()) is Put.CREATED:
            return
        # Another attempt of this commit may have written it; or a put was stored and answered with an error.
        if (other := _text_in(self._storage.get(name), "commit")) != commit:
            what = "an unknown commit" if other is None else f"commit {other}"
            raise OtherTimeline(
                f"{self._storage.place} has {name} of {what}, and version {version} of the log is commit {commit}: the "
                "log was set back to an older state, or the mark is damaged. Delete it and the files "
                f"{padded(version)}-{other or '*'}-*, and start again; or give the sink another folder."
            )

    def _encode(self, table: pa.Table) -> bytes:
        if self._format == "json":
            return msgspec.json.Encoder(decimal_format="string").encode_lines(_json_rows(table))
        buffer = io.BytesIO()
        # Rows of changed keys rarely repeat a value, so a dictionary costs time and saves no space.
        pq.write_table(table, buffer, compression="snappy", use_dictionary=False)
        return buffer.getvalue()


def _text_in(data: bytes, name: str) -> str | None:
    """A text in a small JSON object, such as the log that a folder belongs to; None if the bytes don't have it.

    >>> _text_in(b'{"log": "1f"}', "log"), _text_in(b'{"log": 1}', "log"), _text_in(b"", "log")
    ('1f', None, None)
    """
    try:
        found = msgspec.json.decode(data, type=dict[str, object]).get(name)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return found if isinstance(found, str) else None


def _check_timeline(storage: Storage, timeline: Timeline) -> None:
    """Raises OtherTimeline if a folder has files of versions that the log doesn't have.

    Files up to the position of the sink were written for the log as it is, since the log has recorded that they were.
    In a sink that is new to the log the newest files speak for those before them. Files that no mark lists count too: a
    reader of the whole folder reads them.
    """
    after = padded(0 if timeline.position is None else timeline.position + 1)
    files = storage.list("", after=after, before=":")  # which digits sort before
    marks = storage.list(_MARKS, after=f"{_MARKS}{after}")
    found: dict[Version, list[str]] = {}
    for name in (*files, *marks):
        if (match := _NAME.match(name)) is not None:
            found.setdefault(Version(int(match[1])), []).append(name)
    versions = sorted(found)
    if timeline.position is None:
        last = max((version for version in versions if version <= timeline.newest), default=None)
        if last is not None and _is_of(storage, timeline, last, found[last]):
            versions = [version for version in versions if version > last]
    # What follows a version of another timeline is of that one too, or is sent again, as it is behind the position.
    first = next((each for each in versions if not _is_of(storage, timeline, each, found[each])), None)
    if first is None:
        return
    cleaned = f" {CLEANED}" if first == versions[-1] and timeline.may_be_cleaned(first) else ""
    raise OtherTimeline(
        f"{storage.place} has files of versions {first} to {versions[-1]} whose commits the log doesn't have: it is at "
        f"version {timeline.newest} and was set back to an older state after they were written. Delete these files: "
        f"{_listed([name for name in files if name >= padded(first)])}, "
        f"{_listed([name for name in marks if name >= _MARKS + padded(first)])}. Or give the sink another folder."
        f"{cleaned}"
    )


def _is_of(storage: Storage, timeline: Timeline, version: Version, names: Iterable[str]) -> bool:
    """Whether a version's files and its mark are those of the version's commit in the log."""
    commits = set()
    for name in names:
        match = _NAME.match(name)
        commits.add(match[2] if match and match[2] else _text_in(storage.get(name), "commit"))
    return all(timeline.has(version, commit) for commit in commits)


def _listed(names: Sequence[str]) -> str:
    """
    >>> _listed(["a", "b"]), _listed([str(number) for number in range(50)])
    ('a, b', '0 to 49 (50 files)')
    """
    if len(names) <= _MOST_LISTED:
        return ", ".join(names) or "no others"
    return f"{names[0]} to {names[-1]} ({len(names)} files)"


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
    rows: list[dict[str, object]] = python_rows(table)
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

    def open(self, timeline: Timeline) -> None:
        """Nothing to prepare."""


class Memory(_Unprepared):
    """Rows in this process, for tests: `sink.versions` has the rows of each version that has any, `sink.rows()` all."""

    kind = "memory"

    def __init__(self) -> None:
        self.versions: dict[Version, list[dict[str, object]]] = {}
        self._commits: dict[Version, str] = {}
        self._log: str | None = None
        self._lock = threading.Lock()

    def open(self, timeline: Timeline) -> None:
        """Forgets the versions that the log has lost since they were written here."""
        with self._lock:
            if self._log == timeline.log:
                later = [each for each in self._commits.items() if each[0] > (timeline.position or 0)]
                for version in (version for version, commit in later if not timeline.has(version, commit)):
                    del self.versions[version], self._commits[version]
            self._log = timeline.log

    def write(self, version: Version, commit: str, rows: Iterator[Rows]) -> None:
        taken = [row for part in rows for row in python_rows(part.table)]
        if taken:
            with self._lock:
                self.versions[version], self._commits[version] = taken, commit

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

    def write(self, version: Version, commit: str, rows: Iterator[Rows]) -> None:
        tables = [part.table for part in rows]
        if not tables:
            return
        table = pa.concat_tables(tables)
        shown = RichTable(title=f"version {version}: {table.num_rows} rows", title_justify="left")
        for name in table.column_names:
            shown.add_column(name)
        for row in python_rows(table.slice(0, self._limit)):
            shown.add_row(*[str(value) for value in row.values()])
        self._console.print(shown)


class Foreach(_Unprepared):
    """A user's function, called with each version: `hf.foreach(lambda version, commit, rows: ...)`.

    It gets the version's number, the id of its commit, and an Arrow table, at least once per version: after a crash it
    gets the last version again. With `version_column=True` the table has the column `_version`. A function isn't asked
    at a start what it has written; `examples/sqlite_upsert.py` shows a sink that is, and that writes each version once.
    """

    kind = "function"

    def __init__(self, function: Callable[[int, str, pa.Table], None], *, version_column: bool = False) -> None:
        if not takes(function, "version", "commit", "rows"):
            raise TopologyError(
                f"foreach({function!r}): the function is called with a version, the id of its commit and the version's "
                "rows. Give it three parameters: (version, commit, rows)."
            )
        self._function = function
        self.version_column = version_column

    def write(self, version: Version, commit: str, rows: Iterator[Rows]) -> None:
        tables = [part.table for part in rows]
        if tables:
            table = pa.concat_tables(tables)
            self._function(version, commit, with_version(table, version) if self.version_column else table)


files, memory, console, foreach = Files, Memory, ConsoleSink, Foreach
