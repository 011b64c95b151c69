"""RocksDB's counters per store: flushes, compactions and waits of one column family, parsed from RocksDB's text.

Its other counters are per database (`rocksdb_metrics`). The text rounds flushes to a thousandth of a GiB, compactions
to a hundredth. It includes flushes in the compactions, as those of high priority; here they are separate.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

PROPERTY: Final = "rocksdb.cfstats-no-file-histogram"

_GIB: Final = 1 << 30
_LINES: Final[Mapping[str, tuple[re.Pattern[str], int]]] = {
    "store_bytes_flushed": (re.compile(r"^Flush\(GB\): cumulative ([\d.]+)", re.MULTILINE), _GIB),
    "store_bytes_read_compaction": (re.compile(r"^Cumulative compaction: .*?([\d.]+) GB read", re.MULTILINE), _GIB),
    "store_bytes_written_compaction": (re.compile(r"^Cumulative compaction: ([\d.]+) GB write", re.MULTILINE), _GIB),
    "store_write_delays": (re.compile(r"total-delays: (\d+)"), 1),
    "store_write_stops": (re.compile(r"total-stops: (\d+)"), 1),
}
_COLUMNS: Final[Mapping[str, str]] = {"store_compactions": "Comp(cnt)", "store_compaction_seconds": "Comp(sec)"}
_SUMS, _FLUSHES = "Sum", "High"

COUNTED: Final = (*_LINES, *_COLUMNS)
"""The names of these counters in Holdfast's metrics."""


def parse_counters(text: str) -> dict[str, float]:
    """The counters of one family that the text has.

    >>> parse_counters("Flush(GB): cumulative 0.500, interval 0.000\\n")
    {'store_bytes_flushed': 536870912.0}
    """
    found = {name: float(match[1]) * unit for name, (line, unit) in _LINES.items() if (match := line.search(text))}
    flushed, written = found.get("store_bytes_flushed"), found.get("store_bytes_written_compaction")
    if flushed is not None and written is not None:
        found["store_bytes_written_compaction"] = max(0.0, written - flushed)
    lines = [line.split() for line in text.splitlines()]
    sums, flushes = _row(lines, "Level", _SUMS), _row(lines, "Priority", _FLUSHES)
    for name, column in _COLUMNS.items():
        if column in sums:
            found[name] = max(0.0, round(sums[column] - flushes.get(column, 0), 2))
    return found


def _row(lines: Sequence[Sequence[str]], table: str, row: str) -> dict[str, float]:
    """The numbers in a row of one of the text's tables. A size is two words, `12.07 MB`, under one heading."""
    heads = next((line for line in lines if line[:1] == [table]), [])
    words = next((line for line in lines if line[:1] == [row]), [])
    if len(words) != len(heads) + 1:
        return {}
    return {column: float(words[heads.index(column) + 1]) for column in _COLUMNS.values() if column in heads}
