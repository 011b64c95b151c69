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

from holdfast.chance import new_id
from holdfast.errors import ErrorCategory, HoldfastError, TopologyError
from holdfast.log.names import padded
from holdfast.log.objects import Put, Storage
from holdfast.log.storage import open_storage
from holdfast.stores.formats.arrow_values import python_rows
from holdfast.topology.sink import OtherTimeline, Rows, Timeline, takes
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

    `_log.json` says whose the folder is: the id of the log, an id of the folder, the format. The log has a position for
    the folder, beside that of the sink. So files of versions that the log has lost, because it was set back to an older
    state, are refused when the sink is opened, also if the sink has had another folder meanwhile.
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
        self.folder_id: str | None = None
        """The id in the folder's `_log.json`; None until the sink is opened."""

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
        claim = _Claim(log=timeline.log, folder=new_id(), format=self._format)
        if self._storage.create("_log.json", msgspec.json.encode(claim)) is Put.EXISTS:
            claim = self._claimed(self._storage, timeline.log)
        self.folder_id = claim.folder
        _check_timeline(self._storage, timeline, at := timeline.folders.get(claim.folder))
        _warn_of_gap(self._storage, timeline, at)

    def _claimed(self, storage: Storage, log: str) -> "_Claim":
        """What the folder's `_log.json` says, if it is the folder of this log and of this format."""
        try:
            found = msgspec.json.decode(storage.get("_log.json"), type=_Claim)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise FolderTaken(
                f"{storage.place} has a damaged _log.json ({error}), which should say that its files are those of log "
                f"{log}. If they are, delete _log.json: the start then compares the newest files with the log. "
                "Otherwise give the sink another folder."
            ) from error
        if found.log != log:
            raise FolderTaken(
                f"{storage.place} has the files of another log ({found.log}); this one is {log}. Give the sink "
                "another folder, or empty this one."
            )
        if found.format != self._format:
            raise FolderTaken(
                f"{storage.place} has files of the format {found.format!r}, and the sink writes {self._format!r}. A "
                f"folder has one format: give the sink another folder, or format={found.format!r}."
            )
        return found

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
            what, why, files = f"of commit {other}", "the log was set back to an older state", f"-{other}-*"
            if other is None:
                what, why, files = "of an unknown commit", "the mark is damaged", f"-* that aren't of commit {commit}"
            raise OtherTimeline(
                f"{self._storage.place} has {name} {what}, and version {version} of the log is commit {commit}: {why}. "
                f"Delete it and any files {padded(version)}{files}, and start again: the version is written again. Or "
                "give the sink another folder."
            )

    def _encode(self, table: pa.Table) -> bytes:
        if self._format == "json":
            return msgspec.json.Encoder(decimal_format="string").encode_lines(_json_rows(table))
        buffer = io.BytesIO()
        # Rows of changed keys rarely repeat a value, so a dictionary costs time and saves no space.
        pq.write_table(table, buffer, compression="snappy", use_dictionary=False)
        return buffer.getvalue()


class _Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `_log.json`."""

    log: str
    folder: str
    format: str


def _text_in(data: bytes, name: str) -> str | None:
    """A text in a small JSON object, such as the commit of a mark; None if the bytes don't have it.

    >>> _text_in(b'{"commit": "1f"}', "commit"), _text_in(b'{"commit": 1}', "commit"), _text_in(b"", "commit")
    ('1f', None, None)
    """
    try:
        found = msgspec.json.decode(data, type=dict[str, object]).get(name)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return found if isinstance(found, str) else None


def _check_timeline(storage: Storage, timeline: Timeline, at: Version | None) -> None:
    """Raises OtherTimeline if a folder, whose position in the log is `at`, has files of versions that the log lacks.

    Files up to that position were written for the log as it is, since the log has recorded that they were. In a folder
    that the log doesn't know, the newest files whose commit the log has speak for those before them. Files that no mark
    lists count too: a reader of the whole folder reads them.
    """
    after = padded(0 if at is None else at + 1)
    files = storage.list("", after=after, before=":")  # which digits sort before
    marks = storage.list(_MARKS, after=f"{_MARKS}{after}")
    found: dict[Version, list[str]] = {}
    for name in (*files, *marks):
        if (match := _NAME.match(name)) is not None:
            found.setdefault(Version(int(match[1])), []).append(name)
    bad, unknown = list[Version](), list[Version]()
    for version in sorted(found, reverse=True):
        commit = timeline.commit_of(version)
        if commit is None and version <= timeline.newest and (at is None or version == at + 1):
            unknown = [each for each in found if each <= version]  # cleaned; a sink is at most one version ahead
            break
        if commit is None or not _is_of(storage, commit, found[version]):
            bad.insert(0, version)
        elif at is None:
            break
    if bad:
        names = [name for version in bad for name in found[version]]
        raise OtherTimeline(
            f"{storage.place} has files of versions {bad[0]} to {bad[-1]} whose commits the log doesn't have: it is at "
            f"version {timeline.newest} and was set back to an older state after they were written. Delete these "
            f"files: {_listed([name for name in names if not name.startswith(_MARKS)])}, "
            f"{_listed([name for name in names if name.startswith(_MARKS)])}. Or give the sink another folder."
        )
    if unknown:
        raise OtherTimeline(
            f"{storage.place} has files of versions {min(unknown)} to {max(unknown)}, and nothing tells whether they "
            f"are of this log: it is at version {timeline.newest}, has cleaned their commits, and has recorded "
            f"{'nothing' if at is None else f'the versions up to {at}'} for the folder with the id in its _log.json. "
            "Give the sink another folder."
        )


def _is_of(storage: Storage, commit: str, names: Iterable[str]) -> bool:
    """Whether a version's files and its mark are those of a commit. A damaged mark beside files says nothing."""
    matches = [(name, _NAME.match(name)) for name in names]
    files = [match[2] for name, match in matches if match is not None and not name.startswith(_MARKS)]
    marks = [_text_in(storage.get(name), "commit") for name, _ in matches if name.startswith(_MARKS)]
    return {*files, *(mark for mark in marks if mark is not None or not files)} == {commit}


def _warn_of_gap(storage: Storage, timeline: Timeline, at: Version | None) -> None:
    """Says once, at the start, that a folder lacks versions that its sink will not get again."""
    start = timeline.newest if timeline.position is None else timeline.position
    if at is None and timeline.position:
        lacks = f"is new or was emptied, or its _log.json was deleted. Versions up to {start}"
    elif at is not None and at < start:
        lacks = f"was written up to version {at}. Versions {at + 1} to {start}"
    else:
        return
    logger.warning(
        "%s %s aren't sent to it: a position belongs to a sink's name, and this one goes on after version %d. What was "
        "sent before is in the folder that the sink had then.",
        storage.place,
        lacks,
        start,
    )


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
