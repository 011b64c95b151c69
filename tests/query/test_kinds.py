"""REST on stores of every kind: all entries are shown except expired ones."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest

from holdfast.clock import ManualClock
from holdfast.log.appfile import AppSpec
from holdfast.query.reader import StoreReader
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.cells import Cell, pack
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.rows import ROWS, encode_row
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds import store_spec
from holdfast.stores.kinds.keyvalue import KeyValueStore
from holdfast.stores.kinds.session import Session, SessionStore
from holdfast.stores.kinds.timestamped import TimestampedKeyValueStore
from holdfast.stores.kinds.versioned import VersionedKeyValueStore
from holdfast.stores.kinds.window import WindowStore
from holdfast.stores.spec import VERSIONED, RowValues, StoreSpec
from holdfast.words import TaskId, Version
from tests.log.making import app_spec, subtopologies_of
from tests.query import fake_tasks
from tests.query.fake_tasks import World, served
from tests.stores.making import columns_of

SINGLE = KeyValueStore("single", value=int, durable=False, everywhere=True)
SLICED = KeyValueStore("sliced", value=int, ttl="20s")
BOUNDED = KeyValueStore("bounded", value=int, max_entries=3)
PLACES = TimestampedKeyValueStore("places", value=str, ttl="20s")
WINDOWS = WindowStore("plays", value=dict, size="10s", retention="1m")
SESSIONS = SessionStore("visits", key=(str, int), value=int, gap="5s", retention="1m")
PRICES = VersionedKeyValueStore("prices", value=int, retention="1m")
AUDIT = KeyValueStore("audit", value=str)
OWN = StoreSpec(name="sketch", kind="shop.sketches:Sketch", key=Schema.of(k="string"), codec="bytes/1")
DECLARED: tuple[Any, ...] = (SINGLE, SLICED, BOUNDED, PLACES, WINDOWS, SESSIONS, PRICES, AUDIT)
SPECS = (*(store.spec(default_engine="memory") for store in DECLARED), OWN)
APP = AppSpec(id="game", partitions=2, stores=SPECS, subtopologies=subtopologies_of({spec.name: 0 for spec in SPECS}))
START = 1_000_000


def write(world: World, store: Any, key: tuple[object, ...], now: Now, *puts: tuple[Any, ...]) -> None:
    """Puts into the store of the task that hosts the key, as a task does in its next version."""
    spec = store.spec(default_engine="memory")
    fake = world.tasks[world.task_of(spec, key)]
    bytes_ = DictBytes()
    bytes_.entries.update(fake.versions[max(fake.versions)].get(spec.name, {}))
    bound = store.bind(bytes_, now)
    for put in puts:
        bound.put(*put)
    bound.end_of_version()
    fake.write(max(fake.versions) + 1, spec.name, dict(bytes_.entries))


@pytest.fixture
def world() -> World:
    world = World(APP)
    old, young = Now(START, START), Now(START + 15_000, START + 15_000)
    for name in ("ann", "bob", "cleo"):
        write(world, SLICED, (name,), old, (name, 1))
        write(world, SINGLE, (name,), old, (name, 1))
        write(world, PLACES, (name,), old, (name, "Oslo", START))
    write(world, SLICED, ("bob",), young, ("bob", 2))
    write(world, SINGLE, ("bob",), young, ("bob", 2, "10s"))
    write(world, BOUNDED, ("ann",), old, ("ann", 7))
    starts = range(START - 50_000, START + 1, 10_000)
    write(world, WINDOWS, ("ann",), old, *[("ann", {"n": n}, start) for n, start in enumerate(starts)])
    visits = [Session(("ann", 1), START - 40_000, START - 30_000), Session(("ann", 1), START - 9_000, START)]
    write(world, SESSIONS, ("ann", 1), old, *[(visit, n) for n, visit in enumerate(visits)])
    prices = [("tea", 3, START - 50_000), ("tea", 4, START - 20_000), ("tea", 5, START)]
    write(world, PRICES, ("tea",), old, *prices)
    for task in world.tasks.values():
        last = max(task.versions)
        task.versions = {20: task.versions[last]}
        task.now = young
    return world


@pytest.fixture
def rest(world: World) -> Iterator[httpx2.Client]:
    with served(world.reader) as client:
        yield client


def at(world: World, seconds: int) -> None:
    for task in world.tasks.values():
        task.now = Now(START + seconds * 1_000, START + seconds * 1_000)


def keys(body: dict[str, Any]) -> list[object]:
    return [entry["key"] for entry in body["entries"]]


def test_entries_of_a_store_with_a_ttl_are_found_through_its_slices(rest: httpx2.Client, world: World) -> None:
    found = rest.get("/sliced/keys/bob").json()
    assert (found["value"], found["expires"], found["version"]) == (2, START + 35_000, 20)
    assert keys(rest.get("/sliced/range").json()) == ["ann", "bob", "cleo"]
    at(world, 20)
    assert rest.get("/sliced/keys/ann").json()["error"] == "key_not_found"
    assert keys(rest.get("/sliced/range").json()) == ["bob"]
    assert rest.get("/places/keys/ann").status_code == 404


def test_a_cursor_continues_across_slices(rest: httpx2.Client) -> None:
    first = rest.get("/sliced/range?limit=1").json()
    second = rest.get("/sliced/range", params={"limit": "1", "cursor": first["cursor"]}).json()
    third = rest.get("/sliced/range", params={"cursor": second["cursor"]}).json()
    assert (keys(first), keys(second), keys(third)) == (["ann"], ["bob"], ["cleo"])
    assert third["cursor"] is None


def test_an_entry_with_its_own_ttl_is_hidden_once_it_has_expired(rest: httpx2.Client, world: World) -> None:
    assert rest.get("/single/keys/bob").json()["value"] == 2
    at(world, 25)
    assert rest.get("/single/keys/bob").status_code == 404
    assert keys(rest.get("/single/range").json()) == ["ann", "cleo"]
    assert keys(rest.get("/single/range?limit=1").json()) == ["ann"]


def test_a_bounded_store_shows_its_values_without_its_index(rest: httpx2.Client) -> None:
    assert rest.get("/bounded/keys/ann").json()["value"] == 7
    assert rest.get("/bounded/range").json()["entries"] == [{"key": "ann", "value": 7}]


def test_a_timestamped_value_is_shown_with_its_time(rest: httpx2.Client) -> None:
    found = rest.get("/places/keys/ann").json()
    assert (found["value"], found["timestamp"]) == ("Oslo", START)


class Files(fake_tasks.Files):
    """The app's newest file, and the earlier one for versions up to `last`."""

    def __init__(self, before: AppSpec, app: AppSpec, last: int) -> None:
        super().__init__(app, ManualClock())
        self.before, self.last = before, last

    def app_of(self, version: Version) -> AppSpec:
        return self.before if version <= self.last else self.app


def test_a_version_is_shown_with_the_retention_of_its_own_app_file(world: World) -> None:
    """An instance that knows of a shorter retention shows earlier versions as one that doesn't."""
    short = {"retention_ms": 20_000}
    changed: dict[str, Any] = {"plays": short, "visits": short, "prices": short, "sliced": {"ttl_ms": 60_000}}
    later = tuple(msgspec.structs.replace(spec, **changed.get(spec.name, {})) for spec in SPECS)
    files = Files(APP, msgspec.structs.replace(APP, stores=later, number=2), last=20)
    reader = StoreReader(files, world.find)
    at(world, 5)

    def counts(version: int) -> list[int]:
        bodies = [client.get(f"/{store}/{path}/{key}").json() for store, path, key in asked]
        assert {body["version"] for body in bodies} == {version}
        assert keys(client.get("/sliced/range").json()) == ["ann", "bob", "cleo"]
        return [len(body[path]) for body, (_, path, _) in zip(bodies, asked, strict=True)]

    asked = (("plays", "windows", "ann"), ("visits", "sessions", '["ann", 1]'), ("prices", "history", "tea"))
    with served(reader) as client:
        assert counts(20) == [6, 2, 3]
        for task in world.tasks.values():
            task.write(21, "audit")
        assert counts(21) == [2, 1, 2]


def test_windows_of_a_key(rest: httpx2.Client, world: World) -> None:
    body = rest.get(f"/plays/windows/ann?from={START - 20_000}&to={START - 10_000}").json()
    windows = [
        {"start": START - 20_000, "end": START - 10_000, "value": {"n": 3}},
        {"start": START - 10_000, "end": START, "value": {"n": 4}},
    ]
    now = world.tasks[TaskId(0, 0)].now
    where = {"version": 20, "committed": now.wall, "event_time": now.event, "consistent": True, "role": "active"}
    tasks = [str(world.task_of(WINDOWS.spec(), ("ann",)))]
    found = {"store": "plays", "key": "ann", "windows": windows, "more": False, "tasks": tasks}
    assert body == {**found, **where, "instances": ["game-0"]}
    assert [each["value"]["n"] for each in rest.get("/plays/windows/ann?from=-30s").json()["windows"]] == [4, 5]
    assert [each["value"]["n"] for each in rest.get("/plays/windows/ann").json()["windows"]] == [1, 2, 3, 4, 5]
    cut = rest.get("/plays/windows/ann?limit=2").json()
    assert (len(cut["windows"]), cut["more"]) == (2, True)
    at(world, 40)
    assert [each["value"]["n"] for each in rest.get("/plays/windows/ann").json()["windows"]] == [4, 5]
    nobody = rest.get("/plays/windows/nobody").json()
    assert (nobody["windows"], nobody["tasks"]) == ([], [])


def test_sessions_of_a_key(rest: httpx2.Client, world: World) -> None:
    path = '/visits/sessions/["ann", 1]'
    shown = [(each["start"], each["end"], each["value"]) for each in rest.get(path).json()["sessions"]]
    assert shown == [(START - 40_000, START - 30_000, 0), (START - 9_000, START, 1)]
    overlapping = rest.get(path, params={"from": str(START - 20_000)}).json()["sessions"]
    assert [each["value"] for each in overlapping] == [1]
    at(world, 35)
    assert [each["value"] for each in rest.get(path).json()["sessions"]] == [1]


def test_history_and_the_latest_value(rest: httpx2.Client, world: World) -> None:
    assert rest.get("/prices/keys/tea").json()["value"] == 5
    assert rest.get("/prices/range").json()["entries"] == [{"key": "tea", "value": 5, "timestamp": START}]
    history = rest.get("/prices/history/tea").json()["history"]
    assert [(each["value"], each["timestamp"], each["valid_to"]) for each in history] == [
        (3, START - 50_000, START - 20_000),
        (4, START - 20_000, START),
        (5, START, None),
    ]
    at(world, 45)
    assert [each["value"] for each in rest.get("/prices/history/tea").json()["history"]] == [4, 5]


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("/plays/keys/ann", "/v1/stores/plays/windows/{key}?from=&to="),
        ("/plays/range", "/v1/stores/plays/windows/{key}?from=&to="),
        ("/visits/keys/%5B%22ann%22,1%5D", "/v1/stores/visits/sessions/{key}?from=&to="),
        ("/single/windows/ann", "/v1/stores/single/keys/{key}"),
        ("/single/history/ann", ".store(..., history=)"),
        ("/prices/sessions/tea", "/v1/stores/prices/history/{key}?from=&to="),
    ],
)
def test_a_query_of_another_kind_is_refused_with_the_right_path(rest: httpx2.Client, path: str, instead: str) -> None:
    response = rest.get(path)
    assert (response.status_code, response.json()["error"]) == (400, "wrong_kind")
    assert instead in response.json()["what_to_do"]


@pytest.mark.parametrize(
    "path",
    [
        "plays/windows/ann",
        "plays/windows",
        "visits/sessions/%5B%22ann%22,1%5D",
        "visits/sessions",
        "prices/history/tea",
    ],
)
def test_a_span_that_ends_before_it_begins_is_refused(rest: httpx2.Client, path: str) -> None:
    refused = rest.get(f"/{path}?from=2000&to=1000")
    assert (refused.status_code, refused.json()["error"]) == (400, "bad_time")
    assert refused.json()["message"] == "The span of time ends at 1000, before it begins at 2000."
    assert refused.json()["what_to_do"] == "Swap its ends, or leave one out."
    assert rest.get(f"/{path}?from=1000&to=1000").status_code == 200


@pytest.mark.parametrize("text", ["yesterday", "2026-01-31T12:00:00", "-1 parsec", "1e3"])
def test_an_invalid_time_is_refused(rest: httpx2.Client, text: str) -> None:
    response = rest.get("/plays/windows/ann", params={"from": text})
    assert (response.status_code, response.json()["error"]) == (400, "bad_time")
    assert "is not a time with a time zone" in response.json()["message"]


def test_a_key_in_another_partition_than_its_own_is_found(rest: httpx2.Client, world: World) -> None:
    own = world.task_of(AUDIT.spec(), ("event-1",))
    other = TaskId(0, 1 - own.partition)
    bytes_ = DictBytes()
    AUDIT.bind(bytes_, Now(START)).put("event-1", "seen")
    world.tasks[other].write(21, "audit", dict(bytes_.entries))
    world.tasks[own].write(21, "audit")
    found = rest.get("/audit/keys/event-1").json()
    assert (found["value"], found["task"]) == ("seen", str(other))
    assert rest.get("/audit/keys/event-2").status_code == 404


def everywhere(world: World, store: Any, *puts: list[tuple[Any, ...]]) -> None:
    """Puts into the store of each task, as a processor that writes under other keys than its records'."""
    for task, own in zip(world.tasks.values(), puts, strict=True):
        bytes_ = DictBytes()
        bound = store.bind(bytes_, Now(START, START))
        for put in own:
            bound.put(*put)
        task.write(21, store.spec().name, dict(bytes_.entries))


def test_a_key_in_several_partitions_is_shown_completely_and_in_order(rest: httpx2.Client, world: World) -> None:
    everywhere(
        world,
        WINDOWS,
        [("all", {"n": 0}, START - 30_000), ("all", {"n": 2}, START - 10_000)],
        [("all", {"n": 1}, START - 20_000), ("all", {"n": 3}, START - 10_000), ("all", {"n": 4}, START)],
    )
    body = rest.get("/plays/windows/all").json()
    assert [each["value"]["n"] for each in body["windows"]] == [0, 1, 2, 3, 4]
    assert [each["task"] for each in body["windows"]] == ["0_0", "0_1", "0_0", "0_1", "0_1"]
    assert (body["tasks"], body["consistent"], body["version"]) == (["0_0", "0_1"], True, 21)
    cut = rest.get("/plays/windows/all?limit=3").json()
    assert ([each["value"]["n"] for each in cut["windows"]], cut["more"]) == ([0, 1, 2], True)

    key = ("ann", 7)
    first = Session(key, START - 40_000, START - 20_000), Session(key, START - 3_000, START)
    everywhere(world, SESSIONS, [(first[0], 1), (first[1], 3)], [(Session(key, START - 30_000, START - 10_000), 2)])
    sessions = rest.get('/visits/sessions/["ann", 7]').json()["sessions"]
    assert [each["value"] for each in sessions] == [1, 2, 3], "in the order of their ends"

    everywhere(world, PRICES, [("gin", 1, START - 50_000), ("gin", 3, START)], [("gin", 2, START - 20_000)])
    history = rest.get("/prices/history/gin").json()["history"]
    assert [(each["value"], each["task"]) for each in history] == [(1, "0_0"), (2, "0_1"), (3, "0_0")]


def test_windows_are_of_one_version_while_partitions_catch_up(rest: httpx2.Client, world: World) -> None:
    everywhere(world, WINDOWS, [("all", {"n": 0}, START - 30_000)], [("all", {"n": 1}, START - 20_000)])
    write(world, WINDOWS, ("all",), Now(START, START), ("all", {"n": 9}, START))
    body = rest.get("/plays/windows/all").json()
    assert ([each["value"]["n"] for each in body["windows"]], body["version"]) == ([0, 1], 21)
    ahead = world.tasks[world.task_of(WINDOWS.spec(), ("all",))]
    ahead.versions = {22: ahead.versions[22]}
    body = rest.get("/plays/windows/all").json()
    assert ([each["value"]["n"] for each in body["windows"]], body["version"]) == ([0, 1, 9], 21)
    assert body["consistent"] is False


def test_no_page_ends_between_the_copies_of_a_key(rest: httpx2.Client, world: World) -> None:
    everywhere(world, AUDIT, [("a", "0"), ("b", "0"), ("d", "0")], [("b", "1"), ("c", "1")])
    seen, pages = [], 0
    cursor: str | None = ""
    while cursor is not None:
        page = rest.get("/audit/range", params={"limit": "2", **({"cursor": cursor} if cursor else {})}).json()
        seen += [(entry["key"], entry["value"]) for entry in page["entries"]]
        cursor, pages = page["cursor"], pages + 1
    assert seen == [("a", "0"), ("b", "0"), ("b", "1"), ("c", "1"), ("d", "0")]
    assert pages == 2


def test_the_list_of_stores_shows_their_limits(rest: httpx2.Client) -> None:
    base = str(rest.base_url).rstrip("/")
    stores = {each["store"]: each for each in httpx2.get(base).json()["stores"]}
    assert (stores["plays"]["retention_ms"], stores["plays"]["window_ms"]) == (60_000, 10_000)
    assert stores["visits"]["gap_ms"] == 5_000 and "window_ms" not in stores["visits"]
    assert (stores["bounded"]["max_entries"], stores["sliced"]["ttl_ms"]) == (3, 20_000)
    assert stores["audit"].keys() & {"ttl_ms", "durable", "everywhere"} == set()
    assert (stores["single"]["durable"], stores["single"]["everywhere"]) == (False, True)


def test_an_aggregates_history_is_shown_and_rows_of_a_newer_codec_as_bytes() -> None:
    value = columns_of({"mean": "double", "mean#count": "bigint"})
    table = store_spec("rows", VERSIONED, key=Schema.of(k="string"), value=RowValues(value), codec=ROWS, retention="1m")
    unknown = msgspec.structs.replace(table, name="unknown", codec="rows/9")
    stores = (table, unknown)
    world = World(app_spec(*stores))
    row = encode_row(value, (2.5, 2))
    for store in stores:
        world.tasks[TaskId(0, 0)].write(2, store.name, {encode_key(store.key, ("ann",)): pack(Cell(row, START))})
    world.tasks[TaskId(0, 0)].now = Now(START, START)
    with served(world.reader) as client:
        shown = [client.get(f"/{store.name}/history/ann").json()["history"][0]["value"] for store in stores]
        latest = [client.get(f"/{store.name}/keys/ann").json()["value"] for store in stores]
    assert shown == latest == [{"mean": 2.5}, base64.b64encode(row).decode()]
