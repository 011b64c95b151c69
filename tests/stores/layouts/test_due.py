"""When the next thing in a store is due by the wall clock, in every layout."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import holdfast as hf
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.kinds.base import Store
from holdfast.stores.layouts.due import STEPS, Due, next_due
from holdfast.stores.spec import StoreSpec

START = 1_000_000
HOUR = 3_600_000


class Written:
    """A store that one version has written to, at START."""

    def __init__(self, declared: Store[Any, Any], spec: StoreSpec | None = None) -> None:
        self.declared, self.bytes, self.spec = declared, DictBytes(), spec or declared.spec()

    def at(self, wall: int) -> Any:
        """The store in a version at this time."""
        return self.declared.bind(self.bytes, Now(wall), spec=self.spec)

    def due(self, wall: int = START) -> Due:
        return next_due(self.spec, self.bytes, Now(wall))


def test_a_store_without_a_ttl_is_never_due() -> None:
    written = Written(hf.KeyValueStore("plain", value=int))
    written.at(START).put("ann", 1)
    assert written.due() == Due()


def test_an_entry_with_a_ttl_of_its_own_is_removed_when_it_expires() -> None:
    written = Written(hf.KeyValueStore("plain", value=int))
    written.at(START).put("ann", 1, ttl="7s")
    written.at(START).put("bob", 1, ttl="5s")
    assert written.due() == Due(tasks=START + 5_000)


def test_an_entry_of_a_bounded_store_is_removed_when_it_expires() -> None:
    written = Written(hf.KeyValueStore("few", value=int, ttl="5s", max_entries=2))
    store = written.at(START)
    store.put("ann", 1)
    store.end_of_version()
    assert written.due() == Due(tasks=START + 5_000)


def test_entries_in_slices_are_hidden_in_steps_from_the_beginning_of_their_slice_on() -> None:
    written = Written(hf.KeyValueStore("sliced", value=int, ttl="8h"))
    assert written.due() == Due()
    written.at(START).put("ann", 1)
    begins = START // HOUR * HOUR
    assert written.due() == Due(hidden=begins + 8 * HOUR)
    assert written.due(begins + 8 * HOUR) == Due(hidden=begins + 8 * HOUR + HOUR // STEPS)
    assert written.due(begins + 9 * HOUR) == Due(), "the slice is no longer visible"


def test_an_entry_in_a_slice_with_a_ttl_of_its_own_is_due_in_the_second_of_its_expiry() -> None:
    written = Written(hf.KeyValueStore("sliced", value=int, ttl="8h"))
    store = written.at(START)
    store.put("ann", 1, ttl="1500ms")
    store.put("bob", 1, ttl="1700ms")
    store.put("cleo", 1)
    assert written.due() == Due(hidden=START + 2_000)
    assert len(written.bytes.entries) == 4, "one mark for both"
    assert written.due(START + 2_000).hidden == START // HOUR * HOUR + 8 * HOUR
    written.at(START + 5_000).put("ann", 1, ttl="10s")
    assert [row[:1] for row in written.bytes.entries].count(b"\x03") == 1, "the mark that has passed is gone"


@pytest.mark.parametrize("clock", ["wall", "event"])
def test_retention_is_due_if_the_wall_clock_measures_it(clock: str) -> None:
    declared = hf.WindowStore("hours", value=int, size="1h", retention="8h")
    written = Written(declared, structs.replace(declared.spec(), clock=clock))
    written.at(START).put("ann", 1, START)
    assert (written.due().hidden is not None) == (clock == "wall")


@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=10), st.sampled_from(["1s", "5s", "60s"]))
def test_whoever_follows_what_is_due_hides_every_entry_in_time(times: list[int], ttl: str) -> None:
    written = Written(hf.KeyValueStore("sliced", value=int, ttl=ttl))
    for number, passed in enumerate(sorted(times)):
        written.at(START + passed).put(str(number), 1)
    wall = START + max(times)
    made = [wall]
    while (due := written.due(wall).first) is not None:
        assert due > wall
        wall = due
        made.append(wall)
    assert not list(written.at(wall).items())
    step = max(1, written.spec.slice_ms // STEPS)
    for passed in times:
        expires = START + passed + written.spec.ttl_ms
        assert any(expires <= each <= expires + step for each in made) or expires <= made[0]
