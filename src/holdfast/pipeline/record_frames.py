"""Records of a stream as the tasks of an operator get them: shuffled by key, each partition in the order of event time.

Records of the same time are in the order of their source position. Unusable records are JSON in the column `_dead`, as
in `aggregation_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from holdfast.pipeline.clock_columns import clocks_of, millis_of, times_of_branches
from holdfast.pipeline.record_columns import KeyedColumns
from holdfast.pipeline.task import Limits
from holdfast.pipeline.task_columns import DEAD, TIME
from holdfast.pipeline.unusable import Case, Expression, cases_of, dead_letter, not_utf8_inside, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.topology.topology import SubTopology
    from holdfast.words import Millis


class RecordFrames:
    """The DataFrames of an operator that sees single records."""

    def __init__(
        self, subtopology: SubTopology, limits: Limits, values: Mapping[str, Expression], texts: Sequence[str]
    ) -> None:
        """`values` are expressions by the name of their column, `texts` the stream's columns that must be UTF-8."""
        stream, frame = subtopology.stream, subtopology.stream.frame
        self._fields, self._timestamp, self._limits = subtopology.key.fields, stream.timestamp, limits
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
        self.values = [F.expr(value) if isinstance(value, str) else value for value in values.values()]
        named = zip(values, self.values, strict=True)
        self._inputs = [*(F.expr(sql) for sql in inputs), *(value.alias(name) for name, value in named)]
        time = TIME if stream.timestamp else None
        self.columns = KeyedColumns(tuple(keys), tuple(values), time, clocks_of(stream))
        times = [*([TIME] if stream.timestamp else []), *(name for _, name in self.columns.clocks)]
        self._carried = list(dict.fromkeys((*keys, *values, DEAD, *times)))
        own = {field.name for field in self._fields}
        self._unfit = not_utf8_inside({name: frame.schema[name].dataType for name in texts if name not in own})

    def unusable(self, wall: Millis) -> list[Case]:
        return [*cases_of(self._fields, self._timestamp, wall, self._limits.max_ahead_millis), *self._unfit]

    def rows(self, records: DataFrame, wall: Millis) -> DataFrame:
        """The records, partitioned by key and in order."""
        frame = records.select(*self._inputs, dead_letter(self.unusable(wall)).alias(DEAD))
        frame = frame.repartition(self._limits.partitions, *self.columns.keys)
        return (frame.sortWithinPartitions(*self._order) if self._order else frame).select(*self._carried)
