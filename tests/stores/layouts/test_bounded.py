"""A table with max_entries: the least recently used entries are evicted, as tombstones."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.formats.cells import Cell, pack, unpack
from holdfast.stores.layouts.expiry import AT_MOST
from holdfast.stores.layouts.expiry import index_key as expiry_key
from holdfast.stores.layouts.recency import COUNT_KEY, count_cell, counted, index_key, split_seq, with_seq
from tests.pipeline.tables import Batch, OneTask, key_of, spec_with

PLAYERS = "abcdefghijkl"
BATCHES = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(PLAYERS), st.tuples(st.integers(-9, 9), st.integers(0, 3)), max_size=10),
        st.integers(0, 4_000),
    ),
    max_size=20,
)


class Model:
    """A dictionary in the order of touches."""

    def __init__(self, limit: int, ttl: int = 0) -> None:
        self.limit, self.ttl = limit, ttl
        self.entries: dict[str, tuple[int, int, int]] = {}

    def step(self, batch: Batch, wall: int, *, timed: bool) -> dict[str, tuple[int, int] | None]:
        """What sinks get: the rows that changed and stayed, None for evicted keys."""
        before = set(self.entries)
        self.over = [p for p, entry in self.entries.items() if self.ttl and entry[2] <= wall and p not in batch]
        for player in self.over:
            del self.entries[player]
        for player in sorted(batch, key=lambda p: (batch[p][1] if timed else 0, p)):
            n, total, expires = self.entries.pop(player, (0, 0, 0))
            if self.ttl and expires <= wall:
                n, total = 0, 0
            self.entries[player] = (n + 1, total + batch[player][0], wall + self.ttl)
        gone = list(self.entries)[: max(0, len(self.entries) - self.limit)] if batch else []
        for player in gone:
            del self.entries[player]
        told: dict[str, tuple[int, int] | None] = {p: self.entries[p][:2] for p in batch if p in self.entries}
        return told | {player: None for player in (*self.over, *gone) if player in before}


def check(task: OneTask, model: Model) -> None:
    """Checks that entries, index and count agree with the model and with each other."""
    entries = {key: unpack(cell) for key, cell in task.area(1).items()}
    seqs = {key: split_seq(cell.payload)[0] for key, cell in entries.items()}
    assert [key for _, key in sorted((seq, key) for key, seq in seqs.items())] == [key_of(p) for p in model.entries]
    assert set(task.area(4)) == {index_key(seq, key) for key, seq in seqs.items()}
    assert counted(task.cells.get(COUNT_KEY)) == len(model.entries)
    over = {expiry_key(cell.expires, key) for key, cell in entries.items() if cell.expires}
    assert set(task.area(3)) == over
    assert len(over) == (len(entries) if model.ttl else 0)
    assert len(task.cells) == 2 * len(entries) + len(over) + len(task.area(5))


@given(BATCHES, st.integers(1, 6), st.booleans(), st.sampled_from([None, "3s"]), st.integers(1, 4))
def test_a_bounded_table_is_a_dictionary_in_the_order_of_touches(
    batches: list[tuple[Batch, int]], limit: int, timed: bool, ttl: str | None, chunk: int
) -> None:
    task = OneTask(spec_with(max_entries=limit, ttl=ttl), timed)
    model = Model(limit, task.spec.ttl_ms)
    wall = 1_000_000
    for batch, passed in batches:
        wall += passed
        result = task.step(batch, wall, chunk_rows=chunk)
        there = set(model.entries) | set(batch)
        told = model.step(batch, wall, timed=timed)
        sent = task.sent()
        assert {row["player"]: None if row["_deleted"] else (row["n"], row["total"]) for row in sent} == told
        assert len(sent) == len(told)
        assert all(row["n"] is None and row["total"] is None for row in sent if row["_deleted"])
        assert result.counts.get("removed/scores", 0) == len(model.over)
        assert result.counts.get("evicted/scores", 0) == len(there) - len(model.over) - len(model.entries)
        check(task, model)


def test_many_writes_leave_at_most_max_entries() -> None:
    task = OneTask(spec_with(max_entries=10))
    for version in range(50):
        task.step({f"player-{version * 40 + n:06d}": (1, version) for n in range(40)}, 1_000_000 + version)
    assert len(task.area(1)) == len(task.area(4)) == 10
    assert counted(task.cells[COUNT_KEY]) == 10
    written = sum(table.num_rows for table in task.changed)
    assert written == 10 * 2 + 10 * 2 + 1, "10 came with their places in the index, 10 went with theirs, and the count"


def test_a_key_that_came_and_went_leaves_no_trace_and_is_counted() -> None:
    task = OneTask(spec_with(max_entries=1))
    result = task.step({"ann": (1, 1), "bob": (1, 2)}, 1_000_000)
    assert [row["player"] for row in task.sent()] == ["bob"]
    assert result.counts["evicted/scores"] == 1
    assert not any(b"ann" in key for key in task.cells)


def test_a_lowered_limit_is_applied_with_the_next_rows() -> None:
    task = OneTask(spec_with(max_entries=5))
    task.step(dict.fromkeys("abcde", (1, 0)), 1_000_000)
    task.spec = spec_with(max_entries=2)
    task.step({}, 1_000_001)
    assert len(task.area(1)) == 5, "without rows nothing happens"
    task.step({"a": (1, 1)}, 1_000_002)
    assert sorted(task.area(1)) == [key_of("a"), key_of("e")]
    assert sorted(row["player"] for row in task.sent() if row["_deleted"]) == ["b", "c", "d"]


def test_expired_entries_take_no_room_from_visible_ones() -> None:
    task = OneTask(spec_with(max_entries=2, ttl="1s"))
    task.step({"over": (1, 9)}, 1_000_000)
    task.step({"live": (1, 1)}, 1_000_900)
    result = task.step({"new": (1, 2)}, 1_001_000)
    assert sorted(task.area(1)) == [key_of("live"), key_of("new")]
    assert [row["player"] for row in task.sent() if row["_deleted"]] == ["over"]
    assert (result.counts["removed/scores"], result.counts["evicted/scores"]) == (1, 0)
    task.step({}, 1_010_000)
    assert sorted(row["player"] for row in task.sent() if row["_deleted"]) == ["live", "new"], "without rows too"
    assert list(task.cells) == [COUNT_KEY]


def test_all_expired_entries_make_room_beyond_the_limit_per_version() -> None:
    task = OneTask(spec_with(max_entries=AT_MOST + 10, ttl="1s"))
    task.step({f"over-{n:05d}": (1, 1) for n in range(AT_MOST + 9)}, 1_000_000)
    task.step({"live": (1, 0)}, 1_000_900)
    task.step({f"new-{n:05d}": (1, 1) for n in range(AT_MOST + 5)}, 1_001_000)
    assert key_of("live") in task.cells
    assert counted(task.cells[COUNT_KEY]) == len(task.area(1)) == len(task.area(3)) == len(task.area(4)) == AT_MOST + 10


def test_an_expiry_row_with_another_time_removes_nothing() -> None:
    task = OneTask(spec_with(max_entries=2, ttl="1s"))
    task.step({"ann": (1, 1)}, 1_000_000)
    for key in (key_of("ann"), key_of("bob")):
        task.cells[expiry_key(1_000_500, key)] = pack(Cell(b""))
    task.step({}, 1_000_600)
    assert set(task.area(3)) == {expiry_key(1_001_000, key_of("ann"))}
    assert list(task.area(1)) == [key_of("ann")]
    assert counted(task.cells[COUNT_KEY]) == 1


def test_keys_of_the_batch_at_the_old_end_of_the_index_are_skipped() -> None:
    task = OneTask(spec_with(max_entries=3_000))
    task.step({f"{n:05d}": (1, n) for n in range(3_000)}, 1_000_000)
    touched = {f"{n:05d}": (1, 10_000 + n) for n in range(2_500)}
    task.step(touched | {"new": (1, 20_000)}, 1_000_001)
    assert [row["player"] for row in task.sent() if row["_deleted"]] == ["02500"]
    assert len(task.area(1)) == 3_000


def test_the_stored_bytes_are_unchanged() -> None:
    task = OneTask(spec_with(max_entries=2))
    task.step({"ann": (5, 7)}, 1_000_000)
    seq = 1 << 24
    row = split_seq(unpack(task.cells[key_of("ann")]).payload)[1]
    assert task.cells == {
        bytes.fromhex("01616e6e"): pack(Cell(with_seq(seq, row), timestamp=7)),
        bytes.fromhex("04000000000100000001616e6e"): bytes.fromhex("0180000000000000000000000000000000"),
        bytes.fromhex("05636f756e74"): count_cell(1),
    }
    assert count_cell(1).hex() == "01800000000000000000000000000000000000000000000001"
