"""What queries print in a terminal: a table, one JSON object per line, or CSV.

In a table and in CSV, the components of a key and the fields of a value are columns of their own.
"""

import csv
import datetime as dt
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec
import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from holdfast.query.keytext import render_scalar
from holdfast.query.render import rows_of

Row = Mapping[str, Any]
"""What is printed of one entry: `key`, `value`, and whatever else the command shows."""
MISSING: Final = "-"
_TIMES: Final = ("timestamp", "expires", "start", "end")


class Format(Enum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class Output:
    """Prints rows whose keys have components of these names."""

    def __init__(self, format: Format, names: Sequence[str]) -> None:
        self._format = format
        self._names = names
        self._headed = False

    def print(self, rows: Iterable[Row], note: str, *, more: bool, missing: Iterable[str] = ()) -> None:
        """Prints all rows; under a table, a note.

        Where there are `more`, or tasks are `missing`, it says so, if need be on standard error.
        """
        left_out = _left_out(more, missing)
        match self._format:
            case Format.JSON:
                for row in rows:
                    _write(_json(row))
            case Format.CSV:
                flat = [self.flat(row) for row in rows]
                columns = list(dict.fromkeys(name for row in flat for name in row))
                _write(_csv([columns, *([_text(row.get(name)) for name in columns] for row in flat)]))
            case Format.TABLE:
                flat = [self.flat(_with_times(row)) for row in rows]
                columns = list(dict.fromkeys(name for row in flat for name in row))
                cells = ([_text(row[name]) if name in row else MISSING for name in columns] for row in flat)
                _print_table(columns, cells, ", and ".join([note, *left_out]))
        _warn(self._format, left_out)

    def print_change(self, version: int, key: Any, others: Row) -> None:
        """Prints a change at once. In a table and in CSV every one has the same columns; a header is before the first.

        `others` has `deleted`, `value` and `error`; JSON has those of them that say something.
        """
        if self._format is Format.JSON:
            silent = {"value" if others["deleted"] else "deleted", *(() if others["error"] else ("error",))}
            said = {name: each for name, each in others.items() if name not in silent}
            _write(_json({"version": version, "key": key, **said}))
            return
        if not self._headed:
            self._headed = True
            self._print_cells(["version", *self._names, *others])
        others = _with_times(others) if self._format is Format.TABLE else others
        components = key if len(self._names) > 1 else (key,)
        self._print_cells([_text(each) for each in (version, *components, *others.values())])

    def _print_cells(self, cells: Sequence[str]) -> None:
        is_csv = self._format is Format.CSV
        _write(_csv([cells]) if is_csv else "  ".join(_clean(cell) or MISSING for cell in cells))

    def flat(self, row: Row) -> dict[str, Any]:
        """The row by columns."""
        found = self._keyed(row)
        for name, value in row.items():
            if name == "value" and isinstance(value, Mapping):
                found |= {f"value.{field}" if field in found else str(field): each for field, each in value.items()}
            elif name != "key":
                found[name] = value
        return found

    def _keyed(self, row: Row) -> dict[str, Any]:
        if "key" not in row:
            return {}
        key = row["key"]
        return dict(zip(self._names, key if len(self._names) > 1 else (key,), strict=False))


def print_result(format: Format, result: pa.Table, note: str, *, more: bool) -> None:
    """Prints the result of a statement. Columns are by position: two of them may have one name."""
    names, rows, left_out = result.column_names, rows_of(result), _left_out(more)
    match format:
        case Format.JSON:
            for row in rows:
                _write(msgspec.json.encode(dict(zip(names, row, strict=True))).decode())
        case Format.CSV:
            _write(_csv([names, *([_text(value) for value in row] for row in rows)]))
        case Format.TABLE:
            cells = ([_text(value) for value in row] for row in rows)
            _print_table(names, cells, ", and ".join([note, *left_out]))
    _warn(format, left_out)


def _left_out(more: bool, missing: Iterable[str] = ()) -> list[str]:
    """What is to be said of rows that are not printed."""
    tasks = sorted(missing)
    unread = [f"without {', '.join(tasks)}, which can't be read now"] if tasks else []
    return [*(["there are more: --limit"] if more else []), *unread]


def _warn(format: Format, left_out: Sequence[str]) -> None:
    if format is not Format.TABLE:  # a program reads standard output
        sys.stderr.writelines(f"holdfast: {each}\n" for each in left_out)


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], note: str) -> None:
    table = Table(*(escape(_clean(name)) for name in columns), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(_clean(cell)) for cell in row))
    # A pipe has no width, and wrapped values can't be searched.
    console = Console(width=None if sys.stdout.isatty() else 240, highlight=False, soft_wrap=False)
    if columns:
        console.print(table)
    if note:
        console.print(Text(_clean(note), style="dim"))


def _with_times(row: Row) -> Row:
    """With times as people read them; programs get milliseconds."""
    return {name: _time(each) if name in _TIMES and isinstance(each, int) else each for name, each in row.items()}


def _time(millis: int) -> str:
    try:
        return str(render_scalar(dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=millis)))
    except OverflowError:  # beyond the year 9999
        return str(millis)


def _json(row: Row) -> str:
    key = {}
    if "key" in row:
        given = row["key"]
        key = {"key": [*map(render_scalar, given)] if isinstance(given, tuple) else render_scalar(given)}
    return msgspec.json.encode({**row, **key}).decode()


def _csv(lines: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().removesuffix("\n")


def _text(value: Any) -> str:
    """A value in one cell."""
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case Mapping() | list() | tuple():
            return msgspec.json.encode(value).decode()
    return str(render_scalar(value))


def _clean(text: str) -> str:
    """Without characters that a terminal would obey: anyone may have written it."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
