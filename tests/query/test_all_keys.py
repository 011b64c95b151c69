"""Queries over all keys and over time: windows and sessions of all keys, values as of a time, leaderboards."""

from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest

from holdfast.log.appfile import AppSpec
from holdfast.query.cursor import decode_cursor, encode_cursor
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.keyvalue import KeyValueStore
from holdfast.stores.kinds.scores import RANKING, SCORES, ScoreStore
from holdfast.stores.kinds.session import Session, SessionStore
from holdfast.stores.kinds.timestamped import TimestampedKeyValueStore
from holdfast.stores.kinds.versioned import VersionedKeyValueStore
from holdfast.stores.kinds.window import WindowStore
from holdfast.words import Version
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import World, served
from tests.query.test_kinds import write

START = 1_000_000
PLAYS = WindowStore("plays", value=dict, size="10s", retention="1h")
TWICE = WindowStore("twice", value=int, size="10s", retention="1h", duplicates=True)
VISITS = SessionStore("visits", key=(str, int), value=int, gap="5s", retention="1h")
PRICES = VersionedKeyValueStore("prices", value=dict, retention="1m")
BEST: Any = TimestampedKeyValueStore("best", key=str, value=list[dict[str, Any]])
BY_ROW: Any = Schema.of(game="string", player="string")
BY_SCORE: Any = Schema.of(game="string", points="bigint", player="string")
ROWS: Any = ScoreStore(f"best{SCORES}", key=BY_ROW, value=int, group=1)
ORDER: Any = KeyValueStore(f"best{RANKING}", key=BY_SCORE, value=dict[str, Any])
DECLARED: tuple[Any, ...] = (PLAYS, TWICE, VISITS, PRICES, BEST, ROWS, ORDER)
SPECS = tuple(store.spec(default_engine="memory") for store in DECLARED)
APP = AppSpec(id="game", partitions=3, stores=SPECS, subtopologies=subtopologies_of({spec.name: 0 for spec in SPECS}))
NAMES = ("ann", "bob", "cleo", "dan\x00", "é")
STARTS = range(START - 30_000, START + 1, 10_000)
SCORED = [("ann", 7), ("bob", 9), ("cleo", 9), ("dan", -1)]


@pytest.fixture(scope="module", params=["here", "elsewhere"])
def rest(request: pytest.FixtureRequest) -> Iterator[httpx2.Client]:
    world = World(APP, remote=[] if request.param == "here" else list(APP.tasks()))
    now = Now(START, START)
    for name in NAMES:
        write(world, PLAYS, (name,), now, *[(name, {"at": start, "by": name}, start) for start in STARTS])
        visits = [Session((name, 1), START - 40_000, START - 30_000), Session((name, 2), START - 9_000, START)]
        for n, visit in enumerate(visits):
            write(world, VISITS, visit.key, now, (visit, n))
    write(world, TWICE, ("ann",), now, *[("ann", n, START) for n in range(5)])
    prices = [("tea", {"cents": n}, START - (3 - n) * 10_000) for n in range(4)]
    write(world, PRICES, ("tea",), now, *prices)
    for player, points in SCORED:  # a task has whole groups
        write(world, ROWS, ("chess", "ann"), now, (("chess", player), points))
        write(world, ORDER, ("chess", 0, "ann"), now, (("chess", points, player), {"level": points * 10}))
    for task in world.tasks.values():
        task.versions = {20: task.versions[max(task.versions)]}
        task.now = now
    with served(world.reader) as client:
        yield client


def _get(rest: httpx2.Client, path: str, **params: str) -> dict[str, Any]:
    answer = rest.get(path, params=params)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_windows_of_all_keys_between_two_times(rest: httpx2.Client) -> None:
    body = _get(rest, "/plays/windows", **{"from": "-20s", "to": str(START - 10_000)})
    found = [(each["key"], each["start"], each["end"]) for each in body["windows"]]
    assert found == [(name, start, start + 10_000) for name in NAMES for start in STARTS[1:3]]
    assert (body["cursor"], body["consistent"], body["version"]) == (None, True, 20)


def test_windows_of_some_keys(rest: httpx2.Client) -> None:
    body = _get(rest, "/plays/windows", key_from="bob", key_to="cleo", fields="by")
    assert [each["value"] for each in body["windows"]] == [{"by": name} for name in ("bob", "cleo") for _ in STARTS]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 19, 20, 21])
def test_pages_of_all_keys_are_the_whole(rest: httpx2.Client, limit: int) -> None:
    whole, seen = _get(rest, "/plays/windows")["windows"], []
    cursor: dict[str, str] = {}
    while True:
        page = _get(rest, "/plays/windows", limit=str(limit), **cursor)
        assert 0 < len(page["windows"]) <= limit
        seen += page["windows"]
        if page["cursor"] is None:
            break
        cursor = {"cursor": page["cursor"]}
    assert seen == whole
    assert len(whole) == len(NAMES) * len(STARTS)


def test_pages_of_all_keys_are_of_one_version_while_replicas_have_it() -> None:
    world, now = World(APP), Now(START, START)
    for task in world.tasks.values():
        bytes_ = DictBytes()
        bound = PLAYS.bind(bytes_, now)
        for name in NAMES:
            bound.put(name, {"version": 1}, START)
        bound.end_of_version()
        task.write(1, "plays", dict(bytes_.entries))
        task.now = now

    def commit(version: int) -> None:
        for task in world.tasks.values():
            task.write(version, "plays", {})
        world.log.newest_known = Version(version)

    with served(world.reader) as client:
        first = _get(client, "/plays/windows", limit="1")
        assert "moved_on" not in first
        commit(2)
        second = _get(client, "/plays/windows", limit="1", cursor=first["cursor"])
        assert (second["version"], second["moved_on"]) == (1, False)
        fresh = _get(client, "/plays/windows", limit="1", cursor=first["cursor"], at_least="2")
        assert (fresh["version"], fresh["moved_on"]) == (2, True)
        for version in range(3, 9):
            commit(version)
        third = _get(client, "/plays/windows", cursor=second["cursor"])
        assert (third["version"], third["moved_on"]) == (8, True)
        seen = [each["key"] for page in (first, second, third) for each in page["windows"]]
        assert seen == [name for name in NAMES for _ in world.tasks]


def test_duplicates_of_a_window_are_on_one_page(rest: httpx2.Client) -> None:
    page = _get(rest, "/twice/windows", limit="2")
    assert ([each["value"] for each in page["windows"]], page["cursor"]) == ([0, 1, 2, 3, 4], None)


def test_all_sessions_that_are_active_at_a_time(rest: httpx2.Client) -> None:
    for time, number in ((START - 35_000, 1), (START - 1_000, 2)):
        body = _get(rest, "/visits/sessions", **{"from": str(time), "to": str(time)})
        assert [each["key"] for each in body["sessions"]] == [[name, number] for name in NAMES]
    assert _get(rest, "/visits/sessions", **{"from": "-20s", "to": "-15s"})["sessions"] == []


def test_a_cursor_of_another_store_is_refused(rest: httpx2.Client) -> None:
    cursor = _get(rest, "/plays/windows", limit="1")["cursor"]
    assert rest.get("/twice/windows", params={"cursor": cursor}).json()["error"] == "bad_cursor"
    assert rest.get("/plays/windows", params={"cursor": "x"}).json()["error"] == "bad_cursor"


def test_a_cursor_carries_the_parameters_of_its_query(rest: httpx2.Client) -> None:
    asked = {"from": "-20s", "to": str(START - 10_000), "key_from": "bob", "key_to": "cleo"}
    whole = _get(rest, "/plays/windows", **asked)["windows"]
    first = _get(rest, "/plays/windows", limit="1", **asked)
    alone = _get(rest, "/plays/windows", cursor=first["cursor"])
    assert alone == _get(rest, "/plays/windows", cursor=first["cursor"], **asked)
    assert first["windows"] + alone["windows"] == whole
    for changed in ({"from": "-30s"}, {"to": "-1s"}, {"key_to": "dan"}):
        other = rest.get("/plays/windows", params={"cursor": first["cursor"], **changed})
        assert (other.status_code, other.json()["error"]) == (400, "bad_cursor")
    open_end = _get(rest, "/plays/windows", limit="1")["cursor"]
    assert rest.get("/plays/windows", params={"cursor": open_end, "to": "-1s"}).json()["error"] == "bad_cursor"


def test_a_cursor_of_another_query_is_refused(rest: httpx2.Client) -> None:
    cursor = decode_cursor(_get(rest, "/plays/windows", limit="1")["cursor"])
    for query in ("", "sessions"):
        other = encode_cursor(msgspec.structs.replace(cursor, query=query))
        assert rest.get("/plays/windows", params={"cursor": other}).json()["error"] == "bad_cursor"


@pytest.mark.parametrize(
    "changed",
    [{"order": "a text"}, {"order": [1, 2]}, {"order": {"a": 1}}, {"after": b"\x01\xff\xfe"}, {"after": b""}],
)
def test_a_cursor_of_a_position_that_isnt_one_is_refused(rest: httpx2.Client, changed: dict[str, object]) -> None:
    cursor = decode_cursor(_get(rest, "/plays/windows", limit="1")["cursor"])
    text = encode_cursor(msgspec.structs.replace(cursor, **changed))
    refused = rest.get("/plays/windows", params={"cursor": text})
    assert (refused.status_code, refused.json()["error"]) == (400, "bad_cursor"), refused.text


@pytest.mark.parametrize(("time", "cents"), [(START - 30_000, 0), (START - 10_001, 1), (START - 10_000, 2), (START, 3)])
def test_a_value_as_of_a_time(rest: httpx2.Client, time: int, cents: int) -> None:
    body = _get(rest, "/prices/keys/tea", as_of=str(time))
    assert (body["value"], body["version"], body["instance"]) == ({"cents": cents}, 20, "game-0")
    assert body["valid_to"] == (None if cents == 3 else START - (2 - cents) * 10_000)
    assert _get(rest, "/prices/keys/tea", as_of="-0s", fields="none")["value"] == {}


def test_an_as_of_without_a_zone_is_refused_by_its_own_name(rest: httpx2.Client) -> None:
    refused = rest.get("/prices/keys/tea", params={"as_of": "2025-06-02T19:00:00"})
    assert (refused.status_code, refused.json()["error"]) == (400, "bad_time")
    assert refused.json()["message"] == "as_of='2025-06-02T19:00:00' is not a time with a time zone."


def test_what_was_never_valid_is_not_found(rest: httpx2.Client) -> None:
    early = rest.get("/prices/keys/tea", params={"as_of": str(START - 30_001)})
    assert (early.status_code, early.json()["error"]) == (404, "key_not_found")
    said = {name: early.json()[name] for name in ("key", "version", "event_time", "role", "instances")}
    assert said == {"key": "tea", "version": 20, "event_time": START, "role": "active", "instances": ["game-0"]}
    assert rest.get("/prices/keys/milk", params={"as_of": "-1s"}).status_code == 404
    assert rest.get("/prices/keys/tea", params={"as_of": "yesterday"}).json()["error"] == "bad_time"
    assert rest.get("/best/keys/chess", params={"as_of": "-1s"}).json()["error"] == "wrong_kind"


def test_the_best_rows_of_a_leaderboard(rest: httpx2.Client) -> None:
    body = _get(rest, "/best/top/chess", limit="3")
    assert body["top"] == [
        {"rank": 1, "value": {"points": 9, "player": "cleo", "level": 90}},
        {"rank": 2, "value": {"points": 9, "player": "bob", "level": 90}},
        {"rank": 3, "value": {"points": 7, "player": "ann", "level": 70}},
    ]
    assert [*body["top"][0]["value"]] == ["player", "points", "level"], "as in the list of the best rows"
    assert (body["key"], body["more"]) == ("chess", True)
    assert _get(rest, "/best/top/go")["top"] == []
    (row,) = _get(rest, "/best/top/chess", limit="1", fields="level,player")["top"]
    assert row == {"rank": 1, "value": {"level": 90, "player": "cleo"}}
    assert rest.get("/plays/top/ann").json()["what_to_do"] == "Ask for one of best."


@pytest.mark.parametrize("store", ["best", "best-scores"])
def test_ranks_are_those_of_the_top(rest: httpx2.Client, store: str) -> None:
    for place, row in enumerate(_get(rest, "/best/top/chess")["top"], start=1):
        found = _get(rest, f'/{store}/rank/["chess","{row["value"]["player"]}"]')
        assert found["rank"] == [{"rank": place, "value": row["value"]["points"]}]
