"""The columns by which the clocks of sources move.

A stream of one branch needs only its event time. In a merged stream each record has the name of its source, and each
source a column with the event times of its own records: a live source must not move the clock of a backfill beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.task_columns import TIME, Clocks
from holdfast.pipeline.unusable import quoted
from holdfast.stores.formats.byte_columns import whole
from holdfast.topology.stream import SOURCE
from holdfast.topology.topology import Source

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


def millis_of(timestamp: str) -> str:
    """The SQL of an event time in milliseconds.

    >>> millis_of("at")
    'unix_millis(CAST(`at` AS timestamp))'
    """
    return f"unix_millis(CAST({quoted(timestamp)} AS timestamp))"
