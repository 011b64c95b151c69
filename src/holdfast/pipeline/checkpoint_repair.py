"""Sets Spark's checkpoint to the position that the log has recorded, if its newest entries are lost, damaged or wrong.

The newest commit has the id of Spark's query, the batch's number and its entry in the offset log. With these three
Spark continues where the log ends: the entry is written back, marked as done, and entries after it are removed, so that
Spark plans them again. Sources deliver those records again. The files that a file source has seen are only in the
checkpoint: if their list is lost too, nothing is written.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.commits import Commit, SparkBatch
from holdfast.pipeline.offsets import Checkpoint, CheckpointUnreadable
from holdfast.pipeline.protocol import inputs_of


class CannotRepair(HoldfastError):
    """The log doesn't have what the checkpoint lacks."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True)
class Found:
    """What a checkpoint has, as far as a repair needs it."""

    query: str | None
    entry: str | None
    """The entry of the recorded batch."""
    offsets: Sequence[int]
    commits: Sequence[int]
    damaged: Sequence[str] = ()
    """Entries that Spark can't read. They count as lost."""

    @classmethod
    def at(cls, checkpoint: Checkpoint, batch: int) -> "Found":
        damaged, name = checkpoint.damaged(), f"offsets/{batch}"
        offsets, commits = (
            [n for n in checkpoint.numbers(folder) if f"{folder}/{n}" not in damaged]
            for folder in ("offsets", "commits")
        )
        try:
            query = checkpoint.query_id()
        except CheckpointUnreadable:
            query = None
        return cls(query, None if name in damaged else checkpoint.read(name), offsets, commits, damaged)


@dataclass(frozen=True)
class Repair:
    """The files to delete and then to write, in this order; a second run finishes what a crash left."""

    deleted: tuple[str, ...] = ()
    written: tuple[tuple[str, str], ...] = ()

    def lines(self) -> list[str]:
        return [f"delete {name}" for name in self.deleted] + [f"write {name}" for name, _ in self.written]


def plan_repair(recorded: SparkBatch, found: Found) -> Repair:
    """What brings the checkpoint to the recorded batch; nothing where it fits already."""
    batch, before = recorded.batch, recorded.batch - 1
    fits = found.entry is not None and inputs_of(found.entry) == inputs_of(recorded.offsets)
    has_before = before < 0 or before in found.offsets
    # One entry more is the batch that Spark was about to run.
    ahead = any(n > batch for n in found.commits) or any(n > batch + 1 for n in found.offsets)
    if found.query is not None and fits and has_before and not ahead and not found.damaged:
        return Repair()
    deleted = (
        [*found.damaged]
        + [f"commits/{n}" for n in found.commits if n > batch]
        + [f"offsets/{n}" for n in found.offsets if n > batch]
    )
    written = []
    if found.query is None:
        written.append(("metadata", json.dumps({"id": recorded.query})))
    if not has_before:
        # Spark wants an entry here, and doesn't use it since the next batch is done.
        written.append((f"offsets/{before}", recorded.offsets))
    if not fits:
        written.append((f"offsets/{batch}", recorded.offsets))
    if batch not in found.commits:
        written.append((f"commits/{batch}", f'v1\n{{"nextBatchWatermarkMs":{_watermark(recorded.offsets)}}}'))
    return Repair(tuple(deleted), tuple(written))


def repair(checkpoint: Checkpoint, newest: Commit | None, *, dry_run: bool = False) -> list[str]:
    """Repairs a checkpoint. Returns what was done, or what would be; nothing if the checkpoint fits the log."""
    if newest is None or newest.spark is None:
        raise CannotRepair("The log has no version yet, so it has recorded no position. Remove Spark's checkpoint.")
    recorded = newest.spark
    found = Found.at(checkpoint, recorded.batch)
    if found.query not in (None, recorded.query):
        raise CannotRepair(
            f"{checkpoint.location} belongs to Spark query {found.query}, and version {newest.version} of the log was "
            f"made by {recorded.query}. Move the folder away, then run this again."
        )
    for source, (there, here) in enumerate(zip(recorded.files, checkpoint.files_of(recorded.offsets), strict=True)):
        if there != here:
            raise CannotRepair(
                f"{checkpoint.location}/sources/{source} no longer has the files of batch {recorded.batch} "
                f"({recorded.offsets.splitlines()[2 + source]}), which only Spark's checkpoint knows. Restore the "
                "checkpoint from a copy; or, to read and count all files again, remove it and set "
                'on_new_checkpoint="restart_sources". Nothing was changed.'
            )
    planned = plan_repair(recorded, found)
    if not dry_run:
        for name in planned.deleted:
            checkpoint.delete(name)
        for name, text in planned.written:
            checkpoint.write(name, text)
    return planned.lines()


def _watermark(entry: str) -> int:
    return int(json.loads(entry.splitlines()[1]).get("batchWatermarkMs", 0))
