"""Lookups of a client while instances are killed or hang: none fails."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import holdfast as hf
from tests.client.conftest import KEYS, RunningGroup
from tests.freezing import frozen
from tests.instance.processes import until


class Lookups:
    """Threads that look keys up, one after the other, and compare the values."""

    def __init__(self, client: hf.Client, threads: int) -> None:
        self._store = client.store("numbers", int)
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]
        self.done = 0
        self.failed: list[BaseException] = []

    def _run(self, first: int) -> None:
        key = first
        while not self._ended.is_set():
            try:
                assert self._store.get(key) == key
            except BaseException as error:  # noqa: BLE001  reported by the test
                self.failed.append(error)
            self.done += 1
            key = (key + 1) % len(KEYS)

    @contextmanager
    def running(self) -> Iterator["Lookups"]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()

    def more(self, number: int) -> None:
        """Waits until this many more lookups are done."""
        goal = self.done + number
        until(lambda: self.done >= goal, f"{number} more lookups")


def test_no_lookup_fails_when_an_instance_is_killed(group: RunningGroup) -> None:
    with hf.Client(group.addresses[:1], timeout="30s") as client:
        with Lookups(client, 4).running() as lookups:
            for round_ in range(3):
                lookups.more(300)
                killed = group.kill(round_ % 2)
                lookups.more(300)
                until(lambda killed=killed: group.started_again(killed), "the instance is back")  # type: ignore[misc]
            lookups.more(300)
    assert lookups.failed == []


def test_no_lookup_fails_while_an_instance_hangs(group: RunningGroup) -> None:
    pid = group.pid(group.instances.replicas()["0_0"][0])
    with hf.Client(group.addresses, timeout="20s", hedge="100ms") as client:
        store = client.store("numbers", int)
        assert [store.get(n) for n in KEYS[:20]] == [*KEYS[:20]]
        with frozen(pid):
            assert [store.get(n) for n in KEYS[:20]] == [*KEYS[:20]]


def test_no_lookup_of_many_at_once_fails_while_an_instance_hangs(group: RunningGroup) -> None:
    """Most of them wait for their turn at the instance, and ask the standby as soon as it has not answered others."""
    pid = group.pid(group.instances.replicas()["0_0"][0])

    async def look_up() -> list[int | None]:
        async with hf.AsyncClient(group.addresses, timeout="10s") as client:
            store = client.store("numbers", int)
            await asyncio.gather(*(store.get(n) for n in KEYS))
            with frozen(pid):
                frozen_now.set()
                found = await asyncio.gather(*(store.get(n) for n in KEYS))
                assert await asyncio.to_thread(ended.wait, 60)
                return list(found)

    frozen_now, ended = threading.Event(), threading.Event()
    with hf.Client(group.addresses, timeout="10s") as client, ThreadPoolExecutor(101) as threads:
        store = client.store("numbers", int)
        assert list(threads.map(store.get, KEYS)) == [*KEYS]
        tasks = threads.submit(asyncio.run, look_up())
        assert frozen_now.wait(60)
        try:
            assert list(threads.map(store.get, KEYS)) == [*KEYS]
        finally:
            ended.set()
        assert tasks.result(60) == [*KEYS]


def test_no_lookup_of_an_event_loop_fails_when_an_instance_is_killed(group: RunningGroup) -> None:
    killed: list[int] = []

    async def look_up() -> list[int | None]:
        async with hf.AsyncClient(group.addresses, timeout="30s") as client:
            store = client.store("numbers", int)
            before = [await store.get(n) for n in KEYS]
            killed.append(await asyncio.to_thread(group.kill, 0))
            after = await asyncio.gather(*(store.get(n) for n in KEYS))
            return [*before, *after]

    assert asyncio.run(look_up()) == [*KEYS, *KEYS]
    until(lambda: group.started_again(*killed), "the instance is back")
