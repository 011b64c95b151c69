"""The client on a real group of two processes: every read, with both shells."""

import asyncio
import datetime as dt
import inspect
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

import holdfast as hf
from holdfast.client import errors
from holdfast.client.async_client import AsyncRemoteStore
from holdfast.client.awaited import Awaited
from holdfast.client.blocking import Blocking
from holdfast.client.client import RemoteStore
from holdfast.client.effects import Outcome, Send
from holdfast.client.refusals import PROBLEMS
from holdfast.client.turns import UNDER_WAY, WAITING
from holdfast.stores.formats.cells import Cell, pack
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.kinds.session import Session
from holdfast.words import TaskId
from scripts.async_client import WRITTEN, async_client
from tests.client.conftest import (
    BEST,
    DAYS,
    GAME,
    KEYS,
    LEVELS,
    NAMES,
    NUMBERS,
    PLAYS,
    PRICES,
    RANKING,
    SCORES,
    START,
    VISITS,
    RunningGroup,
)
from tests.instance.processes import until

ROOT = Path(__file__).parent.parent.parent


class Player(msgspec.Struct):
    points: int
    paid: Decimal
    seen: dt.date


HARD = ["", "/", "a/b", ".", "..", "é😀", "\0", "a?b#c&d=e%2F+", " ", "é" * 16_000]


@pytest.fixture(scope="module")
def filled(group: RunningGroup) -> RunningGroup:
    group.commit(LEVELS, {(player, level): level for player in ("ann", "bob") for level in range(3)})
    group.commit(DAYS, {(dt.date(2026, 1, day),): {"n": day} for day in (1, 2, 3)})
    ann = {"points": 7, "paid": "3.50", "seen": "2026-01-31"}
    group.commit(NAMES, {**{(name,): name for name in HARD}, ("ann",): ann})
    group.put(PLAYS, ("ann",), ("ann", 1, START), ("ann", 2, START + 10_000))
    group.put(VISITS, ("ann",), (Session("ann", START, START + 4_000), 3))
    group.put(PRICES, ("tea",), ("tea", 3, START - 50_000), ("tea", 4, START))
    group.put(BEST, ("chess",), ("chess", [{"player": "ann", "points": 9}, {"player": "bob", "points": 7}], START))
    scores = [(("chess", name), points) for name, points in (("ann", 9), ("bob", 7))]
    group.put(SCORES, ("chess", "ann"), *scores)  # the scores of a group are in one task
    ranked = [(("chess", points, name), {"level": 1}) for (_, name), points in scores]
    group.put(RANKING, ("chess", 9, "ann"), *ranked)
    group.put(PLAYS, ("bob",), ("bob", 5, START))
    return group


@dataclass
class Both:
    """Both shells behind one synchronous face: a call or an iteration is done by each, and they must agree."""

    blocking: hf.Client
    awaited: hf.AsyncClient
    loop: asyncio.AbstractEventLoop

    def __call__(self, store: str, method: str, *args: Any, value: Any = None, **options: Any) -> Any:
        one = self._done(lambda: getattr(self.blocking.store(store, value), method)(*args, **options))
        other = self._done(lambda: self._await(getattr(self.awaited.store(store, value), method)(*args, **options)))
        assert _told(one) == _told(other)
        if isinstance(one, Exception):
            raise one
        return one

    def _done(self, call: Any) -> Any:
        try:
            found = call()
            return list(found) if isinstance(found, Iterator) else found
        except (errors.ClientError, TypeError) as error:
            return error

    def _await(self, found: Any) -> Any:
        async def collected() -> Any:
            return [each async for each in found] if isinstance(found, AsyncIterator) else await found

        return self.loop.run_until_complete(collected())


def _told(found: Any) -> Any:
    """What two answers have in common: any instance may have given them."""
    if isinstance(found, Exception):
        return type(found), str(found)
    return re.sub(r"(role|instances|missing)=[^)]*|http://[0-9.:]*", "", repr(found))


@pytest.fixture(scope="module")
def ask(filled: RunningGroup) -> Iterator[Both]:
    loop = asyncio.new_event_loop()
    with hf.Client(filled.addresses) as blocking:
        awaited = hf.AsyncClient(filled.addresses)
        yield Both(blocking, awaited, loop)
        loop.run_until_complete(awaited.close())
        loop.close()


def test_one_key(ask: Both) -> None:
    assert ask("numbers", "get", 7) == 7
    assert ask("numbers", "get", 10**9) is None
    assert ask("numbers", "get", 10**9, "none") == "none"
    assert ask("levels", "get", ("ann", 2)) == 2


def test_an_entry_says_what_it_is_an_answer_to(ask: Both, filled: RunningGroup) -> None:
    entry = ask("numbers", "entry", 7)
    assert (entry.key, entry.value, entry.found, entry.version) == (7, 7, True, filled.driver.version)
    assert entry.source.role == "active" and len(entry.source.instances) == 1 and entry.source.committed is not None
    missing = ask("numbers", "entry", 10**9)
    assert (missing.found, missing.value, missing.version) == (False, None, filled.driver.version)
    assert missing.source.role == "active" and missing.source.committed == entry.source.committed


@pytest.mark.parametrize("key", HARD, ids=lambda key: repr(key[:20]))
def test_hard_keys(ask: Both, key: str) -> None:
    assert ask("names", "get", key) == key
    assert ask("names", "get_many", [key]) == {key: key}


def test_keys_are_python_values(ask: Both) -> None:
    day = dt.date(2026, 1, 2)
    assert ask("days", "get", day) == {"n": 2}
    assert [entry.key for entry in ask("days", "range", day)] == [day, dt.date(2026, 1, 3)]
    assert ask("days", "get_many", [day, dt.date(2027, 1, 1)]) == {day: {"n": 2}}
    assert ask("days", "get_many", []) == {}
    with pytest.raises(errors.BadLimit, match="0 keys are asked for"):
        ask("days", "entries", [])
    with pytest.raises(errors.UnknownStore):
        ask("nothing", "get_many", [])


def test_values_are_converted_to_a_type(ask: Both) -> None:
    assert ask("names", "get", "ann", value=Player) == Player(7, Decimal("3.50"), dt.date(2026, 1, 31))
    assert ask("names", "get", "ann", fields=["points"]) == {"points": 7}


def test_many_keys_are_of_one_version_and_in_order(ask: Both) -> None:
    page = ask("numbers", "entries", [3, 10**9, 1])
    assert [(entry.key, entry.found) for entry in page] == [(3, True), (10**9, False), (1, True)]
    assert page.source.consistent and len(page) == 3 and page[0].value == 3


def test_ranges(ask: Both) -> None:
    assert [entry.key for entry in ask("numbers", "range", 5, 8)] == [5, 6, 7, 8]
    assert [entry.key for entry in ask("numbers", "range", 5, 8, reverse=True)] == [8, 7, 6, 5]
    assert [entry.key for entry in ask("numbers", "range", limit=3)] == [0, 1, 2]
    assert [entry.key for entry in ask("numbers", "range", at="latest")] == [*KEYS]
    assert [entry.key for entry in ask("levels", "prefix", ("ann",))] == [("ann", level) for level in range(3)]
    assert [entry.key for entry in ask("names", "prefix", "a")] == ["a/b", "a?b#c&d=e%2F+", "ann"]


def test_a_range_is_read_page_by_page(ask: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.client.store_flows._PAGE", 7)
    entries = ask("numbers", "range", at="latest")
    assert [entry.key for entry in entries] == [*KEYS] and len({entry.version for entry in entries}) == 1
    assert [entry.key for entry in ask("numbers", "range", limit=15)] == [*KEYS[:15]]


def test_counts(ask: Both) -> None:
    assert ask("numbers", "count") == len(KEYS)
    assert ask("numbers", "count", 5, 8) == 4


def test_windows_sessions_and_history(ask: Both) -> None:
    plays = ask("plays", "windows", "ann")
    assert [(each.key, each.start, each.end, each.value) for each in plays] == [
        ("ann", START, START + 10_000, 1),
        ("ann", START + 10_000, START + 20_000, 2),
    ]
    assert not plays.more and ask("plays", "windows", "ann", limit=1).more
    assert [each.value for each in ask("plays", "windows", "ann", START + 1)] == [2]
    late = dt.datetime.fromtimestamp((START + 1) / 1000, dt.UTC)
    assert [each.value for each in ask("plays", "windows", "ann", late)] == [2]
    (visit,) = ask("visits", "sessions", "ann")
    assert (visit.start, visit.end, visit.value) == (START, START + 4_000, 3)
    past = ask("prices", "history", "tea")
    assert [(each.value, each.timestamp, each.valid_to) for each in past] == [
        (3, START - 50_000, START),
        (4, START, None),
    ]
    assert ask("prices", "get", "tea") == 4
    then = ask("prices", "as_of", "tea", START - 1)
    assert (then.value, then.valid_to, ask("prices", "as_of", "tea", START - 60_000).found) == (3, START, False)


def test_windows_and_sessions_of_all_keys(ask: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.client.store_flows._PAGE", 2)
    found = [(each.key, each.start, each.value) for each in ask("plays", "all_windows")]
    assert found == [("ann", START, 1), ("ann", START + 10_000, 2), ("bob", START, 5)]
    assert [each.value for each in ask("plays", "all_windows", START + 1)] == [2]
    assert [each.value for each in ask("plays", "all_windows", first_key="b")] == [5]
    assert [each.key for each in ask("visits", "all_sessions", START, START, limit=5)] == ["ann"]


def test_leaderboards(ask: Both) -> None:
    assert [row["player"] for row in ask("best", "top", "chess")] == ["ann", "bob"]
    assert [row["player"] for row in ask("best", "top", "chess", 1)] == ["ann"]
    assert list(ask("best", "top", "go")) == []
    assert list(ask("best", "top", "chess", fields=["player"])) == [{"player": "ann"}, {"player": "bob"}]
    assert ask("best", "rank", ("chess", "bob")) == 2
    assert ask("best", "rank", ("chess", "cleo")) is None
    assert ask("best", "top", "chess", 1).more and ask("best", "top", "chess")[1]["level"] == 1
    with pytest.raises(errors.WrongKind, match="not a leaderboard"):
        ask("numbers", "top", 7)


def test_freshness(ask: Both, filled: RunningGroup) -> None:
    version = filled.driver.version
    assert ask("numbers", "get", 7, require="active", max_lag=3, at_least=version) == 7
    assert ask("numbers", "get", 7, require="active", at=version) == 7
    assert ask("numbers", "get", 7, max_lag=dt.timedelta(seconds=5)) == 7
    with pytest.raises(errors.NotFreshEnough):
        ask("numbers", "get", 7, at_least=version + 1, wait="1ms", timeout="300ms")
    with pytest.raises(errors.VersionGone):
        ask("numbers", "get", 7, at=0)


def test_a_client_reads_what_was_written(ask: Both, filled: RunningGroup) -> None:
    """Version by version, without waiting for replicas: `at_least` waits for them."""
    store = ask.blocking.store("numbers", int)
    for n in range(5):
        version = filled.driver.commit(NUMBERS, {(0,): n})
        assert store.get(0, at_least=version) == n
    filled.commit(NUMBERS, {(0,): 0})


def test_errors_are_typed(ask: Both) -> None:
    with pytest.raises(errors.BadKey, match="'seven' is not a key of store 'numbers'"):
        ask("numbers", "get", "seven")
    with pytest.raises(
        errors.BadKey, match=r"'ann' is not a key of store 'levels', which has the key \([^)]*\)\. Give"
    ):
        ask("levels", "get", "ann")
    with pytest.raises(errors.BadKey, match=r"Give a tuple of its components, such as \('alice', 42\)\.$"):
        ask("levels", "get", "ann")
    with pytest.raises(errors.BadKey, match=r"Give a tuple of its components, such as \('alice', 'alice'\)\.$"):
        ask("best", "rank", "ann")
    with pytest.raises(errors.UnknownStore) as unknown:
        ask("nothing", "get", 1)
    assert "numbers" in unknown.value.more["stores"]
    with pytest.raises(errors.WrongKind, match=r"Ask \.get\(key\), \.range\(\)\.$"):
        ask("numbers", "windows", 7)
    with pytest.raises(errors.WrongKind, match=r"\.windows\(key\)"):
        ask("plays", "get", "ann")
    with pytest.raises(errors.BadTime, match="as_of='2025-06-02T19:00:00' is not a time with a time zone"):
        ask("prices", "as_of", "ann", "2025-06-02T19:00:00")
    with pytest.raises(errors.BadTime) as bad:
        ask("plays", "windows", "ann", "yesterday")
    assert bad.value.status == 400 and bad.value.message and bad.value.what_to_do
    for call in (("plays", "windows", "ann"), ("visits", "sessions", "ann"), ("prices", "history", "ann")):
        with pytest.raises(errors.BadTime, match=r"ends at 1000, before it begins at 2000\. Swap its ends"):
            ask(*call, 2_000, 1_000)
    with pytest.raises(errors.BadLimit):
        ask("plays", "windows", "ann", limit=10**6)
    with pytest.raises(errors.BadParameter, match=r"columns='n' is a text. Give a list: \['n'\]"):
        ask("numbers", "dataframe", "n")
    assert issubclass(errors.BadTime, hf.HoldfastError)


@pytest.mark.parametrize(
    ("method", "args", "given", "near"),
    [
        ("get", [7], {"at_leest": 99}, "Did you mean 'at_least'"),
        ("get", [7], {"field": ["games"]}, "Did you mean 'fields'"),
        ("count", [], {"maxlag": 1}, "Did you mean 'max_lag'"),
        ("range", [1, 2], {"limt": 3}, "Did you mean 'limit'"),
        ("dataframe", [], {"att": "latest"}, "Did you mean 'at'"),
    ],
)
def test_a_misspelt_option_is_not_ignored(
    ask: Both, method: str, args: list[object], given: dict[str, object], near: str
) -> None:
    with pytest.raises(TypeError, match=f"'{next(iter(given))}' is not an argument of this read. {near}"):
        ask("numbers", method, *args, **given)


def test_a_value_that_cannot_be_read_is_an_error_and_not_missing(ask: Both, filled: RunningGroup) -> None:
    """Among other entries it is one with an `error`, so that those can be read."""
    long = "damaged" * 2_000  # it is asked for in a body
    damaged = pack(Cell(b"\xc1"))  # a byte that msgpack never has
    for name in ("damaged", long):
        task = TaskId(GAME.number_of("names"), partition_of(NAMES.key, (name,), GAME.partitions))
        filled.driver.commit_cells(NAMES, {task: {encode_key(NAMES.key, (name,)): damaged}})
    filled.instances.wait_until_visible(filled.driver.version)
    for method, key in (("get", "damaged"), ("get", long), ("get_many", ["/", "damaged"])):
        with pytest.raises(errors.DamagedData, match="The value of 'damaged.*' in store 'names' can't be read"):
            ask("names", method, key)
    there, unreadable = ask("names", "entries", ["/", "damaged"])
    assert (there.value, there.error, unreadable.value) == ("/", None, None)
    assert "can't be read" in unreadable.error


def test_a_value_that_does_not_fit_its_type_is_named(ask: Both) -> None:
    with pytest.raises(errors.WrongType, match=r"key 'ann' in store 'names' doesn't fit the type int: Expected `int`"):
        ask("names", "get", "ann", value=int)
    with pytest.raises(
        errors.WrongType, match=r"key datetime.date\(2026, 1, 1\) in store 'days'.*client\.store"
    ) as wrong:
        ask("days", "range", value=Player)
    assert (wrong.value.store, wrong.value.key) == ("days", dt.date(2026, 1, 1))
    with pytest.raises(errors.WrongType, match="in store 'plays'"):
        ask("plays", "windows", "ann", value=list[int])
    with pytest.raises(errors.WrongType, match="in store 'plays'"):
        ask("plays", "all_windows", value=list[int])
    with pytest.raises(errors.WrongType, match="doesn't fit the type Lock"):
        ask("numbers", "get", 7, value=asyncio.Lock)


@pytest.mark.parametrize("options", [{"timeout": "soon"}, {"hedge": 5}, {"wait": "2 parsecs", "at_least": 1}])
def test_a_duration_that_cannot_be_read_is_named(ask: Both, options: dict[str, Any]) -> None:
    name = next(iter(options))
    with pytest.raises(errors.BadParameter, match=f"{name}={options[name]!r} is not a duration. Give") as bad:
        ask("numbers", "get", 7, **options)
    assert isinstance(bad.value, errors.ClientError)
    if name != "wait":
        for kind in (hf.Client, hf.AsyncClient):
            with pytest.raises(errors.BadParameter, match=name):
                kind(["http://127.0.0.1:9"], **options)


def test_no_answer_names_the_addresses_and_what_happened() -> None:
    with hf.Client("http://127.0.0.1:9", timeout="300ms") as client:
        with pytest.raises(errors.NoAnswer, match="127.0.0.1:9.*refused"):
            client.store("numbers").get(1)


def test_keys_are_asked_of_their_owner(filled: RunningGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every lookup is answered by the instance that it was sent to, whichever address the client was given."""
    asked: list[str] = []
    stream = httpx2.Client.stream

    def noted(self: httpx2.Client, method: str, url: str, **options: Any) -> Any:
        asked.append(url)
        return stream(self, method, url, **options)

    monkeypatch.setattr(httpx2.Client, "stream", noted)
    replicas = filled.instances.replicas
    until(lambda: len({addresses[0] for addresses in replicas().values()}) == 2, "both are active for a task")
    with hf.Client(filled.addresses[1:]) as client:
        numbers, names = client.store("numbers", int), client.store("names", str)  # of all tasks, together
        entries = [numbers.entry(n) for n in KEYS[:50]] + [names.entry(str(n)) for n in KEYS[:50]]
        routing = msgspec.json.decode(httpx2.get(f"{filled.addresses[0]}/v1/routing").content)
    assert {entry.source.role for entry in entries} == {"active"}
    served = [routing["instances"][entry.source.instances[0]] for entry in entries]
    assert [url.partition("/v1/")[0] for url in asked if "/keys/" in url] == served
    assert len({*served}) == 2


def test_many_threads_share_a_client(ask: Both) -> None:
    wrong: list[object] = []

    def look_up(first: int) -> None:
        store = ask.blocking.store("numbers", int)
        wrong.extend(n for n in range(first, len(KEYS), 8) if store.get(n, hedge="20ms") != n)

    threads = [threading.Thread(target=look_up, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Counted:
    """How many requests shells have under way at an address, at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most: Counter[str] = Counter()
        self._now: Counter[str] = Counter()
        blocking, awaited = Blocking._sent, Awaited._sent

        def sent(shell: Blocking, send: Send) -> Outcome:
            with self._one(send.address):
                return blocking(shell, send)

        async def sent_on_a_loop(shell: Awaited, send: Send) -> Outcome:
            with self._one(send.address):
                return await awaited(shell, send)

        monkeypatch.setattr(Blocking, "_sent", sent)
        monkeypatch.setattr(Awaited, "_sent", sent_on_a_loop)

    @contextmanager
    def _one(self, address: str) -> Iterator[None]:
        self._now[address] += 1
        self.most[address] = max(self.most[address], self._now[address])
        try:
            yield
        finally:
            self._now[address] -= 1


def _routings(group: RunningGroup) -> int:
    """How often the instances were asked for the routing."""
    lines = "".join(httpx2.get(f"{address}/metrics").text for address in group.addresses)
    return sum(int(float(n)) for n in re.findall(r'requests_total{path="/v1/routing",status="200"} (\S+)', lines))


@pytest.mark.parametrize("options", [{}, {"at": "latest"}], ids=["at once", "waiting"])
def test_many_gets_at_once_read_the_routing_once_and_use_few_connections(
    options: Any, filled: RunningGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, before = Counted(monkeypatch), _routings(filled)
    most = WAITING if options else UNDER_WAY
    wanted = [n % len(KEYS) for n in range(600)]

    async def gathered() -> list[Any]:
        async with hf.AsyncClient(filled.addresses, timeout="60s") as client:
            store = client.store("numbers", int)
            return list(await asyncio.gather(*(store.get(n, **options) for n in wanted)))

    assert asyncio.run(gathered()) == wanted
    assert _routings(filled) == before + 1
    with hf.Client(filled.addresses, timeout="60s") as client, ThreadPoolExecutor(100) as threads:
        store = client.store("numbers", int)
        assert list(threads.map(lambda n: store.get(n, **options), wanted)) == wanted
    assert _routings(filled) == before + 2
    assert max(counted.most.values()) == most


def test_both_clients_have_the_same_methods() -> None:
    assert async_client() == WRITTEN.read_text(), "run scripts/async_client.py"
    for one, other in ((hf.Client, hf.AsyncClient), (RemoteStore, AsyncRemoteStore)):
        methods = {name for name, _ in inspect.getmembers(one, callable) if not name.startswith("_")}
        assert methods == {name for name, _ in inspect.getmembers(other, callable) if not name.startswith("_")}


def test_importing_the_client_imports_no_spark_and_no_engine() -> None:
    names = "pyspark", "rocksdict", "uvicorn", "starlette", "pandas", "duckdb", "obstore", "prometheus_client"
    code = f"import sys, holdfast as hf; hf.Client, hf.AsyncClient; print([n for n in {names} if n in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ended.stdout == "[]\n"


def test_every_problem_of_rest_has_a_class() -> None:
    text = "".join(file.read_text() for file in (ROOT / "src/holdfast").rglob("query/*.py"))
    named = {*re.findall(r'Problem\(\s*\d+,\s*"([a-z_]+)"', text), *re.findall(r'"error":"([a-z_]+)"', text)}
    assert named and named <= PROBLEMS.keys()
    assert all(kind.error == name for name, kind in PROBLEMS.items())
    assert {kind.__name__ for kind in PROBLEMS.values()} <= {*errors.__all__}


def test_every_problem_is_documented_by_its_name_and_by_its_class() -> None:
    rest, clients = ((ROOT / "docs" / page).read_text() for page in ("queries.md", "clients.md"))
    documented = {*re.findall("`([a-z_]+)`", rest[rest.index("\n## Errors\n") :])}
    assert PROBLEMS.keys() - documented == set()
    classes = {*re.findall("`([A-Za-z]+)`", clients[clients.index("\n## Errors\n") :])}
    assert {*errors.__all__} - classes == set()
