"""POST /v1/sql on real instances: one version over all tasks and stores, pruned reads, and three formats."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast import metrics
from holdfast.query import columns as columns_module
from holdfast.query.pruning import key_ranges, masked, times_of
from holdfast.query.tables import table_of
from holdfast.sql.messages import Condition
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.keys import encode_key, key_schema
from holdfast.stores.spec import StoreSpec
from tests.instance.processes import until
from tests.query.fake_tasks import LEVELS, NUMBERS, SCORES
from tests.query.instances import Group, replicas_of, started
from tests.query.test_service import GAME


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with started(tmp_path, GAME) as group:
        yield group


def ask(group: Group, sql: str, at: int = 0, **more: Any) -> Any:
    answer = group.client.post(f"{group.rests[at].url}/v1/sql", json={"sql": sql, **more})
    return answer.status_code, answer.json()


def fill(group: Group) -> None:
    group.driver.commit(SCORES, {(f"p{n:03d}",): (n, n / 2, None, None, 1) for n in range(300)})
    group.driver.commit(LEVELS, {(f"p{n:03d}", level): level for n in range(300) for level in range(3)})
    group.settle()


def test_a_top_list_and_a_join_of_two_stores_from_any_instance(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(group)
    for at in range(2):
        status, top = ask(group, "SELECT player, points FROM scores ORDER BY points DESC LIMIT 2", at)
        assert (status, top["rows"]) == (200, [["p299", 299], ["p298", 298]])
        assert top["columns"] == [{"name": "player", "type": "string"}, {"name": "points", "type": "int64"}]
        assert (top["version"], top["more"]) == (2, False)
        assert (top["role"], top["instances"]) == ("active", ["game-0", "game-1"])
        assert top["committed"] > 0 and top["event_time"] is None
    joined = "SELECT count(*), sum(points) FROM scores JOIN levels USING (player) WHERE level = 1"
    assert ask(group, joined)[1]["rows"] == [[300, 44850]]
    assert ask(group, "SELECT * FROM scores", limit=10)[1]["more"] is True
    asked: list[Any] = []
    whole = columns_module.ColumnReader.batches

    def batches(self: Any, *given: Any, **named: Any) -> Any:
        asked.append(named)
        return whole(self, *given, **named)

    monkeypatch.setattr(columns_module.ColumnReader, "batches", batches)
    assert ask(group, "SELECT points FROM scores WHERE player = 'p007'")[1]["rows"] == [[7]]
    key = encode_key(SCORES.key, ["p007"])
    assert asked[0]["keys"] == [(key, key + b"\x00")] and set(asked[0]["columns"]) == {"player", "points"}


def test_a_statement_is_measured_as_an_answer_of_several_partitions(group: Group) -> None:
    fill(group)

    def count(answered: str) -> float:
        return metrics.value("holdfast_rest_request_seconds_count", path="/v1/sql", answered=answered)

    before = count("scattered"), count("other")
    assert ask(group, "SELECT count(*) FROM scores")[1]["rows"] == [[300]]
    status, answer = ask(group, "SELECT 1")
    assert (status, answer["version"], answer["role"], answer["instances"]) == (200, None, None, [])
    assert (count("scattered"), count("other")) == (before[0] + 1, before[1] + 1)


def test_answers_as_csv_and_arrow(group: Group) -> None:
    fill(group)
    url, sql = f"{group.rests[0].url}/v1/sql", "SELECT player, best FROM scores WHERE points < 2 ORDER BY 1"
    csv = group.client.post(url, content=sql, headers={"content-type": "text/plain", "accept": "text/csv"})
    assert csv.text == '"player","best"\n"p000",0\n"p001",0.5\n'
    assert (csv.headers["holdfast-version"], csv.headers["holdfast-more"]) == ("2", "false")
    assert (csv.headers["holdfast-role"], csv.headers["holdfast-instances"]) == ("active", "game-0,game-1")
    arrow = group.client.post(url, json={"sql": sql}, headers={"accept": "application/vnd.apache.arrow.stream"})
    assert pa.ipc.open_stream(arrow.content).read_all()["best"].to_pylist() == [0.0, 0.5]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("date '5881580-07-10'", "5881580-07-10"),
        ("date '-100-01-01'", "-0100-01-01"),
        ("'-infinity'::date", "-infinity"),
        ("timestamp '290309-12-22 01:02:03.5'", "290309-12-22T01:02:03.5"),
        ("timestamptz '20000-01-01 00:00:00+00'", "20000-01-01T00:00:00Z"),
        ("'infinity'::timestamptz", "infinity"),
        ("[date '20000-01-01', NULL, date '2020-01-01']", ["20000-01-01", None, "2020-01-01"]),
        ("{'a': timestamp_s '20000-01-01 00:00:00', 'b': 1.5}", {"a": "20000-01-01T00:00:00", "b": "1.5"}),
        ("map{date '20000-01-01': 1}", [["20000-01-01", 1]]),
    ],
)
def test_dates_that_python_has_not_are_texts(group: Group, value: str, shown: Any) -> None:
    status, answer = ask(group, f"SELECT {value} AS x")
    assert (status, answer["rows"]) == (200, [[shown]])
    headers = {"content-type": "text/plain", "accept": "text/csv"}
    csv = group.client.post(f"{group.rests[0].url}/v1/sql", content=f"SELECT {value} AS x", headers=headers)
    text = shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()
    assert csv.text == '"x"\n"{}"\n'.format(text.replace('"', '""'))


def test_a_statement_at_a_version(group: Group) -> None:
    for version in range(1, 4):
        group.driver.commit(NUMBERS, {(n,): version for n in range(20)})
    group.settle()
    sql = "SELECT sum(value::int) FROM numbers"
    assert ask(group, sql)[1]["rows"] == [[60]]
    older = group.client.post(f"{group.rests[0].url}/v1/sql", params={"at": 2}, json={"sql": sql}).json()
    assert (older["rows"], older["version"]) == ([[40]], 2)
    early = group.client.post(f"{group.rests[0].url}/v1/sql", params={"at": 9, "wait": "0s"}, json={"sql": sql})
    assert (early.status_code, early.json()["error"]) == (503, "not_fresh_enough")
    for version in range(4, 9):
        group.driver.commit(NUMBERS, {(n,): version for n in range(20)})
        group.settle()
    gone = group.client.post(f"{group.rests[0].url}/v1/sql", params={"at": 2}, json={"sql": sql})
    assert (gone.status_code, gone.json()["error"]) == (410, "version_gone")


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"sql": "COPY scores TO '/tmp/x'"}, 400, "sql_refused"),
        ({"sql": "SELECT nope FROM scores"}, 400, "sql_mistake"),
        ({"sql": "SELECT 1", "limit": 0}, 400, "bad_body"),
        ({"sql": "SELECT 1", "unknown": 1}, 400, "bad_body"),
        ({}, 400, "bad_body"),
        ({"sql": "SELECT '" + "x" * 200_000 + "'"}, 413, "too_large"),
    ],
)
def test_what_is_wrong_is_named(group: Group, body: Any, status: int, error: str) -> None:
    group.settle()
    answer = group.client.post(f"{group.rests[0].url}/v1/sql", json=body)
    assert (answer.status_code, answer.json()["error"]) == (status, error), answer.text


def test_a_name_with_a_hyphen_is_said_to_need_quotes(group: Group) -> None:
    group.settle()
    said = group.client.post(f"{group.rests[0].url}/v1/sql", json={"sql": "SELECT * FROM by-shop"}).json()["message"]
    assert said.endswith('^\nA name with a - is written in double quotes: "by-shop".\n')


def test_a_statement_ends_with_its_client(group: Group) -> None:
    fill(group)
    replicas = [replica for instance in group.instances for replica in replicas_of(instance)]
    long = "SELECT levenshtein(repeat('a', 100000), repeat('b', 100000)), count(*) FROM scores"
    url = f"{group.rests[0].url}/v1/sql"
    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(httpx2.post, url, json={"sql": long}, timeout=3)
        until(lambda: any(replica.published.held._held for replica in replicas), "the statement has begun")
        with pytest.raises(httpx2.ReadTimeout):
            leaving.result()
    until(lambda: not any(replica.published.held._held for replica in replicas), "the statement's end", seconds=10)


TEXTS = st.text(alphabet="ab\x00\x01é", max_size=3)
OPS = st.sampled_from(["=", "<", "<=", ">", ">=", "in"])


def conditions(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Condition]:
    def made(op: str) -> st.SearchStrategy[Condition]:
        size = 3 if op == "in" else 1
        return st.lists(values, min_size=1, max_size=size).map(lambda found: Condition(column, op, tuple(found)))

    return OPS.flatmap(made)


CONDITIONS = st.lists(conditions("key_1", TEXTS) | conditions("key_2", st.integers(-3, 3)), max_size=4)
KEYS = st.lists(st.tuples(TEXTS, st.integers(-3, 3)), max_size=25, unique=True)


@given(KEYS, CONDITIONS, st.booleans())
def test_ranges_and_masks_let_through_what_meets_the_conditions(
    keys: list[tuple[str, int]], wanted: list[Condition], windowed: bool
) -> None:
    store: Any = hf.KeyValueStore("some", key=(str, int), value=int)
    if windowed:
        store = hf.WindowStore("some", key=(str, int), value=int, size="1s", retention="1h")
    bytes_ = DictBytes()
    bound = store.bind(bytes_, Now(0, 0))
    for n, key in enumerate(keys):
        if windowed:
            bound.put(key, n, n * 60_000)
        else:
            bound[key] = n
    spec: StoreSpec = store.spec()
    table = table_of(spec)
    ranges = key_ranges(table, wanted)
    found: list[int] = []
    for batch in table.read(bytes_, Now(0, 0), table.schema.names, ranges, times_of(table, wanted)):
        found += masked(batch, wanted)["value"].to_pylist()
    assert sorted(found) == [n for n, key in enumerate(keys) if all(meets(key, each) for each in wanted)]


def meets(key: tuple[str, int], condition: Condition) -> bool:
    value: Any = key[0].encode() if condition.column == "key_1" else key[1]
    constants: list[Any] = [each.encode() if isinstance(each, str) else each for each in condition.values]
    match condition.op:
        case "in" | "=":
            return value in constants
        case "<":
            return bool(value < constants[0])
        case "<=":
            return bool(value <= constants[0])
        case ">":
            return bool(value > constants[0])
    return bool(value >= constants[0])


@given(
    st.lists(st.integers(0, 200), max_size=20, unique=True), st.lists(conditions("window_start", st.integers(0, 200)))
)
def test_conditions_on_the_start_of_windows_lose_none(starts: list[int], wanted: list[Condition]) -> None:
    store = hf.WindowStore("some", value=int, size="1s", retention="1h")
    bytes_ = DictBytes()
    bound = store.bind(bytes_, Now(0, 0))
    for start in starts:
        bound.put("a", start, start * 60_000)
    table = table_of(msgspec.structs.replace(store.spec(), key=key_schema(str)))
    micros = [msgspec.structs.replace(each, values=tuple(v * 60_000_000 for v in each.values)) for each in wanted]
    found: list[int] = []
    now = Now(0, 0)
    for batch in table.read(bytes_, now, table.schema.names, times=times_of(table, micros)):
        found += masked(batch, micros)["value"].to_pylist()
    assert sorted(found) == sorted(s for s in starts if all(meets(("", s), each) for each in wanted))
