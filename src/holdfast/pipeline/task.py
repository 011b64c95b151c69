"""Shared by the tasks of all operators: parts of segments, and the check that the shuffle was by key."""

from collections.abc import Sequence

import pyarrow as pa

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.stores.formats.partition import partitions_of
from holdfast.stores.formats.types import Schema
from holdfast.words import TaskId

Part = tuple[str, str, pa.Table]
"""The type of a segment's part, its name in the segment, and its rows."""

READ_ROWS = 200_000
"""How many keys a task reads at once."""


class WrongPartition(HoldfastError):
    """A task got a key of another partition: the shuffle was not by key."""

    category = ErrorCategory.BUG


def check_own(schema: Schema, key: Sequence[pa.Array], task: TaskId, partitions: int) -> None:
    """Checks that the shuffle was by key: each key hashes to this partition."""
    where = partitions_of(schema, key, partitions)
    strays = (where != task.partition).nonzero()[0]
    if len(strays):
        stray = int(strays[0])
        raise WrongPartition(
            f"Key {[column[stray].as_py() for column in key]} came to task {task} and belongs to partition "
            f"{where[stray]}. Nothing was written. Please report this with the pipeline's df.explain()."
        )
