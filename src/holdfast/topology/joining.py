"""Joins of two streams: the operator that brings together records of one key whose times are near enough.

    left  ─► key, event time, {columns}, null ─┐
                                               ├─ merged ─► join ─► key, columns of both, event time
    right ─► key, event time, null, {columns} ─┘

Both streams become one of a common shape, so a join reads one stream as every operator does, and each record moves the
clock of its own source. Per side the join keeps a buffer of records. A side whose unmatched records come out too has a
second store with those that wait for the end of their windows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, cast

import msgspec

from holdfast.errors import TopologyError
from holdfast.stores.access import Now
from holdfast.stores.formats.rows import ROWS
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds import store_spec
from holdfast.stores.layouts.due import AT_ONCE
from holdfast.stores.options import ROCKSDB, one_of, words
from holdfast.stores.spec import KEY_VALUE, WINDOW, RowValues, StoreSpec, check_name
from holdfast.topology.frames import key_of, type_of
from holdfast.topology.join_shape import JoinShape, JoinSide
from holdfast.topology.join_windows import JoinWindow
from holdfast.topology.joined import Joined
from holdfast.topology.outputs import ForwardedRows, Output, changes_of
from holdfast.topology.topology import Operator, SubTopology
from holdfast.topology.window_reducing import final_rows
from holdfast.topology.windows import Windows, time_to_close

if TYPE_CHECKING:
    from pyspark.sql import Column

    from holdfast.topology.stream import Stream

How = Literal["inner", "left", "outer"]
HOWS: Final = ("inner", "left", "outer")

LEFT, RIGHT = "_left", "_right"
"""The columns of the merged stream with the columns of each side."""

RECORDS: Final = Schema.of(records="binary")
"""The value of a join's stores: a bucket of records."""

WAIT_TIME: Final = "$time"
"""The first key column of records that wait: their event time."""

LEAST_BUCKET_MS: Final = 1_000

LATE: Final = "late"

ENOUGH_MS: Final = 3_600_000
"""If a batch may span an hour of event time, nothing is said about final rows that may be late."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamJoin(Operator):
    """Pairs of records of two streams, and unmatched records where they come out too."""

    how: How
    left: JoinSide
    right: JoinSide
    columns: Schema
    """The columns of the rows it sends on: key, left, right."""

    @property
    def waits(self) -> bool:
        """Whether records come out at the end of their windows."""
        return self.how != "inner"

    def outputs(self, subtopology: SubTopology) -> tuple[Output, ...]:
        name, number = subtopology.name, subtopology.number
        return (ForwardedRows(name, number, self.columns), ForwardedRows(late_of(name), number, self.columns))

    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        yield f"{self.how} join {self.left.window}"
        yield f"rows {self.columns}"

    def next_due(self, before: Now, event: int | None) -> int | None:
        """Windows may have closed as soon as the newest version has moved the event clock."""
        return AT_ONCE if self.waits and event is not None and event != before.event else None


def add_join(
    left: Stream,
    right: Stream,
    within: JoinWindow | None,
    how: str,
    name: str | None,
    on: str | Column | Iterable[str | Column] | None,
    prefix: str,
) -> Joined:
    """Adds a join of two streams by their keys."""
    where = f"join(name={name!r})"
    if name is None:
        raise TopologyError(
            "join(): a join of two streams keeps records under its name, in stores of its own. Give it one: "
            "left.join(right, ..., name='orders-payments')."
        )
    check_name(name)
    if not isinstance(within, JoinWindow):
        raise TopologyError(f"{where}: within={within!r} is not a join window. Use within=hf.join_window('10m').")
    if on is not None:
        raise TopologyError(
            f"{where}: on={on!r} is for a join with a table. Two streams are joined by their keys: use key_by()."
        )
    kind = one_of(how, HOWS, "how", where)
    key = _common_key(left, right, where)
    topology, sides = left.topology, (_columns_of(left, where), _columns_of(right, where))
    operator, stores = bound(name, cast(How, kind), within, key, *sides, prefix, topology.engine)
    for stream, side in ((left, operator.left), (right, operator.right)):
        for output, windows in final_rows(stream):
            _check_time_for(output, windows, side.window, where)
    topology.check_free(name, stores, "Give the join another name: join(..., name='...').")
    topology.add(name, _merged(left, right, key, operator), key, stores, operator)
    return Joined(topology, name, operator.columns, tuple(key.names), late_of(name))


def _check_time_for(output: str, windows: Windows, within: JoinWindow, where: str) -> None:
    """Says that final rows may be late: they come when the clock is past the ends of their windows."""
    shortest, longest = time_to_close(windows)
    taken = within.after_ms + within.grace_ms
    if taken >= longest + ENOUGH_MS:
        return
    fact = (
        f"{where}: rows of {output!r} come {words(shortest)} to {words(longest)} after their event times, when their "
        "windows have closed, and later by as much as the batch has moved the clock. This join takes them up to "
        f"{words(taken)} after their times"
    )
    todo = (
        f"Write within=hf.join_window(..., grace='...') with a grace of {words(longest)} and the longest time that a "
        "batch may span."
    )
    if taken < shortest:
        raise TopologyError(f"{fact}: all of them are late. {todo}")
    span = words(taken - longest) if taken > longest else "no time at all"
    logger.warning("%s: for none to be late, a batch may span %s. %s", fact, span, todo)


def late_of(name: str) -> str:
    """The output with the late records of a join."""
    return changes_of(name, LATE)


def bound(
    name: str,
    how: How,
    within: JoinWindow,
    key: Schema,
    left: Schema,
    right: Schema,
    prefix: str = "",
    engine: str = ROCKSDB,
) -> tuple[StreamJoin, tuple[StoreSpec, ...]]:
    """The operator of a join of streams with these columns, and its stores."""
    columns = _row_columns(key, left, right, prefix, f"join(name={name!r})")
    waits = (how != "inner", how == "outer")
    named = (f"{name}-left", f"{name}-right")
    sides = [
        JoinSide(column, own, window, buffer, f"{buffer}-unmatched" if is_waiting else None)
        for column, own, window, buffer, is_waiting in zip(
            (LEFT, RIGHT), (left, right), (within, within.mirrored()), named, waits, strict=True
        )
    ]
    stores = tuple(spec for side in sides for spec in _stores(engine, key, side))
    return StreamJoin(how, sides[0], sides[1], columns), stores


def _common_key(left: Stream, right: Stream, where: str) -> Schema:
    """The key of both streams, under the names that it has on the left."""
    if left.topology is not right.topology:
        raise TopologyError(f"{where}: the streams belong to different apps. Join streams of one app.")
    for side, stream in (("left", left), ("right", right)):
        if stream.timestamp is None:
            raise TopologyError(
                f"{where}: the stream on the {side} has no event time, and a join of two streams needs it on both "
                "sides. Name its column: app.stream(df, key=..., timestamp=...)."
            )
    key, other = key_of(left.frame, left.key), key_of(right.frame, right.key)
    if [field.type for field in key.fields] != [field.type for field in other.fields]:
        raise TopologyError(
            f"{where}: the key on the left is ({key}) and on the right ({other}). Join streams with keys of the same "
            "types: change one with key_by(), or cast its column with with_column()."
        )
    if taken := {LEFT, RIGHT} & set(key.names):
        raise TopologyError(f"{where}: a key column is named {min(taken)!r}, which a join needs. Rename it.")
    return key


def _columns_of(stream: Stream, where: str) -> Schema:
    """The columns of a stream that a join keeps: all but the key."""
    fields = []
    for name in stream.columns:
        if name in stream.key:
            continue
        try:
            fields.append(Field(name, type_of(stream.frame, name)))
        except TopologyError as error:
            raise TopologyError(
                f"{where}: the column {name!r} can't be kept for the join: {error} Leave it out with select() or "
                "drop(), or turn it into text with to_json()."
            ) from None
    if not fields:
        raise TopologyError(
            f"{where}: a stream has no columns besides its key ({', '.join(stream.key)}), so its records can't be told "
            "from missing ones. Add a column with with_column()."
        )
    return Schema(tuple(fields))


def _row_columns(key: Schema, left: Schema, right: Schema, prefix: str, where: str) -> Schema:
    """The columns of a row: key, left, right with its prefix."""
    renamed = tuple(Field(f"{prefix}{field.name}", field.type) for field in right.fields)
    taken = {*key.names, *left.names}
    if clash := [field.name for field in renamed if field.name in taken]:
        raise TopologyError(
            f"{where}: both sides have columns named {', '.join(clash)}. Give those on the right a prefix, "
            "join(..., prefix='right_'), or rename them before with select()."
        )
    return Schema((*key.fields, *left.fields, *renamed))


def _stores(engine: str, key: Schema, side: JoinSide) -> Iterator[StoreSpec]:
    """The stores of one side."""
    # A record looks for others in a span of `length_ms`: in at most two buckets of that length.
    bucket_ms = max(side.window.length_ms, LEAST_BUCKET_MS)
    kept_ms = bucket_ms + side.window.after_ms + side.window.grace_ms
    columns = (("columns", str(side.columns)),)
    common = {"value": RowValues(RECORDS), "codec": ROWS, "default_engine": engine}
    buffer = store_spec(
        side.buffer,
        WINDOW,
        key=key,
        size=timedelta(milliseconds=bucket_ms),
        grace=timedelta(milliseconds=side.window.grace_ms),
        retention=timedelta(milliseconds=kept_ms),
        **common,
    )
    yield msgspec.structs.replace(buffer, fixed=buffer.fixed + columns)
    if side.unmatched is not None:
        ordered = Schema((Field(WAIT_TIME, "bigint"), *key.fields))
        waiting = store_spec(side.unmatched, KEY_VALUE, key=ordered, **common)
        yield msgspec.structs.replace(waiting, fixed=columns, stream_key=key)


def _merged(left: Stream, right: Stream, key: Schema, join: StreamJoin) -> Stream:
    """Both streams in the shape of a join, as one."""
    time = left.timestamp
    assert time is not None
    if time in (*key.names, LEFT, RIGHT):
        time = f"{time}_"
    sides = (join.left, join.right)
    return _shaped(left, sides, 0, key, time).merge(_shaped(right, sides, 1, key, time))


def _shaped(stream: Stream, sides: tuple[JoinSide, JoinSide], own: int, key: Schema, time: str) -> Stream:
    """A stream in the shape of a join: key, event time, and a column per side, null for the other side."""

    assert stream.timestamp is not None
    keys = tuple(zip(stream.key, key.names, strict=True))
    step = JoinShape(keys, (stream.timestamp, time), sides, sides[own])
    return replace(stream.transform(step), key=tuple(key.names), timestamp=time, position=())
