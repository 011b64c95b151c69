"""The app's file: which changes a start accepts, what the file keeps, and what the error for other changes advises."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadValue, DamagedObject
from holdfast.log import appfile, changing, names
from holdfast.log.appfile import AppChanged, AppSpec, SubTopologySpec
from holdfast.log.appfiles import AppFiles, ContradictoryAppFile
from holdfast.log.changing import ChangeRules, InEffect
from holdfast.log.log import Log
from holdfast.log.objects import Storage
from holdfast.stores.codecs.base import UnreadableValue
from holdfast.stores.codecs.values import codec_of
from holdfast.stores.formats.cells import Cell, pack, pack_many, unpack_many
from holdfast.stores.formats.rows import encode_row
from holdfast.stores.formats.types import Schema
from holdfast.stores.schema.history import effective, merged
from holdfast.stores.schema.row_columns import decode_columns, newest_rows
from holdfast.stores.schema.row_history import row_schemas
from holdfast.stores.spec import RowValues, StoreSpec, TypedValues
from holdfast.words import TaskId, Version
from tests.log.making import app_spec, grow, subtopologies_of
from tests.stores.making import columns_of
from tests.stores.schemas import First, Gained, Tenths, spec_of

GOLDEN = Path(__file__).parent / "golden"


def table(name: str = "counts", from_now: Any = (), **columns: str) -> StoreSpec:
    return StoreSpec(
        name=name,
        key=Schema.of(player="string"),
        value=RowValues(columns_of(columns)),
        codec="rows/1",
        from_now=from_now,
    )


def start(storage: Storage, *stores: StoreSpec) -> Log:
    """Starts the app and commits one version."""
    log = Log.create_or_open(storage, app_spec(*stores))
    grow(log, 1)
    return log


def stored(log: Log, name: str) -> StoreSpec:
    store = log.app.store(name)
    assert store is not None
    return store


def refused(storage: Storage, *stores: StoreSpec) -> str:
    with pytest.raises(AppChanged) as raised:
        Log.create_or_open(storage, app_spec(*stores))
    return str(raised.value)


def numbered(number: int, spec: AppSpec) -> AppSpec:
    return msgspec.structs.replace(spec, number=number)


def test_the_golden_file_with_schemas_is_unchanged() -> None:
    data = (GOLDEN / "app-1-schemas.json").read_bytes()
    first = numbered(1, changing.first(app_spec(spec_of(First)), "l0g"))
    known = numbered(2, changing.successor(InEffect(first, Version(1), 0), app_spec(spec_of(Tenths)), ChangeRules()))
    assert appfile.decode(data, 2, "l0g", place="here") == known
    assert appfile.encode(known) == data


def test_the_golden_file_with_aggregates_is_unchanged() -> None:
    data = (GOLDEN / "app-1-aggregates.json").read_bytes()
    columns = {"n": "bigint", "avg": "double", "avg#sum": "double", "avg#count": "bigint"}
    spec = computing(table(from_now=("avg",), **columns), n="count(*)", avg="mean(score)")
    first = numbered(1, changing.first(app_spec(spec), "l0g"))
    assert appfile.decode(data, 1, "l0g", place="here") == first
    assert appfile.encode(first) == data


def test_a_readable_schema_is_added_in_the_next_file(storage: Storage) -> None:
    start(storage, spec_of(First))
    log = start(storage, spec_of(Tenths))
    assert log.app.number == 2
    assert log.app.formats["cell"] == 2
    assert log.app_at(1).formats["cell"] == 1
    store = stored(log, "scores")
    assert [version.number for version in store.schemas] == [1, 2]
    assert Log.create_or_open(storage, app_spec(spec_of(Tenths))).app.number == 2


def test_old_and_new_code_may_alternate_when_each_reads_the_other(storage: Storage) -> None:
    """A rolling deployment: old and new code start in turns on one log."""
    numbers = [start(storage, spec_of(type_)).app.number for type_ in (First, Gained, First, Gained, First)]
    assert numbers == [1, 2, 2, 2, 2]
    log = Log.open(storage)
    assert appfile.effective(log.app, spec_of(First)).schema == 1
    assert len(appfile.effective(log.app, spec_of(First)).schemas) == 2


def test_code_that_cannot_read_the_newer_schema_is_refused_after_a_warning(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    start(storage, spec_of(First))
    with caplog.at_level(logging.WARNING):
        start(storage, spec_of(Tenths))
    assert "can't read what this code writes" in caplog.text
    assert "start the newer code" in refused(storage, spec_of(First))


def test_an_unreadable_schema_is_refused_with_an_upcaster_as_advice(storage: Storage) -> None:
    @dataclass
    class Levels:
        user: str
        score: int
        level: int

    start(storage, spec_of(First))
    message = refused(storage, spec_of(Levels))
    assert "level has no default" in message
    assert "declare an upcaster: @hf.schema(number=2, upcasters={1: ...})" in message


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "window"},
        {"key": Schema.of(k="bigint")},
        {"codec": "json/1"},
        {"engine": "memory"},
        {"fixed": (("window_ms", 5),)},
        {"fixed": (("duplicates", True),)},
        {"durable": False},
        {"everywhere": True},
        {"ttl_ms": 5},
        {"max_entries": 5},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_change_that_is_not_possible_in_place_is_refused(storage: Storage, change: dict[str, Any]) -> None:
    start(storage, spec_of(First))
    message = refused(storage, msgspec.structs.replace(spec_of(First), **change))
    assert "Not possible in place: add a store under a new name, beside this one or instead of it" in message


def test_the_advice_to_add_a_store_under_a_new_name_works(storage: Storage) -> None:
    start(storage, spec_of(First))
    other = msgspec.structs.replace(spec_of(First, "json/1"), name="scores-2")
    assert start(storage, spec_of(First), other).app.number == 2
    instead = start(storage, other).app
    assert [store.name for store in instead.current_stores] == ["scores-2"]


@pytest.mark.parametrize("value", [TypedValues(), RowValues(Schema.of(n="bigint"))], ids=["processor", "aggregate"])
def test_durations_in_errors_look_as_in_code(storage: Storage, value: RowValues | TypedValues) -> None:
    codec = "rows/1" if isinstance(value, RowValues) else "msgpack/1"
    spec = StoreSpec(name="seen", key=Schema.of(k="string"), value=value, codec=codec, ttl_ms=7_200_000)
    start(storage, spec)
    message = refused(storage, msgspec.structs.replace(spec, ttl_ms=90_000))
    assert "store 'seen' has ttl 2h in the log and 1m30s in the code" in message
    assert ("put(" in message) == isinstance(value, TypedValues)
    assert "has ttl 2h in the log and none in the code" in refused(storage, msgspec.structs.replace(spec, ttl_ms=0))


def test_another_key_of_a_processors_stream_is_refused(storage: Storage) -> None:
    """The store's own key is the same: only the stream's key shows that records go to other partitions."""
    scores = spec_of(First)
    by_who, by_item = (msgspec.structs.replace(scores, stream_key=Schema.of(**{k: "string"})) for k in ("who", "item"))
    start(storage, scores)  # the file has no stream key yet
    assert b"stream_key" not in storage.get(names.app(1))
    log = start(storage, by_who)
    store = stored(log, "scores")
    assert (log.app.number, store.stream_key) == (2, Schema.of(who="string"))
    message = refused(storage, by_item)
    assert "the stream's key, which is (who string) in the log and (item string) in the code" in message
    assert start(storage, by_who).app.number == 2


def test_an_alias_alone_is_added_in_the_next_file_and_older_code_keeps_it(storage: Storage) -> None:
    """An alias changes no stored byte, but instances learn from the file how a field is called now."""

    @hf.schema(aliases={"player": "user"})
    @dataclass
    class Aliased:
        player: str
        score: int

    start(storage, spec_of(First))
    log = start(storage, spec_of(Aliased))
    store = stored(log, "scores")
    assert (log.app.number, store.schema, log.app.formats["cell"]) == (2, 1, 1)
    data = codec_of(spec_of(First), First).encode(First("Ann", 3))
    assert codec_of(store).decode(data, 1) == {"player": "Ann", "score": 3}
    assert [start(storage, spec_of(type_)).app.number for type_ in (First, Aliased)] == [2, 2]


@pytest.mark.parametrize(
    "change", [{"profile": "write-heavy"}, {"options": (("late", "last"),)}, {"options_hook": "a:b"}]
)
def test_options_that_stored_bytes_do_not_depend_on_may_change(storage: Storage, change: dict[str, Any]) -> None:
    start(storage, spec_of(First))
    assert start(storage, msgspec.structs.replace(spec_of(First), **change)).app.number == 2


def test_a_ttl_may_grow_and_its_slices_stay(storage: Storage) -> None:
    start(storage, spec_of(First, ttl_ms=8_000, slice_ms=1_000))
    longer = spec_of(First, ttl_ms=80_000, slice_ms=10_000)
    log = start(storage, longer)
    found = appfile.effective(log.app, longer)
    assert (found.ttl_ms, found.slice_ms) == (80_000, 1_000)
    assert "could come back" in refused(storage, spec_of(First, ttl_ms=8_000, slice_ms=1_000))


def test_a_log_without_a_version_keeps_no_history(storage: Storage) -> None:
    Log.create_or_open(storage, app_spec(spec_of(First)))
    log = Log.create_or_open(storage, app_spec(spec_of(Tenths)))
    store = stored(log, "scores")
    assert [version.number for version in store.schemas] == [2]


def test_a_file_without_schemas_takes_the_first_declared_one(storage: Storage) -> None:
    start(storage, msgspec.structs.replace(spec_of(First), schemas=()))
    store = stored(start(storage, spec_of(Gained)), "scores")
    assert [version.number for version in store.schemas] == [1]


# Aggregates


def test_a_new_aggregate_needs_from_now(storage: Storage) -> None:
    start(storage, table(n="bigint"))
    message = refused(storage, table(n="bigint", peak="double"))
    assert "gained the aggregate peak" in message
    assert "from_now=True" in message
    log = start(storage, table(n="bigint", peak="double", from_now=("peak",)))
    store = stored(log, "counts")
    assert (log.app.number, store.schema) == (2, 2)
    assert [version.fields for version in store.schemas] == ["{n: bigint}", "{n: bigint, peak: double}"]


def test_hidden_columns_are_added_and_removed_with_their_aggregate(storage: Storage) -> None:
    mean = {"avg": "double", "avg#sum": "double", "avg#count": "bigint"}
    start(storage, table(n="bigint"))
    assert refused(storage, table(n="bigint", **mean)).count("gained the aggregate") == 1
    start(storage, table(n="bigint", from_now=("avg",), **mean))
    assert start(storage, table(n="bigint")).app.number == 3


def test_an_aggregate_whose_columns_changed_is_refused(storage: Storage) -> None:
    start(storage, table(n="bigint", best="double"))
    assert "column n bigint in the log and double" in refused(storage, table(n="double", best="double"))
    message = refused(storage, table(**{"n": "bigint", "best": "double", "best#time": "bigint"}))
    assert "best in the log without best#time" in message


def test_removing_an_aggregate_is_accepted_and_adding_it_again_needs_from_now(storage: Storage) -> None:
    start(storage, table(n="bigint", peak="double"))
    assert start(storage, table(n="bigint")).app.number == 2
    assert "gained the aggregate peak" in refused(storage, table(n="bigint", peak="double"))


def computing(spec: StoreSpec, **aggregates: str) -> StoreSpec:
    return msgspec.structs.replace(spec, aggregates=tuple(aggregates.items()))


def test_an_aggregate_whose_function_changed_is_refused(storage: Storage) -> None:
    """The columns are the same: only the recorded functions differ."""
    scores = table(n="bigint", best="bigint")
    start(storage, computing(scores, n="count(*)", best="sum(score)"))
    message = refused(storage, computing(scores, n="count(*)", best="max(score)"))
    assert "store 'counts' has best as sum(score) in the log and as max(score) in the code" in message
    assert "Give the changed aggregate another name with from_now=True, or add a store under a new name" in message
    assert "sum(points)" in refused(storage, computing(scores, n="count(*)", best="sum(points)"))
    # An expression without a text ("...") counts as unchanged if its function is the same.
    assert "max(...)" in refused(storage, computing(scores, n="count(*)", best="max(...)"))
    assert start(storage, computing(scores, n="count(*)", best="sum(...)")).app.number == 2


def test_a_changed_function_and_type_are_one_difference(storage: Storage) -> None:
    start(storage, computing(table(avg="bigint"), avg="sum(score)"))
    mean = table(**{"avg": "double", "avg#sum": "double", "avg#count": "bigint"})
    with pytest.raises(AppChanged) as raised:
        Log.create_or_open(storage, app_spec(computing(mean, avg="mean(score)")))
    [line] = raised.value.differences
    assert "avg as sum(score) in the log and as mean(score)" in line


def test_a_file_without_aggregates_gets_them_at_the_next_start(storage: Storage) -> None:
    scores = table(n="bigint")
    start(storage, scores)
    assert b"aggregates" not in storage.get(names.app(1))
    log = start(storage, computing(scores, n="count(*)"))
    store = stored(log, "counts")
    assert (log.app.number, store.schema, store.aggregates) == (2, 1, (("n", "count(*)"),))
    assert start(storage, computing(scores, n="count(*)")).app.number == 2
    assert "count(*)" in refused(storage, computing(scores, n="sum(x)"))


def test_a_removed_aggregate_may_come_back_with_another_function(storage: Storage) -> None:
    start(storage, computing(table(n="bigint", best="bigint"), n="count(*)", best="sum(score)"))
    start(storage, computing(table(n="bigint"), n="count(*)"))
    again = table(n="bigint", best="bigint", from_now=("best",))
    assert start(storage, computing(again, n="count(*)", best="max(score)")).app.number == 3


def spec_after(*layouts: dict[str, str]) -> StoreSpec:
    spec = table(**layouts[0])
    for layout in layouts[1:]:
        spec = merged(spec, table(**layout))
    return spec


def cells_of(spec: StoreSpec, rows: list[tuple[int, tuple[Any, ...]] | None]) -> pa.Array:
    layouts = row_schemas(spec)
    made = [None if row is None else pack(Cell(encode_row(layouts[row[0]], row[1]), schema=row[0])) for row in rows]
    return pa.array(made, pa.binary())


def test_old_rows_are_read_in_the_newest_schema_with_nulls_for_missing_columns() -> None:
    spec = spec_after(
        {"n": "bigint", "who": "string"}, {"n": "bigint"}, {"peak": "double", "n": "bigint", "who": "string"}
    )
    rows: list[Any] = [(1, (1, "ann")), None, (2, (2,)), (3, (9.5, 3, "bob"))]
    parts = unpack_many(cells_of(spec, rows))
    columns = [column.to_pylist() for column in decode_columns(spec, parts.payloads, parts.schemas)]
    # `who` was removed and added again: its earlier values are not read as the new column's.
    assert columns == [[None, None, None, 9.5], [1, None, 2, 3], [None, None, None, "bob"]]
    codec = codec_of(spec)
    assert codec.decode(parts.payloads[0].as_py(), 1) == {"peak": None, "n": 1, "who": None}
    assert codec.decode(parts.payloads[3].as_py(), 3) == {"peak": 9.5, "n": 3, "who": "bob"}


_TYPES = {"a": "bigint", "b": "string", "c": "double"}
_LAYOUTS = st.lists(
    st.lists(st.sampled_from(sorted(_TYPES)), min_size=1, unique=True), min_size=1, max_size=4, unique_by=tuple
)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "a": st.none() | st.integers(-9, 9),
    "b": st.none() | st.text(max_size=4),
    "c": st.none() | st.floats(allow_nan=False),
}


@given(_LAYOUTS, st.data())
def test_decoding_columns_equals_decoding_rows(layouts: list[list[str]], data: st.DataObject) -> None:
    spec = spec_after(*({name: _TYPES[name] for name in layout} for layout in layouts))
    known = row_schemas(spec)
    assert sorted(known) == list(range(1, spec.schema + 1))
    row = st.sampled_from(sorted(known)).flatmap(
        lambda number: st.tuples(st.just(number), st.tuples(*(_VALUES[name] for name in known[number].names)))
    )
    rows = data.draw(st.lists(st.none() | row, max_size=8))
    parts = unpack_many(cells_of(spec, rows))
    codec = codec_of(spec)
    wanted = [None if r is None else codec.decode(encode_row(known[r[0]], r[1]), r[0]) for r in rows]
    assert spec.value is not None
    for name, column in zip(spec.columns.names, decode_columns(spec, parts.payloads, parts.schemas), strict=True):
        column.validate(full=True)
        assert column.to_pylist() == [None if row is None else row[name] for row in wanted]
    again = newest_rows(spec, parts.payloads, parts.schemas)
    assert again.to_pylist() == [None if row is None else codec.encode(row) for row in wanted]


def test_rows_that_are_all_in_the_newest_schema_are_not_copied() -> None:
    spec = spec_after({"n": "bigint"}, {"n": "bigint", "peak": "double"})
    payloads = pa.array([encode_row(row_schemas(spec)[2], (1, 2.0)), None], pa.binary())
    parts = unpack_many(pack_many(payloads, schema=2))
    assert newest_rows(spec, parts.payloads, parts.schemas) is parts.payloads
    nothing = unpack_many(pa.nulls(2, pa.binary()))
    assert newest_rows(spec, nothing.payloads, nothing.schemas) is nothing.payloads


def test_a_row_of_a_newer_schema_is_an_error() -> None:
    old, new = table(n="bigint"), spec_after({"n": "bigint"}, {"n": "bigint", "peak": "double"})
    parts = unpack_many(cells_of(new, [(2, (1, 2.0))]))
    for read in (lambda: codec_of(old).decode(b"", 2), lambda: decode_columns(old, parts.payloads, parts.schemas)):
        with pytest.raises(UnreadableValue, match="has schema 2, but this process knows up to 1"):
            read()


def test_the_log_numbers_the_schemas_of_rows() -> None:
    log = spec_after({"n": "bigint"}, {"n": "bigint", "peak": "double"})
    assert effective(log, table(n="bigint", peak="double")).schema == 2
    with pytest.raises(BadValue):
        codec_of(log).encode({"other": 1})


def test_a_new_app_has_cell_format_1() -> None:
    spec = AppSpec(id="a", partitions=1, stores=(table(n="bigint"),), subtopologies=subtopologies_of({"counts": 0}))
    first = changing.first(spec, "l0g")
    assert first.formats["cell"] == 1


def declared(**stores: list[str]) -> AppSpec:
    """An app with sub-topologies of these names and stores, numbered in the order of declaration."""
    return AppSpec(
        id="scores",
        partitions=1,
        stores=tuple(table(name, n="bigint") for own in stores.values() for name in own),
        subtopologies=tuple(
            SubTopologySpec(name, number, tuple(own)) for number, (name, own) in enumerate(stores.items())
        ),
    )


def numbers(log: Log) -> dict[str, int]:
    return {each.name: each.number for each in log.app.subtopologies}


def test_sub_topologies_keep_their_numbers_when_others_are_declared_first(storage: Storage) -> None:
    first = Log.create_or_open(storage, declared(counts=["counts"], visits=["seen", "online"], clock=[]))
    assert numbers(first) == {"counts": 0, "visits": 1, "clock": 2}
    grow(first, 1)
    later = Log.create_or_open(
        storage, declared(fresh=["fresh"], tick=[], clock=[], visits=["online", "seen"], counts=["counts"])
    )
    assert numbers(later) == {"counts": 0, "visits": 1, "clock": 2, "fresh": 3, "tick": 4}
    assert later.app.stores_of(TaskId(1, 0)) == (table("online", n="bigint"), table("seen", n="bigint"))
    grow(later, 1)
    again = Log.create_or_open(
        storage, declared(fresh=["fresh"], visits=["seen", "online"], counts=["counts"], other=[])
    )
    assert numbers(again) == {**numbers(later), "other": 5}, "a removed sub-topology's number is not used again"


def test_the_number_of_a_former_sub_topology_is_never_used_again(storage: Storage) -> None:
    """Its segments may still be in the log, also if its name now belongs to another one."""
    grow(Log.create_or_open(storage, declared(visits=["seen"], clock=[])), 1)
    grow(renamed := Log.create_or_open(storage, declared(clock=["seen"])), 1)
    assert numbers(renamed) == {"clock": 0, "clock@1": 1}
    again = Log.create_or_open(storage, declared(clock=["seen"], fresh=[]))
    assert numbers(again) == {"clock": 0, "clock@1": 1, "fresh": 2}


CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "it has 0 partitions": {"partitions": 0},
    "it has stores twice: counts, counts": {"stores": (table(n="bigint"), table(n="bigint"))},
    "its stores are counts, and those of its sub-topologies ": {"subtopologies": ()},
    "it has numbers of sub-topologies twice: 0, 0": {
        "subtopologies": (SubTopologySpec("counts", 0, ("counts",)), SubTopologySpec("other", 0))
    },
    r"have the numbers \[0\], of which 0 are used": {"used_numbers": 0},
    "it is number 1 and follows 1": {"follows": 1},
    "it says that it is number 2": {"number": 2},
    "it belongs to the log another, and this is the log l0g": {"log": "another"},
}


@pytest.mark.parametrize("fault", CONTRADICTIONS)
def test_a_file_that_contradicts_itself_is_damaged(fault: str) -> None:
    whole = numbered(1, changing.first(app_spec(table(n="bigint")), "l0g"))
    assert appfile.decode(appfile.encode(whole), 1, "l0g", place="here") == whole
    broken = msgspec.structs.replace(whole, **CONTRADICTIONS[fault])
    with pytest.raises(DamagedObject, match=f"app/00000000000000000001.json in here is damaged: .*{fault}"):
        appfile.decode(appfile.encode(broken), 1, "l0g", place="here")


def test_a_file_that_would_contradict_itself_is_not_written(storage: Storage) -> None:
    broken = msgspec.structs.replace(changing.first(app_spec(table(n="bigint")), "l0g"), subtopologies=())
    with pytest.raises(ContradictoryAppFile, match="its stores are counts.* Nothing was written"):
        AppFiles(storage, "l0g").recorded(broken)
    assert storage.list("") == []


def test_a_renamed_sub_topology_keeps_the_number_of_its_stores(storage: Storage) -> None:
    grow(Log.create_or_open(storage, declared(visits=["seen"], clock=[])), 1)
    renamed = Log.create_or_open(storage, declared(clock=[], visits=[], sessions=["seen", "gaps"]))
    assert numbers(renamed) == {"clock": 1, "visits": 2, "sessions": 0}


def test_stores_cannot_move_from_one_sub_topology_to_another(storage: Storage) -> None:
    grow(Log.create_or_open(storage, declared(visits=["seen", "online"], counts=["counts"])), 1)
    with pytest.raises(AppChanged, match=r"'all' has stores .*: 'online' to 0, 'counts' to 1.* another name"):
        Log.create_or_open(storage, declared(all=["seen", "online", "counts"]))
    with pytest.raises(AppChanged, match="'online' belongs to sub-topology 0 in the log, .*'visits' and 'others'"):
        Log.create_or_open(storage, declared(visits=["seen"], others=["online"], counts=["counts"]))
