"""Generations: one wins, the damaged and the forged are skipped, and who slept finds the way back."""

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StorageUnavailable
from holdfast.group import generations
from holdfast.group.generations import Generation, Generations, Place, sequence
from holdfast.log import documents, names
from holdfast.log.objects import Put, Storage
from tests.group.making import LOG, new_storage
from tests.log.making import Watched, overwrite


def generation(number: int, id: str = "", **fields: object) -> Generation:
    made: dict[str, object] = {
        "log": LOG,
        "number": number,
        "id": id or f"g{number}",
        "before": "",
        "proposer": "driver",
        "reason": "",
        "app_file": 1,
        "members": {},
        "tasks": {"0_0": Place(active="a")},
    }
    return Generation(**(made | fields))  # type: ignore[arg-type]


def newest_of(storage: Storage) -> str:
    found = Generations(storage, LOG).follow()
    return "none" if found is None else found.id


def grow(storage: Storage, count: int) -> Generations:
    made = Generations(storage, LOG)
    for _ in range(count):
        made.follow()
        assert made.propose(generation(made.next_number))
    return made


def test_of_two_that_propose_one_wins_and_both_know_it() -> None:
    storage = new_storage()
    one, other = Generations(storage, LOG), Generations(storage, LOG)
    assert one.follow() is other.follow() is None
    assert one.propose(generation(1, "one"))
    assert not other.propose(generation(1, "other"))
    assert other.newest is not None and other.newest.id == "one" and other.next_number == 2


def test_a_put_that_was_stored_and_answered_by_an_error_is_found_by_the_next_look() -> None:
    inner = new_storage()

    class Fails:
        def __getattr__(self, name: str) -> object:
            return getattr(inner, name)

        def create(self, name: str, data: bytes) -> Put:
            inner.create(name, data)
            raise StorageUnavailable("no answer")

    made = Generations(Fails(), LOG)  # type: ignore[arg-type]
    made.follow()
    with pytest.raises(StorageUnavailable):
        made.propose(generation(1, "mine"))
    found = made.follow()
    assert found is not None and found.id == "mine" and made.next_number == 2


NONSENSE: dict[str, Callable[[int], bytes]] = {
    "empty": lambda number: b"",
    "not JSON": lambda number: b"\xff" * 50,
    "another log": lambda number: documents.encode(generation(number, log="another")),
    "another number": lambda number: documents.encode(generation(number + 5)),
    "a task that is none": lambda number: documents.encode(generation(number, tasks={"zero": Place(active="a")})),
    "a format to come": lambda number: documents.encode(generation(number, format=99)),
    "too deep": lambda number: _document(b'{"format":1,"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
}


def _document(body: bytes) -> bytes:
    return b'{"checksum":"' + documents.checksum(body[1:]).encode() + b'",' + body[1:]


@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE)
def test_a_generation_that_cant_be_believed_is_skipped(
    data: Callable[[int], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    storage = new_storage()
    follower = grow(storage, 2)
    storage.create(names.generation(3), data(3))
    with caplog.at_level(logging.WARNING):
        found = follower.follow()
    assert found is not None and found.id == "g2" and follower.next_number == 4
    assert "skipped" in caplog.text and "00003.json" in caplog.text
    assert follower.propose(generation(4))
    assert newest_of(storage) == "g4"


def test_damage_of_the_newest_one_leaves_the_one_before_it() -> None:
    storage = new_storage()
    grow(storage, 3)
    overwrite(storage, names.generation(3), b"")
    late = Generations(storage, LOG)
    found = late.follow()
    assert found is not None and found.id == "g2" and late.next_number == 4


def test_a_look_that_fails_half_way_is_taken_again() -> None:
    storage = new_storage()
    grow(storage, 3)
    overwrite(storage, names.generation(3), b"")
    failing = [names.generation(2)]

    def fail(call: str, name: str) -> None:
        if call == "get_range" and name in failing:
            failing.clear()
            raise StorageUnavailable("no answer")

    late = Generations(Watched(storage, before=fail), LOG)
    with pytest.raises(StorageUnavailable):
        late.follow()
    found = late.follow()
    assert found is not None and found.id == "g2" and late.next_number == 4


def test_a_number_far_ahead_is_not_followed() -> None:
    storage = new_storage()
    grow(storage, 3)
    storage.create(names.generation(5_000), documents.encode(generation(5_000, "forged")))
    assert newest_of(storage) == "g3"


def test_who_slept_while_its_next_ones_were_cleaned_finds_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "KEPT", 3)
    storage = new_storage()
    sleeper = Generations(storage, LOG)
    grow(storage, 1)
    assert sleeper.follow() is not None
    grow(storage, 9).clean()
    assert storage.list_flat(names.GENERATIONS) == [names.generation(number) for number in (8, 9, 10)]
    looks = 0
    while (found := sleeper.follow()) is not None and found.id != "g10":
        looks += 1
        assert looks <= 30
    assert sleeper.next_number == 11


def test_who_slept_and_proposes_a_cleaned_number_joins_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "KEPT", 3)
    storage = new_storage()
    sleeper = grow(storage, 1)
    grow(storage, 9).clean()
    assert not sleeper.propose(generation(2, "zombie"))
    assert sleeper.newest is not None and sleeper.newest.id == "g10"


@given(st.integers(1, 50), st.integers(1, 20), st.sets(st.integers(100, 10_000), max_size=1))
def test_the_sequence_is_found_beside_numbers_that_stand_alone(first: int, length: int, alone: set[int]) -> None:
    numbers = [*range(first, first + length)]
    assert sequence([*alone, *numbers]) == numbers


@given(st.integers(1, 500), st.integers(12, 40), st.data())
def test_numbers_that_are_lost_do_not_end_the_sequence(first: int, length: int, data: st.DataObject) -> None:
    lost = data.draw(st.integers(first, first + length - 1))
    count = data.draw(st.integers(1, generations.LOST))
    left = [number for number in range(first, first + length) if not lost <= number < lost + count]
    assert sequence(left) == left
