"""The files of each Spark batch, by Spark's offset log.

A test's source reads one file per batch, or two where the JVM was killed between the source's own log and the offset
log. An oracle over batches has to know which.
"""

import json
from collections.abc import Sequence
from pathlib import Path


def files_of_batches(checkpoint: Path, files: int) -> list[Sequence[range]]:
    """Per batch and source, the numbers of its files. The offset of a file source is the number of its newest file."""
    found: list[Sequence[range]] = []
    before: list[int] = []
    for path in sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name)):
        now = [json.loads(line)["logOffset"] for line in path.read_text().splitlines()[2:]]
        before = before or [-1] * len(now)
        found.append([range(old + 1, new + 1) for old, new in zip(before, now, strict=True)])
        before = now
    assert before and set(before) == {files - 1}, f"Spark has read all {files} files, not up to {before}"
    return found
