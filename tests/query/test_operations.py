"""The table of operations: routes, checks and the OpenAPI document say the same."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from holdfast.query.access import DOCS, PAGE_FILES
from holdfast.query.openapi import TAGS
from holdfast.query.own_documents import OwnDocument
from holdfast.query.queries import Kinds
from holdfast.query.rest import create_app, operations_of
from holdfast.query.routing import NOWHERE
from holdfast.query.server import serve
from holdfast.query.showing import Showing
from holdfast.settings.rest import RestSettings
from tests.query.fake_tasks import APP, NUMBERS, STATE, World, served
from tests.query.instances import Group, started


@pytest.fixture(scope="module")
def rest() -> Iterator[httpx2.Client]:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(3)})
    with served(world.reader) as client:
        yield client


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with started(tmp_path, APP) as group:
        group.driver.commit(NUMBERS, {(n,): n for n in range(3)})
        group.settle()
        yield group


def test_every_route_is_in_the_document_but_those_for_kinds_that_no_store_has(rest: httpx2.Client) -> None:
    document = rest.get("/../openapi.json").json()
    reader = World().reader
    kinds = Kinds(reader.specs.all())
    operations = operations_of(
        reader,
        lambda: STATE,
        kinds,
        Showing(reader.specs),
        places=lambda: NOWHERE,
        watches=None,
        own_document=lambda scope: OwnDocument({}, {}),
    )
    routes = {(each.template, each.method.lower()) for each in operations}
    described = {(path, method) for path, methods in document["paths"].items() for method in methods}
    unlisted = ("{query}/{key}", "sessions", "windows")  # no store here has windows or sessions
    page = {("/", "get"), *((f"{DOCS}/{name}", "get") for name in PAGE_FILES)}
    assert routes - described == {(f"/v1/stores/{{store}}/{path}", "get") for path in unlisted} | page
    assert described <= routes


def test_the_document_names_the_stores_that_an_operation_is_for(rest: httpx2.Client) -> None:
    paths = rest.get("/../openapi.json").json()["paths"]
    store = paths["/v1/stores/{store}/keys/{key}"]["get"]["parameters"][0]
    assert store["schema"]["enum"] == ["levels", "numbers", "scores"]
    statuses = paths["/v1/stores/{store}/range"]["get"]["responses"]
    assert {"200", "400", "404", "410", "503"} <= set(statuses)


def test_every_operation_has_the_refusals_of_tokens_and_limits(rest: httpx2.Client) -> None:
    document = rest.get("/../openapi.json").json()
    for methods in document["paths"].values():
        for method, operation in methods.items():
            assert {"400", "401", "403", "421", "429", "500", "503"} <= {*operation["responses"]}
            assert method == "get" or {"408", "413"} <= {*operation["responses"]}
    referred = re.findall(r"#/components/responses/(\w+)", rest.get("/../openapi.json").text)
    assert {*referred} <= {*document["components"]["responses"]}
    assert document["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    assert document["paths"]["/health/live"]["get"]["security"] == []


def test_the_document_has_every_type_and_header_of_an_answer(group: Group) -> None:
    def described(path: str, method: str = "get") -> dict[str, Any]:
        found: dict[str, Any] = document["paths"][path][method]
        return found

    def check(answer: httpx2.Response, operation: dict[str, Any]) -> None:
        success = operation["responses"]["200"]
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].partition(";")[0] in success["content"]
        sent = {name for name in answer.headers if name.startswith("holdfast-")}
        assert sent | {"holdfast-event-time"} == {*success["headers"]}, "these records have no event time"

    document, url = group.get("/v1/openapi.json").json(), group.rests[0].url
    sql, metrics = described("/v1/sql", "post"), described("/metrics")
    assert {*sql["requestBody"]["content"]} == {"application/json", "text/plain"}
    for media in sql["responses"]["200"]["content"]:
        for sent in sql["requestBody"]["content"]:
            text = "SELECT n FROM numbers"
            body = text if sent == "text/plain" else json.dumps({"sql": text})
            headers = {"content-type": sent, "accept": media}
            answer = group.client.post(f"{url}/v1/sql", content=body, headers=headers)
            check(answer, sql)
            assert answer.headers["content-type"].partition(";")[0] == media
    for media in metrics["responses"]["200"]["content"]:
        answer = group.client.get(f"{url}/metrics", headers={"accept": f"{media}; version=1.0.0"})
        assert answer.headers["content-type"].partition(";")[0] == media
    check(group.get("/v1/stores/numbers/arrow"), described("/v1/stores/{store}/arrow"))
    header = next(each for each in described("/v1/stores/{store}/watch")["parameters"] if each["in"] == "header")
    assert header["name"] == "Last-Event-ID"
    refused = group.client.get(f"{url}/v1/stores/numbers/watch", headers={header["name"]: "nonsense"})
    assert (refused.status_code, refused.json()["error"]) == (400, "bad_event_id")


def test_every_operation_has_its_own_name(rest: httpx2.Client) -> None:
    paths = rest.get("/../openapi.json").json()["paths"]
    names = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(names) == len(set(names)) >= 10


def test_the_page_is_in_the_package_and_loads_nothing_from_other_hosts(rest: httpx2.Client) -> None:
    """It asks for paths beside its own: it may be behind a path of a proxy."""
    root = rest.get("/../../")
    assert (root.status_code, root.headers["location"]) == (307, "v1/docs")
    page = rest.get("/../docs")
    loaded = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert loaded == ["data:,", "docs/swagger-ui.css", "docs/start.css", "docs/swagger-ui-bundle.js", "docs/start.js"]
    answers = {name: rest.get(f"/../{name}") for name in ("docs", *loaded[1:])}
    for name, answer in answers.items():
        assert answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff", name
        policy = dict(each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";"))
        assert policy == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "connect-src": "'self'",
            "img-src": "data:",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
    types = [answer.headers["content-type"].partition(";")[0] for answer in answers.values()]
    assert types == ["text/html", "text/css", "text/css", "text/javascript", "text/javascript"]
    ours = page.text + answers["docs/start.js"].text + answers["docs/start.css"].text
    assert "//" not in re.sub(r" // [^\n]*", "", ours) and "@import" not in ours
    assert re.findall(r"\bfetch\(([^,)]*)", ours) == ['"openapi.json"']
    assert {*re.findall(r"url\(([^)]{5})", answers["docs/swagger-ui.css"].text)} <= {"data:", '"data'}
    for name in ("LICENSE", "NOTICE", "swagger-ui-bundle.js.LICENSE.txt"):
        assert files("holdfast.query").joinpath("docs_page", name).is_file()


def test_every_operation_is_in_a_group_and_says_what_it_answers(group: Group) -> None:
    document = group.get("/v1/openapi.json").json()
    groups = [tag["name"] for tag in document["tags"]]
    assert groups == [name for name in TAGS if name in groups] and all(tag["description"] for tag in document["tags"])
    used: set[str] = set()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            [tag] = operation["tags"]
            used.add(tag)
            assert all(answer.get("description") or "$ref" in answer for answer in operation["responses"].values()), (
                path
            )
    assert used == {*groups}


def test_examples_can_be_sent_as_they_are(rest: httpx2.Client) -> None:
    """What isn't required has none: whoever tries an operation would send it."""
    document, tried = rest.get("/../openapi.json").json(), set[str]()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            examples = {each["name"]: each["example"] for each in operation["parameters"] if "example" in each}
            required = {each["name"] for each in operation["parameters"] if each["required"]}
            if {*examples} != required:
                stores = [each for each in operation["parameters"] if each["name"] == "store"]
                assert "enum" not in stores[0]["schema"], f"{path}: a store of the app can be asked"
                continue
            url = f"/../..{path}"
            for name in re.findall(r"\{(\w+)\}", path):
                url = url.replace(f"{{{name}}}", quote(examples.pop(name), safe=""))
            bodies = operation.get("requestBody", {"content": {None: {}}})["content"]
            for media, body in bodies.items():
                sent = body.get("example")
                content = sent if isinstance(sent, str) or sent is None else json.dumps(sent)
                headers = {} if media is None else {"content-type": media}
                with rest.stream(method.upper(), url, params=examples, content=content, headers=headers) as answer:
                    assert answer.status_code in (200, 404, 503), (path, answer.read())
                    tried.add(operation["operationId"])
    assert {"get_key", "get_keys", "post_keys", "get_range", "sql", "hold", "release", "get_arrow"} <= tried


def test_the_document_has_what_the_page_asks_with(rest: httpx2.Client) -> None:
    """It knows no path but that of the document: it fills in the parts of each path, and sends bodies as JSON."""
    document = rest.get("/../openapi.json").json()
    assert "/v1/openapi.json" in document["paths"]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            parts = [each for each in operation["parameters"] if each["in"] == "path"]
            assert sorted(each["name"] for each in parts) == sorted(re.findall(r"\{(\w+)\}", path)), path
            assert all(each["required"] for each in parts) and operation["summary"]
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                name = schema.get("$ref", "").rpartition("/")[2]
                assert (document["components"]["schemas"][name] if name else schema)["type"] in ("array", "object")


def test_the_page_needs_no_token_and_asks_for_one() -> None:
    tokens = RestSettings(tokens="ann ann-0123456789abcdef read:*")
    app = create_app(World().reader, lambda: STATE, settings=tokens)
    with serve(app, port=0) as server, httpx2.Client(base_url=server.url) as client:
        assert "authorization: `Bearer ${token}`" in client.get("/v1/docs/start.js").text
        assert [client.get(path).status_code for path in ("/", "/v1/docs", "/v1/docs/swagger-ui.css")] == [
            307,
            200,
            200,
        ]
        assert client.get("/v1/openapi.json").status_code == 401
        sent = {"authorization": "Bearer ann-0123456789abcdef"}
        assert client.get("/v1/openapi.json", headers=sent).status_code == 200


def test_fields_select_columns(rest: httpx2.Client) -> None:
    refused = rest.get("/scores/range?fields=points,pionts").json()
    assert refused["error"] == "bad_parameter"
    assert refused["what_to_do"] == "Choose among points, best, money, day."
