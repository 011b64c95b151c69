"""Records of a stream as the tasks of an operator get them: shuffled by key, each partition in the order of event time.

Records of the same time are in the order of their source position. Unusable records are JSON in the column `_dead`, as
in `aggregation_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from holdfast.pipeline.clock_columns import (
    clocks_of,
    counted_sources,
    millis_of,
    source_number,
    source_numbers,
    times_of_branches,
)
from holdfast.pipeline.local_records import LocalRows, dead_letters, in_order, positions_of, times_of, values_of
from holdfast.pipeline.planning import columns_of_records
from holdfast.pipeline.record_columns import KeyedColumns
from holdfast.pipeline.task import Limits
from holdfast.pipeline.task_columns import DEAD, OF_SOURCE, TIME
from holdfast.pipeline.unusable import Case, Expression, cases_of, dead_letter, not_utf8_inside, quoted, shown_of
from holdfast.stores.formats.byte_columns import whole

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.topology.topology import SubTopology
    from holdfast.words import Millis


class RecordFrames:
    """The DataFrames of an operator that sees single records."""

    def __init__(
        self,
        subtopology: SubTopology,
        limits: Limits,
        values: Mapping[str, Expression],
        texts: Sequence[str],
        *,
        shuffled: bool = True,
    ) -> None:
        """`values` are expressions by the name of their column, `texts` the stream's columns that must be UTF-8.

        Without a shuffle, records stay in their partitions, in the order in which Spark reads them.
        """
        stream, frame = subtopology.stream, subtopology.stream.frame
        self._stream, self._fields, self._limits = stream, subtopology.key.fields, limits
        self._of_records, self._shuffled = columns_of_records(subtopology), shuffled
        keys = {f"k{n}": quoted(field.name) for n, field in enumerate(self._fields)}
        inputs = [f"{sql} AS {name}" for name, sql in keys.items()]
        self._order: list[str] = []
        if stream.timestamp is not None:
            inputs.append(f"{millis_of(stream.timestamp)} AS {TIME}")
            inputs.append(f"unix_micros(CAST({quoted(stream.timestamp)} AS timestamp)) AS t")
            inputs += times_of_branches(stream)
            self._order.append("t")
        inputs += [f"{quoted(column)} AS s{n}" for n, column in enumerate(stream.position)]
        self._order += [f"s{n}" for n in range(len(stream.position))]
        sources = counted_sources(stream)
        if sources:
            inputs.append(f"{source_number(sources)} AS {OF_SOURCE}")
        self._values, self._sql = values, inputs
        time = TIME if stream.timestamp else None
        self.columns = KeyedColumns(tuple(keys), tuple(values), time, clocks_of(stream), sources)
        times = [*([TIME] if stream.timestamp else []), *(name for _, name in self.columns.clocks)]
        self.carried = tuple(dict.fromkeys((*keys, *values, DEAD, *times, *([OF_SOURCE] if sources else []))))
        own = {field.name for field in self._fields}
        self._unfit = not_utf8_inside({name: frame.schema[name].dataType for name in texts if name not in own})

    @property
    def keys(self) -> tuple[str, ...]:
        return self.columns.keys

    def used(self) -> list[Expression]:
        return [*self._of_records, *self._values.values()]

    def unusable(self, wall: Millis) -> list[Case]:
        return [*cases_of(self._fields, self._stream.timestamp, wall, self._limits.max_ahead_millis), *self._unfit]

    @cached_property
    def _inputs(self) -> list[Column]:
        values = (F.expr(value) if isinstance(value, str) else value for value in self._values.values())
        named = zip(self._values, values, strict=True)
        return [*(F.expr(sql) for sql in self._sql), *(value.alias(name) for name, value in named)]

    def rows(self, records: DataFrame, wall: Millis) -> DataFrame:
        """The records, partitioned by key and in order, also with the columns that they are ordered by."""
        letter = dead_letter(self.unusable(wall), shown_of(records, self._stream.hidden))
        frame = records.select(*self._inputs, letter.alias(DEAD))
        if not self._shuffled:
            return frame.coalesce(self._limits.partitions)
        frame = frame.repartition(self._limits.partitions, *self.columns.keys)
        return frame.sortWithinPartitions(*self._order) if self._order else frame

    def local(self, records: pa.Table, wall: Millis) -> LocalRows:
        """The same without Spark."""
        keys = {name: whole(records[f.name]) for name, f in zip(self.columns.keys, self._fields, strict=True)}
        values = dict(zip(self._values, values_of(records, list(self._values.values())), strict=True))
        rows = {**keys, **values, **times_of(self._stream, records), **positions_of(self._stream, records)}
        if self.columns.sources:
            rows[OF_SOURCE] = source_numbers(self.columns.sources, records)
        dead = dead_letters(self.unusable(wall), records, self._stream.hidden)
        order = self._order if self._shuffled else []
        return LocalRows(in_order(rows, dead, order, self.carried), self.columns.keys)
