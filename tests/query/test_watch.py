"""Watching over REST on real instances: reconnects, kills, slow clients, versions that are gone."""

import asyncio
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from holdfast.instance import instance as instance_module
from holdfast.instance.instance import Instance
from holdfast.log import names
from holdfast.log.appfile import AppSpec
from holdfast.log.objects import Storage
from holdfast.log.storage import open_storage
from holdfast.metrics import REGISTRY
from holdfast.query.service import RestService
from holdfast.query.watch import Watches
from holdfast.query.watch_places import event_ids
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.words import Version
from tests.instance.processes import Process, until
from tests.log.making import Watched, subtopologies_of
from tests.query.fake_tasks import APP, LEVELS, NUMBERS, SCORES
from tests.query.instances import Driver, Group, config, process, started
from tests.query.watched import Follower, first, parsed, watching

NUMBERS = msgspec.structs.replace(NUMBERS, engine="rocksdb")
GAME = AppSpec(
    id="game",
    partitions=3,
    stores=tuple(msgspec.structs.replace(spec, engine="rocksdb") for spec in (SCORES, LEVELS, NUMBERS)),
    subtopologies=APP.subtopologies,
)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with started(tmp_path, GAME) as group:
        yield group


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[Driver, Instance, RestService]]:
    """An instance without tasks: what it reads of the segments is for watchers."""
    driver = Driver(str(tmp_path / "log"), GAME, inline_limit=0)
    instance = Instance(config(tmp_path, "game-0", ()))
    instance.start()
    service = RestService(instance)
    service.start()
    yield driver, instance, service
    service.stop()
    instance.stop()


def watchers() -> float:
    """How many watch the store in this process, by its metrics."""
    return REGISTRY.get_sample_value("holdfast_watchers", {"store": "numbers"}) or 0.0


def commit(driver: Driver, instance: Instance, version_of: dict[int, Any]) -> Version:
    version = driver.commit(NUMBERS, {(n,): value for n, value in version_of.items()})
    instance.committed(version)
    return version


def test_every_instance_sends_the_changes_of_all_tasks_as_they_are_committed(group: Group) -> None:
    with ExitStack() as stack:
        for rest in group.rests:
            rest.watches._heartbeat = 3600.0  # a version wakes watchers, and nothing else does
        streams = [stack.enter_context(watching(rest.url, "numbers")) for rest in group.rests]
        ids = [next(stream).id for stream in streams]
        assert ids == [f"{group.driver.log.id[:8]}-0"] * 2  # a reconnect before the first change begins here too
        for version in (1, 2):
            group.driver.commit(NUMBERS, {(n,): version for n in range(9)})
            group.settle()
            events = [first(stream, 9) for stream in streams]
            assert events[0] == events[1]
            assert {(event.data["key"], event.data["value"]) for event in events[0]} == {(n, version) for n in range(9)}
            assert {event.data["version"] for event in events[0]} == {version}


def test_a_key_and_a_prefix(group: Group) -> None:
    group.driver.commit(SCORES, {(name,): (1, 1.0, None, None, 1) for name in ("ann", "anna", "bob")})
    group.driver.commit(SCORES, {("ann",): None})
    group.settle()
    url = group.rests[0].url
    with watching(url, "scores", key="ann", from_version="1") as stream:
        put, delete = first(stream, 2)
        assert put.data["value"] == {"points": 1, "best": 1.0, "money": None, "day": None}
        assert (delete.data["deleted"], delete.data["version"]) == (True, 2)
    with watching(url, "scores", prefix="an", from_version="1") as stream:
        assert sorted(event.data["key"] for event in first(stream, 3)) == ["ann", "ann", "anna"]


def test_a_read_and_a_watch_from_the_next_version_miss_nothing(group: Group) -> None:
    group.driver.commit(NUMBERS, {(7,): 1})
    group.settle()
    found = group.get("/v1/stores/numbers/keys/7").json()
    group.driver.commit(NUMBERS, {(7,): 2})
    group.settle()
    with watching(group.rests[1].url, "numbers", key="7", from_version=str(found["version"] + 1)) as stream:
        assert [event.data["value"] for event in first(stream, 1)] == [2]


def expected_of(driver: Driver, versions: list[dict[int, Any]]) -> list[tuple[int, int, Any]]:
    """The changes in the order of the log: by version, by partition, by key."""
    found = []
    for version, changed in enumerate(versions, start=1):
        place = {n: (partition_of(NUMBERS.key, (n,), GAME.partitions), encode_key(NUMBERS.key, (n,))) for n in changed}
        found += [(version, n, changed[n]) for n in sorted(changed, key=lambda n: place[n])]
    return found


def received(follower: Follower) -> list[tuple[int, int, Any]]:
    return [(data["version"], data["key"], data.get("value")) for data in follower.seen]


def test_kills_failovers_restarts_and_a_new_driver_keep_the_sequence(tmp_path: Path) -> None:
    driver, chance = Driver(str(tmp_path / "log"), GAME, inline_limit=0), random.Random(5)
    versions: list[dict[int, Any]] = []
    running: dict[str, tuple[Process, str]] = {}
    with ExitStack() as stack:

        def start(name: str) -> None:
            each = stack.enter_context(process(config(tmp_path, name, GAME.tasks())))
            running[name] = each, each.addresses()["rest"]

        def grow() -> None:
            chosen = chance.sample(range(60), 20)
            versions.append({n: None if chance.random() < 0.2 else chance.randrange(1000) for n in chosen})
            driver.commit(NUMBERS, {(n,): value for n, value in versions[-1].items()})

        for name in ("game-0", "game-1"):
            start(name)
        urls = lambda: [url for _, url in list(running.values())]  # noqa: E731
        with Follower(urls, "numbers") as all_, Follower(urls, "numbers", {"key": "7"}) as one:
            for round_ in range(4):
                for _ in range(4):
                    grow()
                seen = len(expected_of(driver, versions[:-3]))
                until(lambda: len(all_.seen) >= seen, "some of it was received")  # noqa: B023
                victim, _ = running[name := f"game-{round_ % 2}"]
                grow()
                victim.kill() if round_ % 3 else victim.terminate()
                if round_ == 2:
                    driver = Driver(str(tmp_path / "log"), GAME, inline_limit=0)
                start(name)
            expected = expected_of(driver, versions)
            until(lambda: len(all_.seen) >= len(expected), "all of it was received")
            of_one = [change for change in expected if change[1] == 7]
            until(lambda: len(one.seen) >= len(of_one), "all of the key was received")
        assert received(all_) == expected
        assert received(one) == of_one
        assert all_.connections > 2


class Counting(Watched):
    """Counts the objects that are read, without those that aren't there."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._read: list[str] = []

    def get(self, name: str) -> bytes:
        found = super().get(name)
        self._read.append(name)
        return found

    def get_range(self, name: str, start: int, length: int) -> bytes:
        found = super().get_range(name, start, length)
        self._read.append(name)
        return found

    def reads(self, folder: str, after: int = 0) -> dict[str, int]:
        """How often each object under a folder was read that is of a later version than this."""
        found = [name for name in self._read if name.startswith(folder) and (names.version_of(name) or 0) > after]
        return {name: found.count(name) for name in found}


def knows(instance: Instance, version: Version) -> bool:
    return instance.source.newest_known >= version


def test_a_thousand_watchers_cost_one_read_of_each_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(str(tmp_path / "log"), GAME, inline_limit=0)
    driver.commit(NUMBERS, {(n,): 0 for n in range(6)})
    storage = Counting(open_storage(str(tmp_path / "log")))
    monkeypatch.setattr(instance_module, "open_storage", lambda *_, **__: storage)
    # It hosts no task, and hears of versions from its driver alone: all that it reads of them is for watchers.
    instance = Instance(msgspec.structs.replace(config(tmp_path, "game-0", ()), poll_seconds=3600.0))
    instance.start()
    service = RestService(instance)
    service.start()
    number_of_watchers, versions, before = 1000, 5, watchers()

    async def watch(number: int, begun: asyncio.Semaphore, starting: asyncio.Semaphore) -> list[Any]:
        """Half of them from version 1 on, half from the next; a third each of the store, a prefix and a key."""
        url = httpx2.URL(service.url)
        await starting.acquire()  # until its answer has begun, a watch counts as a request of this address
        reader, writer = await asyncio.open_connection(url.host, url.port)
        wanted = ("", "&prefix=3", "&key=3")[number % 3]
        begin = 1 if number % 2 else 2
        writer.write(
            f"GET /v1/stores/numbers/watch?from_version={begin}{wanted} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        has_begun, text, due = False, "", (versions + 2 - begin) * (1 if wanted else 6)
        while text.count("data:") < due:
            text += (await reader.read(65536)).decode()
            assert text.startswith("HTTP/1.1 200 "), text
            if "retry:" in text and not has_begun:
                has_begun = True
                begun.release()
                starting.release()
        writer.close()
        lines = [line for line in text.splitlines() if line.startswith(("id:", "data:")) or not line]
        return [event.data for event in parsed(lines) if event.data is not None]

    async def run() -> list[list[Any]]:
        begun, starting = asyncio.Semaphore(0), asyncio.Semaphore(32)
        tasks = [asyncio.ensure_future(watch(n, begun, starting)) for n in range(number_of_watchers)]
        for _ in tasks:
            await begun.acquire()
        for version in range(2, versions + 2):
            await asyncio.to_thread(commit, driver, instance, dict.fromkeys(range(6), version))
            # An instance that learns of the version after the next one looks whether the log was set back: a read more.
            await asyncio.to_thread(until, partial(knows, instance, Version(version)), "the version is known")
        assert service.watches.kept_bytes > 0
        return await asyncio.gather(*tasks)

    try:
        found = asyncio.run(run())
        assert len(found) == number_of_watchers
        for number, events in enumerate(found):
            keys = range(6) if number % 3 == 0 else (3,)
            first_one = 1 if number % 2 else 2
            got = {(event["version"], event["key"]) for event in events}
            assert got == {(version, key) for version in range(first_one, versions + 2) for key in keys}
        segments = storage.reads(names.SEGMENTS)
        assert len(segments) > versions and set(segments.values()) == {1}
        assert [*storage.reads(names.COMMITS, after=1).values()] == [1] * versions
        until(lambda: watchers() == before, "all have left")
        assert service.watches.kept_bytes == 0, "nobody watches, and nothing is kept"
        instance.committed(driver.commit(NUMBERS, {(1,): 1}))
        until(lambda: instance.source.newest_known == driver.version, "one more version")
        assert storage.reads(names.SEGMENTS) == segments, "nobody watches, and nothing is read"
    finally:
        service.stop()
        instance.stop()


def test_a_slow_watcher_is_cut_off_and_goes_on(gateway: tuple[Driver, Instance, RestService]) -> None:
    driver, instance, service = gateway
    service.watches._kept_bytes = 1 << 20
    url = httpx2.URL(service.url)
    slow = socket.create_connection((url.host, url.port or 80))
    slow.sendall(b"GET /v1/stores/numbers/watch HTTP/1.0\r\nHost: localhost\r\n\r\n")
    received_first = slow.recv(4096)
    with Follower(lambda: [service.url], "numbers") as fast:
        for sent in range(1, 61):
            commit(driver, instance, dict.fromkeys(range(4), "x" * 50_000))
            until(lambda: len(fast.seen) == 4 * sent, "the others go on")  # noqa: B023
        with slow, slow.makefile("rb") as rest:
            *_, body = (received_first + rest.read()).decode().partition("\r\n\r\n")
        *events, end = [event for event in parsed(body.splitlines()) if event.data is not None]
        assert (end.name, end.data["error"]) == ("end", "slow_watcher")
        assert 0 < len(events) < len(fast.seen)
        with watching(service.url, "numbers", events[-1].id) as stream:
            events += first(stream, len(fast.seen) - len(events))
        assert [event.data for event in events] == fast.seen
        assert (fast.connections, fast.ends) == (1, [])


def delete_versions(driver: Driver, through: int) -> None:
    """What cleaning does: commits first, then segments."""
    storage = driver.log.storage
    storage.delete([names.commit(Version(version)) for version in range(1, through + 1)])
    storage.delete([name for name in storage.list(names.SEGMENTS) if (names.version_of(name) or 0) <= through])


def test_heartbeats_carry_a_watcher_of_a_quiet_key_past_versions_that_are_cleaned(tmp_path: Path) -> None:
    driver = Driver(str(tmp_path / "log"), GAME, inline_limit=0)
    commit_all = [driver.commit(NUMBERS, {(n,): n}) for n in range(40)]
    instance = Instance(config(tmp_path, "game-0", ()))
    instance.start()
    service = RestService(instance)
    service.start()
    service.watches._heartbeat = 0.05
    try:
        with watching(service.url, "numbers", key="1000", from_version="1") as stream:
            begun = next(stream).id
            newest = driver.log.newest()
            assert newest is not None and newest.version == commit_all[-1]
            last = event_ids(driver.log.id, *newest.point)
            beats = next(event for event in stream if event.id == last)
            assert (beats.data, beats.comment) == (None, "heartbeat")
        delete_versions(driver, 38)
        service.stop()
        instance.stop()
        instance = Instance(config(tmp_path, "game-1", ()))
        instance.start()
        service = RestService(instance)
        service.start()
        path = f"{service.url}/v1/stores/numbers/watch"
        gone = httpx2.get(path, headers={"Last-Event-ID": begun or ""})
        assert (gone.status_code, gone.json()["error"], gone.json()["oldest"]) == (410, "version_gone", 39)
        assert httpx2.get(path, params={"from_version": "38"}).status_code == 410
        with watching(service.url, "numbers", last, key="1000") as stream:
            instance.committed(driver.commit(NUMBERS, {(1000,): 1}))
            assert [event.data["value"] for event in first(stream, 1)] == [1]
        with watching(service.url, "numbers", from_version=str(gone.json()["oldest"])) as stream:
            assert [event.data["value"] for event in first(stream, 2)] == [38, 39]
    finally:
        service.stop()
        instance.stop()


def test_segments_that_are_cleaned_while_a_watcher_catches_up_end_it(
    gateway: tuple[Driver, Instance, RestService],
) -> None:
    driver, instance, service = gateway
    for n in range(4):
        commit(driver, instance, {n: n})
    until(lambda: instance.source.newest_known == 4, "four versions")
    storage = driver.log.storage
    storage.delete([name for name in storage.list(names.SEGMENTS) if names.version_of(name) == 2])
    with watching(service.url, "numbers", from_version="1") as stream:
        change, end = first(stream, 2)
        assert (change.data["version"], end.name) == (1, "end")
        assert (end.data["error"], end.data["oldest"]) == ("version_gone", 3)


def test_changes_of_a_store_that_is_not_durable_are_gone_before_their_commits(tmp_path: Path) -> None:
    fleeting = msgspec.structs.replace(NUMBERS, durable=False)
    app = AppSpec(id="game", partitions=1, stores=(fleeting,), subtopologies=subtopologies_of({"numbers": 0}))
    driver = Driver(str(tmp_path / "log"), app, inline_limit=0)
    for n in range(3):
        driver.commit(fleeting, {(n,): n})
    storage = driver.log.storage
    storage.delete([name for name in storage.list(names.VOLATILE) if (names.version_of(name) or 0) <= 2])
    instance = Instance(config(tmp_path, "game-0", ()))
    instance.start()
    service = RestService(instance)
    service.start()
    try:
        gone = httpx2.get(f"{service.url}/v1/stores/numbers/watch?from_version=1")
        assert (gone.status_code, gone.json()["oldest"]) == (410, 3)
        with watching(service.url, "numbers", from_version="3") as stream:
            assert [event.data["value"] for event in first(stream, 1)] == [2]
    finally:
        service.stop()
        instance.stop()


def test_an_instance_that_stops_tells_its_watchers(gateway: tuple[Driver, Instance, RestService]) -> None:
    driver, instance, service = gateway
    commit(driver, instance, {1: 1})
    with watching(service.url, "numbers", from_version="1") as stream:
        first(stream, 1)
        service.stop()
        [end] = first(stream, 1)
        assert (end.name, end.data["error"]) == ("end", "stopping")
        assert list(stream) == []


def test_an_instance_stops_although_a_watcher_reads_nothing(gateway: tuple[Driver, Instance, RestService]) -> None:
    driver, instance, service = gateway
    commit(driver, instance, dict.fromkeys(range(250), "x" * 100_000))  # more than sockets hold
    until(lambda: instance.source.newest_known == 1, "the version")
    url, before = httpx2.URL(service.url), watchers()
    with socket.create_connection((url.host, url.port or 80)) as blocked:
        blocked.sendall(b"GET /v1/stores/numbers/watch?from_version=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        blocked.recv(1)
        service.stop()  # returns, although the server can't get rid of what the client doesn't take
        until(lambda: watchers() == before, "the watch has ended")
    until(lambda: not service._server.running, "the server has ended")


def test_what_cannot_be_watched_is_refused(group: Group) -> None:
    group.driver.commit(NUMBERS, {(1,): 1})
    group.settle()
    url = group.rests[0].url

    def refusal(store: str, last: str = "", **params: str) -> tuple[int, str]:
        answer = httpx2.get(f"{url}/v1/stores/{store}/watch", params=params, headers={"Last-Event-ID": last})
        assert answer.json()["what_to_do"]
        return answer.status_code, answer.json()["error"]

    assert refusal("nothing") == (404, "unknown_store")
    assert refusal("numbers", key="seven") == (400, "bad_key")
    assert refusal("numbers", prefix="seven") == (400, "bad_key")
    assert refusal("numbers", key="1", prefix="1") == (400, "bad_parameter")
    assert refusal("numbers", since="1") == (400, "bad_parameter")
    for text in ("-1", "1.5", "", "9" * 19):
        assert refusal("numbers", from_version=text) == (400, "bad_parameter")
    for text in ("7", "zzzzzzzz-1", f"{group.driver.log.id[:8]}-1.2", "1;2"):
        assert refusal("numbers", text) == (400, "bad_event_id")
    assert refusal("numbers", "00000000-1.0.0") == (410, "version_gone")
    head = httpx2.head(f"{url}/v1/stores/numbers/watch")
    assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert isinstance(group.rests[0].watches, Watches)


def test_a_place_far_beyond_the_newest_version_is_refused_after_a_wait(
    gateway: tuple[Driver, Instance, RestService],
) -> None:
    driver, instance, service = gateway
    commit(driver, instance, {1: 1})
    path, log = f"{service.url}/v1/stores/numbers/watch", driver.log.id[:8]
    for first_version, given in (
        (999_999_999_999, {"params": {"from_version": "999999999999", "wait": "1ms"}}),
        (12, {"params": {"wait": "1ms"}, "headers": {"Last-Event-ID": f"{log}-11"}}),
    ):
        refused = httpx2.get(path, **given)  # type: ignore[arg-type]
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert {name: refused.json()[name] for name in ("error", "version", "wanted")} == {
            "error": "not_fresh_enough",
            "version": 1,
            "wanted": first_version,
        }


def test_a_client_that_has_seen_newer_versions_elsewhere_goes_on(gateway: tuple[Driver, Instance, RestService]) -> None:
    driver, instance, service = gateway
    commit(driver, instance, {1: 1})
    with watching(service.url, "numbers", f"{driver.log.id[:8]}-10", wait="1ms") as stream:
        for version in range(2, 12):
            commit(driver, instance, {1: version})
        assert [event.data["version"] for event in first(stream, 1)] == [11]


def test_a_place_far_beyond_is_waited_for(gateway: tuple[Driver, Instance, RestService]) -> None:
    driver, instance, service = gateway
    commit(driver, instance, {1: 1})

    def first_version() -> int:
        with watching(service.url, "numbers", from_version="40", wait="30s") as stream:
            return int(first(stream, 1)[0].data["version"])

    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(first_version)
        until(lambda: service.watches._newest._waiting, "it waits")
        assert not watchers()
        for version in range(2, 41):
            commit(driver, instance, {1: version})
        assert found.result(30) == 40
