"""A user's own kind of store is queried over REST: the instance imports its class, without the app."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import msgspec
import pytest

import holdfast as hf
from examples.count_min_sketch import CountMinSketch
from holdfast.errors import TopologyError
from holdfast.kinds import TIME, Item, Query, Store, View
from holdfast.log.appfile import AppSpec, EndpointSpec
from holdfast.query.rest import create_app
from holdfast.query.server import serve
from holdfast.settings.sql import SqlSettings
from holdfast.sql.workers import Workers
from holdfast.stores.spec import differences
from tests.instance.processes import until
from tests.log.making import app_spec, subtopologies_of
from tests.query import own_functions
from tests.query.fake_tasks import STATE, World, served
from tests.query.instances import Driver, config, process

WORDS = CountMinSketch("words", width=128)
GONE = msgspec.structs.replace(WORDS.spec(), name="gone", kind="nowhere.at.all:Sketch")
APP = AppSpec(
    id="game", partitions=2, stores=(WORDS.spec(), GONE), subtopologies=subtopologies_of({"words": 0, "gone": 0})
)


def test_a_real_instance_answers_what_the_kind_declares(tmp_path: Path) -> None:
    written = hf.DictBytes()
    sketch = WORDS.bind(written, hf.Now(wall=0))
    sketch.add("book", "hold", 3)
    sketch.add("book", "fast")
    driver = Driver(str(tmp_path / "log"), APP)
    task, other = APP.tasks()
    driver.commit_cells(WORDS.spec(), {task: dict(written.entries)})
    with process(config(tmp_path, "game-0", [task, other])) as started:
        url = started.addresses()["rest"]
        until(lambda: httpx2.get(url + "/health/ready").status_code == 200, "ready")
        with httpx2.Client(base_url=url + "/v1/stores", timeout=20) as client:
            answer = client.get("/words/estimate/book?item=hold").json()
            assert isinstance(answer.pop("committed"), int)
            assert answer == {
                "store": "words",
                "version": 1,
                "event_time": None,
                "consistent": True,
                "role": "active",
                "instances": ["game-0"],
                "key": "book",
                "estimate": [{"item": "hold", "count": 3, "of": 4}],
                "more": False,
                "tasks": [str(task)],
            }
            assert client.get("/words/estimate/nothing?item=hold").json()["estimate"] == []

            missing = client.get("/words/estimate/book")
            assert (missing.status_code, missing.json()["error"]) == (400, "bad_parameter")
            assert missing.json()["what_to_do"] == "Ask /v1/stores/words/estimate/{key}?item=."
            assert client.get("/words/estimate/book?item=a&from=1").json()["error"] == "bad_parameter"

            for path in ("/words/keys/book", "/words/range", "/words/windows/book"):
                wrong = client.get(path).json()
                assert (wrong["error"], wrong["kind"]) == ("wrong_kind", CountMinSketch.kind())
                assert wrong["what_to_do"] == "Ask /v1/stores/words/estimate/{key}?item=."

            for path in ("/gone/estimate/book?item=hold", "/gone/keys/book", "/gone/range"):
                gone = client.get(path)
                assert (gone.status_code, gone.json()["error"]) == (500, "kind_not_found")
                assert "can't import; its log says why." in gone.json()["message"]
                assert "Make the module nowhere.at.all importable" in gone.json()["what_to_do"]


def test_an_endpoint_combines_what_the_partitions_of_an_own_kind_answer(caplog: pytest.LogCaptureFixture) -> None:
    """A method of the kind is never answered by one partition, as if it were all of them."""
    spec = EndpointSpec(own_functions.words.path, own_functions.words.place, ("words",))
    world = World(msgspec.structs.replace(APP, endpoints=(spec,)))
    for number, task in enumerate(APP.tasks(), start=1):
        written = hf.DictBytes()
        WORDS.bind(written, hf.Now(wall=0)).add("book", "hold", number)
        world.tasks[task].write(1, "words", written.entries)
    with served(world.reader) as client:
        url = str(client.base_url.join("/api/words/hold"))
        assert client.get(url).json() == 1 + 2
        refused = client.get(url, params={"each": "false"})
        assert (refused.status_code, refused.json()["error"]) == (500, "endpoint_failed")
        assert "view.estimate(...) for view in stores['words'].partitions" in caplog.text


def test_a_kind_that_cant_be_imported_is_no_table_and_breaks_no_other(caplog: pytest.LogCaptureFixture) -> None:
    workers = Workers(SqlSettings())
    with serve(create_app(World(APP).reader, lambda: STATE, workers=workers), port=0) as server:
        result = httpx2.post(f"{server.url}/v1/sql", json={"sql": "SHOW TABLES"}, timeout=30)
        assert (result.status_code, result.json().get("rows")) == (200, []), result.text
        assert httpx2.get(f"{server.url}/v1/openapi.json").status_code == 200
        arrow = httpx2.get(f"{server.url}/v1/stores/gone/arrow")
        assert (arrow.status_code, arrow.json()["error"]) == (400, "not_as_columns")
        assert "this instance can't import; its log says why." in arrow.json()["message"]
        assert "No module named" not in arrow.text and "No module named 'nowhere'" in caplog.text
    workers.close()


def first(view: View[Any, Any], key: int, *, count: int, since: int | None) -> Iterator[Item]:
    if count > 9:
        raise RuntimeError("too many")
    if count == 8:
        sys.exit("closed")
    if count == 7:
        yield ["not", "a", "mapping"]  # type: ignore[misc]
    if count == 6:
        yield {("not", "a", "name"): 1}  # type: ignore[dict-item]
    if count == 5:
        yield {"value": "\ud800"}  # half a character
    yield {"value": {"key": key, "count": count, "since": since}}


def one(view: View[Any, Any], key: str) -> Iterator[Item]:
    yield {"value": key}


class Own(Store[str, bytes]):
    QUERIES: ClassVar[tuple[Query, ...]] = (
        Query("first", first, key=int, required={"count": int}, optional={"since": TIME}),
        Query("misplaced", one, order=lambda item: item["no such member"]),
        Query("incomparable", one, order=lambda item: object()),
    )


class Silent(Store[str, bytes]):
    """A kind without queries."""


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    specs = tuple(kind(name, key=str, value=bytes).spec() for name, kind in (("own", Own), ("silent", Silent)))
    world = World(app_spec(*specs))
    with served(world.reader) as client:
        yield client


def test_keys_and_parameters_are_read_by_their_types(client: httpx2.Client) -> None:
    answer = client.get("/own/f%69rst/7?count=3&since=1970-01-01T00:00:01Z").json()
    assert (answer["key"], answer["first"]) == (7, [{"value": {"key": 7, "count": 3, "since": 1_000}}])
    assert client.get("/own/first/seven?count=3").json()["error"] == "bad_key"
    bad = client.get("/own/first/7?count=many").json()
    assert (bad["error"], bad["message"]) == ("bad_parameter", "count='many' is not a bigint.")


def test_an_error_in_the_users_query_is_in_the_log_with_its_function(
    client: httpx2.Client, caplog: pytest.LogCaptureFixture
) -> None:
    failed = client.get("/own/first/7?count=10")
    body = failed.json()
    assert (failed.status_code, body["error"]) == (500, "query_failed")
    assert body["message"] == "The query 'first' of store 'own' raised RuntimeError."
    assert "too many" not in failed.text and __name__ not in failed.text
    assert f"failed ({body['id']})" in caplog.text and "RuntimeError: too many" in caplog.text
    assert f"Fix {__name__}.first." in caplog.text


@pytest.mark.parametrize(
    ("count", "raised"),
    [(8, "SystemExit"), (7, "AttributeError"), (6, "TypeError"), (5, "UnicodeEncodeError")],
)
def test_whatever_goes_wrong_in_the_users_query_is_its_error(count: int, raised: str, client: httpx2.Client) -> None:
    failed = client.get(f"/own/first/7?count={count}")
    assert (failed.status_code, failed.json()["error"]) == (500, "query_failed")
    assert f"raised {raised}." in failed.json()["message"]


@pytest.mark.parametrize("query", ["misplaced", "incomparable"])
def test_an_order_that_fails_names_the_query(query: str) -> None:
    with served(World(app_spec(Own("own", key=str, value=bytes).spec(), partitions=2)).reader) as client:
        failed = client.get(f"/own/{query}/a")
    assert (failed.status_code, failed.json()["error"]) == (500, "query_failed")


def test_a_kind_without_queries_says_how_to_declare_some(client: httpx2.Client) -> None:
    for path in ("/silent/keys/a", "/silent/first/a"):
        answer = client.get(path).json()
        assert answer["error"] == "wrong_kind"
        assert "Silent.QUERIES = (Query(...),)" in answer["what_to_do"]


def test_options_of_an_own_kind_are_kept_in_the_log() -> None:
    assert WORDS.describe().splitlines()[1] == "  4 rows of 128 counters"
    [line] = differences(WORDS.spec(), CountMinSketch("words", width=256).spec())
    assert line.startswith("store 'words' has width 128 in the log and 256 in the code. Not possible in place")
    with pytest.raises(TopologyError, match=r"no option widht=\. Did you mean 'width'\?"):
        CountMinSketch("words", widht=64)  # type: ignore[call-arg]


@pytest.mark.parametrize(("name", "parameter"), [("keys", "a"), ("a/b", "a"), ("mine", "limit")])
def test_a_query_that_cannot_be_a_url_is_refused(name: str, parameter: str) -> None:
    with pytest.raises(TopologyError, match="Choose another"):
        Query(name, lambda view, key: [], required={parameter: str})
