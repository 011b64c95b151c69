"""A processor's batch as DataFrame work: an exchange by key, each partition in the order of event times.

The exchange is always an explicit one, by the key as Python has it: a column of type int is hashed as the bigint it
will be in a store, so that a query finds the task that has it. Records that can't be used come along, as in `plan`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from holdfast.pipeline.aggregation_plan import dead_letter, quoted
from holdfast.pipeline.nulls import unusable_nulls
from holdfast.pipeline.processing_task import RecordColumns
from holdfast.pipeline.task_columns import DEAD, TIME
from holdfast.stores.formats.types import FieldType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.topology.processor import Processed
    from holdfast.words import Millis


class ProcessorPlan:
    """The plan of one processor."""

    def __init__(self, processed: Processed, partitions: int, max_ahead_millis: int) -> None:
        self._processed = processed
        self._partitions = partitions
        self._max_ahead_millis = max_ahead_millis
        stream, frame = processed.stream, processed.stream.frame
        event = {column: f"c{n}" for n, column in enumerate(processed.event.columns)}
        inputs = [f"{quoted(column)} AS {name}" for column, name in event.items()]
        keys: list[str] = []
        for n, field in enumerate(processed.key.fields):
            if field.name in event and frame.schema[field.name].dataType.simpleString() == field.type:
                keys.append(event[field.name])
            else:
                keys.append(f"k{n}")
                inputs.append(f"CAST({quoted(field.name)} AS {field.type}) AS k{n}")
        self._order: list[str] = []
        if stream.timestamp is not None:
            instant = f"CAST({quoted(stream.timestamp)} AS timestamp)"
            inputs += [f"unix_millis({instant}) AS {TIME}", f"unix_micros({instant}) AS t"]
            self._order.append("t")
        inputs += [f"{quoted(column)} AS s{n}" for n, column in enumerate(stream.position)]
        self._order += [f"s{n}" for n in range(len(stream.position))]
        self._inputs = [F.expr(sql) for sql in inputs]
        self.columns = RecordColumns(tuple(event.values()), tuple(keys), TIME if stream.timestamp else None)
        carried = dict.fromkeys((*self.columns.event, *keys, DEAD, *([TIME] if stream.timestamp else [])))
        self._carried = list(carried)
        self._nulls = unusable_nulls(processed.event, frame.schema)
        self.bounded = all(_has_one_size(frame.schema[column].dataType.simpleString()) for column in event)
        """Whether no record can be large, but for its key, which has a longest length."""

    def records(self, batch: DataFrame, wall: Millis) -> DataFrame:
        """The batch's records where and in the order in which the tasks want them."""
        frame = batch
        for step in self._processed.stream.steps:
            frame = step(frame)
        limit, timestamp = wall + self._max_ahead_millis, self._processed.stream.timestamp
        dead = dead_letter(self._processed.key.fields, timestamp, limit, self._max_ahead_millis, self._nulls)
        frame = frame.select(*self._inputs, F.expr(f"{dead} AS {DEAD}"))
        frame = frame.repartition(self._partitions, *self.columns.keys)
        if self._order:
            frame = frame.sortWithinPartitions(*self._order)
        return frame.select(*self._carried)


def _has_one_size(kind: str) -> bool:
    return kind.partition("<")[0] not in ("array", "map", "struct", "variant") and not FieldType.parse(kind).is_variable
