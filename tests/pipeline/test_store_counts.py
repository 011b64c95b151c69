"""Refused writes are counted in the task's result, which the commit and the metrics get."""

from typing import Any

import holdfast as hf
from holdfast.pipeline.processing_task import Code
from holdfast.pipeline.results import labelled_counts
from holdfast.pipeline.shipping import ship
from holdfast.pipeline.task_state import EmptyState
from holdfast.stores.access import Now
from holdfast.topology.events import EventShape
from holdfast.topology.processor import stores_of
from holdfast.words import TaskId
from tests.pipeline.outcomes import done, log_of
from tests.pipeline.test_processing_task import rows, work


class Late(hf.Processor):
    """Writes every record to every store, also late ones."""

    history = hf.VersionedKeyValueStore("history", value=int, retention="10s")
    minutes = hf.WindowStore("minutes", value=int, size="1m", retention="2m")
    visits = hf.SessionStore("visits", value=int, gap="1s", retention="10s")
    latest = hf.TimestampedKeyValueStore("latest", value=int)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        taken = self.history.put(key, event.points, ctx.timestamp)
        self.minutes.put(key, event.points, ctx.timestamp // 60_000 * 60_000)
        visit = self.visits.merge(key, ctx.timestamp, None, lambda one, other: one + other, 1)
        self.latest.put(key, event.points, ctx.timestamp)
        ctx.count("refused", 2 - taken - (visit is not None))


def test_writes_that_come_too_late_are_refused_and_counted() -> None:
    stores = tuple((attribute, declared.spec()) for attribute, declared in stores_of(Late).items())
    log = log_of(*(spec for _, spec in stores))
    code = ship(Code(Late, EventShape(("player", "points"))))
    made = work(1, stores=stores, outputs=(), now=Now(wall=1_000, event=600_000), code=code)
    records = [rows(("ann", 1), time=1_000), rows(("ann", 2), time=595_000), rows(("ann", 3), time=594_000)]
    result = done(made.run(TaskId(0, 0), records, log, EmptyState()))
    assert labelled_counts(result.counts) == {
        ("expired", "history"): 1,
        ("expired", "minutes"): 1,
        ("expired", "visits"): 1,
        ("late", "latest"): 1,
        ("user", "refused"): 2,
    }
