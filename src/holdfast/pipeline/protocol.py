"""Decides what to do with a batch from Spark, given the log. Pure functions: the driver acts on the decision.

A version and a Spark batch have different numbers. Spark may repeat a batch (its own commit of it was lost), repeat a
number with other offsets (its checkpoint was set back), or start at zero with a new query id (its checkpoint was
removed). Only the first case is harmless. A version that the driver makes without a Spark batch has the last batch
before it, so the newest commit alone says how far Spark is.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.commits import Commit, SparkBatch
from holdfast.pipeline.source_order import EMPTY
from holdfast.words import NOTHING, Millis, Version

REPAIR: Final = "`holdfast checkpoint repair <app>`"


class NewCheckpoint(HoldfastError):
    """Spark's checkpoint is not the one this log was written with."""

    category = ErrorCategory.INVALID


class DamagedCheckpoint(HoldfastError):
    """Spark's checkpoint has entries that Spark can't read."""

    category = ErrorCategory.DATA


class OtherOffsets(HoldfastError):
    """Spark repeats a batch with other offsets: skipping it would lose data, running it would count data twice."""

    category = ErrorCategory.INVALID


class MissingVersions(HoldfastError):
    """Spark has finished batches that the log doesn't have."""

    category = ErrorCategory.DATA


@dataclass(frozen=True)
class AlreadyCommitted:
    """The log already has this batch, as `version`."""

    version: Version


@dataclass(frozen=True)
class Compute:
    """The batch is new and becomes `version`. `note` is a warning for the user."""

    version: Version
    note: str | None = None


def decide(
    batch: SparkBatch, newest: Commit | None, commit: Callable[[Version], Commit | None], restart_sources: bool
) -> AlreadyCommitted | Compute:
    """Decides what to do with a batch. `commit` reads an older commit of the log."""
    last = newest
    version = Version(version_of(newest) + 1)
    if last is None or last.spark is None:
        if batch.batch > 0 and not restart_sources:
            raise MissingVersions(missing(batch.batch, None))
        return Compute(version)
    if last.spark.query != batch.query:
        if not restart_sources:
            raise NewCheckpoint(refusal(last, batch.query))
        if batch.batch <= last.spark.earlier.get(batch.query, -1):
            return _find(batch, last, commit)
        return Compute(
            version,
            f"Spark's checkpoint is another one (query {batch.query}, before {last.spark.query}): the sources start "
            f"over at its position, and version {version} is added to the existing state.",
        )
    if batch.batch > last.spark.batch + 1:
        if not restart_sources:
            raise MissingVersions(missing(batch.batch, last.spark.batch))
        return Compute(
            version,
            f"The log lacks Spark's batches {last.spark.batch + 1} to {batch.batch - 1}: version {version} leaves "
            'their records out, as on_new_checkpoint="restart_sources" allows.',
        )
    if batch.batch == last.spark.batch + 1:
        return Compute(version)
    return _find(batch, last, commit)


def following(newest: Commit | None, batch: SparkBatch) -> SparkBatch:
    """A batch as the next commit records it: with the last batches of the checkpoints before it."""
    if newest is None or (last := newest.spark) is None:
        return batch
    earlier = {**last.earlier, last.query: last.batch}
    return msgspec.structs.replace(batch, earlier={q: n for q, n in earlier.items() if q != batch.query})


def same_input(one: SparkBatch, other: SparkBatch) -> bool:
    """Whether two plans of a batch read the same records: equal offsets per source, and equal files."""
    mine, theirs = (_trimmed(inputs_of(batch.offsets), EMPTY) for batch in (one, other))
    return mine == theirs and _trimmed(one.files, "") == _trimmed(other.files, "")


def _trimmed(values: Sequence[object], empty: str) -> list[object]:
    """Without empty positions at the end: of sources that were added later."""
    kept = list(values)
    while kept and kept[-1] == empty:
        kept.pop()
    return kept


def inputs_of(entry: str) -> list[object]:
    """The offset of each source in an entry of Spark's offset log.

    The lines before them are the format and what Spark noted about the plan: when it was made, and its configuration.

    >>> inputs_of('v1\\n{"batchTimestampMs":7}\\n{"topic":{"0":5}}\\n-')
    ['v1', {'topic': {'0': 5}}, '-']
    """
    lines = entry.splitlines()
    return [*lines[:1], *map(_parsed, lines[2:])] if len(lines) > 1 else list(lines)


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return line


def check_checkpoint(
    newest: Commit | None,
    query: str | None,
    restart_sources: bool,
    done: int | None = None,
    damaged: Sequence[str] = (),
) -> None:
    """Checks Spark's checkpoint at the start.

    Raises if it is missing or damaged, belongs to another log, or is ahead of this log.

    `done`: the last batch that the checkpoint has finished. `damaged`: the entries that Spark would need and can't
    read.
    """
    spark = newest.spark if newest is not None else None
    if newest is not None and spark is not None and spark.query != query and not restart_sources:
        raise NewCheckpoint(refusal(newest, query))
    if done is not None and (spark is None or done > spark.batch) and not restart_sources:
        raise MissingVersions(missing(None if spark is None else done, None if spark is None else spark.batch))
    if damaged:
        again = "remove the checkpoint: the log has no version yet" if newest is None else f"repair it with {REPAIR}"
        raise DamagedCheckpoint(
            f"Spark can't read {', '.join(damaged)} of its checkpoint, and would not start. Restore the checkpoint "
            f"from a copy, or {again}."
        )


def missing(batch: int | None, last: int | None) -> str:
    """The message for a log that lacks batches which Spark has finished."""
    spark = "has finished batches" if batch is None else f"is at batch {batch}"
    log = "has none" if last is None else f"ends with batch {last}"
    again = "remove Spark's checkpoint" if last is None else f"set Spark's checkpoint back with {REPAIR}"
    return (
        f"Spark's checkpoint {spark} and the log {log}: versions are missing, and continuing would lose their records. "
        f"Restore the log; or, to read the missing records again, {again}; or, to leave them out, set "
        'on_new_checkpoint="restart_sources". Sinks may have rows of the versions that are missing: file sinks refuse '
        "the start and name the files to delete; undo what a function of yours has done for them."
    )


def refusal(last: Commit, query: str | None) -> str:
    """The message for a missing or wrong Spark checkpoint, with the positions of the sources."""
    assert last.spark is not None
    found = f"belongs to another query ({query})" if query else "is missing"
    return (
        f"The log is at version {last.version}, written by Spark query {last.spark.query} up to batch "
        f"{last.spark.batch}, and Spark's checkpoint {found}. Its sources would start over and count all "
        f"records twice. Restore the old checkpoint, or {'move this one away and ' if query else ''}write one at the "
        f"log's position with {REPAIR}; or, to start the sources at the position in their options, set "
        'on_new_checkpoint="restart_sources". The log has recorded these positions as done:\n' + _positions(last.spark)
    )


def _positions(batch: SparkBatch) -> str:
    """The offset of each source, without the lines in which Spark noted its configuration."""
    return "\n".join(batch.offsets.splitlines()[2:]) or batch.offsets


def _find(batch: SparkBatch, last: Commit, commit: Callable[[Version], Commit | None]) -> AlreadyCommitted:
    at: Commit | None = last
    while at is not None and at.spark is not None and not _is_at(at.spark, batch):
        at = commit(Version(at.version - 1))
    if at is None or at.spark is None or at.spark.batch != batch.batch:
        raise OtherOffsets(
            f"Spark asks for batch {batch.batch} again, the log is at batch {_batch(last)} (version {last.version}) "
            "and does not have that one. Spark's checkpoint was set back too far: restore its newest state, or set it "
            f"to the log's position with {REPAIR}."
        )
    if not same_input(at.spark, batch):
        raise OtherOffsets(
            f"Spark's batch {batch.batch} has other offsets or files than version {at.version}, which was made from "
            "it, so the checkpoint was set back. Skipping it would lose records and running it would count some twice. "
            f"Restore the newest checkpoint, or set it to the log's position with {REPAIR}.\n"
            f"Recorded:\n{_positions(at.spark)}\nNow:\n{_positions(batch)}"
        )
    return AlreadyCommitted(Version(at.version))


def _is_at(spark: SparkBatch, batch: SparkBatch) -> bool:
    """Whether a commit is of this batch, or of one before it: then the log doesn't have the batch."""
    return spark.query == batch.query and spark.batch <= batch.batch


def _batch(commit: Commit) -> int | None:
    return commit.spark.batch if commit.spark else None


def next_wall(previous: Commit | None, now: Millis) -> Millis:
    """`wall(v) = max(wall(v-1), now)`: the app's clock doesn't go back with the system's."""
    return Millis(max(previous.clocks.wall, now)) if previous else now


def version_of(commit: Commit | None) -> Version:
    return Version(commit.version) if commit else NOTHING
