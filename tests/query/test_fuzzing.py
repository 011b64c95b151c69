"""Any request by the OpenAPI document, and any that isn't by it, gets an answer that the document describes.

Against two real instances with a store of every kind. No answer is a 500, and none has a stack trace or a path of the
machine. Every key that a store can hold is found by the URL that its answer shows.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec
import pytest
import requests
import schemathesis
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast.query import operations
from holdfast.query.cursor import Cursor, decode_cursor, encode_cursor
from holdfast.query.keytext import key_text
from holdfast.stores.formats.keys import LONGEST_KEY
from tests.query.every_kind import APP, DECLARED, fill
from tests.query.instances import Group, started

_CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
KEYS = {
    spec.name: [key_text(spec.key, key) for key, _ in puts]
    for spec, puts in zip(APP.stores, DECLARED.values(), strict=True)
}
"""By store, keys as they are written in a URL."""
_CASES = 50
"""Requests per operation and mode."""
_DEMANDS = ("at", "at_least", "max_lag", "require")
_INSIDES = re.compile(r"Traceback|\.py\b|site-packages|/dev/shm|/tmp/|0x[0-9a-f]{8}")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with started(tmp_path_factory.mktemp("fuzzing"), APP) as group:
        fill(group.driver)
        group.settle()
        yield group


def _operations(group: Group) -> list[Any]:
    document = group.get("/v1/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    results: list[Any] = list(schema.get_all_operations())
    found = [result.ok() for result in results]
    assert len(found) == sum(len(methods) for methods in document["paths"].values()) > 20
    return found


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_operation_answers_as_the_document_says(group: Group, mode: GenerationMode) -> None:
    """More than 1,000 requests per mode, so 2,000 in `make test`; ten times as many by the profile `thorough`."""
    sent = 0
    for operation in _operations(group):
        if mode is GenerationMode.POSITIVE or operation.query or operation.body or operation.path_parameters:
            sent += _ask(group, operation, mode)
        else:  # it takes nothing, so the only thing that can be wrong is a parameter
            case = operation.Case(query={"nope": "1"})
            response = case.call(base_url=group.rests[0].url)
            case.validate_response(response, checks=_CHECKS)
            assert response.status_code == 400
            check(400, response.text)
    assert sent >= 1_000


def _ask(group: Group, operation: Any, mode: GenerationMode) -> int:
    """Sends requests by the document, half of them about keys that exist, or requests with something wrong.

    Returns how many.
    """
    fresh = "at_least" in [each.name for each in operation.query]
    statuses: Counter[int] = Counter()

    @settings(max_examples=max(_CASES, settings().max_examples))
    @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans(), at=st.integers(0, 1))
    def answered(case: Case[Any], known: bool, at: int) -> None:
        if mode is GenerationMode.POSITIVE:
            if fresh:
                case.query["wait"] = "0s"  # most versions that are asked for never come
            if operation.path.endswith("/hold"):
                case.query["seconds"] = 0  # the next requests need holds too
            if known:
                _about_known_keys(case)
        url = group.rests[at].url
        if "hold" in case.path_parameters and known:
            held = requests.post(f"{url}/v1/stores/numbers/hold?seconds=9", timeout=30).json()
            case.path_parameters |= {"store": "numbers", "hold": held["hold"]}
        if operation.path.endswith("/watch") and _is_watching(case, url):
            statuses[200] += 1
            return
        response = case.call(base_url=url)
        case.validate_response(response, checks=_CHECKS)
        demands = any(name in case.query for name in _DEMANDS)
        check(response.status_code, response.content.decode(errors="replace"), demands=demands)  # Arrow isn't text
        if response.status_code == 503:
            assert response.headers["retry-after"]
        statuses[response.status_code] += 1

    answered()
    if mode is GenerationMode.POSITIVE:
        for _ in range(4):  # by chance, none of the first 20 requests was for something that is there
            if not statuses[200]:
                answered()
        assert statuses[200], f"{operation.method} {operation.path} was only answered with {dict(statuses)}"
    return statuses.total()


def _is_watching(case: Case[Any], url: str) -> bool:
    """Whether the answer is a stream of events, which has no end: schemathesis would read it for ten seconds."""
    with requests.request(**case.as_transport_kwargs(base_url=url), stream=True, timeout=30) as answer:
        return answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")


def _about_known_keys(case: Case[Any]) -> None:
    """Asks for what is there, so that the answer is a success."""
    for name in (*_DEMANDS, "cursor", "columns", "partition", "fields"):
        case.query.pop(name, None)
    case.headers.pop("Last-Event-ID", None)
    if case.operation.path == "/v1/sql":
        case.body = {"sql": "SELECT count(*) FROM numbers"}
        case.media_type = "application/json"
        return
    path, store = case.path_parameters, case.path_parameters.get("store", "")
    keys = KEYS.get(store, [])
    if case.operation.path == "/api/keys/{key}":
        path["key"] = "a"
    if "key" in path and keys:
        path["key"] = keys[0]
    if case.method == "POST" and keys:
        case.body = [json.loads(key) if key[:1] in "[-0123456789" else key for key in keys]
    for name in ("from", "to", "prefix", "key"):
        if name in case.query and "windows" not in case.operation.path and keys:
            case.query[name] = keys if name == "key" else keys[-1]


def check(status: int, text: str, *, demands: bool = False) -> None:
    """What is true of every answer: only one that is to be fresher than there is may have to wait."""
    assert status < 500 or (demands and status == 503), text
    assert not _INSIDES.search(text), text
    if status >= 400:
        body = json.loads(text)
        assert body["error"] and body["message"] and body["what_to_do"]


_PATHS = ["keys/{}", "windows/{}", "sessions/{}", "history/{}", "rank/{}", "top/{}", "estimate/{}", "keys?key={}"]
_PATHS += ["range?from={}", "range?prefix={}", "scan?to={}", "count?prefix={}", "windows?key_from={}", "nothing/{}"]
_ODD = ["", "/", "//", "a/../b", "%", "?", "#", "\x00", "a\nb", "\r\n", "é", "\U0001f980", "NaN", "-Infinity", "-0.0"]
_ODD += ["1e400", "-9223372036854775808", "9223372036854775808", "[]", '["a"', '["a",1]', "null", "=", "x" * 32_768]
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(_ODD)


@given(store=st.sampled_from([spec.name for spec in APP.stores]), path=st.sampled_from(_PATHS), key=_TEXTS)
def test_any_text_may_be_sent_as_a_key(group: Group, store: str, path: str, key: str) -> None:
    response = group.client.get(f"{group.rests[1].url}/v1/stores/{store}/{path.format(quote(key, safe=''))}")
    check(response.status_code, response.text)


_PAGED = {"plays": "windows", "visits": "sessions"}
"""Paths that have cursors, by store; of other stores, the range."""
_BYTES = st.binary(max_size=20) | st.sampled_from([b"\x01", b"\x01a", b"\x02", b"\x05\x00", b"\xff\xff\xff"])
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9) | _BYTES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
_MEMBERS: dict[str, st.SearchStrategy[Any]] = {
    "store": st.sampled_from([spec.name for spec in APP.stores]),
    "start": _BYTES,
    "stop": st.none() | _BYTES,
    "after": _BYTES | st.sampled_from([b"\x01b", b"\x01a\x00\x00\x80\x00\x00\x00\x00\x00\x00\x01"]),
    "version": st.integers(0, 2**63 - 1),
    "reverse": st.booleans(),
    "order": _ANY | st.tuples(st.integers(), st.integers()),
    "query": st.sampled_from(["", "windows", "sessions", "history"]),
    "parameters": st.dictionaries(st.sampled_from(["from", "to", "key_from", "nope"]), _TEXTS, max_size=2),
}

_OF_CURSORS = ("bad_cursor", "bad_time", "bad_key", "wrong_kind")


@pytest.fixture(scope="module")
def cursors(group: Group) -> dict[str, Cursor]:
    """The cursor of the first page, by store."""
    found = {}
    for spec in APP.stores:
        page = group.get(f"/v1/stores/{spec.name}/{_PAGED.get(spec.name, 'range')}", limit="1").json()
        if page.get("cursor"):
            found[spec.name] = decode_cursor(page["cursor"])
    assert {"texts", "numbers", "pairs", "plays", "visits"} <= found.keys()
    return found


@given(data=st.data(), asked=st.sampled_from([spec.name for spec in APP.stores]), scan=st.booleans())
def test_any_cursor_that_is_made_up_is_refused_or_is_one(
    group: Group, cursors: dict[str, Cursor], data: st.DataObject, asked: str, scan: bool
) -> None:
    """The checksum of a cursor is no secret: what it says is checked, whatever it is."""
    cursor = cursors.get(asked) or data.draw(st.sampled_from([*cursors.values()]))
    names = data.draw(st.sets(st.sampled_from([*_MEMBERS]), min_size=1, max_size=3))
    changed = {name: data.draw(_MEMBERS[name]) for name in names}
    try:
        text = encode_cursor(msgspec.structs.replace(cursor, **changed))
    except (OverflowError, UnicodeEncodeError):
        reject()
    path = _PAGED.get(asked, "scan" if scan else "range")
    response = group.get(f"/v1/stores/{asked}/{path}", cursor=text)
    check(response.status_code, response.text)
    assert '"key":null' not in response.text, "rows that aren't entries"
    assert response.status_code == 200 or response.json()["error"] in _OF_CURSORS
    kept = str([rest.reader.last_errors for rest in group.rests])
    assert "stored key" not in kept and "cursor" not in kept, "a request is no error of a store"


_TIMED = [
    "plays/windows?{}",
    "plays/windows/a?{}",
    "visits/sessions?{}",
    "visits/sessions/[%22a%22,1]?{}",
    "prices/history/tea?{}",
]
_TIMES = [
    ("-9223372036854775808", 200),
    ("9223372036854775807", 200),
    ("-9223372036854775809", 400),
    ("9223372036854775808", 400),
    ("9999999999999999999", 400),
    ("99999999999999999999", 400),
    ("0001-01-01T00:00:00Z", 200),
    ("9999-12-31T23:59:59-12:00", 200),
    ("-999999999d", 200),
    ("-999999999d1d", 400),
]


@pytest.mark.parametrize(("time", "status"), _TIMES)
def test_any_time_of_64_bits_may_be_asked_for(group: Group, time: str, status: int) -> None:
    pattern = operations.TIME.schema["pattern"]
    assert status == 400 or re.fullmatch(pattern, time), "what is answered is in the document"
    paths = [path.format(f"{name}={time}") for path in _TIMED for name in ("from", "to")]
    for path in [*paths, *(path.format(f"from={time}&to={time}") for path in _TIMED)]:
        answer = group.client.get(f"{group.rests[0].url}/v1/stores/{path}")
        assert answer.status_code == status, (path, answer.text)
        assert status == 200 or answer.json()["error"] == "bad_time"
    as_of = group.get("/v1/stores/prices/keys/tea", as_of=time)
    assert as_of.status_code in ((200, 404) if status == 200 else (400,)), as_of.text


_LONG = "k" * LONGEST_KEY
_HARD_TEXTS = ["a/b", "/", "", "\x00", "a\x00b", "\U0001f980", "a b?c#d", "%2F", "é" * 1_000, _LONG, "\n", "a/../b"]
HARD: dict[str, list[tuple[object, ...]]] = {
    "texts": [(text,) for text in _HARD_TEXTS],
    "numbers": [(-1,), (0,), (-(2**63),), (2**63 - 1,)],
    "reals": [(float("nan"),), (float("inf"),), (-float("inf"),), (-0.0,), (5e-324,), (-1.5,)],
    "pairs": [("a/b", -1), ("\x00", 0), ('"', 2**63 - 1), ("\U0001f980", -(2**63))],
    "blobs": [(b"",), (b"\x00",), (bytes(range(256)),), (b"\xff" * 8_000,)],
}


@pytest.mark.parametrize("store", HARD)
def test_hard_keys_are_found_by_every_path(group: Group, store: str) -> None:
    spec = next(spec for spec in APP.stores if spec.name == store)
    group.driver.commit(spec, dict.fromkeys(HARD[store], 1))
    group.settle()
    for at in range(2):
        url = f"{group.rests[at].url}/v1/stores/{store}"
        for key in HARD[store]:
            text = key_text(spec.key, key)
            one = _found(group.client.get(f"{url}/keys/{quote(text, safe='')}"))
            assert one["value"] == 1, key
            again = key_text(spec.key, [one["key"]] if len(spec.key.fields) == 1 else one["key"])
            assert _found(group.client.get(f"{url}/keys/{quote(again, safe='')}")) == one, "its answer's key finds it"
            between = {"from": text, "to": text}
            for answer in (
                group.client.get(f"{url}/keys", params={"key": text}),
                group.client.post(f"{url}/keys", json=[one["key"]]),
                group.client.get(f"{url}/range", params=between),
                group.client.get(f"{url}/range", params={**between, "reverse": "true"}),
            ):
                assert _found(answer)["entries"] == [{"key": one["key"], "value": 1}], key


def _found(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text[:1_000]
    body: dict[str, Any] = response.json()
    return body


def test_a_folder_of_the_machine_is_noticed() -> None:
    with pytest.raises(AssertionError):
        check(400, json.dumps({"error": "x", "message": f"{Path(__file__)}", "what_to_do": "z"}))
