"""The progress of the background rewrite of a store (`batch.rewrite_entries`), as JSON.

Each task has a note of its progress in the store (`stores.layouts.rewriter`); the answer has all of them and sums.
A task without a note hasn't started.
"""

from collections.abc import Sequence

from msgspec import UNSET

from holdfast.query.answers import RewritingAnswer
from holdfast.query.task_reader import TaskPart, TaskStore
from holdfast.stores.formats.cells import FIRST_SCHEMA
from holdfast.stores.layouts.rewriter import RewriteProgress, progress_of
from holdfast.stores.spec import StoreSpec

_COUNTS = ("seen", "rewritten", "unreadable", "total")
_HINT = (
    "No task has started. The pass is off unless the app's setting batch.rewrite_entries is above 0; then it starts "
    "with the next version, and for a table with the next version that has records."
)


def read(store: TaskStore) -> list[RewriteProgress]:
    """The progress of one task: one item, or none."""
    found = progress_of(store.bytes)
    return [] if found is None else [found]


def summary(spec: StoreSpec, parts: Sequence[TaskPart[RewriteProgress]]) -> RewritingAnswer:
    """The answer: the schema that values are brought to, and how far each task is.

    A rewrite to an earlier schema no longer counts: what it rewrote will be rewritten again.
    """
    passes = {part.task: part.entries[0] for part in parts if part.entries and part.entries[0].schema >= spec.schema}
    tasks: dict[str, object] = {
        str(task): {**{name: getattr(each, name) for name in _COUNTS}, "share": each.share, "finished": each.finished}
        for task, each in sorted(passes.items())
    }
    unchanged = spec.schema == FIRST_SCHEMA  # there is no older schema to look for
    finished = unchanged or (len(passes) == len(parts) and all(each.finished for each in passes.values()))
    return RewritingAnswer(
        store=spec.name,
        schema=spec.schema,
        begun=bool(passes),
        finished=finished,
        share=1.0 if unchanged else round(sum(each.share for each in passes.values()) / len(parts), 4),
        **{name: sum(getattr(each, name) for each in passes.values()) for name in _COUNTS},
        tasks=tasks,
        version=min(part.version for part in parts),
        hint=UNSET if passes or finished else _HINT,
    )
