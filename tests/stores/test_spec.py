"""Specs: their JSON, and how differences are reported."""

import msgspec
import pytest

from holdfast.errors import TopologyError
from holdfast.stores.formats.keys import key_schema
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import VERSIONED, RowValues, StoreSpec, differences


def test_the_json_of_specs_is_unchanged() -> None:
    spec = StoreSpec(
        name="scores", key=Schema.of(player="string"), value=RowValues(Schema.of(n="bigint")), codec="rows/1"
    )
    data = (
        b'{"name":"scores","kind":"key-value","key":{"fields":[{"name":"player","type":"string"}]},'
        b'"value":{"type":"rows","columns":{"fields":[{"name":"n","type":"bigint"}]}},"codec":"rows/1",'
        b'"engine":"rocksdb","format":1}'
    )
    assert msgspec.json.encode(spec) == data
    assert msgspec.json.decode(data, type=StoreSpec) == spec


def test_differences_are_reported_as_sentences() -> None:
    old = StoreSpec(name="scores", key=Schema.of(player="string"), codec="msgpack/1")
    new = StoreSpec(
        name="scores",
        key=Schema.of(player="bigint"),
        value=RowValues(Schema.of(n="int")),
        codec="rows/1",
        engine="memory",
    )
    not_in_place = (
        ". Not possible in place: add a store under a new name, beside this one or instead of it, or give the app a "
        "new id"
    )
    assert differences(old, old) == []
    assert differences(old, new) == [
        "store 'scores' has codec msgpack/1 in the log and rows/1 in the code" + not_in_place,
        "store 'scores' has engine rocksdb in the log and memory in the code" + not_in_place,
        "store 'scores' has key (player string) in the log and (player bigint) in the code" + not_in_place,
        "store 'scores' has typed values in the log and rows of (n int) in the code" + not_in_place,
    ]


@pytest.mark.parametrize("name", ["", "Scores", "-a", "a b", "a/b", "x" * 101, "é"])
def test_a_name_that_cannot_be_a_folder_everywhere_is_refused(name: str) -> None:
    with pytest.raises(TopologyError, match="can't be the name of a store"):
        StoreSpec(name=name, key=key_schema(str), codec="msgpack/1")


def test_differences_name_the_option_history_of_an_aggregate() -> None:
    kept = StoreSpec(
        name="scores",
        kind=VERSIONED,
        key=Schema.of(player="string"),
        value=RowValues(Schema.of(n="bigint")),
        codec="rows/1",
        retention_ms=4_000,
        aggregates=(("n", "count(*)"),),
    )
    longer = msgspec.structs.replace(kept, retention_ms=9_000)
    [line] = differences(kept, longer)
    assert line.startswith("store 'scores' has history 4s in the log and 9s in the code.")
    assert "retention" not in line
