"""The machine of the crash matrix with windows whose final results are sent. A record's points are its second."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from msgspec import structs

from holdfast.pipeline.driver import Step
from holdfast.pipeline.task import Limits
from holdfast.pipeline.task_columns import TaskColumns
from holdfast.pipeline.windowed_task import WindowedWork
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds import view_of
from holdfast.stores.kinds.window import ReadOnlyWindowStore
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.topology.aggregates import count
from holdfast.topology.outputs import ForwardedRows, Output
from holdfast.topology.reducers import bind
from holdfast.topology.windowing import windowed_spec
from holdfast.topology.windows import tumbling
from tests.crash.machine import KEY, PARTITIONS, START, Machine, Record

WINDOWS = tumbling("10s", grace="5s")
FINAL = "scores~final"
CLOSING = structs.replace(
    windowed_spec(
        "scores",
        WINDOWS,
        key=KEY,
        value=RowValues(Schema((Field("n", "bigint"),))),
        codec="rows/1",
        retention="15s",
    ),
    fixed=(("window_ms", 10_000), ("final", True)),
)
COLUMNS = TaskColumns(
    keys=("k0",), partials=("p0",), rows="p0", time="_time", clocks=(("main", "_time"),), dead=False, pane="_pane"
)


class WindowMachine(Machine):
    """A machine whose app counts per player and window."""

    def __init__(self, folder: Any, spec: StoreSpec = CLOSING) -> None:
        super().__init__(folder, spec)

    def output(self) -> Output:
        return ForwardedRows(FINAL, 0)

    def work(self, step: Step) -> WindowedWork:
        return WindowedWork(
            topology=0,
            version=step.version,
            store=self.spec,
            reducers=(bind("n", count(), None),),
            columns=COLUMNS,
            now=Now(step.wall, step.event),
            limits=Limits(PARTITIONS, 2, 0),
            windows=WINDOWS,
            waiting=FINAL,
        )

    def rows(self, records: Sequence[Record], step: Step) -> pa.RecordBatch:
        groups: dict[tuple[str, int], list[int]] = {}
        for player, second in records:
            time = START + second * 1_000
            groups.setdefault((player, time - time % WINDOWS.size_ms), []).append(time)
        return pa.RecordBatch.from_pydict(
            {
                "k0": pa.array([player for player, _ in groups], pa.string()),
                "_pane": pa.array([pane for _, pane in groups], pa.int64()),
                "_time": pa.array([max(times) for times in groups.values()], pa.int64()),
                "p0": pa.array([len(times) for times in groups.values()], pa.int64()),
            }
        )

    def state(self) -> Any:
        """The windows that queries see: player, start in seconds and count."""
        found = set()
        for _, read_view in self.views():
            bytes_ = DictBytes()
            bytes_.entries.update(read_view.scan("scores", b"", None))
            view = view_of(self.spec, bytes_, read_view.now)
            assert isinstance(view, ReadOnlyWindowStore)
            found |= {(w.key, (w.start - START) // 1_000, value["n"]) for w, value in view.fetch_all()}
        return found

    def sent(self) -> list[tuple[Any, ...]]:
        """The final rows that the sink of this process got: player, start in seconds and count."""
        rows = self.memory.rows()
        return sorted((r["player"], round(r["window_start"].timestamp() - START / 1000), r["n"]) for r in rows)  # type: ignore[attr-defined]
