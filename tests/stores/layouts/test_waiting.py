"""What waits to be sent, and the stored keys of windows, sessions and points: golden bytes, and what is due."""

import numpy as np
import pyarrow as pa

from holdfast.stores.access import BytesAsColumns, DictBytes
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.waiting import GRACES, WaitingEntries, WaitingRows, first_waiting
from holdfast.stores.layouts.windowed_rows import own_keys, own_keys_of_points, stored_keys, stored_points
from holdfast.stores.spec import SESSION, WINDOW, StoreSpec

WINDOWS = StoreSpec(
    name="w",
    kind=WINDOW,
    key=Schema.of(k="string"),
    codec="rows/1",
    retention_ms=8_000,
    slice_ms=1_000,
    fixed=(("window_ms", 1_000),),
)
SESSIONS = StoreSpec(
    name="s", kind=SESSION, key=Schema.of(k="string"), codec="rows/1", retention_ms=8_000, slice_ms=1_000
)
ANN = [pa.array(["ann"])]
START, END = np.array([2_000]), np.array([3_001])


def applied(bytes_: DictBytes, part: pa.Table | None) -> None:
    assert part is not None
    for key, value in zip(part["key"].to_pylist(), part["value"].to_pylist(), strict=True):
        if value is None:
            bytes_.delete(key)
        else:
            bytes_.put(key, value)


def test_golden_bytes() -> None:
    window, session = own_keys(WINDOWS, ANN, START), own_keys(SESSIONS, ANN, START, END)
    assert window[0].as_py().hex(" ") == "01 61 6e 6e 00 00 80 00 00 00 00 00 07 d0"
    assert (
        stored_keys(WINDOWS, window)[0].as_py().hex(" ") == f"02 80 00 00 00 00 00 00 02 {window[0].as_py().hex(' ')}"
    )
    assert session[0].as_py().hex(" ") == "01 61 6e 6e 00 00 80 00 00 00 00 00 0b b9 80 00 00 00 00 00 07 d0"
    assert stored_keys(SESSIONS, session)[0].as_py()[:9].hex(" ") == "02 80 00 00 00 00 00 00 03"
    point = stored_points(WINDOWS, window)
    assert point[0].as_py().hex(" ") == f"02 80 00 00 00 00 00 00 02 00 {window[0].as_py().hex(' ')}"
    assert own_keys_of_points(point) == window
    row = WaitingRows(BytesAsColumns(DictBytes())).put(END, window)["key"][0].as_py()
    assert row.hex(" ") == f"06 80 00 00 00 00 00 0b b9 {window[0].as_py().hex(' ')}"


def test_windows_are_due_in_order_and_counted() -> None:
    bytes_ = DictBytes()
    waiting = WaitingRows(BytesAsColumns(bytes_))
    early, late = own_keys(WINDOWS, ANN, np.array([1_000])), own_keys(WINDOWS, ANN, np.array([2_000]))
    applied(bytes_, waiting.put(np.array([50]), late))
    applied(bytes_, waiting.put(np.array([-3]), early))
    applied(bytes_, waiting.rest())
    assert waiting.size == 2 and first_waiting(bytes_) == -3
    again = WaitingRows(BytesAsColumns(bytes_))
    [(rows, own)] = again.due(49)
    assert own == early
    applied(bytes_, again.put_missing(np.array([50]), late))
    applied(bytes_, again.sent(rows))
    applied(bytes_, again.rest())
    assert again.size == 1 and first_waiting(bytes_) == 50


def test_graces_are_noted_once_each() -> None:
    bytes_ = DictBytes()
    assert WaitingEntries(bytes_).graces(5_000) == [5_000]
    assert WaitingEntries(bytes_).graces(0) == [5_000, 0] == WaitingEntries(bytes_).graces(5_000)
    note = bytes_.get(GRACES)
    assert note is not None and note[-16:].hex(" ") == "80 00 00 00 00 00 13 88 80 00 00 00 00 00 00 00"
