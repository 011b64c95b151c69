"""The processor underneath `reduce` and `aggregate_with`, without Spark."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.testing import ProcessorTest, records
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


@pytest.mark.parametrize("option", ["duplicates", "other_key", "size", "gap", "grace", "key", "value", "late", "emitt"])
def test_a_table_of_a_function_has_the_options_of_its_kind_alone(option: str) -> None:
    """Not those that Holdfast sets itself, and none that its store would have in a processor only."""
    grouped = hf.App("a").stream(records("p string, n bigint, at timestamp"), key="p", timestamp="at").group_by()
    windows = [grouped.window(each) for each in (hf.tumbling("1m"), hf.sliding("1m"), hf.session("1m"))]
    groups: list[Any] = [grouped, *windows]
    for each in groups:
        with pytest.raises(TopologyError, match=rf"^store\('t'\): there is no option {option}="):
            each.reduce(max, of="n").store("t", **{option: True})
        with pytest.raises(TopologyError, match=rf"^store\('t'\): there is no option {option}="):
            each.aggregate_with(int, lambda old, event: old, value=int, **merging(each)).store("t", **{option: True})


def merging(group: Any) -> dict[str, Any]:
    is_session = isinstance(getattr(group, "windows", None), type(hf.session("1m")))
    return {"merger": lambda one, other: one} if is_session else {}
