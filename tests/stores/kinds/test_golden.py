"""The stored bytes of every layout. Cases are added, never edited: logs on disk have these bytes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.stores.formats.keys import encode_key, encode_keys, key_schema
from holdfast.stores.formats.times import time_bytes
from holdfast.stores.formats.typed_keys import beginning_decoder, beginning_encoder, key_decoder, key_encoder
from holdfast.stores.layouts.slices import (
    first_live_slice,
    live_slices,
    slice_prefix,
    sliced_keys,
    slices_of,
    slices_to_drop,
    split_sliced,
    split_sliced_keys,
)
from tests.stores.making import keys, same

CELL = "01 8000000000000000 0000000000000000"
"""The header of a cell without timestamp and expiry."""


def put_all(store: Any, use: Callable[[Any], object]) -> Callable[[hf.Now], dict[str, str]]:
    def written(now: hf.Now) -> dict[str, str]:
        bytes_ = hf.DictBytes()
        bound = store.bind(bytes_, now)
        bound.begin_version()
        use(bound)
        bound.end_of_version()
        return {key.hex(): value.hex() for key, value in bytes_.entries.items()}

    return written


def history(store: Any) -> None:
    store.put("ann", 1, 1_000)
    store.put("ann", 2, 3_000)
    store.put("bob", None, 3_000)


@pytest.mark.parametrize(
    ("written", "now", "golden"),
    [
        pytest.param(
            put_all(hf.KeyValueStore("s", value=int), lambda s: s.put("ann", 5)),
            hf.Now(wall=0),
            {"01 616e6e": f"{CELL} 05"},
            id="plain entry",
        ),
        pytest.param(
            put_all(hf.KeyValueStore("s", key=(str, int), value=str), lambda s: s.put(("a\0", -1), "x")),
            hf.Now(wall=0),
            {"01 61 00ff 0000 7fffffffffffffff": f"{CELL} a178"},
            id="plain entry of two components",
        ),
        pytest.param(
            put_all(hf.KeyValueStore("s", value=int), lambda s: s.put("ann", 5, ttl=7)),
            hf.Now(wall=1),
            {
                "01 616e6e": "01 8000000000000000 0000000000000008 05",
                "03 8000000000000008 01 616e6e": CELL,
            },
            id="entry with a TTL of its own, and its row in the expiry index",
        ),
        pytest.param(
            put_all(hf.KeyValueStore("s", value=int, ttl="80s"), lambda s: s.put("ann", 5)),
            hf.Now(wall=25_000),
            {"02 8000000000000002 01 616e6e": "01 8000000000000000 0000000000019a28 05"},
            id="entry in the slice of its write",
        ),
        pytest.param(
            put_all(hf.KeyValueStore("s", value=int, max_entries=2), lambda s: s.put("ann", 5)),
            hf.Now(wall=0),
            {
                "01 616e6e": f"{CELL} 0000000000000001 05",
                "04 0000000000000001 01 616e6e": CELL,
                "05 636f756e74": f"{CELL} 0000000000000001",
            },
            id="entry of a bounded store, its row in the recency index, and the count",
        ),
        pytest.param(
            put_all(hf.KeyValueStore("s", value=int, max_entries=2, ttl="7ms"), lambda s: s.put("ann", 5)),
            hf.Now(wall=1),
            {
                "01 616e6e": "01 8000000000000000 0000000000000008 0000000000000001 05",
                "03 8000000000000008 01 616e6e": CELL,
                "04 0000000000000001 01 616e6e": CELL,
                "05 636f756e74": f"{CELL} 0000000000000001",
            },
            id="entry of a bounded store with a TTL, its rows in both indexes, and the count",
        ),
        pytest.param(
            put_all(hf.TimestampedKeyValueStore("s", value=int), lambda s: s.put("ann", 5, 7)),
            hf.Now(wall=0),
            {"01 616e6e": "01 0000000000000007 0000000000000000 05"},
            id="timestamped entry",
        ),
        pytest.param(
            put_all(hf.WindowStore("s", value=int, size="1s", retention="80s"), lambda s: s.put("ann", 5, 25_000)),
            hf.Now(wall=0),
            {
                "02 8000000000000002 01 616e6e 0000 80000000000061a8": f"{CELL} 05",
                "05 6e6577657374": f"{CELL} 0000000000000002",
            },
            id="window, and the note of the newest slice",
        ),
        pytest.param(
            put_all(
                hf.WindowStore("s", key=int, value=int, size="1s", retention="80s", duplicates=True),
                lambda s: s.put(1, 5, 25_000),
            ),
            hf.Now(wall=0),
            {
                "02 8000000000000002 01 8000000000000001 80000000000061a8 8000000000000001": f"{CELL} 05",
                "05 6e6577657374": f"{CELL} 0000000000000002",
                "05 70757473": f"{CELL} 0000000000000001",
            },
            id="window that keeps duplicates, and the note of the number of puts",
        ),
        pytest.param(
            put_all(
                hf.SessionStore("s", value=int, gap="1s", retention="80s"),
                lambda s: s.put(hf.Session("ann", 1_000, 25_000), 5),
            ),
            hf.Now(wall=0),
            {
                "02 8000000000000002 01 616e6e 0000 80000000000061a8 80000000000003e8": f"{CELL} 05",
                "05 6e6577657374": f"{CELL} 0000000000000002",
            },
            id="session: its end, then its start",
        ),
        pytest.param(
            put_all(hf.VersionedKeyValueStore("s", value=int, retention="8s"), history),
            hf.Now(wall=0),
            {
                "01 616e6e": "01 0000000000000bb8 0000000000000000 02",
                "02 8000000000000003 01 616e6e 0000 8000000000000bb8 80000000000003e8": (
                    "01 00000000000003e8 0000000000000000 01"
                ),
                "02 8000000000000003 01 626f62 0000 8000000000000bb8 8000000000000bb8": CELL,
                "05 64656c65746564": f"{CELL} 0000000000000bb8",
                "05 6e6577657374": f"{CELL} 0000000000000003",
            },
            id="history: the latest, an old value at its end and start, a delete, and the notes",
        ),
    ],
)
def test_stored_bytes_are_unchanged(
    written: Callable[[hf.Now], dict[str, str]], now: hf.Now, golden: dict[str, str]
) -> None:
    assert written(now) == {key.replace(" ", ""): value.replace(" ", "") for key, value in golden.items()}


@given(keys(rows=1))
def test_the_fast_encoders_give_the_same_keys(drawn: tuple[Any, list[tuple[Any, ...]]]) -> None:
    schema, rows = drawn
    single = len(schema.fields) == 1
    encode, decode = key_encoder(schema), key_decoder(schema)
    begin, end = beginning_encoder(schema), beginning_decoder(schema, 2)
    for row in rows:
        key = row[0] if single else row
        assert encode(key) == encode_key(schema, row)
        back = decode(encode(key))
        assert all(same(one, other) for one, other in zip((back,) if single else back, row, strict=True))
        after = end(begin(key) + time_bytes(5) + time_bytes(-5))
        assert all(same(one, other) for one, other in zip((after,) if single else after, row, strict=True))


numbers = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(numbers, st.binary(max_size=8)), max_size=20))
def test_slices_are_the_same_one_by_one_and_in_columns(rows: list[tuple[int, bytes]]) -> None:
    own = pa.array([b"\x01" + key for _, key in rows], pa.binary())
    column = np.array([number for number, _ in rows], dtype=np.int64)
    stored = sliced_keys(column, own)
    assert stored.to_pylist() == [slice_prefix(number) + b"\x01" + key for number, key in rows]
    assert sliced_keys(3, own).to_pylist() == [slice_prefix(3) + key for key in own.to_pylist()]
    if rows:
        found, split = split_sliced_keys(stored)
        assert found.tolist() == column.tolist()
        assert split.to_pylist() == own.to_pylist()
        assert [split_sliced(key) for key in stored.to_pylist()] == list(
            zip(found.tolist(), own.to_pylist(), strict=True)
        )


@given(st.lists(st.integers(-(10**15), 10**15)), st.integers(1, 10**9))
def test_slices_have_the_order_of_times(times: list[int], slice_ms: int) -> None:
    column = slices_of(np.array(times, dtype=np.int64), slice_ms)
    assert column.tolist() == [time // slice_ms for time in times]
    assert slices_of(pa.array(times, pa.int64()), slice_ms).tolist() == column.tolist()
    assert [slice_prefix(n) for n in sorted(column.tolist())] == sorted(slice_prefix(n) for n in column.tolist())


@given(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(-(10**6), 10**6))
def test_only_hidden_entries_are_dropped(wall: int, keep: int, time: int) -> None:
    spec = hf.WindowStore("s", value=int, size="1ms", retention=f"{keep}ms").spec()
    span = slices_to_drop(spec, 0, wall)
    assert span is not None
    place = slice_prefix(time // spec.slice_ms) + encode_key(key_schema(str), ("k",))
    dropped = span[0] <= place < span[1]
    assert not dropped or time <= wall - keep, "it is still seen"
    assert dropped or time > wall - keep - spec.slice_ms, "it is hidden by a whole slice and not dropped"


def test_slices_at_the_ends_of_time() -> None:
    spec = hf.VersionedKeyValueStore("s", value=int, retention="8s").spec()
    before = slices_to_drop(spec, 0, -(2**63))
    assert before is not None
    assert before[1] < slice_prefix(-(10**14)), "before the first event nothing is old"
    assert slice_prefix(2**70) == slice_prefix(2**63 - 1)
    assert slices_to_drop(hf.KeyValueStore("s", value=int).spec(), 0, 0) is None
    ttl = hf.KeyValueStore("s", value=int, ttl="8s").spec()
    assert list(live_slices(ttl, 8_000))[-1] == first_live_slice(ttl, hf.Now(wall=8_000)) == 0


def test_columns_and_single_keys_agree_on_the_entry_itself() -> None:
    schema = key_schema(tuple[str, int])
    column = encode_keys(schema, [pa.array(["a", "b"]), pa.array([1, 2])])
    assert column.to_pylist() == [key_encoder(schema)(("a", 1)), key_encoder(schema)(("b", 2))]
