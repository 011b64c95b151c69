"""Answers that are still being sent when their token is taken away or expires: they end, and say so if they can."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from holdfast.clock import ManualClock
from holdfast.query.access import Guarded
from holdfast.query.access_tokens import Tokens
from holdfast.query.measured import MeasuredApp
from holdfast.query.rest import create_app
from holdfast.query.server import RestServer, serve
from holdfast.settings.rest import RestSettings
from holdfast.words import Millis
from tests.query.fake_tasks import APP, NUMBERS, STATE, World
from tests.query.instances import serving
from tests.query.watched import Event, parsed

ANN, OTHER = "ann-0123456789abcdef", "bob bob-0123456789abcdef read:*"
BEARER = {"Authorization": f"Bearer {ANN}"}
ENTRIES = 20_000


@pytest.fixture(scope="module")
def world() -> World:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(ENTRIES)})
    return world


@pytest.fixture
def valid_for(world: World) -> Iterator[Callable[[int, str], RestServer]]:
    """REST that finds the token for so many looks; after them the tokens are others."""
    servers: list[RestServer] = []

    def started(looks: int, after: str) -> RestServer:
        before, later, number = Tokens.parsed(f"ann {ANN} read:*", "a"), Tokens.parsed(after, "b"), itertools.count()
        app = Guarded(create_app(world.reader, lambda: STATE), lambda: before if next(number) < looks else later)
        servers.append(serve(app, port=0))
        return servers[-1]

    yield started
    for each in servers:
        each.stop()


@pytest.mark.parametrize(
    ("after", "error"),
    [
        (OTHER, "token_unknown"),
        (f"ann {ANN} read:* 2020-01-31", "token_expired"),
        (f"ann {ANN} read:scores", "out_of_scope"),
    ],
)
def test_the_last_line_of_a_scan_says_that_the_token_ended(
    valid_for: Callable[[int, str], RestServer], after: str, error: str
) -> None:
    answer = httpx2.get(f"{valid_for(3, after).url}/v1/stores/numbers/scan", headers=BEARER)
    *entries, last = map(json.loads, answer.text.splitlines())
    assert answer.status_code == 200 and 0 < len(entries) < ENTRIES
    assert last["error"] == error and last["message"] and last["what_to_do"]
    assert all("key" in entry for entry in entries)


def test_a_scan_whose_token_ends_at_its_last_line_has_no_end(valid_for: Callable[[int, str], RestServer]) -> None:
    url = f"{valid_for(3, OTHER).url}/v1/stores/numbers/scan?limit=3"
    lines = [json.loads(line) for line in httpx2.get(url, headers=BEARER).text.splitlines()]
    assert len(lines) == 4 and lines[-1]["error"] == "token_unknown"


def test_an_arrow_stream_is_cut_off_before_its_end(
    valid_for: Callable[[int, str], RestServer], caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{valid_for(3, OTHER).url}/v1/stores/numbers/arrow"
    with httpx2.stream("GET", url, headers=BEARER) as answer:
        assert answer.status_code == 200
        with pytest.raises(httpx2.RemoteProtocolError):
            answer.read()
    assert "Traceback" not in caplog.text


def test_an_answer_whose_token_stays_is_whole(valid_for: Callable[[int, str], RestServer]) -> None:
    url = valid_for(1_000_000, OTHER).url
    assert json.loads(httpx2.get(f"{url}/v1/stores/numbers/scan", headers=BEARER).text.splitlines()[-1])["end"] is True


def last_of(events: Iterator[Event]) -> list[Event]:
    return [event for event in events if event.data is not None]


@pytest.mark.parametrize("heartbeat", [0.2, 3600.0])
def test_a_watch_ends_when_its_token_is_taken_away(tmp_path: Path, heartbeat: float) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"ann {ANN} read:numbers\n")
    settings = RestSettings(port=0, tokens_file=str(file))
    with serving(tmp_path, APP, settings) as (driver, instance, service), httpx2.Client(timeout=20) as client:
        service.watches._heartbeat = heartbeat
        with client.stream("GET", f"{service.url}/v1/stores/numbers/watch", headers=BEARER) as answer:
            events = parsed(answer.iter_lines())
            assert next(events).id is not None
            instance.committed(driver.commit(NUMBERS, {(1,): 1}))
            assert next(event.data for event in events if event.data)["value"] == 1
            file.write_text(OTHER)
            time.sleep(1.2)  # it is looked at once per second
            instance.committed(driver.commit(NUMBERS, {(1,): 2}))
            ends = last_of(events)
    assert [(event.name, event.data["error"]) for event in ends] == [("end", "token_unknown")]


def test_a_watch_ends_when_its_token_expires(tmp_path: Path) -> None:
    with serving(tmp_path, APP, RestSettings(port=0, tokens=f"ann {ANN} read:* 2100-01-01")) as (_, _, service):
        measured = service._server._app
        assert isinstance(measured, MeasuredApp)
        guard = measured._app
        assert isinstance(guard, Guarded)
        service.watches._heartbeat = 0.05
        with httpx2.stream("GET", f"{service.url}/v1/stores/numbers/watch", headers=BEARER, timeout=20) as answer:
            events = parsed(answer.iter_lines())
            assert next(events).id is not None
            guard._clock = ManualClock(Millis(5_000_000_000_000))
            ends = last_of(events)
    assert [(event.name, event.data["error"]) for event in ends] == [("end", "token_expired")]
