"""Many entries: many keys in one request, prefixes, ranges backwards, scans line by line, counts, chosen fields."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.log.appfile import AppSpec
from holdfast.query.rest import create_app
from holdfast.query.server import serve
from holdfast.query.task_reader import ANY_REPLICA, NotFresh, ReadNeeds, TaskStore
from holdfast.stores.access import DictBytes
from holdfast.stores.engines.base import FIRST_KEY
from holdfast.stores.formats.cells import Cell, pack
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId, Version
from tests.instance.processes import until
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import APP, LEVELS, NUMBERS, SCORES, STATE, FakeTask, World, payload, served
from tests.query.instances import Group, started

NAMES = ["", "a", "al", "ali", "alice", "alicia", "bob", "é", "\U0001f980"]


@pytest.fixture(scope="module", params=["here", "elsewhere"])
def rest(request: pytest.FixtureRequest) -> Iterator[httpx2.Client]:
    world = World(remote=[] if request.param == "here" else list(APP.tasks()))
    world.commit(1, SCORES, {(name,): (n, 0.5, None, None, None) for n, name in enumerate(NAMES)})
    world.commit(2, LEVELS, {(name, n): n for name in ("alice", "bob") for n in range(-2, 3)})
    world.commit(3, NUMBERS, {(n,): {"square": n * n, "odd": n % 2 == 1} for n in range(40)})
    with served(world.reader) as client:
        yield client


def _keys(answer: httpx2.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    return [entry["key"] for entry in answer.json()["entries"]]


def _lines(answer: httpx2.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


def test_many_keys_are_answered_in_the_order_they_were_asked(rest: httpx2.Client) -> None:
    asked = [7, 39, -1, 0, 7]
    by_url = rest.get("/numbers/keys", params=[("key", str(n)) for n in asked])
    by_body = rest.post("/numbers/keys", json=asked)
    assert by_url.json() == by_body.json()
    assert _keys(by_body) == asked
    entries = by_body.json()["entries"]
    assert [entry.get("found") for entry in entries] == [None, None, False, None, None]
    assert [entry["value"] and entry["value"]["square"] for entry in entries] == [49, 1521, None, 0, 49]
    assert (by_body.json()["version"], by_body.json()["consistent"]) == (3, True)


def test_keys_of_several_components_are_arrays(rest: httpx2.Client) -> None:
    answer = rest.post("/levels/keys", json=[["bob", 2], ["bob", 9]])
    assert [entry["value"] for entry in answer.json()["entries"]] == [2, None]
    assert rest.get("/levels/keys", params={"key": '["bob",2]'}).json()["entries"][0]["value"] == 2


def test_all_digits_of_a_decimal_count_however_the_key_is_written() -> None:
    prices = StoreSpec(name="prices", key=Schema.of(price="decimal(20,2)"), codec="msgpack/1")
    offers = StoreSpec(name="offers", key=Schema.of(price="decimal(20,2)", size="double"), codec="msgpack/1")
    numbers = subtopologies_of({"prices": 0, "offers": 0})
    world = World(AppSpec(id="game", partitions=2, stores=(prices, offers), subtopologies=numbers))
    asked = "9007199254740993.01"  # the nearest double is the other one
    both = {Decimal(asked): "asked", Decimal("9007199254740994.00"): "other"}
    world.commit(1, prices, {(price,): value for price, value in both.items()})
    world.commit(2, offers, {(price, 1.5): value for price, value in both.items()})
    with served(world.reader) as client:
        for store, body in [
            ("prices", f'["{asked}"]'),
            ("prices", f"[{asked}]"),
            ("offers", f'[["{asked}",1.5]]'),
            ("offers", f"[[{asked},1.50]]"),
        ]:
            answer = client.post(f"/{store}/keys", content=body)
            assert [entry["value"] for entry in answer.json()["entries"]] == ["asked"], body


@pytest.mark.parametrize(
    ("store", "body", "error"),
    [
        ("numbers", b"", "bad_body"),
        ("numbers", b"{}", "bad_body"),
        ("numbers", b"[1,", "bad_body"),
        ("numbers", b'["\xff"]', "bad_body"),
        ("numbers", b"[]", "bad_limit"),
        ("numbers", b'["seven"]', "bad_key"),
        ("numbers", b'["7"]', "bad_key"),
        ("numbers", b"[null]", "bad_key"),
        ("scores", b"[7]", "bad_key"),
        ("levels", b'["alice"]', "bad_key"),
        ("levels", b'[["alice"]]', "bad_key"),
        ("levels", b'[["alice",[1.5]]]', "bad_key"),
        ("levels", b'[{"alice":1.5}]', "bad_key"),
        ("levels", b"[" + b"9" * 400 + b"]", "bad_key"),
        ("levels", b"[[" + b"9" * 5000 + b",7]]", "bad_body"),
        ("levels", b"[" * 900 + b"]" * 900, "bad_key"),
        ("numbers", b"[" + b"7," * 10_000 + b"7]", "bad_limit"),
    ],
)
def test_a_body_that_is_not_a_list_of_keys_is_refused(rest: httpx2.Client, store: str, body: bytes, error: str) -> None:
    answer = rest.post(f"/{store}/keys", content=body)
    assert (answer.status_code, answer.json()["error"]) == (400, error)


def test_a_key_that_a_processor_wrote_elsewhere_is_found_among_many() -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(10)})
    cells = {task: dict(fake.versions[1].get("numbers", {})) for task, fake in world.tasks.items()}
    for n, task in enumerate(world.reader.tasks_of("numbers")):
        others = world.reader.tasks_of("numbers")
        world.tasks[task].versions[1]["numbers"] = cells[others[(n + 1) % len(others)]]
    with served(world.reader) as client:
        answer = client.post("/numbers/keys", json=[*range(10)]).json()
        assert [entry["value"] for entry in answer["entries"]] == [*range(10)]


def test_keys_of_a_missing_partition_have_an_error_in_a_partial_answer() -> None:
    world = World()
    world.commit(1, SCORES, {(name,): (1, None, None, None, None) for name in NAMES})
    missing = TaskId(0, 1)
    world.tasks[missing].error = NotFresh("task 0_1 is elsewhere.")
    with served(world.reader) as client:
        assert client.post("/scores/keys", json=NAMES).status_code == 503
        answer = client.post("/scores/keys?partial=true", json=NAMES).json()
    for entry in answer["entries"]:
        assert ("error" in entry) == (world.task_of(SCORES, (entry["key"],)) == missing)
        assert ("error" in entry) == (entry["value"] is None)
    assert list(answer["missing"]) == ["0_1"]


def test_a_prefix_is_the_beginning_of_a_text(rest: httpx2.Client) -> None:
    assert _keys(rest.get("/scores/range", params={"prefix": "ali"})) == ["ali", "alice", "alicia"]
    assert _keys(rest.get("/scores/range", params={"prefix": "zzz"})) == []
    assert _keys(rest.get("/scores/range", params={"prefix": ""})) == NAMES
    assert _keys(rest.get("/scores/range", params={"prefix": "\U0001f980"})) == ["\U0001f980"]


def test_a_prefix_is_the_first_components(rest: httpx2.Client) -> None:
    assert _keys(rest.get("/levels/range", params={"prefix": '["bob"]'})) == [["bob", n] for n in range(-2, 3)]
    refused = rest.get("/levels/range", params={"prefix": '["bob"]', "from": '["bob"]'})
    assert refused.json()["error"] == "bad_parameter"


def test_a_range_backwards_is_paged_too(rest: httpx2.Client) -> None:
    first = rest.get("/numbers/range?reverse=true&from=5&to=20&limit=6")
    assert _keys(first) == [*range(20, 14, -1)]
    cursor = first.json()["cursor"]
    assert _keys(rest.get("/numbers/range", params={"cursor": cursor})) == [*range(14, 4, -1)]
    turned = rest.get("/numbers/range", params={"cursor": cursor, "reverse": "false"})
    assert turned.json()["error"] == "bad_cursor"


def test_a_scan_has_one_entry_per_line_and_a_last_line(rest: httpx2.Client) -> None:
    *entries, end = _lines(rest.get("/numbers/scan"))
    assert [entry["key"] for entry in entries] == [*range(40)]
    assert (end["end"], end["entries"], end["cursor"], end["version"]) == (True, 40, None, 3)
    assert end["consistent"]


def test_a_scan_continues_after_its_limit(rest: httpx2.Client) -> None:
    *entries, end = _lines(rest.get("/numbers/scan?limit=15&reverse=true"))
    assert [entry["key"] for entry in entries] == [*range(39, 24, -1)]
    *others, last = _lines(rest.get("/numbers/scan", params={"cursor": end["cursor"]}))
    assert [entry["key"] for entry in others] == [*range(24, -1, -1)]
    assert last["cursor"] is None
    assert _lines(rest.get("/numbers/scan?limit=40"))[-1]["cursor"] is None


@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize("limit", [1, 2, 4, 5])
def test_a_scan_does_not_end_within_a_key_that_several_tasks_have(reverse: str, limit: int) -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(4)})
    everything = {key: cell for task in world.tasks.values() for key, cell in task.versions[1]["numbers"].items()}
    tasks = world.reader.tasks_of("numbers")
    for task in tasks:
        world.tasks[task].versions[1]["numbers"] = dict(everything)
    seen: list[int] = []
    with served(world.reader) as client:
        params = {"reverse": reverse, "limit": str(limit)}
        while params:
            *entries, end = _lines(client.get("/numbers/scan", params=params))
            assert (end["entries"], len(entries) % len(tasks)) == (len(entries), 0)
            seen += [entry["key"] for entry in entries]
            params = {"limit": str(limit), "cursor": end["cursor"]} if end["cursor"] else {}
    assert seen == sorted([*range(4)] * len(tasks), reverse=reverse == "true")


def test_a_scan_after_a_cursor_is_of_the_same_version_while_there_is_one() -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(6)})
    with served(world.reader) as client:
        first = _lines(client.get("/numbers/scan?limit=2"))[-1]
        assert "moved_on" not in first
        world.commit(2, NUMBERS, {(2,): None, (3,): -3, (4,): -4})
        *second, end = _lines(client.get("/numbers/scan", params={"limit": 2, "cursor": first["cursor"]}))
        assert [entry["value"] for entry in second] == [2, 3]
        assert (end["version"], end["moved_on"]) == (1, False)
        newer = _lines(client.get("/numbers/scan", params={"at_least": 2, "cursor": first["cursor"]}))
        assert ([entry["value"] for entry in newer[:-1]], newer[-1]["moved_on"]) == ([-3, -4, 5], True)
        for version in range(3, 9):
            world.commit(version, NUMBERS, {})
        *third, last = _lines(client.get("/numbers/scan", params={"cursor": end["cursor"]}))
        assert [entry["value"] for entry in third] == [-4, 5]
        assert (last["version"], last["moved_on"]) == (8, True)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("numbers/scan?limit=0", 400),
        ("numbers/scan?from=x", 400),
        ("nothing/scan", 404),
        ("numbers/scan?at=9&wait=0s", 503),
    ],
)
def test_a_scan_that_cannot_start_is_refused_as_any_other(rest: httpx2.Client, path: str, status: int) -> None:
    answer = rest.get(f"/{path}")
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"


class FailingBytes(DictBytes):
    """Bytes that can't be read to their end."""

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        yield from itertools.islice(super().scan(start, stop, reverse=reverse), 1_500)
        raise NotFresh("task 1_0 has gone away.")


class FailingTask(FakeTask):
    @contextmanager
    def at(self, store: str, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA) -> Iterator[TaskStore]:
        with super().at(store, version, needs) as found:
            bytes_ = FailingBytes()
            bytes_.entries.update(found.bytes.scan(b"", None))
            yield replace(found, bytes=bytes_)


def test_a_scan_that_fails_on_the_way_says_so_in_its_last_line() -> None:
    world = World()
    world.tasks[TaskId(1, 0)] = FailingTask(TaskId(1, 0))
    world.commit(1, NUMBERS, {(n,): n for n in range(9_000)})
    with served(world.reader) as client:
        *entries, last = _lines(client.get("/numbers/scan"))
        assert len(entries) > 1_500
        assert [entry["key"] for entry in entries] == [*range(len(entries))]
        assert (last["error"], last["message"]) == ("not_fresh_enough", "task 1_0 has gone away.")


def test_counts(rest: httpx2.Client) -> None:
    assert rest.get("/numbers/count").json()["count"] == 40
    assert rest.get("/numbers/count?from=5&to=9").json()["count"] == 5
    assert rest.get("/scores/count", params={"prefix": "ali"}).json()["count"] == 3
    about = rest.get("/numbers/count?approximate=true").json()
    assert (about["count"], about["exact"]) == (40, False)
    assert rest.get("/numbers/count?approximate=true&from=5").json()["error"] == "bad_parameter"


def test_fields_are_chosen(rest: httpx2.Client) -> None:
    assert rest.get("/numbers/keys/3?fields=odd").json()["value"] == {"odd": True}
    assert rest.get("/scores/keys/alice?fields=best,points").json()["value"] == {"best": 0.5, "points": 4}
    for path in ("/numbers/range?fields=odd&limit=1", "/numbers/keys?key=0&fields=odd,none"):
        assert rest.get(path).json()["entries"][0]["value"] == {"odd": False}
    assert _lines(rest.get("/numbers/scan?fields=square&limit=1"))[0]["value"] == {"square": 0}
    assert rest.get("/levels/range?fields=odd&limit=1").json()["entries"][0]["value"] == -2
    assert rest.get("/scores/keys/alice?fields=pionts").json()["error"] == "bad_parameter"
    assert rest.get("/scores/keys/alice?fields=,").json()["error"] == "bad_parameter"


_names = st.sampled_from(["", "a", "a\x00", "ab", "b"])
_entries = st.dictionaries(st.tuples(_names, st.integers(-3, 3)), st.integers(0, 9))


@settings(max_examples=50)
@given(_entries, st.integers(1, 12))
def test_backwards_is_forwards_reversed(entries: dict[tuple[str, int], int], limit: int) -> None:
    world = World()
    world.commit(1, LEVELS, entries)  # type: ignore[arg-type]
    forwards = world.reader.range("levels", FIRST_KEY, None, limit=100).entries
    seen: list[tuple[bytes, bytes]] = []
    stop, more = None, True
    while more:
        page = world.reader.range("levels", FIRST_KEY, stop, limit=limit, reverse=True)
        seen += page.entries
        more = page.more
        stop = page.entries[-1][0] if page.entries else stop
    assert seen == [*reversed(forwards)]


STORE = msgspec.structs.replace(NUMBERS, engine="rocksdb")
GAME = AppSpec(id="game", partitions=2, stores=(STORE,), subtopologies=subtopologies_of({"numbers": 0}))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with started(tmp_path, GAME) as group:
        group.driver.commit(STORE, {(n,): 1 for n in range(20_000)})
        group.settle()
        yield group


def test_a_scan_is_of_one_version_however_slowly_it_is_read(group: Group) -> None:
    """While it is read, more versions come than replicas keep: here and elsewhere the parts stay at theirs."""
    with group.client.stream("GET", f"{group.rests[0].url}/v1/stores/numbers/scan?at=latest") as answer:
        lines = answer.iter_lines()
        values = {json.loads(next(lines))["value"]}
        for version in range(2, 9):
            group.driver.commit(STORE, {(n,): version for n in range(20_000)})
            group.settle()
        *rest, end = (json.loads(line) for line in lines)
    values |= {entry["value"] for entry in rest}
    assert (values, len(rest), end["version"], end["consistent"]) == ({1}, 19_999, 1, True)
    assert group.get("/v1/stores/numbers/scan", at="1").status_code == 410


def test_an_instance_that_stops_cuts_its_scans_off(group: Group) -> None:
    """What was sent has no last line, so a client knows that it isn't all."""
    group.driver.commit(STORE, {(n,): "x" * 2_000 for n in range(20_000)})
    group.settle()
    seen: list[str] = []
    with group.client.stream("GET", f"{group.rests[0].url}/v1/stores/numbers/scan") as answer:
        lines = answer.iter_lines()
        seen.append(next(lines))
        group.rests[0].stop()
        with suppress(httpx2.RemoteProtocolError, httpx2.ReadError):
            seen += lines
    assert 0 < len(seen) < 20_000
    assert not any('"end":true' in line for line in seen)


def test_a_client_that_leaves_closes_its_scan(group: Group) -> None:
    """The views that a scan holds, on both instances, are released."""
    replicas = [hosted.replica for instance in group.instances for hosted in instance.hosted()]
    group.driver.commit(STORE, {(n,): "x" * 2_000 for n in range(20_000)})
    group.settle()
    for replica in replicas:
        replica.flush_overlay()  # a later flush would publish another view, which the scan doesn't hold

    def held() -> list[int]:
        """By replica, how many users its newest pinned view has."""
        return [replica.published._newest.pinned._holders for replica in replicas if replica.published._newest]

    before = held()
    with group.client.stream("GET", f"{group.rests[0].url}/v1/stores/numbers/scan") as answer:
        next(answer.iter_lines())
        until(lambda: all(now > then for now, then in zip(held(), before, strict=True)), "both are read")
    until(lambda: held() == before, "the views are released")


def test_a_page_has_moved_on_if_any_task_has() -> None:
    world = World(APP)

    def put(partition: int, versions: range) -> None:
        own = [n for n in range(20) if partition_of(NUMBERS.key, (n,), 3) == partition]
        for version in versions:
            cells = {encode_key(NUMBERS.key, (n,)): pack(Cell(payload(NUMBERS, version), schema=1)) for n in own}
            world.tasks[TaskId(1, partition)].write(version, "numbers", cells)

    put(0, range(2, 6))  # its replica stays behind
    for partition in (1, 2):
        put(partition, range(17, 21))
    with serve(create_app(world.reader, lambda: STATE), port=0) as server, httpx2.Client(base_url=server.url) as client:
        first = client.get("/v1/stores/numbers/range?limit=8").json()
        for partition in (1, 2):
            put(partition, range(27, 31))
        second = client.get("/v1/stores/numbers/range", params={"cursor": first["cursor"]}).json()
    assert (first["version"], second["version"], second["moved_on"]) == (5, 5, True)
