"""A global table in a task: a small one is read once, and of a large one only what is asked for."""

from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from holdfast.pipeline.store_state import FIRST_PAGE
from holdfast.pipeline.table_state import TableState
from holdfast.stores.access import DictBytes
from holdfast.testing.processor import StateInMemory

SMALL, LARGE = FIRST_PAGE - 1, FIRST_PAGE + 500


@dataclass
class Counting(StateInMemory):
    """State that counts how often it is asked, and how many entries it has given."""

    rows: int
    asked: int = 0
    given: int = 0
    stores: dict[str, DictBytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stores = {"rows": DictBytes()}
        for n in range(self.rows):
            self.stores["rows"].put(key(n), str(n).encode())

    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        self.asked, self.given = self.asked + 1, self.given + len(keys)
        return super().get(store, keys)

    def scan(self, store: str, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        found = super().scan(store, start, stop, reverse=reverse, limit=limit)
        self.asked, self.given = self.asked + 1, self.given + found.num_rows
        return found


def key(n: int) -> bytes:
    return b"\x01" + n.to_bytes(4, "big")


@pytest.mark.parametrize("rows", [0, 1, SMALL])
def test_a_small_table_is_read_once(rows: int) -> None:
    state = Counting(rows)
    table = TableState("rows", state)
    for _ in range(3):
        assert [table.get(key(n)) for n in range(rows)] == [str(n).encode() for n in range(rows)]
        assert table.get(key(rows)) is None
        assert table.get_many([key(0), key(LARGE)]) == [b"0" if rows else None, None]
        assert len(list(table.scan(key(0), b"\x02"))) == rows
        table.prefetch([key(0), key(LARGE)])
        table.forget()
    assert (state.asked, state.given) == (1, rows)


def test_of_a_large_table_the_keys_are_read_that_are_asked_for() -> None:
    state = Counting(LARGE)
    table = TableState("rows", state)
    assert table.get_many([key(1_200), key(7), key(LARGE)]) == [b"1200", b"7", None]
    assert table.get(key(LARGE - 1)) == str(LARGE - 1).encode()
    table.forget()
    table.prefetch([key(3), key(4)])
    assert [table.get(key(3)), table.get(key(4))] == [b"3", b"4"]
    assert state.given < FIRST_PAGE + 10, "one page, to see that it is large, and the keys"
    assert [value for _, value in table.scan(key(0), b"\x02")] == [str(n).encode() for n in range(LARGE)]
