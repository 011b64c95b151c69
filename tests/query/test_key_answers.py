"""Quick answers to lookups of keys are byte for byte those of the endpoint, in every state of a store and its tasks."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message

from holdfast import metrics
from holdfast.log.appfile import AppSpec
from holdfast.query.key_answers import KeyAnswers
from holdfast.query.keytext import key_text
from holdfast.query.queries import Kinds
from holdfast.query.reader import StoreReader
from holdfast.query.render import renderer
from holdfast.query.rest import create_app
from holdfast.query.task_reader import ANY_REPLICA, KeyRead, MonotonicReads, ReadNeeds, Restoring
from holdfast.stores.access import Now
from holdfast.stores.formats.cells import NEVER, NO_TIMESTAMP, Cell, pack
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import SESSION, VERSIONED, WINDOW, StoreSpec
from holdfast.words import TaskId, Version
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import LEVELS, NUMBERS, SCORES, STATE, FakeTask, Files, World, payload

T = TypeVar("T")
REALS = StoreSpec(name="reals", key=Schema.of(x="double"), codec="msgpack/1", engine="memory")
EXPIRING = StoreSpec(name="expiring", key=Schema.of(k="string"), codec="msgpack/1", engine="memory", ttl_ms=1_000)
HISTORIES = StoreSpec(name="histories", key=Schema.of(k="string"), codec="msgpack/1", engine="memory", kind=VERSIONED)
SLICED = StoreSpec(
    name="sliced", key=Schema.of(k="string"), codec="msgpack/1", engine="memory", ttl_ms=60_000, slice_ms=6_000
)
STORES = (SCORES, LEVELS, NUMBERS, REALS, EXPIRING, HISTORIES, SLICED)
APP = AppSpec(id="game", partitions=3, stores=STORES, subtopologies=subtopologies_of({s.name: 0 for s in STORES}))

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["", "alice", "a/b", "a b", "é", "a\nb", "a%b", "\x00", "?", "#", "42"]
)
KEYS: dict[str, st.SearchStrategy[tuple[object, ...]]] = {
    "scores": st.tuples(TEXTS),
    "levels": st.tuples(TEXTS, st.integers(-(2**31), 2**31 - 1)),
    "numbers": st.tuples(st.integers(-(2**63), 2**63 - 1)),
    "reals": st.tuples(st.floats()),
    "expiring": st.tuples(TEXTS),
    "histories": st.tuples(TEXTS),
    "sliced": st.tuples(TEXTS),
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
ROWS = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.floats(), st.none(), st.none() | st.dates(), st.none()
)


class MonotonicTask(FakeTask):
    """A task that, as a replica does, refuses to answer at an older version than before."""

    def __init__(self, task: TaskId) -> None:
        super().__init__(task)
        self._reads = MonotonicReads(task)

    def get(self, store: str, key: bytes, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA) -> KeyRead:
        seen = self._reads.seen
        read = super().get(store, key, version, needs)
        self._reads.record(read.version, seen)
        return read

    def go_back(self) -> None:
        """Its replica starts over, and is at an older version."""
        self._reads.record(Version(max(self.versions) + 5), Version(0))


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


def ask(app: ASGIApp, path: str, *, query: str = "", method: str = "GET") -> Answer:
    """The answer to a path as it is sent, as the server makes it: at once if it can."""
    url = f"{path}?{query}" if query else path
    quick_answer = getattr(app, "quick_answer", None)
    if method == "GET" and quick_answer is not None:
        quick = quick_answer(url.encode("latin-1", "replace"), [])
        if quick is not None:
            return Answer(200, [(b"content-length", b"%d" % len(quick)), (b"content-type", b"application/json")], quick)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode("latin-1", "replace"),
        "query_string": query.encode(),
        "headers": [],
        "scheme": "http",
        "server": ("test", 80),
    }

    async def run() -> None:
        await app(scope, receive, send)

    asyncio.run(run())
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(sent[0]["status"], [tuple(each) for each in sent[0]["headers"]], body)


def key_in_url(values: tuple[object, ...], schema: Schema, safe: str) -> str:
    return quote(key_text(schema, values), safe=safe)


STATES: dict[str, Callable[[FakeTask], None]] = {
    "running": lambda task: None,
    "restoring": lambda task: setattr(task, "error", Restoring(task.task, "", 0, 1)),
    "elsewhere": lambda task: setattr(task, "local", False),
    "started over": lambda task: task.go_back() if isinstance(task, MonotonicTask) else None,
}


ODD = ("nothing", "state", "missing", "damaged", "schema", "name", "text", "query", "method")
"""In which way an example is unusual: in one at most, so that most are answered quickly but for that."""


@settings(max_examples=300, deadline=None)
@given(data=st.data(), odd=st.sampled_from(("nothing", *ODD)), spec=st.sampled_from(STORES))
def test_they_are_those_of_the_endpoint(data: st.DataObject, odd: str, spec: StoreSpec) -> None:
    def drawn(what: str, usual: T, *others: T) -> T:
        return data.draw(st.sampled_from(others), label=what) if odd == what else usual

    world = World(APP)
    world.tasks.update({task: MonotonicTask(task) for task in world.tasks})
    key, wall = data.draw(KEYS[spec.name], label="key"), data.draw(st.sampled_from([0, 10_000]), label="wall")
    expires = data.draw(st.sampled_from([NEVER, 5_000, 20_000]), label="expires")
    timestamp = data.draw(st.sampled_from([NO_TIMESTAMP, 0, 1_769_860_800_000]), label="timestamp")
    value = data.draw(ROWS if spec is SCORES else VALUES, label="value")
    cell = pack(Cell(payload(spec, value), timestamp, expires, drawn("schema", 1, 2)))
    cell = cell[: data.draw(st.integers(0, len(cell) - 1), label="cut")] if odd == "damaged" else cell
    for task in world.tasks.values():
        task.write(1, spec.name, {encode_key(spec.key, key): cell})
        task.now = Now(wall)
        STATES[drawn("state", "running", *STATES)](task)
    asked = data.draw(KEYS[spec.name], label="asked") if odd == "missing" else key
    text = key_in_url(asked, spec.key, data.draw(st.sampled_from(["", "/", '/[]",:']), label="safe"))
    name = drawn("name", spec.name, "nothing", quoted(spec.name), "")
    path = f"/v1/stores/{name}/keys/{drawn('text', text, '%FF', '', '%zz', text + '/')}"
    query, method = drawn("query", "", "limit=1", "x", "a=%FF", "&"), drawn("method", "GET", "HEAD", "POST")
    quick, slow = (create_app(world.reader, lambda: STATE, quick=quick) for quick in (True, False))
    assert ask(quick, path, query=query, method=method) == ask(slow, path, query=query, method=method)
    if odd == "nothing":
        expired = expires != NEVER and expires <= wall
        waits = expired or spec is SLICED
        assert (keys_of(world).body(path.encode()) is None) is waits


def quoted(name: str) -> str:
    """The name with its first letter percent-encoded, which is the same name."""
    return f"%{ord(name[0]):02X}{name[1:]}"


def keys_of(world: World) -> KeyAnswers:
    return KeyAnswers(world.reader, Kinds(world.reader.specs.all()), lambda store: renderer(world.reader.specs[store]))


@pytest.mark.parametrize(("state", "quick"), [(state, state == "running") for state in STATES])
def test_values_of_local_replicas_are_answered_quickly_and_nothing_else_is(state: str, quick: bool) -> None:
    world = World(APP)
    world.tasks.update({task: MonotonicTask(task) for task in world.tasks})
    world.commit(1, SCORES, {("alice",): (12, 9.5, None, None, 1)})
    for task in world.tasks.values():
        STATES[state](task)
    keys = keys_of(world)
    assert (keys.body(b"/v1/stores/scores/keys/alice") is not None) is quick
    assert keys.body(b"/v1/stores/scores/keys/bob") is None
    assert keys.body(b"/v1/stores/scores/range") is None


@pytest.mark.parametrize("path", ["%73cores/keys/alice", "scores/keys/alice?x", "scores/keys/%FF"])
def test_unusual_urls_are_left_to_the_endpoint(path: str) -> None:
    world = World(APP)
    row = (12, 9.5, None, None, 1)
    world.commit(1, SCORES, {("alice",): row, ("a\nb",): row, ("alice?x",): row})
    assert keys_of(world).body(f"/v1/stores/{path}".encode()) is None
    quick, slow = (create_app(world.reader, lambda: STATE, quick=quick) for quick in (True, False))
    assert ask(quick, f"/v1/stores/{path}") == ask(slow, f"/v1/stores/{path}")


def test_an_entry_that_has_expired_is_not_answered_quickly() -> None:
    world = World(APP)
    key = encode_key(EXPIRING.key, ("alice",))
    for task in world.tasks.values():
        task.write(1, "expiring", {key: pack(Cell(b"\x01", expires=5_000))})
    keys = keys_of(world)
    assert keys.body(b"/v1/stores/expiring/keys/alice") is not None
    for task in world.tasks.values():
        task.now = Now(wall=5_000)
    assert keys.body(b"/v1/stores/expiring/keys/alice") is None


@pytest.mark.parametrize("spec", [SCORES, NUMBERS, EXPIRING])
def test_a_value_of_a_later_schema_is_left_to_the_endpoint_which_reads_the_app_file(spec: StoreSpec) -> None:
    world = World(APP)
    key, value = ((7,), 49) if spec is NUMBERS else (("7",), (1, None, None, None, 1) if spec is SCORES else 49)
    for schema, quick in ((1, True), (2, False)):
        cell = pack(Cell(payload(spec, value), schema=schema))
        world.tasks[world.task_of(spec, key)].write(schema, spec.name, {encode_key(spec.key, key): cell})
        assert (keys_of(world).body(f"/v1/stores/{spec.name}/keys/7".encode()) is not None) is quick


def test_a_store_whose_entries_are_in_several_places_is_left_to_the_endpoint() -> None:
    world = World(APP)
    for task in world.tasks.values():
        task.write(1, "sliced", {encode_key(SLICED.key, ("a",)): pack(Cell(payload(SLICED, 49)))})
    assert keys_of(world).body(b"/v1/stores/sliced/keys/a") is None


@pytest.mark.parametrize("kind", [WINDOW, SESSION])
def test_a_store_without_entries_by_key_is_left_to_the_endpoint(kind: str) -> None:
    windows = StoreSpec(name="windows", key=Schema.of(k="string"), codec="msgpack/1", engine="memory", kind=kind)
    app = AppSpec(id="game", partitions=1, stores=(windows,), subtopologies=subtopologies_of({"windows": 0}))
    world = World(app)
    for task in world.tasks.values():
        task.write(1, "windows", {encode_key(windows.key, ("a",)): pack(Cell(payload(windows, 49)))})
    assert keys_of(world).body(b"/v1/stores/windows/keys/a") is None


def test_a_newer_app_file_counts_at_once() -> None:
    world = World(APP)
    files = Files(APP, world.clock)
    world.reader = StoreReader(files, world.find, world.clock)
    world.commit(1, NUMBERS, {(7,): 49})
    keys = keys_of(world)
    assert keys.body(b"/v1/stores/numbers/keys/7") is not None
    sliced = msgspec.structs.replace(NUMBERS, ttl_ms=60_000, slice_ms=6_000)  # now its entries are in several places
    files.app = msgspec.structs.replace(APP, stores=tuple(sliced if spec is NUMBERS else spec for spec in STORES))
    assert keys.body(b"/v1/stores/numbers/keys/7") is None


def test_quick_answers_are_counted() -> None:
    world = World(APP)
    world.commit(1, NUMBERS, {(7,): 49})
    labels = {"path": "/v1/stores/{store}/keys/{key}", "status": "200"}
    before = metrics.REGISTRY.get_sample_value("holdfast_rest_requests_total", labels) or 0
    assert ask(create_app(world.reader, lambda: STATE), "/v1/stores/numbers/keys/7").status == 200
    assert metrics.REGISTRY.get_sample_value("holdfast_rest_requests_total", labels) == before + 1
