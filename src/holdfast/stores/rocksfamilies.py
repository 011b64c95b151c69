"""What RocksDB counts by store: flushes, compactions and waits of one column family, from the text it tells them in.

Its other counters are by database (`rocksstats`). The text rounds: flushes to a thousandth of a GiB, compactions to a
hundredth.
"""

import re
from collections.abc import Mapping
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

COUNTED: Final = (*_LINES, *_COLUMNS)
"""Our names, of one store each."""


def counted(text: str) -> dict[str, float]:
    """One family's counts; what the text doesn't have is left out.

    >>> counted("Flush(GB): cumulative 0.500, interval 0.000\\n")
    {'store_bytes_flushed': 536870912.0}
    """
    found = {
        name: float(match[1]) * unit
        for name, (line, unit) in _LINES.items()
        if (match := line.search(text)) is not None
    }
    return found | _of_columns(text.splitlines())


def _of_columns(lines: list[str]) -> dict[str, float]:
    """Those of the row of sums, in which a size is two words, `12.07 MB`, under one heading."""
    heads = next((line.split() for line in lines if line.startswith("Level ")), [])
    sums = next((line.split() for line in lines if line.split()[:1] == ["Sum"]), [])
    if len(sums) != len(heads) + 1:
        return {}
    return {name: float(sums[heads.index(column) + 1]) for name, column in _COLUMNS.items() if column in heads}
