"""The columns by which the clocks of sources move.

A stream of one branch needs only its event time. In a merged stream each record has the name of its source, and each
source a column with the event times of its own records: a live source must not move the clock of a backfill beside it.

The clock of a source is that of all it has read. Where no task sees all records, because steps leave some out, the
times are noted while Spark reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast.pipeline.task_columns import TIME, Clocks
from holdfast.pipeline.unusable import YEAR_1, above, quoted
from holdfast.stores.formats.byte_columns import whole
from holdfast.topology.parsing import UNREADABLE
from holdfast.topology.stream import SOURCE
from holdfast.topology.topology import Source
from holdfast.words import Millis

if TYPE_CHECKING:
    from holdfast.topology.stream import Stream


def sources_of(stream: Stream) -> tuple[str, ...]:
    """The sources whose clocks a stream's records move.

    Records of an output come from records that have moved the clock already.
    """
    return tuple(dict.fromkeys(each.origin.name for each in stream.branches if isinstance(each.origin, Source)))


def clocks_of(stream: Stream) -> Clocks:
    if stream.timestamp is None:
        return ()
    names = sources_of(stream)
    if len(stream.branches) == 1:
        return tuple((name, TIME) for name in names)
    return tuple((name, f"{TIME}{n}") for n, name in enumerate(names))


def times_of_branches(stream: Stream) -> list[str]:
    """The SQL of a merged stream's columns; none for another stream."""
    if stream.timestamp is None or len(stream.branches) == 1:
        return []
    millis = millis_of(stream.timestamp)
    return [f"CASE WHEN {SOURCE} = '{source}' THEN {millis} END AS {name}" for source, name in clocks_of(stream)]


def counted_sources(stream: Stream) -> tuple[str, ...]:
    """The sources whose records tasks count one by one: those of a merged stream."""
    return sources_of(stream) if len(stream.branches) > 1 else ()


def source_number(sources: Sequence[str]) -> str:
    """The SQL of a source's place among these; null for a record of an output.

    >>> source_number(["games", "chats"])
    "CASE _source WHEN 'games' THEN 0 WHEN 'chats' THEN 1 END"
    """
    cases = " ".join(f"WHEN '{name}' THEN {n}" for n, name in enumerate(sources))
    return f"CASE {SOURCE} {cases} END" if sources else "CAST(NULL AS int)"


def source_numbers(sources: Sequence[str], records: pa.Table) -> pa.Array:
    """The same of Arrow columns."""
    return pc.index_in(whole(records[SOURCE]), pa.array(sources, pa.string()))


def millis_of(timestamp: str, prefix: str = "") -> str:
    """The SQL of an event time in milliseconds; of a column in a struct after its prefix.

    >>> millis_of("at")
    'unix_millis(CAST(`at` AS timestamp))'
    """
    return f"unix_millis(CAST({prefix}{quoted(timestamp)} AS timestamp))"


_NOTED: Final = "holdfast-times"


class TimeColumns(NamedTuple):
    """The columns of a source's records with event times."""

    names: Sequence[str]
    parsed: bool = False
    """Whether records are read from texts. One that can't be read has no time."""
    tag: str | None = None
    """The struct that has the columns."""

    def latest(self, limit: Millis) -> tuple[str, str]:
        """The SQL of whether there are records, and of their largest time up to a limit."""
        prefix = "" if self.tag is None else f"{self.tag}."
        unread = f" OR {prefix}{UNREADABLE} IS NOT NULL" if self.parsed else ""
        times = [millis_of(name, prefix) for name in self.names]
        not_one = (f"{above(time, limit)} OR {time} < {YEAR_1}{unread}" for time in times)
        allowed = [f"CASE WHEN {no} THEN NULL ELSE {time} END" for no, time in zip(not_one, times, strict=True)]
        largest = allowed[0] if len(allowed) == 1 else f"greatest({', '.join(allowed)})"
        return f"max({'true' if self.tag is None else f'{self.tag} IS NOT NULL'})", f"max({largest})"


class ReadTimes:
    """The largest event times of a batch's sources, noted while its records are read: in the same pass, by no job.

    `batch` has the same rows. Where Spark reads a part of the batch again, a maximum stays the same; a count would not.
    """

    def __init__(self, batch: DataFrame, sources: Mapping[str, TimeColumns], limit: Millis) -> None:
        """`sources` are those whose times are noted. Times after the limit don't count."""
        self.batch, self._sources = batch, [*sources]
        if sources:
            values = [F.expr(sql) for columns in sources.values() for sql in columns.latest(limit)]
            self._noting = batch.observe(_NOTED, *(value.alias(f"v{n}") for n, value in enumerate(values)))
            session: Any = batch.sparkSession._jsparkSession
            # One physical plan, which all jobs of the version run, so that its notes are in one place.
            rows = self._noting._jdf.queryExecution().toRdd()
            frame = session.internalCreateDataFrame(rows, self._noting._jdf.schema(), False)
            self.batch = DataFrame(frame, batch.sparkSession)

    def noted(self, source: str) -> bool:
        return source in self._sources

    def found(self) -> dict[str, Millis | None]:
        """The largest time of each source that has read records; None if none of them has one that counts."""
        if not self._sources:
            return {}
        row: Any = self._noting._jdf.queryExecution().observedMetrics().apply(_NOTED)
        values = [None if row.isNullAt(n) else row.get(n) for n in range(2 * len(self._sources))]
        return _times(self._sources, values)


def read_times(records: DataFrame, source: str, columns: TimeColumns, limit: Millis) -> dict[str, Millis | None]:
    """The same of one source, by a job over its records."""
    (row,) = records.agg(*map(F.expr, columns.latest(limit))).collect()
    return _times([source], row)


def _times(sources: Sequence[str], values: Sequence[Any]) -> dict[str, Millis | None]:
    pairs = zip(sources, values[::2], values[1::2], strict=True)
    return {source: None if time is None else Millis(time) for source, arrived, time in pairs if arrived}
