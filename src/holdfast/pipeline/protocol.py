"""What a batch that Spark hands over means, given what the log holds. Pure: the driver reads and acts.

Version and Spark batch are two numbers. Spark may hand a batch over again (its own commit of it was lost), hand over
the same number with other offsets (its checkpoint fell back), or start at zero with a new query id (its checkpoint is
gone). Only the first is harmless.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.commits import Clocks, Commit, SparkBatch
from holdfast.words import NOTHING, Millis, Version


class NewCheckpoint(HoldfastError):
    """Spark's checkpoint is not the one this log was written with."""

    category = ErrorCategory.INVALID


class OtherOffsets(HoldfastError):
    """A batch id came back with other offsets: skipping it would lose data, running it would count data twice."""

    category = ErrorCategory.INVALID


class MissingVersions(HoldfastError):
    """Spark has done batches that the log doesn't have."""

    category = ErrorCategory.DATA


@dataclass(frozen=True)
class AlreadyCommitted:
    """The log has this batch already, as `version`, so it isn't computed again."""

    version: Version


@dataclass(frozen=True)
class Compute:
    """The batch is new and becomes `version`. `note` is what the user should be told, if anything."""

    version: Version
    note: str | None = None


def decide(
    batch: SparkBatch, newest: Commit | None, commit: Callable[[Version], Commit | None], restart_sources: bool
) -> AlreadyCommitted | Compute:
    """What to do with a batch. `commit` reads an older commit of the log."""
    last = _last_spark_commit(newest, commit)
    version = Version(newest.version + 1) if newest else Version(1)
    if last is None or last.spark is None:
        if batch.batch > 0 and not restart_sources:
            raise MissingVersions(missing(batch.batch, None))
        return Compute(version)
    if last.spark.query != batch.query:
        if not restart_sources:
            raise NewCheckpoint(refusal(last, batch.query))
        return Compute(
            version,
            f"Spark's checkpoint is new (query {batch.query}, before {last.spark.query}): the sources start over, "
            f"version {version} comes on top of what is there.",
        )
    if batch.batch > last.spark.batch + 1:
        raise MissingVersions(missing(batch.batch, last.spark.batch))
    if batch.batch == last.spark.batch + 1:
        return Compute(version)
    return _find(batch, last, commit)


def check_checkpoint(
    newest: Commit | None,
    commit: Callable[[Version], Commit | None],
    query: str | None,
    restart_sources: bool,
    done: bool = False,
) -> None:
    """At start, before anything runs: raises where Spark's checkpoint is gone, is not this log's, or ahead of it.

    `done` says whether the checkpoint has finished batches.
    """
    last = _last_spark_commit(newest, commit)
    if last is None and done and not restart_sources:
        raise MissingVersions(missing(None, None))
    if last is not None and last.spark is not None and last.spark.query != query and not restart_sources:
        raise NewCheckpoint(refusal(last, query))


def missing(batch: int | None, held: int | None) -> str:
    """The message for a log that lacks what Spark's checkpoint has as done."""
    spark = "has finished batches" if batch is None else f"is at batch {batch}"
    log = "holds none" if held is None else f"ends with batch {held}"
    return (
        f"Spark's checkpoint {spark} and the log {log}: versions are missing, and going on would lose their records. "
        "Put the log back; or, to count the sources anew, remove Spark's checkpoint; or, to leave out what is missing, "
        'set on_new_checkpoint="restart_sources".'
    )


def refusal(last: Commit, query: str | None) -> str:
    """The message for a log whose Spark checkpoint is another or gone, with where the sources stood."""
    assert last.spark is not None
    found = f"belongs to another query ({query})" if query else "is missing"
    return (
        f"The log is at version {last.version}, written by Spark query {last.spark.query} up to batch "
        f"{last.spark.batch}, and Spark's checkpoint {found}. Its sources would start over and count everything "
        "twice. Put the old checkpoint back; or, to start the sources where their options say, set "
        'on_new_checkpoint="restart_sources". The log recorded these positions as done:\n' + last.spark.offsets
    )


def _find(batch: SparkBatch, last: Commit, commit: Callable[[Version], Commit | None]) -> AlreadyCommitted:
    at: Commit | None = last
    while at is not None and at.spark is not None and at.spark.query == batch.query and at.spark.batch > batch.batch:
        at = _last_spark_commit(commit(Version(at.version - 1)), commit)
    if at is None or at.spark is None or at.spark.query != batch.query or at.spark.batch != batch.batch:
        raise OtherOffsets(
            f"Spark asks for batch {batch.batch} again, the log is at batch {_batch(last)} (version {last.version}) "
            "and no longer holds or never had that one. Spark's checkpoint fell back too far: put its newest state "
            'back, or start a new checkpoint with on_new_checkpoint="restart_sources".'
        )
    if at.spark.offsets != batch.offsets:
        raise OtherOffsets(
            f"Spark's batch {batch.batch} came back with other offsets than version {at.version} was made of, so its "
            "checkpoint fell back. Skipping it would lose records and running it would count some twice. Put the "
            'newest checkpoint back, or start a new one with on_new_checkpoint="restart_sources".\n'
            f"Recorded:\n{at.spark.offsets}\nNow:\n{batch.offsets}"
        )
    return AlreadyCommitted(Version(at.version))


def _batch(commit: Commit) -> int | None:
    return commit.spark.batch if commit.spark else None


def _last_spark_commit(at: Commit | None, commit: Callable[[Version], Commit | None]) -> Commit | None:
    """The newest commit at or before `at` that a Spark batch made; versions can be made without one."""
    while at is not None and at.spark is None:
        at = commit(Version(at.version - 1)) if at.version > 1 else None
    return at


def next_wall(previous: Commit | None, now: Millis) -> Millis:
    """`wall(v) = max(wall(v-1), now)`: a clock that was set back doesn't take the app with it."""
    return Millis(max(previous.clocks.wall, now)) if previous else now


def next_clocks(
    previous: Commit | None, wall: Millis, seen: Iterable[Mapping[str, int]], sources: Collection[str]
) -> Clocks:
    """The clocks of the next commit: each source's largest accepted event time so far, none going back.

    `seen` are the largest event times by source that each task saw. The app's event time is that of the source that
    is furthest behind, among `sources`, which the app has now: one that went doesn't hold the others back.
    """
    clocks = {name: time for name, time in previous.clocks.sources.items() if name in sources} if previous else {}
    for times in seen:
        for source, time in times.items():
            clocks[source] = max(clocks.get(source, time), time)
    event = min(clocks.values(), default=None)
    if previous is not None and previous.clocks.event is not None:
        event = previous.clocks.event if event is None else max(event, previous.clocks.event)
    return Clocks(wall=wall, event=event, sources=clocks)


def version_of(commit: Commit | None) -> Version:
    return Version(commit.version) if commit else NOTHING
