"""Values whose schema changes while instances run: instances show what they can without the app's code."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.clock import ManualClock
from holdfast.log.appfile import AppSpec
from holdfast.query.reader import StoreReader
from holdfast.query.render import answered, renderer
from holdfast.query.store_specs import StoreSpecs, UnknownStore
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.versioned import VersionedKeyValueStore
from holdfast.stores.kinds.window import WindowStore
from holdfast.stores.layouts.base import REWRITE_NOTE
from holdfast.stores.layouts.rewriter import RewriteProgress, note_of
from holdfast.stores.schema.history import merged
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.words import TaskId
from tests.log.making import app_spec, subtopologies_of
from tests.query.fake_tasks import Files, World, served
from tests.query.instances import Driver, Group, started
from tests.stores.schemas import First, Gained, Named, Renamed, Tenths, history, spec_of, typed

NARROW = StoreSpec(
    name="counts", key=Schema.of(player="string"), value=RowValues(Schema.of(n="bigint")), codec="rows/1"
)
WIDE = msgspec.structs.replace(NARROW, value=RowValues(Schema.of(n="bigint", peak="double")), from_now=("peak",))


def people(type_: Any) -> StoreSpec:
    return msgspec.structs.replace(spec_of(type_), name="people")


def app_of(counts: StoreSpec, type_: Any) -> AppSpec:
    stores = (counts, people(type_))
    return AppSpec(id="game", partitions=2, stores=stores, subtopologies=subtopologies_of({"counts": 0, "people": 1}))


def shown(log: StoreSpec, value: Any, codec: str = "msgpack/1") -> dict[str, object]:
    """A value as an instance shows it that knows only the log."""
    written = typed(type(value), codec)
    return answered(renderer(log)(written.encode(value), written.schema))


@pytest.mark.parametrize("codec", ["msgpack/1", "json/1"])
def test_renamed_and_removed_fields_are_shown_without_code(codec: str) -> None:
    log = history(First, Gained, Renamed, codec=codec)
    assert shown(log, First("Ann", 3), codec) == {"value": {"player": "Ann", "score": 3}}
    assert shown(log, Gained("Bob", 4, ["x"], 1.5), codec) == {"value": {"player": "Bob", "score": 4, "tags": ["x"]}}
    assert shown(log, Renamed("Cat", 5, []), codec) == {"value": {"player": "Cat", "score": 5, "tags": []}}


@hf.schema(number=2, aliases={"player": "user"})
@dataclass
class AvroRenamed:
    player: str
    tags: list[str] = field(default_factory=list)


def test_avro_is_read_in_its_own_schema_and_shown_in_the_newest() -> None:
    log = history(First, AvroRenamed, codec="avro/1")
    assert shown(log, First("Ann", 3), "avro/1") == {"value": {"player": "Ann"}}
    assert shown(log, AvroRenamed("Bob", ["x"]), "avro/1") == {"value": {"player": "Bob", "tags": ["x"]}}


def test_a_value_that_needs_an_upcaster_is_shown_with_its_own_schema() -> None:
    log = history(First, Renamed, Tenths)
    assert shown(log, First("Ann", 30)) == {"value": {"user": "Ann", "score": 30}, "schema": 1, "upcast": False}
    assert shown(log, Tenths("Bob", 2.5)) == {"value": {"player": "Bob", "score": 2.5, "tags": []}}
    later = merged(log, spec_of(Named))
    assert shown(later, Tenths("Bob", 2.5))["schema"] == 2
    assert shown(later, Named({"first": "Cat"}, 1.0)) == {"value": {"player": {"first": "Cat"}, "score": 1.0}}
    # The file has no schema 7.
    assert answered(renderer(history(First))(b"\x01", 7)) == {"value": 1, "schema": 7, "upcast": False}


def test_values_without_named_fields_are_shown_as_they_are() -> None:
    class Row(msgspec.Struct, array_like=True):
        a: int
        b: str = ""

    for value, plain in ((Row(1, "x"), [1, "x"]), ({"k": 1}, {"k": 1}), (3, 3)):
        assert shown(spec_of(type(value)), value) == {"value": plain}
    bare = StoreSpec(name="old", key=Schema.of(k="string"), codec="msgpack/1")
    assert answered(renderer(bare)(msgspec.msgpack.encode({"a": 1}), 1)) == {"value": {"a": 1}}


def test_windows_and_histories_are_shown_the_same_way() -> None:
    old: tuple[Any, ...] = (
        WindowStore("plays", value=First, size="10s", retention="1m"),
        VersionedKeyValueStore("scores", value=First, retention="1m"),
    )
    renamed: tuple[Any, ...] = (
        WindowStore("plays", value=Renamed, size="10s", retention="1m"),
        VersionedKeyValueStore("scores", value=Tenths, retention="1m"),
    )
    specs = tuple(merged(one.spec(), other.spec()) for one, other in zip(old, renamed, strict=True))
    world = World(app_spec(*specs))
    [task] = world.tasks.values()
    task.now = Now(20_000, 20_000)
    for version, (store, spec) in enumerate(zip(old, specs, strict=True), 1):
        bytes_ = DictBytes()
        store.bind(bytes_, task.now, spec=spec).put("ann", First("Ann", 30), 10_000)
        task.write(version, spec.name, dict(bytes_.entries))
    with served(world.reader) as client:
        [window] = client.get("/plays/windows/ann").json()["windows"]
        [record] = client.get("/scores/history/ann").json()["history"]
        latest = client.get("/scores/keys/ann").json()
    assert window == {"start": 10_000, "end": 20_000, "value": {"player": "Ann", "score": 30}}
    for answer in (record, latest):
        assert (answer["value"], answer["schema"], answer["upcast"]) == ({"user": "Ann", "score": 30}, 1, False)


# Instances that run while the code changes


def entries_of(group: Group, store: str) -> dict[str, Any]:
    """A store's entries, by key and by range; both instances give the same."""
    answers = []
    for at in range(2):
        page = group.get(f"/v1/stores/{store}/range", at).json()
        entries = {entry.pop("key"): entry for entry in page["entries"]}
        for key, entry in entries.items():
            single = group.get(f"/v1/stores/{store}/keys/{key}", at).json()
            assert {name: single.get(name) for name in entry} == entry
        answers.append(entries)
    assert answers[0] == answers[1]
    return answers[0]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with started(tmp_path, app_of(NARROW, First)) as group:
        yield group


def test_older_instances_show_what_newer_code_writes_and_the_reverse(group: Group, tmp_path: Path) -> None:
    def plain(value: Any) -> Any:
        return msgspec.msgpack.decode(typed(type(value)).encode(value))

    def release(counts: StoreSpec, type_: Any) -> Driver:
        group.driver = Driver(str(tmp_path / "log"), app_of(counts, type_))
        return group.driver

    players = [f"p{n}" for n in range(6)]  # some in each partition
    driver = group.driver
    driver.commit(NARROW, {(player,): (1,) for player in players})
    driver.commit(people(First), {(player,): plain(First(player, 30)) for player in players})
    group.settle()
    assert entries_of(group, "counts") == {player: {"value": {"n": 1}} for player in players}
    assert entries_of(group, "people")["p0"] == {"value": {"user": "p0", "score": 30}}

    driver = release(WIDE, Renamed)
    driver.commit(WIDE, {(player,): (2, 1.5) for player in players[:3]}, schema=2)
    driver.commit(people(Renamed), {("p0",): plain(Renamed("p0", 31))})
    group.settle()
    # The rename has no schema number of its own: the app file's next number is enough.
    assert entries_of(group, "people")["p0"] == {"value": {"player": "p0", "score": 31, "tags": []}}
    assert entries_of(group, "people")["p1"] == {"value": {"player": "p1", "score": 30}}
    found = entries_of(group, "counts")
    assert [found[player]["value"] for player in players] == [{"n": 2, "peak": 1.5}] * 3 + [{"n": 1, "peak": None}] * 3

    driver = release(NARROW, Tenths)  # older code for the table, newer code for the rest
    driver.commit(NARROW, {("p0",): (9,)}, schema=3)
    driver.commit(people(Tenths), {("p1",): plain(Tenths("p1", 3.5))}, schema=2)
    group.settle()
    assert entries_of(group, "counts")["p0"] == {"value": {"n": 9}}
    assert entries_of(group, "counts")["p1"] == {"value": {"n": 2}}
    assert entries_of(group, "people")["p1"] == {"value": {"player": "p1", "score": 3.5, "tags": []}}
    assert entries_of(group, "people")["p2"] == {"value": {"user": "p2", "score": 30}, "schema": 1, "upcast": False}
    [counts, known] = group.get("/v1/stores").json()["stores"]
    assert (counts["value"], counts["schema"]) == ("n bigint", 3)
    assert (known["value"], known["schema"]) == ("{player: str, score: float, tags?: list[str]}", 2)


class File(Files):
    """The app's file: the known one, and the one in storage."""

    def __init__(self, app: AppSpec, written: AppSpec) -> None:
        super().__init__(app, ManualClock())
        self.written = written
        self.app_reads = 0

    def look_at_app(self) -> None:
        self.app_reads += 1
        self.app = self.written


def test_an_unknown_schema_number_makes_a_reader_load_the_app_file_once() -> None:
    wide = merged(NARROW, WIDE)
    before, after = app_of(NARROW, First), app_of(wide, First)
    world, file = World(before), File(before, after)
    reader = StoreReader(file, world.find)
    key = ("ann",)
    world.commit(1, wide, {key: (4, 2.5)})
    fake = world.tasks[world.task_of(wide, key)]
    [(stored, cell)] = fake.versions[1]["counts"].items()
    fake.write(2, "counts", {stored: b"\x02\x00\x02" + cell[1:], stored + b"!": b"\x02\x00\x09" + cell[1:]})
    for task in world.tasks.values():
        task.write(2, "counts")
    with served(reader) as client:
        assert client.get("/counts/keys/ann").json()["value"] == {"n": 4, "peak": 2.5}
        assert file.app_reads == 1
        for _ in range(3):
            [good, bad] = client.get("/counts/range").json()["entries"]
            assert good["value"] == {"n": 4, "peak": 2.5}
            assert "has schema 9, but this process knows up to 2" in bad["error"]
    assert file.app_reads == 2, "once for the number that the file has, once for the number that it does not have"


def test_a_store_that_was_added_later_is_shown() -> None:
    file = File(app_spec(NARROW), app_of(NARROW, First))
    specs = StoreSpecs(file)
    with pytest.raises(UnknownStore, match="It has counts."):
        specs["people"]
    file.look_at_app()
    assert specs.all() == [NARROW, people(First)]


def test_a_store_that_was_added_later_is_answered_when_its_task_is_hosted(tmp_path: Path) -> None:
    plays = WindowStore("plays", value=int, size="10s", retention="1h")  # a kind that the app didn't have
    before = AppSpec(id="game", partitions=2, stores=(NARROW,), subtopologies=subtopologies_of({"counts": 0}))
    subtopologies = subtopologies_of({"counts": 0, "plays": 1})
    after = AppSpec(id="game", partitions=2, stores=(NARROW, plays.spec()), subtopologies=subtopologies)
    with started(tmp_path, before) as group:
        assert group.get("/v1/stores/plays/windows/ann").status_code == 404
        group.driver = Driver(str(tmp_path / "log"), after)
        window, player = DictBytes(), TaskId(1, partition_of(plays.spec().key, ("ann",), 2))
        plays.bind(window, Now(0, 0)).put("ann", 7, 10_000)
        group.driver.commit_cells(plays.spec(), {player: window.entries})
        for n, instance in enumerate(group.instances):
            instance.host(TaskId(1, n))
            instance.peers = {
                **instance.peers,
                **{f"1_{at}": (each.address,) for at, each in enumerate(group.instances)},
            }
        group.settle()
        for at in range(2):
            [found] = group.get("/v1/stores/plays/windows/ann", at).json()["windows"]
            assert (found["start"], found["value"]) == (10_000, 7)
            assert [store["store"] for store in group.get("/v1/stores", at).json()["stores"]] == ["counts", "plays"]


def test_a_store_that_was_added_to_a_task_that_is_open_here_needs_a_restart(tmp_path: Path) -> None:
    before, after = (
        AppSpec(
            id="game", partitions=2, stores=stores, subtopologies=subtopologies_of({each.name: 0 for each in stores})
        )
        for stores in ((NARROW,), (NARROW, people(First)))
    )
    with started(tmp_path, before) as group:
        group.driver = Driver(str(tmp_path / "log"), after)
        group.driver.commit(NARROW, {("ann",): (1,)})
        group.settle()
        player = partition_of(NARROW.key, ("ann",), 2)
        answer = group.get("/v1/stores/people/keys/ann", player)
        assert (answer.status_code, answer.json()["error"]) == (503, "not_ready")
        assert "Restart the app" in answer.json()["message"]


# Progress of the pass over old entries


def test_the_progress_of_a_rewrite_can_be_queried() -> None:
    wide = merged(NARROW, WIDE)
    app = app_of(wide, First)
    lifted = merged(people(First), people(Tenths))
    world = World(msgspec.structs.replace(app, stores=(wide, lifted)))
    for n, task in enumerate(sorted(each for each in world.tasks if each.subtopology == 0)):
        done = RewriteProgress(schema=2, seen=3, rewritten=2, unreadable=n, total=6, finished=bool(n))
        world.tasks[task].write(1, "counts", {REWRITE_NOTE: note_of(done)})
    with served(world.reader) as client:
        answer = client.get("/counts/rewriting").json()
        assert client.get("/counts/range").json()["entries"] == [], "the note is not an entry"
        none = client.get("/people/rewriting").json()
        assert client.get("/nothing/rewriting").status_code == 404
    one = {"seen": 3, "rewritten": 2, "unreadable": 0, "total": 6, "share": 0.5, "finished": False}
    assert answer == {
        "store": "counts",
        "schema": 2,
        "begun": True,
        "finished": False,
        "share": 0.75,
        "seen": 6,
        "rewritten": 4,
        "unreadable": 1,
        "total": 12,
        "tasks": {"0_0": one, "0_1": {**one, "unreadable": 1, "share": 1.0, "finished": True}},
        "version": 1,
    }
    assert (none["begun"], none["finished"], none["share"], none["tasks"]) == (False, False, 0.0, {})
    assert "batch.rewrite_entries" in none["hint"]


def test_a_store_that_never_changed_has_nothing_to_rewrite() -> None:
    world = World(app_of(NARROW, First))
    with served(world.reader) as client:
        for store in ("counts", "people"):
            answer = client.get(f"/{store}/rewriting").json()
            assert (answer["begun"], answer["finished"], answer["share"]) == (False, True, 1.0)
            assert "hint" not in answer


def test_a_rewrite_to_an_earlier_schema_does_not_count() -> None:
    wider = merged(merged(NARROW, WIDE), NARROW)
    world = World(app_of(wider, First))
    for task in world.tasks:
        world.tasks[task].write(1, "counts", {REWRITE_NOTE: note_of(RewriteProgress(schema=2, finished=True))})
    with served(world.reader) as client:
        answer = client.get("/counts/rewriting").json()
    assert (answer["schema"], answer["begun"], answer["finished"]) == (3, False, False)


def test_a_cell_of_schema_1_does_not_load_the_app_file() -> None:
    file = File(app_of(NARROW, First), app_of(NARROW, First))
    specs = StoreSpecs(file)
    specs.load_schema("counts", 1)
    assert (file.app_reads, specs.is_unknown_schema("counts", 2)) == (0, True)
