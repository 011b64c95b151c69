"""Values as of a time in columns are those that a versioned store gives one at a time."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.cells import Cell, pack, unpack
from holdfast.stores.formats.rows import encode_rows
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.versioned import VersionedKeyValueStore
from holdfast.stores.layouts.as_of import beginnings, history_in, valid_at
from holdfast.stores.layouts.base import part
from holdfast.stores.layouts.versioned import RowHistory
from holdfast.stores.schema.history import merged
from tests.pipeline.tables import key_of, spec_with

KEY = Schema.of(key="string")
PUTS = st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 9), st.integers(0, 60)), max_size=20)
TIMES = range(0, 62, 3)


@given(puts=PUTS)
def test_columns_give_what_the_store_gives(puts: list[tuple[str, int | None, int]]) -> None:
    bytes_ = DictBytes()
    store = VersionedKeyValueStore("prices", value=int, retention="1h").bind(bytes_, Now(wall=60))
    for key, value, time in puts:
        store.put(key, value, time)
    entries = history_in(part(*map(pa.array, ([*bytes_.entries.keys()], [*bytes_.entries.values()]))))
    asked = [(key, time) for key in "abc" for time in TIMES]
    keys, times = pa.array([key for key, _ in asked]), pa.array([time for _, time in asked])
    found = valid_at(KEY, beginnings(KEY, [keys]), times, entries).to_pylist()
    for (key, time), cell in zip(asked, found, strict=True):
        record = store.get(key, as_of=time)
        if record is not None and record.valid_to is None:
            continue  # the latest value is not in the history
        assert (None if cell is None else unpack(cell).timestamp) == (None if record is None else record.timestamp)


def test_rows_that_move_are_in_the_newest_schema() -> None:
    options: dict[str, Any] = {"retention": "8s"}
    old = spec_with(Schema.of(n="bigint"), **options)
    spec = merged(old, spec_with(**options))
    assert (old.schema, spec.schema) == (1, 2)
    bytes_, now = DictBytes(), Now(wall=1_000)
    key, own = key_of("ann"), beginnings(old.key, [pa.array(["ann"])])[0].as_py()

    def row(schema: int, n: int, time: int) -> bytes:
        columns = [pa.array([n]), *([pa.array([7])] if schema == 2 else [])]
        payload = encode_rows((old if schema == 1 else spec).columns, columns)[0].as_py()
        return pack(Cell(payload, time, schema=schema))

    before = RowHistory(old, bytes_, now)
    before.put(key, own, row(1, 1, 10), 10)
    before.put(key, own, row(1, 2, 30), 30)
    after = RowHistory(spec, bytes_, now)
    after.put(key, own, row(2, 3, 20), 20)  # ends the row that was valid from 10 to 30
    after.put(key, own, row(2, 4, 40), 40)  # ends the latest one
    found = [unpack(cell) for place, cell in bytes_.entries.items() if place[:1] == b"\x02"]
    assert [(cell.timestamp, cell.schema) for cell in found] == [(10, 2), (20, 2), (30, 2)]
