"""Limits of REST: what is beyond them is refused at once, and everything else goes on."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast import metrics
from holdfast.log.appfile import AppSpec
from holdfast.query import outgoing
from holdfast.query.limits import Limited, begin_stream
from holdfast.query.measuring import LOOKUPS
from holdfast.query.problems import Problem, answer_problem
from holdfast.query.rest import create_app
from holdfast.query.server import RestServer, serve
from holdfast.query.task_reader import ANY_REPLICA, KeyRead, NotHere, ReadNeeds, TaskStore
from holdfast.settings.rest import RestSettings
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.kinds.scores import ScoreStore
from holdfast.words import TaskId, Version
from tests.instance.processes import until
from tests.log.making import app_spec, subtopologies_of
from tests.query.fake_tasks import NUMBERS, STATE, FakeTask, World
from tests.query.instances import Driver, config, process, serving

TOKENS = "ann ann-0123456789abcdef read:*,admin\nbob bob-0123456789abcdef read:*,admin"


def token(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}-0123456789abcdef"}


class Scan(DictBytes):
    """Bytes whose scan goes on until it is closed, one entry at a time."""

    def __init__(self, task: "EndlessTask") -> None:
        super().__init__()
        self._task = task

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        source = super().scan(start, stop, reverse=reverse)
        return self._task.slowly(next(source))


class EndlessTask(FakeTask):
    """A task whose ranges never end, while `held`."""

    def __init__(self, task: TaskId, fake: FakeTask) -> None:
        super().__init__(task)
        self.versions = fake.versions
        self.held = threading.Event()
        self.held.set()
        self.lock = threading.Lock()
        self.open, self.closed = 0, 0

    def slowly(self, row: tuple[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
        with self.lock:
            self.open += 1
        try:
            while self.held.is_set():
                threading.Event().wait(0.001)
                yield row
        finally:
            with self.lock:
                self.closed += 1

    @contextmanager
    def at(self, store: str, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA) -> Iterator[TaskStore]:
        at, stores = self._at(version, needs)
        bytes_ = Scan(self)
        bytes_.entries.update(stores.get(store, {}))
        yield TaskStore(at, self.now, bytes_, self.served, lambda terms: self._hold(at))


class Slow:
    """A world in which a range of the store "numbers" takes as long as a test wants."""

    def __init__(self) -> None:
        self.world = World()
        self.world.commit(1, NUMBERS, {(n,): n for n in range(20)})
        id = self.world.task_of(NUMBERS, (3,))
        self.task = EndlessTask(id, self.world.tasks[id])
        self.world.tasks[id] = self.task

    @contextmanager
    def served(self, **limits: object) -> Iterator[RestServer]:
        app = create_app(self.world.reader, lambda: STATE, settings=RestSettings(**limits))  # type: ignore[arg-type]
        with serve(app, port=0) as server:
            yield server


@pytest.fixture
def slow() -> Iterator[Slow]:
    found = Slow()
    yield found
    found.task.held.clear()


RANGE = "/v1/stores/numbers/range?limit=10000"


def problem(answer: httpx2.Response) -> tuple[int, str]:
    body = answer.json()
    assert body["message"] and body["what_to_do"]
    if answer.status_code in (429, 503):
        assert answer.headers["retry-after"] == "1"
    return answer.status_code, body["error"]


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def ask(server: RestServer, path: str) -> socket.socket:
    connection = socket.create_connection((server.host, server.port))
    connection.sendall(_get(path))
    return connection


@pytest.mark.parametrize("path", [RANGE, "/v1/stores/numbers/count"])
def test_a_client_that_leaves_closes_its_scan(slow: Slow, path: str) -> None:
    with slow.served() as server:
        with ask(server, path):
            until(lambda: slow.task.open == 1, "the scan has begun")
            assert slow.task.closed == 0
        until(lambda: slow.task.closed == 1, "the scan is closed")
        until(lambda: metrics.value("holdfast_rest_requests_under_way") == 0, "the request has ended")
        assert slow.task.held.is_set()
        assert httpx2.get(f"{server.url}/v1/stores/numbers/keys/3").status_code == 200


def test_a_client_that_leaves_closes_what_a_query_reads_for_one_item() -> None:
    """A rank is one item, and reads the scores of a whole group."""
    scores: ScoreStore[tuple[str, str], int] = ScoreStore("best-scores", key=(str, str), value=int, group=1)
    world = World(app_spec(scores.spec()))
    [(id, fake)] = world.tasks.items()
    written = DictBytes()
    scores.bind(written, Now(wall=0)).update({("chess", "ann"): 7})
    fake.write(1, "best-scores", written.entries)
    task = world.tasks[id] = EndlessTask(id, fake)
    try:
        with serve(create_app(world.reader, lambda: STATE), port=0) as server:
            with ask(server, "/v1/stores/best-scores/rank/%5B%22chess%22,%22ann%22%5D"):
                until(lambda: task.open == 1, "the scan has begun")
            until(lambda: task.closed == 1, "the scan is closed")
            assert task.held.is_set()
    finally:
        task.held.clear()


def test_a_head_of_a_scan_does_not_read_all_of_it(slow: Slow) -> None:
    with slow.served() as server:
        head = httpx2.head(f"{server.url}/v1/stores/numbers/scan", timeout=20)
        assert (head.status_code, head.headers["content-type"]) == (200, "application/x-ndjson")
        until(lambda: slow.task.closed == 1, "the scan is closed")


def test_a_scan_of_another_instance_is_closed_too(slow: Slow) -> None:
    slow.task.local = False
    with slow.served() as server:
        with ask(server, RANGE):
            until(lambda: slow.task.open == 1, "the scan has begun")
        until(lambda: slow.task.closed == 1, "the scan is closed")


def test_a_request_beyond_its_time_ends_and_its_scan_with_it(slow: Slow) -> None:
    with slow.served(timeout="200ms") as server:
        before = _counted("/v1/stores/{store}/range", 503)
        assert problem(httpx2.get(server.url + RANGE)) == (503, "timed_out")
        assert _counted("/v1/stores/{store}/range", 503) == before + 1
        until(lambda: slow.task.closed == 1, "the scan is closed")
        assert httpx2.get(f"{server.url}/v1/stores/numbers/keys/3").status_code == 200


def test_one_caller_is_refused_before_the_others_are(slow: Slow) -> None:
    limits = {"max_requests": 3, "max_requests_per_caller": 2, "tokens": TOKENS}
    with slow.served(**limits) as server, ThreadPoolExecutor(4) as threads:

        def get(name: str, path: str = RANGE) -> httpx2.Response:
            return httpx2.get(server.url + path, headers=token(name), timeout=30)

        waiting = [threads.submit(get, "ann") for _ in range(2)]
        until(lambda: slow.task.open == 2, "two of ann's are under way")
        assert problem(get("ann")) == (429, "too_many_requests")
        waiting.append(threads.submit(get, "bob"))
        until(lambda: slow.task.open == 3, "and one of bob's")
        assert problem(get("bob")) == (503, "overloaded")
        for path in ("/health/live", "/health/ready", "/v1/state", "/v1/stores", "/metrics"):
            assert get("ann", path).status_code == 200, path
        assert get("ann", "/v1/stores/numbers/keys/3").status_code == 200, "a key that is here is always answered"
        slow.task.held.clear()
        assert {each.result(30).status_code for each in waiting} == {200}
        assert get("bob").status_code == 200


def test_200_connections_are_shed_and_it_recovers(slow: Slow) -> None:
    with slow.served(max_requests=16, max_requests_per_caller=16) as server:
        connections = [ask(server, RANGE) for _ in range(200)]
        try:
            until(lambda: slow.task.open > 0, "scans have begun")
            health = [httpx2.get(f"{server.url}/health/ready").status_code for _ in range(20)]
            lookups = [httpx2.get(f"{server.url}/v1/stores/numbers/keys/3").status_code for _ in range(20)]
            assert {*health, *lookups} == {200}
            until(lambda: metrics.value("holdfast_rest_requests_under_way") == 16, "as many as allowed")
            slow.task.held.clear()
            answers = Counter(_status(connection) for connection in connections)
        finally:
            for connection in connections:
                connection.close()
        assert answers == {200: 16, 429: 184}
        until(lambda: metrics.value("holdfast_rest_requests_under_way") == 0, "all are answered")
        with httpx2.Client(base_url=server.url) as client:
            assert {client.get(RANGE).status_code for _ in range(20)} == {200}


def _status(connection: socket.socket) -> int:
    connection.settimeout(30)
    with connection.makefile("rb") as answers:
        return _next_status(answers)


def _next_status(answers: BinaryIO) -> int:
    line, *headers = iter(lambda: answers.readline().strip().lower(), b"")
    answers.read(next(int(each.split()[1]) for each in headers if each.startswith(b"content-length")))
    status = int(line.split()[1])
    assert (b"retry-after: 1" in headers) == (status != 200)
    return status


class HeldTask(FakeTask):
    """A task whose lookups hold the event loop, while `held`."""

    def __init__(self, task: TaskId, fake: FakeTask) -> None:
        super().__init__(task)
        self.versions = fake.versions
        self.reached, self.may_answer = threading.Event(), threading.Event()

    def get(self, store: str, key: bytes, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA) -> KeyRead:
        self.reached.set()
        self.may_answer.wait(30)
        return super().get(store, key, version, needs)


def test_lookups_beyond_those_of_a_turn_are_refused() -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(20)})
    id = world.task_of(NUMBERS, (3,))
    world.tasks[id] = task = HeldTask(id, world.tasks[id])
    app, settings = create_app(world.reader, lambda: STATE), RestSettings(max_lookups=20)
    with serve(app, settings, port=0) as server, ExitStack() as stack:
        path, before = "/v1/stores/numbers/keys/3", _shed()
        first, *others = [stack.enter_context(ask(server, "/health/live")) for _ in range(53)]
        assert {_status(each) for each in (first, *others)} == {200}
        first.sendall(_get(path))
        assert task.reached.wait(30)
        for connection, each in zip(others, [*[path] * 50, "/health/live", path + "?at=latest"], strict=True):
            connection.sendall(_get(each))
        task.may_answer.set()  # now they all wait
        assert _status(first) == 200
        *lookups, health, usual = map(_status, others)
        assert (Counter(lookups), health, usual) == ({200: 20, 503: 30}, 200, 200)
        assert _shed() == before + 30
        refused = others[lookups.index(503)]
        refused.sendall(_get(path))
        assert _status(refused) == 200, "the connection stays, and the next turn has room"


def test_a_client_that_pipelines_too_many_lookups_gets_one_refusal_and_its_connection_ends() -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(20)})
    app, settings = create_app(world.reader, lambda: STATE), RestSettings(max_lookups=20)
    with serve(app, settings, port=0) as server, socket.create_connection((server.host, server.port)) as client:
        client.settimeout(30)
        before, counted = _shed(), (_counted(LOOKUPS, 200), _counted(LOOKUPS, 503))
        client.sendall(_get("/v1/stores/numbers/keys/3") * 1_000)
        with client.makefile("rb") as answers:
            assert [_next_status(answers) for _ in range(21)] == [200] * 20 + [503]
            assert not answers.read(), "nothing more is answered, not even with a refusal"
        assert _shed() == before + 1
        assert (_counted(LOOKUPS, 200), _counted(LOOKUPS, 503)) == (counted[0] + 20, counted[1] + 1)


def _counted(path: str, status: int) -> float:
    return metrics.value("holdfast_rest_requests_total", path=path, status=str(status))


def _shed() -> float:
    return metrics.value("holdfast_rest_requests_shed_total", error="overloaded")


def test_200_connections_that_look_up_keys_are_shed_and_it_recovers(tmp_path: Path) -> None:
    """An instance of its own gets more lookups than it can answer, from as many connections."""
    numbers = AppSpec(id="game", partitions=1, stores=(NUMBERS,), subtopologies=subtopologies_of({"numbers": 0}))
    Driver(str(tmp_path / "log"), numbers).commit(NUMBERS, {(n,): n for n in range(20)})
    answers: Counter[int] = Counter()

    async def asking(host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        for n in range(20):
            writer.write(_get(f"/v1/stores/numbers/keys/{n}"))
            head = await reader.readuntil(b"\r\n\r\n")
            answers[status := int(head.split()[1])] += 1
            assert (b"retry-after: 1" in head) == (status == 503)
            await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
        writer.close()

    async def flood(url: httpx2.URL) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(200):
                group.create_task(asking(url.host, url.port or 0))

    with process(config(tmp_path, "game-0", numbers.tasks())) as instance:
        with httpx2.Client(base_url=instance.addresses()["rest"], timeout=30) as client:
            until(lambda: client.get("/health/ready").status_code == 200, "it is ready")
            flooding = threading.Thread(target=asyncio.run, args=(flood(client.base_url),))
            flooding.start()
            healthy = 0
            while flooding.is_alive():
                assert client.get("/health/live").status_code == 200
                healthy += 1
            flooding.join()
            assert {client.get(f"/v1/stores/numbers/keys/{n}").status_code for n in range(20)} == {200}
    assert answers[200] + answers[503] == 200 * 20 and min(answers[200], answers[503]) > 0, answers
    assert healthy > 3, "health is answered between the lookups, not after them"


async def _echo(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def _stream(request: Request) -> Response:
    begin_stream(request.scope, is_scan=True)
    return StreamingResponse(_Ticks.of(request))


async def _events(request: Request) -> Response:
    begin_stream(request.scope, is_scan=False)
    return StreamingResponse(_Ticks.of(request), media_type="text/event-stream")


class _Ticks:
    open = 0

    @classmethod
    async def of(cls, request: Request) -> AsyncIterator[str]:
        cls.open += 1
        try:
            while True:
                yield "tick\n"
                await asyncio.sleep(0.01)
        finally:
            cls.open -= 1


@contextmanager
def limited(**limits: object) -> Iterator[httpx2.Client]:
    app = Starlette(
        routes=[Route("/echo", _echo, methods=["POST"]), Route("/stream", _stream), Route("/events", _events)],
        exception_handlers={Problem: answer_problem},
    )
    with serve(Limited(app, RestSettings(**limits)), port=0) as server:  # type: ignore[arg-type]
        with httpx2.Client(base_url=server.url, timeout=30) as client:
            yield client


def test_a_body_has_a_limit_with_its_length_and_without() -> None:
    def pieces(size: int) -> Iterator[bytes]:
        yield b"a" * (size - 1)
        yield b"b"

    with limited(max_body="4KiB") as client:
        assert client.post("/echo", content=b"a" * 4096).text == "4096"
        assert client.post("/echo", content=pieces(4096)).text == "4096"
        assert problem(client.post("/echo", content=b"a" * 4097)) == (413, "too_large")
        assert problem(client.post("/echo", content=pieces(4097))) == (413, "too_large")
        assert client.post("/echo", content=b"").text == "0"


def test_a_body_that_does_not_arrive_ends_in_time() -> None:
    with limited(timeout="100ms") as client:
        with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as connection:
            connection.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
            connection.settimeout(30)
            assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_a_stream_outlives_the_time_of_a_request_and_has_a_limit_of_its_own() -> None:
    with limited(timeout="100ms", max_streams=2, max_requests=1) as client:
        with client.stream("GET", "/stream") as one, client.stream("GET", "/stream") as other:
            for lines in (both := [one.iter_lines(), other.iter_lines()]):
                assert [next(lines) for _ in range(30)] == ["tick"] * 30  # 300 ms
            assert metrics.value("holdfast_rest_streams") == 2
            assert problem(client.get("/stream")) == (503, "overloaded")
            assert client.post("/echo", content=b"a").text == "1", "streams don't count as requests"
            assert [next(lines) for lines in both] == ["tick", "tick"]
        until(lambda: _Ticks.open == 0, "those who have left get no more ticks")
        until(lambda: metrics.value("holdfast_rest_streams") == 0, "nor do they count")
        with client.stream("GET", "/stream") as again:
            assert again.status_code == 200
        until(lambda: _Ticks.open == 0, "it has left")


def test_one_caller_cannot_have_all_streams() -> None:
    with limited(max_streams=3, max_streams_per_caller=2) as client, ExitStack() as stack:
        other = httpx2.Client(base_url=client.base_url, transport=httpx2.HTTPTransport(local_address="127.0.0.2"))
        stack.enter_context(other)
        for each in (client, client, other):
            assert stack.enter_context(each.stream("GET", "/stream")).status_code == 200
        assert problem(client.get("/stream")) == (429, "too_many_requests")
        assert problem(other.get("/stream")) == (503, "overloaded")


def test_scans_have_a_limit_of_their_own_and_leave_room_for_watches() -> None:
    with limited(max_scans=1) as client, ExitStack() as stack:
        assert stack.enter_context(client.stream("GET", "/stream")).status_code == 200
        assert problem(client.get("/stream")) == (503, "overloaded")
        assert stack.enter_context(client.stream("GET", "/events")).status_code == 200


@pytest.mark.parametrize(
    ("path", "limits", "status", "error"),
    [
        ("watch", {"max_streams_per_caller": 1}, 429, "too_many_requests"),
        ("watch", {"max_streams": 1}, 503, "overloaded"),
        ("scan", {"max_scans": 0}, 503, "overloaded"),
        ("arrow", {"max_scans": 0}, 503, "overloaded"),
        ("arrow", {"max_streams_per_caller": 1}, 429, "too_many_requests"),
    ],
)
def test_one_stream_too_many_is_refused_like_any_request(
    path: str, limits: dict[str, int], status: int, error: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = AppSpec(id="game", partitions=1, stores=(NUMBERS,), subtopologies=subtopologies_of({"numbers": 0}))
    asked = {"path": f"/v1/stores/{{store}}/{path}", "status": str(status)}

    def counted() -> tuple[float, float]:
        shed = metrics.value("holdfast_rest_requests_shed_total", error=error)
        return shed, metrics.value("holdfast_rest_requests_total", **asked)

    with serving(tmp_path, numbers, RestSettings(port=0, **limits)) as (driver, instance, service):  # type: ignore[arg-type]
        driver.commit(NUMBERS, {(1,): 1})
        instance.committed(driver.version)
        with httpx2.Client(base_url=f"{service.url}/v1/stores/numbers", timeout=30) as client:
            with client.stream("GET", "/watch") as watch:
                assert watch.status_code == 200
                before = counted()
                assert problem(client.get(path)) == (status, error)
                assert counted() == (before[0] + 1, before[1] + 1)
                assert client.get("/range").status_code == 200
            until(lambda: metrics.value("holdfast_rest_streams") == 0, "the stream has ended")
            if "max_scans" not in limits:
                with client.stream("GET", path) as again:
                    assert again.status_code == 200
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


def test_a_stream_that_becomes_a_refusal_counts_no_more() -> None:
    world = World()
    world.commit(1, NUMBERS, {(1,): 1})
    task = world.tasks[world.task_of(NUMBERS, (1,))]
    app = create_app(world.reader, lambda: STATE, settings=RestSettings(max_scans=1))
    with serve(app, port=0) as server, httpx2.Client(base_url=server.url, timeout=30) as client:
        task.error = NotHere("it is elsewhere")
        for _ in range(3):
            assert problem(client.get("/v1/stores/numbers/scan")) == (503, "not_here")
        task.error = None
        assert client.get("/v1/stores/numbers/scan").status_code == 200
        until(lambda: metrics.value("holdfast_rest_streams") == 0, "no stream is left")
        assert metrics.value("holdfast_rest_requests_under_way") == 0


def test_a_stream_is_cut_off_when_the_server_stops(caplog: pytest.LogCaptureFixture) -> None:
    app = Starlette(routes=[Route("/stream", _stream)])
    with (
        serve(Limited(app, RestSettings()), port=0) as server,
        httpx2.Client(base_url=server.url, timeout=30) as client,
    ):
        with client.stream("GET", "/stream") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "tick"
            server.stop(0.1)
            assert not server.running
            with pytest.raises(httpx2.TransportError):
                list(lines)
    assert _Ticks.open == 0
    assert not caplog.records


def test_a_client_that_reads_nothing_gives_its_slots_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second request waits until the first answer is read, and would count for ever."""
    monkeypatch.setattr(outgoing, "UNREAD_SECONDS", 0.1)
    monkeypatch.setattr(outgoing, "LOOK_SECONDS", 0.05)

    async def large(request: Request) -> Response:
        return PlainTextResponse("x" * (64 << 20))

    app = Limited(Starlette(routes=[Route("/large", large)]), RestSettings(max_requests_per_caller=1))
    with serve(app, port=0) as rest, socket.create_connection((rest.host, rest.port), timeout=30) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        until(lambda: rest.connections, "it is connected")
        until(lambda: not rest.connections, "its connection is ended")
        assert httpx2.get(f"{rest.url}/none").status_code == 404, "it gave the slot back"
