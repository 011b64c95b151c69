"""Sketches: small summaries of many values, which answer approximately and can be merged.

They are those of Apache DataSketches. Spark makes one per key and batch in the JVM, a row keeps one as bytes in a
hidden column, and the two are merged here. Sketches are objects, so this goes row by row. The package is imported when
a sketch is merged: an app without sketches doesn't load it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa

from holdfast.stores.formats.rows import DamagedRow

HLL_SIZE: Final = 12
"""The logarithm of the number of registers: a standard error of 1.6 %, in at most about 2 KB."""

KLL_SIZE: Final = 400
"""The size of a quantile sketch: its ranks are wrong by at most 0.7 % in 99 of 100 cases, in about 5 KB."""

LEAST_TRACKED: Final = 256
"""How many different values a sketch of frequent items distinguishes at least."""


def tracked(most: int) -> int:
    """How many different values are distinguished to find the `most` frequent ones."""
    return max(LEAST_TRACKED, 8 * most)


def distinct(old: pa.Array, new: pa.Array) -> list[pa.Array]:
    """The merged sketches, and before them how many different values each has seen."""
    from datasketches import hll_sketch, hll_union, tgt_hll_type

    def merge(sketches: list[Any]) -> tuple[int, bytes]:
        union = hll_union(HLL_SIZE)
        for sketch in sketches:
            union.update(sketch)
        found = union.get_result(tgt_hll_type.HLL_4)
        return round(found.get_estimate()), found.serialize_compact()

    return _merged(old, new, hll_sketch.deserialize, merge, pa.int64())


def quantiles(old: pa.Array, new: pa.Array, ranks: tuple[float, ...], *, several: bool) -> list[pa.Array]:
    """The merged sketches, and before them the value at each rank: one number, or all of them as JSON."""
    from datasketches import kll_doubles_sketch

    def merge(sketches: list[Any]) -> tuple[Any, bytes]:
        first, *others = sketches
        for other in others:
            first.merge(other)
        values = None if first.is_empty() else [first.get_quantile(rank, inclusive=True) for rank in ranks]
        result = values if values is None or several else values[0]
        return _json(result) if several else result, first.serialize()

    return _merged(old, new, kll_doubles_sketch.deserialize, merge, pa.string() if several else pa.float64())


def frequent(old: pa.Array, new: pa.Array, most: int) -> list[pa.Array]:
    """The merged sketches, and before them the most frequent values with their counts, as JSON."""
    from datasketches import frequent_items_error_type, frequent_strings_sketch

    def merge(sketches: list[Any]) -> tuple[str, bytes]:
        first, *others = sketches
        for other in others:
            first.merge(other)
        found = first.get_frequent_items(frequent_items_error_type.NO_FALSE_NEGATIVES)
        best = sorted(((value, count) for value, count, *_ in found), key=lambda each: (-each[1], each[0]))[:most]
        return _json([{"value": value, "count": count} for value, count in best]), first.serialize()

    return _merged(old, new, frequent_strings_sketch.deserialize, merge, pa.string())


def _merged(
    old: pa.Array,
    new: pa.Array,
    read: Callable[[bytes], Any],
    merge: Callable[[list[Any]], tuple[Any, bytes]],
    kind: pa.DataType,
) -> list[pa.Array]:
    results: list[Any] = []
    kept: list[bytes | None] = []
    for n, (before, batch) in enumerate(zip(old.to_pylist(), new.to_pylist(), strict=True)):
        sketches = [_read(read, n, each) for each in (before, batch) if each is not None]
        result, sketch = merge(sketches) if sketches else (None, None)
        results.append(result)
        kept.append(sketch)
    return [pa.array(results, kind), pa.array(kept, pa.binary())]


def _read(read: Callable[[bytes], Any], row: int, sketch: bytes) -> Any:
    try:
        return read(sketch)
    except (RuntimeError, ValueError, IndexError, MemoryError) as error:
        raise DamagedRow(row, f"Its sketch of {len(sketch)} bytes can't be read: {error}.") from error


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
