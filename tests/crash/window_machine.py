"""The machine of the crash matrix with windows. A record's points are its second.

Its sinks get final results, one result per record, or late records.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import structs

from holdfast.pipeline.driver import Step
from holdfast.pipeline.task_columns import LATE, RECORD, TaskColumns
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
from tests.crash.machine import KEY, START, Machine, Record, limits_of

WINDOWS: dict[str, Windows] = {
    "tumbling": tumbling("10s", grace="5s"),
    "session": session("5s", grace="5s"),
    "sliding": sliding("5s", grace="5s"),
}
FINAL = "scores~final"
UPDATES = "scores"
LATE_RECORDS = "scores~late"


def spec_of(windows: Windows) -> StoreSpec:
    """A store that keeps windows no longer than needed, and sends them when they close."""
    columns = RowValues(Schema((Field("n", "bigint"),)))
    spec = windowed_spec("scores", windows, key=KEY, value=columns, codec="rows/1", retention="15s")
    return structs.replace(spec, fixed=(*spec.fixed, ("final", True)))


COLUMNS = TaskColumns(
    keys=("k0",), partials=("p0",), rows="p0", time="_time", clocks=(("main", "_time"),), dead=False, pane="_pane"
)


class WindowMachine(Machine):
    """A machine whose app counts per player and window, and whose sinks get one of its outputs."""

    def __init__(self, folder: Path, windows: Windows, sent: str = FINAL) -> None:
        self.windows, self.sent_output = windows, sent
        super().__init__(folder, spec_of(windows))

    def output(self) -> Output:
        return ForwardedRows(self.sent_output, 0)

    def work(self, step: Step) -> WindowedWork:
        return WindowedWork(
            subtopology=0,
            version=step.version,
            store=self.spec,
            reducers=(bind("n", count(), None),),
            columns=replace(COLUMNS, record=RECORD, late=True),
            now=Now(step.wall, step.event),
            limits=limits_of(step),
            windows=self.windows,
            waiting=FINAL,
            updates=UPDATES if self.sent_output == UPDATES else None,
            late=LATE_RECORDS,
        )

    def rows(self, records: Sequence[Record], step: Step) -> pa.RecordBatch:
        groups: dict[tuple[str, int, int], list[int]] = {}
        for number, (player, second) in enumerate(records):
            time = START + second * 1_000
            size = self.windows.size_ms if isinstance(self.windows, TimeWindows) else 1
            alone = number if self.sent_output != FINAL else 0
            groups.setdefault((player, time - time % size, alone), []).append(time)
        late = [{"player": player, "time": times[0]} for (player, _, _), times in groups.items()]
        return pa.RecordBatch.from_pydict(
            {
                "k0": pa.array([player for player, _, _ in groups], pa.string()),
                "_pane": pa.array([pane for _, pane, _ in groups], pa.int64()),
                RECORD: pa.array([number for _, _, number in groups], pa.int64()),
                LATE: pa.array(late, pa.struct([("player", pa.string()), ("time", pa.int64())])),
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
