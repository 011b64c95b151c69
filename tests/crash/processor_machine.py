"""The machine of the crash matrix with a processor that has stores of six kinds.

Everything but Spark is real, as in `machine`. `Model`, a plain program over the same records, has the expected state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.pipeline.driver import Step
from holdfast.pipeline.processing_task import Code, ProcessingWork, RecordColumns
from holdfast.pipeline.shipping import ship
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.spec import StoreSpec
from holdfast.topology.events import EventShape
from holdfast.topology.outputs import ForwardedRows, Output
from holdfast.topology.processor import Processor, parse_output, stores_of
from tests.crash.machine import KEY, START, TASKS, Machine, Record, limits_of

BOUND, TTL_MS, ONLINE_MS, RETENTION_MS, GAP_MS = 2, 2_500, 900, 2_000, 600


class Visits(hf.Processor):
    """Six kinds of stores with different expiry, eviction and drops."""

    recent = hf.KeyValueStore("recent", value=int, max_entries=BOUND)
    online = hf.KeyValueStore("online", value=int)
    last = hf.TimestampedKeyValueStore("last", value=int, ttl=f"{TTL_MS}ms")
    seconds = hf.WindowStore("seconds", value=int, size="1s", retention=f"{RETENTION_MS}ms")
    visits = hf.SessionStore("visits", value=int, gap=f"{GAP_MS}ms")
    points = hf.VersionedKeyValueStore("points", value=int, retention="1d")

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.recent[key] = self.recent.get(key, 0) + 1
        self.online.put(key, self.online.get(key, 0) + 1, ttl=f"{ONLINE_MS}ms")
        self.last.put(key, event.points, ctx.timestamp)
        second = ctx.timestamp // 1_000 * 1_000
        self.seconds.put(key, (self.seconds.fetch(key, second) or 0) + 1, second)
        self.visits.merge(key, ctx.timestamp, None, lambda one, other: one + other, 1)
        self.points.put(key, event.points, ctx.timestamp)
        ctx.forward(key, {"n": self.recent[key]})


def time_of(record: Record, wall: int) -> int:
    """A record's event time: up to a second and a half before the version's wall clock."""
    return wall - record[1] * 137 % 1_500


def in_order(records: Sequence[Record], wall: int) -> list[Record]:
    """The order in which a task gets records: by event time, then by arrival."""
    return sorted(records, key=lambda record: time_of(record, wall))


class ProcessorMachine(Machine):
    """A machine whose app has one processor."""

    processor: type[Processor] = Visits
    columns = "player string, n bigint"
    rewrite_entries = 0
    players = ("alice", "bob", "carol", "dave", "erin", "frank", "grace")

    def specs(self) -> tuple[StoreSpec, ...]:
        return tuple(store.spec() for store in stores_of(self.processor).values())

    def output(self) -> Output:
        return ForwardedRows("visits", 0)

    def work(self, step: Step) -> ProcessingWork:
        return ProcessingWork(
            subtopology=0,
            version=step.version,
            now=Now(step.wall, step.event),
            name="visits",
            key=KEY,
            stores=tuple((attribute, store.spec()) for attribute, store in stores_of(self.processor).items()),
            outputs=((None, parse_output(self.columns)),),
            columns=RecordColumns(event=("k0", "points"), keys=("k0",), time="_time", clocks=(("main", "_time"),)),
            limits=replace(
                limits_of(step), chunk_rows=50_000, state_bytes=1 << 30, rewrite_entries=self.rewrite_entries
            ),
            code=ship(Code(self.processor, EventShape(("player", "points")))),
        )

    def rows(self, records: Sequence[Record], step: Step) -> pa.RecordBatch:
        return rows_of(in_order(records, step.wall), step.wall)

    def state(self) -> dict[str, Any]:
        """The contents of each store at the newest version, all partitions together."""
        shown: dict[str, Any] = {attribute: {} for attribute in stores_of(self.processor)}
        for _, view in self.views():
            for attribute, store in stores_of(self.processor).items():
                bytes_ = DictBytes()
                bytes_.entries.update(view.scan(store.name, b"", None))
                bound = store.bind(bytes_, view.now, lambda name, number: None)
                shown[attribute] |= contents(bound, self.players)
        return shown


def contents(store: Any, players: Sequence[str]) -> dict[Any, Any]:
    """All entries of a store of any kind; of a versioned store, the histories of these players."""
    match store:
        case hf.WindowStore():
            return {(window.key, window.start): value for window, value in store.fetch_all()}
        case hf.SessionStore():
            return {(visit.key, visit.start, visit.end): value for visit, value in store.find_keys(None, None)}
        case hf.VersionedKeyValueStore():
            return {(player, each.timestamp): each.value for player in players for each in store.history(player)}
        case hf.TimestampedKeyValueStore():
            return {key: tuple(value) for key, value in store.items()}
        case _:
            return dict(store.items())


@dataclass
class Model:
    """The expected contents of the stores, as dictionaries."""

    recent: list[dict[str, int]] = field(default_factory=lambda: [{} for _ in TASKS])
    online: dict[str, tuple[int, int]] = field(default_factory=dict)
    last: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    seconds: dict[tuple[str, int], int] = field(default_factory=dict)
    visits: dict[tuple[str, int, int], int] = field(default_factory=dict)
    points: dict[tuple[str, int], int] = field(default_factory=dict)
    wall: int = START
    event: int | None = None

    def run(self, batches: Sequence[Sequence[Record]]) -> "Model":
        for records in batches:
            self.wall += 1_000
            for record in in_order(records, self.wall):
                self._record(record[0], record[1], time_of(record, self.wall))
            for own in self.recent:
                for player in list(own)[:-BOUND]:
                    del own[player]
            times = [time_of(record, self.wall) for record in records]
            self.event = max([*times, *([] if self.event is None else [self.event])], default=None)
        return self

    def _record(self, player: str, points: int, time: int) -> None:
        own = self.recent[partition_of(KEY, [player], len(TASKS))]
        own[player] = own.pop(player, 0) + 1
        n, expires = self.online.get(player, (0, 0))
        self.online[player] = (n + 1 if expires > self.wall else 1, self.wall + ONLINE_MS)
        known = self.last.get(player)
        if known is None or known[2] <= self.wall or known[1] <= time:
            self.last[player] = (points, time, self.wall + TTL_MS)
        second = time // 1_000 * 1_000
        if self.event is None or second > self.event - RETENTION_MS:
            self.seconds[player, second] = self.seconds.get((player, second), 0) + 1
        start, end, n = time, time, 1
        for visit in [v for v in self.visits if v[0] == player and v[1] - GAP_MS <= time <= v[2] + GAP_MS]:
            start, end, n = min(start, visit[1]), max(end, visit[2]), n + self.visits.pop(visit)
        self.visits[player, start, end] = n
        self.points[player, time] = points

    def state(self) -> dict[str, Any]:
        assert self.event is not None
        return {
            "recent": {player: n for own in self.recent for player, n in own.items()},
            "online": {player: n for player, (n, expires) in self.online.items() if expires > self.wall},
            "last": {player: (value, at) for player, (value, at, gone) in self.last.items() if gone > self.wall},
            "seconds": {key: n for key, n in self.seconds.items() if key[1] > self.event - RETENTION_MS},
            "visits": self.visits,
            "points": self.points,
        }


def rows_of(records: Sequence[Record], wall: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "_dead": pa.nulls(len(records), pa.string()),
            "k0": pa.array([player for player, _ in records], pa.string()),
            "points": pa.array([points for _, points in records], pa.int64()),
            "_time": pa.array([time_of(record, wall) for record in records], pa.int64()),
        }
    )
