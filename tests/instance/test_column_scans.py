"""A range read as columns is what a dictionary has in it, whatever is in the runs and whatever in the engine."""

import itertools
from collections.abc import Generator
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.instance import column_scans, read_views
from holdfast.instance.column_scans import BLOCK_BYTES, scan_columns
from holdfast.instance.replica import ReplicaSettings
from holdfast.stores.access import ColumnBlock, DictBytes
from tests.instance.app_log import TASK, AppLog, Place, key_of
from tests.instance.test_range_reads import CHANGES, KEYS, run_of


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 1 << 20), (1 << 20, 20), (1 << 20, 1 << 20)])
@settings(deadline=None)
@given(
    versions=st.lists(CHANGES, max_size=5),
    engine=st.dictionaries(KEYS, st.binary(max_size=4), max_size=20),
    start=KEYS | st.just(b""),
    stop=st.none() | KEYS,
    step=st.integers(1, 4),
)
def test_it_equals_a_model(
    rows: int,
    size: int,
    versions: list[dict[bytes, bytes | None]],
    engine: dict[bytes, bytes],
    start: bytes,
    stop: bytes | None,
    step: int,
) -> None:
    stored, model = DictBytes(), DictBytes()
    stored.entries.update(engine)
    model.entries.update(engine)
    for changes in versions:
        for key, value in changes.items():
            if value is None:
                model.delete(key)
            else:
                model.put(key, value)
    runs = [run_of(changes, number) for number, changes in enumerate(versions, start=1)][::-1]
    inside = list(stored.scan(start, stop)) if stop is None or start < stop else []
    below = (inside[n : n + step] for n in range(0, len(inside), step))
    with patch.multiple(column_scans, FIRST_ROWS=min(rows, 128), BLOCK_ROWS=rows, BLOCK_BYTES=size):
        found = list(scan_columns(runs, below, start, stop))
    got = [row for block in found for row in zip(block.keys.to_pylist(), block.values.to_pylist(), strict=True)]
    assert got == (list(model.scan(start, stop)) if stop is None or start < stop else [])
    assert all(len(block.keys) for block in found)


def test_blocks_have_a_bounded_size_and_start_small() -> None:
    entries: dict[bytes, bytes | None] = {b"%06d" % number: bytes(1_000) for number in range(100_000)}
    engine = [(key, bytes(1_000)) for key in entries]
    for runs, below in (([run_of(entries, 1)], None), ([], (engine[n : n + 1_024] for n in range(0, 100_000, 1_024)))):
        found = list(scan_columns(runs, below, b"", None))
        assert max(pa.table(block._asdict()).nbytes for block in found) <= 2.2 * BLOCK_BYTES, (
            "and up to one of the engine"
        )
        assert len(found[0].keys) <= 1_024
        assert [key for block in found for key in block.keys.to_pylist()] == list(entries)


def test_a_replica_gives_the_same_as_columns_as_row_by_row(app: AppLog, place: Place) -> None:
    app.grow(7, seed=1)
    replica = place.caught_up(app, ReplicaSettings(overlay_bytes=2_000))
    for _ in range(2):
        with replica.read_view() as view:
            for store in replica.stores:
                found = [row for block in view.columns(store, b"", None) for row in zip(*map(list, block), strict=True)]
                assert [(key.as_py(), value.as_py()) for key, value in found] == list(view.scan(store, b"", None))
                assert found
        replica.flush_overlay()


@pytest.mark.parametrize("many", [1, 3])
def test_a_scan_that_goes_on_in_columns_gives_the_same(app: AppLog, place: Place, many: int) -> None:
    """It does so after many deleted keys. Here are few, so that it stays row by row for what is compared."""
    app.commit({TASK: {"counts": {key_of(number): b"1" for number in range(40)}}})
    replica = place.caught_up(app)
    replica.flush_overlay()
    for first in (5, 12):
        deleted = {key_of(number): None for number in range(first, first + 15)}
        put = dict.fromkeys((key_of(first), key_of(first + 3) + b"\x00", key_of(60 + first)), b"2")
        replica.catch_up(app.commit({TASK: {"counts": deleted | put}}))
    began = []

    def counted(*given: Any) -> Generator[ColumnBlock, None, None]:
        began.append(given)
        return scan_columns(*given)

    with replica.read_view() as view:
        entries = list(view.scan("counts", b"", None))
        assert len(entries) == 40 - 22 + 6
        keys = [b"", *map(key_of, range(0, 75, 4)), *(key_of(number) + b"\x00" for number in range(0, 30, 3))]
        for start, stop in itertools.product(keys, [None, *keys]):
            wanted = [each for each in entries if each[0] >= start and (stop is None or each[0] < stop)]
            with patch.multiple(read_views, _MANY_DELETED=many, scan_columns=counted):
                assert list(view.scan("counts", start, stop)) == wanted
                assert list(view.scan("counts", start, stop, reverse=True)) == wanted[::-1]
    assert began
