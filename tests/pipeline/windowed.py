"""Windowed aggregations without Spark: real tasks over a log in memory, batch after batch, and an oracle."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from msgspec import structs

from holdfast.log.segments import OUTPUT, STATE
from holdfast.pipeline.sinks.outputs import aggregate_rows
from holdfast.pipeline.task import Limits
from holdfast.pipeline.task_columns import TaskColumns
from holdfast.pipeline.windowed_task import WindowedWork
from holdfast.stores.access import Now
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds import view_of
from holdfast.stores.kinds.session import ReadOnlySessionStore
from holdfast.stores.kinds.window import ReadOnlyWindowStore
from holdfast.stores.layouts.waiting import drops_later
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.topology.aggregates import count, first, last, mean, min, sum
from holdfast.topology.derived import TIME
from holdfast.topology.reducers import bind
from holdfast.topology.windowing import windowed_spec
from holdfast.topology.windows import TimeWindows, Windows
from holdfast.words import TaskId, Version
from tests.pipeline.outcomes import ReplicaState, done, log_of

Record = tuple[str, int, int]
"""A key, an event time and a value."""

WindowOf = tuple[str, int, int]
"""A key, a start and an end."""

TASK = TaskId(0, 0)
REDUCERS = (
    bind("n", count(), None),
    bind("total", sum("x"), "bigint"),
    bind("least", min("x"), "bigint"),
    bind("mean", mean("x"), "bigint"),
    bind("first", first("x"), "bigint"),
    bind("last", last("x"), "bigint"),
)
PARTIALS = tuple(f"p{n}" for n in range(9))
SENT = "games~sent"
CLOCKS = (("main", "_time"),)
GROUPED = TaskColumns(keys=("k0",), partials=PARTIALS, rows="p0", time="_time", clocks=CLOCKS, dead=False, pane="_pane")


def spec_of(windows: Windows, retention: str = "1h", **options: Any) -> StoreSpec:
    fields = [field for reducer in REDUCERS for field in reducer.fields[:1]]
    hidden = [field for reducer in REDUCERS for field in reducer.fields[1:]]
    final = options.pop("final", False)
    spec = windowed_spec(
        "games",
        windows,
        key=Schema((Field("player", "string"),)),
        value=RowValues(Schema((*fields, *hidden))),
        codec="rows/1",
        engine="memory",
        retention=retention,
        **options,
    )
    return structs.replace(spec, fixed=(*spec.fixed, ("final", True))) if final else spec


def result_of(values: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """What the aggregates make of (time, value) pairs."""
    numbers = [value for _, value in values]
    return {
        "n": len(numbers),
        "total": sum_of(numbers),
        "least": sorted(numbers)[0],
        "mean": sum_of(numbers) / len(numbers),
        "first": sorted(values)[0][1],
        "last": sorted(values)[-1][1],
    }


def sum_of(numbers: Sequence[int]) -> int:
    total = 0
    for number in numbers:
        total += number
    return total


@dataclass
class WindowedApp:
    """A windowed aggregation with one partition, version after version."""

    windows: Windows
    options: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    event: int | None = None
    late: int = 0
    emitted: list[list[dict[str, Any]]] = field(default_factory=list)
    """The changed rows of each version, as sinks get them."""

    def __post_init__(self) -> None:
        self.updates = bool(self.options.pop("updates", False))
        self.spec = spec_of(self.windows, **self.options)
        self.log = log_of(self.spec)
        self.state = ReplicaState(self.spec.name)
        self.sent: list[list[dict[str, Any]]] = []
        """The rows that waited and were sent, per version."""
        self.waiting = 0

    def work(self) -> WindowedWork:
        return WindowedWork(
            subtopology=0,
            version=Version(self.version),
            store=self.spec,
            reducers=REDUCERS,
            columns=replace(GROUPED, record="_record") if self.updates else GROUPED,
            now=Now(wall=self.version, event=self.event),
            limits=Limits(1, 3, 0),
            windows=self.windows,
            waiting=SENT if drops_later(self.spec) else None,
            updates=SENT if self.updates else None,
        )

    def run(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Makes a version of these records. Returns its changed rows."""
        self.version += 1
        result = done(self.work().run(TASK, [self.rows(records)], self.log, self.state))
        rows: list[dict[str, Any]] = []
        self.sent.append([])
        for ref in result.segments:
            for part in ref.parts:
                table = self.log.read_part(ref, part)
                if part.type == STATE:
                    rows += aggregate_rows(self.spec, table).to_pylist()
                elif part.type == OUTPUT:
                    assert part.name == SENT
                    self.sent[-1] += table.drop_columns(TIME).to_pylist()
        self.state.apply(self.log, result.segments)
        self.waiting = result.counts.get("waiting/games", 0)
        self.late += result.counts.get("late/games", 0)
        if (seen := result.event_times.get("main")) is not None:
            self.event = seen if self.event is None else max(self.event, seen)
        self.emitted.append(rows)
        return rows

    def rows(self, records: Sequence[Record]) -> pa.RecordBatch:
        """One row per key and pane, as Spark's aggregation makes it."""
        groups: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
        for number, (key, time, value) in enumerate(records):
            pane = time - time % self.windows.pane_ms if isinstance(self.windows, TimeWindows) else time
            groups.setdefault((key, pane, number if self.updates else 0), []).append((time, value))
        partials = [partials_of(values) for values in groups.values()]
        columns = {"k0": pa.array([key for key, _, _ in groups], pa.string())}
        columns["_pane"] = pa.array([pane for _, pane, _ in groups], pa.int64())
        columns["_record"] = pa.array([number for _, _, number in groups], pa.int64())
        columns["_time"] = pa.array([max(time for time, _ in values) for values in groups.values()], pa.int64())
        fields = [partial for reducer in REDUCERS for partial in reducer.partials]
        for n, partial in enumerate(fields):
            columns[PARTIALS[n]] = pa.array([each[n] for each in partials], partial.field_type.arrow)
        return pa.RecordBatch.from_pydict(columns)

    def stored(self) -> dict[WindowOf, dict[str, Any]]:
        """The windows in the store."""
        view = view_of(self.spec, self.state.stores["games"], Now(wall=0, event=self.event))
        if isinstance(view, ReadOnlyWindowStore):
            found = {(key, start, end): value for (key, start, end), value in view.fetch_all()}
        else:
            assert isinstance(view, ReadOnlySessionStore)
            found = {(key, start, end): value for (key, start, end), value in view.find_keys(None, None)}
        names = self.spec.value.shown.names  # type: ignore[union-attr]
        return {window: {name: value[name] for name in names} for window, value in found.items()}


def partials_of(values: Sequence[tuple[int, int]]) -> list[Any]:
    numbers = [value for _, value in values]
    early, late = sorted(values)[0], sorted(values)[-1]
    total = sum_of(numbers)
    return [len(numbers), total, sorted(numbers)[0], float(total), len(numbers), *early, *late]


def window_of(row: dict[str, Any]) -> WindowOf:
    """The window of a row that a sink got."""
    start, end = (round(row[name].timestamp() * 1000) for name in ("window_start", "window_end"))
    return row["player"], start, end


def results_in(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in row if not name.startswith(("player", "window_", "_"))}
