"""A task's record batches as tables of limited size, which bounds its memory."""

from collections.abc import Iterable, Iterator

import pyarrow as pa


def chunks(batches: Iterable[pa.RecordBatch], rows: int, most_bytes: int | None = None) -> Iterator[pa.Table]:
    """Tables of as many batches as it takes to reach `rows` rows or `most_bytes`.

    >>> batches = [pa.RecordBatch.from_pydict({"n": [n]}) for n in range(5)]
    >>> [table.num_rows for table in chunks(batches, 2)]
    [2, 2, 1]
    """
    waiting: list[pa.RecordBatch] = []
    number = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        number += batch.num_rows
        if most_bytes is not None:
            size += batch.nbytes
        if number >= rows or (most_bytes is not None and size >= most_bytes):
            yield pa.Table.from_batches(waiting)
            waiting, number, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)
