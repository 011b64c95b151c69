"""Streams and groups: the DSL of a pipeline.

Streams are DataFrames, and every stateless step is plain PySpark. A step is kept as a function and applied to the
streaming DataFrame at once, so that a wrong column is an error on its own line, and later to each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Never, overload

from holdfast.errors import TopologyError
from holdfast.stores.formats.rows import ROWS
from holdfast.stores.kinds import store_spec
from holdfast.stores.options import Length, check_options, millis
from holdfast.stores.spec import KEY_VALUE, VERSIONED, StoreSpec
from holdfast.topology.aggregates import Aggregate, count
from holdfast.topology.aggregation import Aggregates, Table, add_aggregation
from holdfast.topology.derived import hidden_of
from holdfast.topology.frames import (
    check_column,
    check_names,
    check_selected,
    errors_in,
    input_type,
    is_repeatable,
    type_of,
    written,
)
from holdfast.topology.global_joins import add_global_join
from holdfast.topology.global_tables import GlobalTable
from holdfast.topology.join_windows import JoinWindow
from holdfast.topology.joined import Joined
from holdfast.topology.joining import add_join
from holdfast.topology.lookups import add_lookup, check_table
from holdfast.topology.other_names import Named
from holdfast.topology.plain_frames import spark_frame
from holdfast.topology.processing import Processed, add_processing
from holdfast.topology.processor import OnError, Processor, check_on_error, timed
from holdfast.topology.reducing import Reduced, aggregate_with, reduce
from holdfast.topology.steps import Computed, Filter, FlatMap, PlainStep, Projection, quoted
from holdfast.topology.topology import Branch, StatelessStep, Topology
from holdfast.topology.windowing import WindowedGroup, window
from holdfast.topology.windows import Windows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SOURCE = "_source"
"""The column of a merged stream's records with the name of their source. Dead letters have it too."""


@dataclass(frozen=True)
class Stream(Named):
    """A streaming DataFrame with a key and, if it has one, an event time."""

    CALLED: ClassVar[str] = "A stream"
    topology: Topology
    branches: tuple[Branch, ...]
    """Where its records come from: one source, or several after `merge`. All have the same columns."""
    key: tuple[str, ...]
    timestamp: str | None
    position: tuple[str, ...]
    chosen: OnError | None = None
    """What `on_error` has chosen; None: the setting `on_error`."""

    def __repr__(self) -> str:
        time = f", timestamp={self.timestamp!r}" if self.timestamp else ""
        names = ", ".join(repr(branch.origin.name) for branch in self.branches)
        return f"Stream({names}, key={[*self.key]!r}{time}, columns={self.frame.columns!r})"

    @property
    def frame(self) -> DataFrame:
        """A streaming DataFrame with the stream's columns and types."""
        return self.branches[0].frame

    @property
    def columns(self) -> list[str]:
        """The columns of its records, without the event time and position that a derived stream has of itself."""
        return [column for column in self.frame.columns if column not in self.hidden]

    @property
    def hidden(self) -> frozenset[str]:
        """The columns that a derived stream has for itself, which late records and dead letters don't show."""
        return hidden_of(each.origin for each in self.branches)

    @property
    def _ordering(self) -> tuple[str, ...]:
        """The columns by which its records are ordered."""
        return (*([self.timestamp] if self.timestamp else []), *self.position)

    @property
    def failures(self) -> OnError:
        """What happens to a record for which an expression fails."""
        return self.topology.on_error if self.chosen is None else self.chosen

    def on_error(self, choice: OnError) -> Stream:
        """What happens to a record for which a step fails: a cast of a text that isn't a number, a UDF that raises.

        "fail" stops the app, "skip" counts the record, "dead_letter" keeps it. It holds for the steps and the
        aggregates or table that follow: `games.on_error("dead_letter").with_column("n", "CAST(text AS int)")`.
        """
        return replace(self, chosen=check_on_error(choice))

    def transform(self, step: StatelessStep) -> Stream:
        """Applies any stateless PySpark: `stream.transform(lambda df: df.withColumn("day", F.to_date("ts")))`."""
        if isinstance(step, PlainStep):
            return self._with(step, "transform()")
        return self._computed(step, "transform()")

    def _with(self, step: StatelessStep, where: str) -> Stream:
        """The stream with one more step. `where` names the call in the error for a column that isn't there."""
        with errors_in(self.frame, where):
            return replace(self, branches=tuple(branch.after(step) for branch in self.branches))

    def _computed(self, apply: StatelessStep, where: str) -> Stream:
        return self._with(Computed(apply, where, self.failures), where)

    def where(self, condition: str | Column) -> Stream:
        """Keeps the records for which the condition is true."""
        return self._computed(Filter(condition), f"where({written(condition)})")

    filter = where

    def select(self, *columns: str | Column) -> Stream:
        """Keeps these columns or expressions, and those that order the records: event time and source position."""
        names = [column for column in columns if isinstance(column, str) and column.isidentifier()]
        where = f"select({', '.join(map(written, columns))})"
        check_selected(self.frame, columns, where)
        if len(names) < len(columns):

            def chosen(df: DataFrame) -> DataFrame:
                found = df.select(*columns).columns
                return df.select(*columns, *(quoted(name) for name in self._ordering if name not in found))

            return self._computed(chosen, where)
        for name in names:
            check_column(self.frame, name, where)
        names += [name for name in self._ordering if name not in names]
        return self._with(Projection(tuple((name, name) for name in names)), where)

    def with_column(self, name: str, value: str | Column) -> Stream:
        """Adds or replaces a column; a string is a SQL expression."""

        def step(df: DataFrame) -> DataFrame:
            if isinstance(value, str):
                return df.selectExpr(*[f"`{c}`" for c in df.columns if c != name], f"{value} AS `{name}`")
            return df.withColumn(name, value)

        return self._computed(step, f"with_column({name!r}, {written(value)})")

    def drop(self, *columns: str) -> Stream:
        """Leaves these columns out."""
        if needed := [name for name in columns if name in self._ordering]:
            raise TopologyError(
                f"drop({needed[0]!r}): records are ordered by their event time and position, and {needed[0]!r} is one "
                "of these columns. Leave it in; aggregates, and the events of a processor, take what they name."
            )
        return self.transform(Projection(tuple((name, name) for name in self.frame.columns if name not in columns)))

    def flat_map(self, values: str | Column, name: str) -> Stream:
        """One record per item of an array, in a column of this name: `stream.flat_map("split(text, ' ')", "word")`.

        A record whose array is null or empty gives none.
        """
        return self._computed(FlatMap(values, name), f"flat_map({written(values)}, {name!r})")

    def key_by(self, *columns: str) -> Stream:
        """The same records under another key."""
        if not columns:
            raise TopologyError("key_by() needs at least one column, such as stream.key_by('city').")
        check_names(columns, "key_by")
        for column in columns:
            type_of(self.frame, column)
        return replace(self, key=columns)

    def branch(self, *conditions: str | Column) -> tuple[Stream, ...]:
        """One stream per condition, and one more with the rest. A record is in the first one whose condition is true.

        `wins, draws, rest = games.branch("points = 3", "points = 1")`
        """
        from pyspark.sql import functions as F

        _ = spark_frame(self.frame)  # the next line needs Spark
        parts: list[Stream] = []
        taken = F.lit(False)
        for condition in conditions:
            matches = F.coalesce(F.expr(condition) if isinstance(condition, str) else condition, F.lit(False))
            part = self._computed(Filter(matches & ~taken), f"branch({written(condition)})")
            if not is_repeatable(part.frame):
                raise TopologyError(
                    f"branch({written(condition)}): the condition may answer otherwise when it is asked again, so a "
                    "record could be in two streams or in none. Put it into a column of the source, before "
                    "app.stream()."
                )
            parts.append(part)
            taken = taken | matches
        return (*parts, self._computed(Filter(~taken), "branch()"))

    def merge(self, *others: Stream) -> Stream:
        """The records of several streams as one. They need the same columns, key and event time."""
        if SOURCE in self.frame.columns:
            raise TopologyError(f"merge(): a column is named {SOURCE!r}, which merged records have for their source.")
        for other in others:
            mine, theirs = _shape(self), _shape(other)
            if other.topology is not self.topology:
                raise TopologyError("merge(): the streams belong to different apps. Merge streams of one app.")
            if mine != theirs:
                raise TopologyError(
                    f"merge(): the streams differ. One has {mine}, the other {theirs}. Select the same columns in both "
                    "first, and use the same key and event time."
                )
        return replace(self, branches=(*self.branches, *(each for other in others for each in other.branches)))

    def group_by(self, *columns: str) -> Grouped:
        """Groups by these columns, or by the stream's key when none are named."""
        check_names(columns, "group_by")
        for column in columns:
            type_of(self.frame, column)
        return Grouped(self, tuple(columns) or self.key)

    def process(
        self,
        processor: type[Processor],
        *,
        output: str | None = None,
        outputs: Mapping[str, str] | None = None,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Processed:
        """Passes every record to a user's processor, by the stream's key.

        `output` names the columns of the rows it forwards, key first: `"player string, n bigint"`. `outputs` does so
        for named outputs, `{"alerts": "player string, n bigint"}`, to which `ctx.forward(..., to="alerts")` sends rows.
        `name` names the processor and its output; the default is made from the class's name. `on_error` says what
        happens to a record for which it raises: "fail", "skip" or "dead_letter"; the default is the setting `on_error`.
        """
        return add_processing(self, processor, output, outputs or {}, name, on_error)

    @overload
    def join(
        self,
        other: Table,
        *,
        how: str = ...,
        name: str | None = ...,
        on: str | Column | Iterable[str | Column] | None = ...,
        prefix: str = ...,
    ) -> Joined: ...

    @overload
    def join(
        self, other: Stream, *, within: JoinWindow, how: str = ..., name: str | None = ..., prefix: str = ...
    ) -> Joined: ...

    def join(
        self,
        other: Table | Stream,
        *,
        within: JoinWindow | None = None,
        how: str = "inner",
        name: str | None = None,
        on: str | Column | Iterable[str | Column] | None = None,
        prefix: str = "",
    ) -> Joined:
        """Joins each record with a table's row of its key, or with the records of another stream that are near in time.

        `games.join(players, how="left", name="with-city")`: `how` is "inner", or "left" to keep records without a row.
        `on` names the columns to look up, instead of the key; for a global table also expressions, without a shuffle.

        `orders.join(payments, within=hf.join_window("10m"), how="left", name="paid")`: both streams have the same key.
        With "left" a record of this stream without a match comes out too, once, when its window has closed; with
        "outer" one of either stream does.

        A row has the columns of this stream, then those of the other one, with `prefix` before their names.
        """
        if isinstance(other, Stream):
            return add_join(self, other, within, how, name, on, prefix)
        if isinstance(other, GlobalTable):
            return add_global_join(self, other, within, how, name, on, prefix)
        check_table(other, "neither a stream nor a table")
        return add_lookup(self, other, within, how, name, on, prefix)

    def timed(self, spec: StoreSpec) -> StoreSpec:
        """The spec of a store of this stream: its retention is measured by event time if the stream has one."""
        return timed(spec, event_times=self.timestamp is not None)


@dataclass(frozen=True)
class Grouped(Named):
    """A stream grouped by key."""

    CALLED: ClassVar[str] = "A grouped stream"
    stream: Stream
    columns: tuple[str, ...]

    def aggregate(self, *unnamed: Never, **aggregates: Aggregate) -> Aggregated:
        """Computes any number of aggregates: `.aggregate(beats=hf.count(), peak=hf.max("bpm"))`."""
        if unnamed:
            raise TopologyError(
                f"aggregate({', '.join(map(str, unnamed))}): an aggregate needs a name, that of its column. Write "
                "aggregate(n=hf.count()), with a name of yours for each."
            )
        if not aggregates:
            raise TopologyError("aggregate() needs at least one aggregate, such as aggregate(n=hf.count()).")
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise TopologyError(f"{name}={aggregate!r} is not an aggregate. Use hf.count(), hf.sum('column') ...")
            if name in self.columns:
                raise TopologyError(
                    f"{name!r} is both a group column and an aggregate. Give the aggregate another name."
                )
            if aggregate.needs_time and self.stream.timestamp is None:
                raise TopologyError(
                    f"{name}={aggregate} depends on event time, and the stream has none. "
                    "Name its column: app.stream(df, key=..., timestamp=...)."
                )
            input_type(self.stream.frame, name, aggregate)
        return Aggregated(self, tuple(aggregates.items()))

    def count(self) -> Aggregated:
        """Counts the records per key, as `count`."""
        return self.aggregate(count=count())

    def reduce(self, function: Callable[[Any, Any], Any], *, of: str, on_error: OnError | None = None) -> Reduced:
        """Combines the values of a column by a function of yours, two at a time: `.reduce(max, of="points")`.

        It gets the former result of the key and the new value. The first value is the first result; nulls are left
        out. Returning None deletes the key, and sinks get `_deleted`. `on_error` is that of a processor.
        """
        return reduce(self, function, of, on_error)

    def aggregate_with(
        self,
        initializer: Callable[[], Any],
        adder: Callable[[Any, Any], Any],
        *,
        value: Any,
        on_error: OnError | None = None,
    ) -> Reduced:
        """Adds each record to the value of its key by a function of yours.

        `.aggregate_with(dict, add, value=dict[str, int])`: `initializer()` is the value of a new key, and
        `add(value, event)` returns the next one. `value` is its type, as of a processor's store. Returning None deletes
        the key, and sinks get `_deleted`. `on_error` is that of a processor.
        """
        return aggregate_with(self, initializer, adder, value, on_error)

    def window(self, windows: Windows) -> WindowedGroup:
        """Groups by windows of event time too: `.window(hf.tumbling("60s", grace="5s"))`."""
        return window(self, windows)


@dataclass(frozen=True)
class Aggregated:
    """Aggregates that `.store(name)` keeps in a store."""

    grouped: Grouped
    aggregates: Aggregates

    def store(
        self,
        name: str,
        *,
        engine: str | None = None,
        max_entries: int | None = None,
        ttl: Length | None = None,
        ttl_to_sinks: bool = False,
        history: Length | None = None,
        durable: bool = True,
        profile: str = "balanced",
        everywhere: bool = False,
        rocksdb_options: str | None = None,
        **unknown: Never,
    ) -> Table:
        """Keeps the aggregates in a store of this name: durable, restored after a crash and open to queries.

        `ttl="1h"`: a key that got no record in that time expires, and starts over with its next one. With
        `ttl_to_sinks=True` sinks get its end: `_deleted` is true. `max_entries=1000`: each partition keeps the keys
        touched last. A key that is evicted, or expires where there is a `ttl` too, is deleted in the log and in the
        sinks likewise.
        `history="7d"`: next to its latest results a key keeps its former results, one row per version, for that long by
        event time; `/v1/stores/{name}/history/{key}` returns them, and sinks get the latest. Not with the other two.
        `engine` is the setting `state.engine` by default. The other options are those of a processor's store.
        """
        where = f"store({name!r})"
        check_options(unknown, _STORE_OPTIONS, where)
        if history is not None:
            millis(history, "history", where)
        for option, given in (("ttl", ttl), ("ttl_to_sinks", ttl_to_sinks or None), ("max_entries", max_entries)):
            if history is not None and given is not None:
                raise TopologyError(
                    f"{where}: {option}={given!r} and history={history!r} can't be combined: with a history the latest "
                    "results never expire, and the former ones do. Leave out one of them."
                )
        make = partial(
            store_spec,
            name,
            KEY_VALUE if history is None else VERSIONED,
            codec=ROWS,
            engine=engine,
            default_engine=self.grouped.stream.topology.engine,
            ttl=ttl,
            ttl_to_sinks=ttl_to_sinks or None,
            max_entries=max_entries,
            retention=history,
            durable=durable,
            everywhere=everywhere,
            profile=profile,
            rocksdb_options=rocksdb_options,
            where=where,
        )
        return add_aggregation(self.grouped.stream, self.grouped.columns, self.aggregates, name, make)


_STORE_OPTIONS = frozenset(Aggregated.store.__kwdefaults__ or ())


def _shape(stream: Stream) -> str:
    """What streams must have in common to be merged, as text."""
    columns = ", ".join(sorted(f"{field.name} {field.dataType.simpleString()}" for field in stream.frame.schema.fields))
    time = f", event time {stream.timestamp}" if stream.timestamp else ""
    return f"columns ({columns}), key {', '.join(stream.key)}{time}"
