"""The processor underneath `reduce` and `aggregate_with`, without Spark."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.testing import ProcessorTest
from holdfast.topology.processor import WrittenAs
from holdfast.topology.reducing import Update, event_class, processor_of


def task_of(update: Update) -> ProcessorTest:
    store: Any = hf.TimestampedKeyValueStore("values", value=int, late="last")
    return ProcessorTest(processor_of("Reduce", WrittenAs.of("reduce", update), store, update, None))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-3, 3), st.integers(0, 50)), max_size=20), st.data())
def test_each_key_has_the_value_of_its_last_call(records: list[tuple[str, int, int]], data: st.DataObject) -> None:
    """A sum that a zero deletes, over any batches, with times in any order."""
    test = task_of(lambda old, event: None if event.x == 0 else (old or 0) + event.x)
    sums: dict[str, int] = {}
    times: dict[str, int] = {}
    for key, number, time in records:
        test.pipe(key, {"x": number}, timestamp=time)
        if number == 0:
            sums.pop(key, None)
            times.pop(key, None)
        else:
            sums[key] = sums.get(key, 0) + number
            times[key] = max(times.get(key, 0), time)
        if data.draw(st.booleans()):
            test.commit()
    test.commit()
    found = {key: test.store("values").get(key) for key in sums}
    assert {key: (each.value, each.timestamp) for key, each in found.items()} == {
        key: (sums[key], times[key]) for key in sums
    }
    assert all(test.store("values").get(key) is None for key in "ab" if key not in sums)


def test_the_class_of_an_event_is_that_of_the_annotation() -> None:
    def annotated(value: int, event: dict[str, int]) -> int:
        return value

    def anything(value: int, event: Any) -> int:
        return value

    assert event_class(annotated) == dict[str, int]
    assert event_class(anything) is None
    assert event_class(lambda value, event: value) is None
    assert event_class(max) is None
