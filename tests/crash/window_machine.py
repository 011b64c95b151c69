"""The machine of the crash matrix with windows whose final results are sent. A record's points are its second."""

from collections.abc import Sequence
from pathlib import Path
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
from holdfast.stores.kinds.session import ReadOnlySessionStore
from holdfast.stores.kinds.window import ReadOnlyWindowStore
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.topology.aggregates import count
from holdfast.topology.outputs import ForwardedRows, Output
from holdfast.topology.reducers import bind
from holdfast.topology.windowing import windowed_spec
from holdfast.topology.windows import TimeWindows, Windows, session, sliding, tumbling
from tests.crash.machine import KEY, PARTITIONS, START, Machine, Record

WINDOWS: dict[str, Windows] = {
    "tumbling": tumbling("10s", grace="5s"),
    "session": session("5s", grace="5s"),
    "sliding": sliding("5s", grace="5s"),
}
FINAL = "scores~final"


def spec_of(windows: Windows) -> StoreSpec:
    """A store that keeps windows no longer than needed, and sends them when they close."""
    columns = RowValues(Schema((Field("n", "bigint"),)))
    spec = windowed_spec("scores", windows, key=KEY, value=columns, codec="rows/1", retention="15s")
    return structs.replace(spec, fixed=(*spec.fixed, ("final", True)))


COLUMNS = TaskColumns(
    keys=("k0",), partials=("p0",), rows="p0", time="_time", clocks=(("main", "_time"),), dead=False, pane="_pane"
)


class WindowMachine(Machine):
    """A machine whose app counts per player and window."""

    def __init__(self, folder: Path, windows: Windows) -> None:
        self.windows = windows
        super().__init__(folder, spec_of(windows))

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
            windows=self.windows,
            waiting=FINAL,
        )

    def rows(self, records: Sequence[Record], step: Step) -> pa.RecordBatch:
        groups: dict[tuple[str, int], list[int]] = {}
        for player, second in records:
            time = START + second * 1_000
            size = self.windows.size_ms if isinstance(self.windows, TimeWindows) else 1
            groups.setdefault((player, time - time % size), []).append(time)
        return pa.RecordBatch.from_pydict(
            {
                "k0": pa.array([player for player, _ in groups], pa.string()),
                "_pane": pa.array([pane for _, pane in groups], pa.int64()),
                "_time": pa.array([max(times) for times in groups.values()], pa.int64()),
                "p0": pa.array([len(times) for times in groups.values()], pa.int64()),
            }
        )

    def state(self) -> Any:
        """The windows that queries see: player, start and end in seconds, and count."""
        found = set()
        for _, read_view in self.views():
            bytes_ = DictBytes()
            bytes_.entries.update(read_view.scan("scores", b"", None))
            view = view_of(self.spec, bytes_, read_view.now)
            windows: Any = view.fetch_all() if isinstance(view, ReadOnlyWindowStore) else None
            if windows is None:
                assert isinstance(view, ReadOnlySessionStore)
                windows = view.find_keys(None, None)
            found |= {(w.key, (w.start - START) / 1_000, (w.end - START) / 1_000, value["n"]) for w, value in windows}
        return found

    def sent(self) -> list[tuple[Any, ...]]:
        """The final rows that the sink of this process got: player, start in seconds and count."""
        rows = self.memory.rows()
        return sorted((r["player"], round(r["window_start"].timestamp() - START / 1000), r["n"]) for r in rows)  # type: ignore[attr-defined]
