"""The end of every task: it writes its segments while it makes them, and an error is its result."""

from collections.abc import Container, Iterable

from holdfast.errors import HoldfastError
from holdfast.log.log import Log, WrittenSegments
from holdfast.pipeline.grouping import RejectFastPlan
from holdfast.pipeline.results import FastPlanRejected, Tally, TaskResult, refused
from holdfast.pipeline.task import Part
from holdfast.words import TaskId, Version


def write_segments(
    log: Log,
    task: TaskId,
    version: Version,
    segments: Iterable[list[Part]],
    tally: Tally,
    *,
    inline_limit: int,
    volatile: Container[str] = (),
) -> TaskResult:
    """The result of a task that writes these segments, given as their parts. `tally` counts while they are made."""
    written = WrittenSegments()
    try:
        for parts in segments:
            if parts:
                written += log.write_parts(task, version, parts, inline_limit=inline_limit, volatile=volatile)
    except RejectFastPlan as reason:
        return FastPlanRejected(str(task), str(reason))
    except HoldfastError as error:
        return refused(task, error)
    return tally.done(task, written)
