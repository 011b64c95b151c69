"""Races: hedged reads of the blocking shell use the threads that are free, and never wait for one."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from holdfast.client import blocking
from holdfast.client.awaited import Awaited
from holdfast.client.blocking import Blocking
from holdfast.client.effects import Lost, Outcome, Race, Reply, Request, Send
from tests.instance.processes import until

FIRST, SECOND = (Send(address, Request("/"), 30.0) for address in ("http://first", "http://second"))
RACE = Race(FIRST, SECOND, 0.01)


class Held(Blocking):
    """Answers once `release` is set; `sent` has the addresses that were asked."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.sent: list[str] = []
        self.release = threading.Event()

    def _send(self, send: Send) -> Outcome:
        self.sent.append(send.address)
        assert self.release.wait(60)
        return Reply(send.address, 200, {})


@pytest.fixture
def shell() -> Iterator[Held]:
    held = Held()
    yield held
    held.release.set()
    held.close()


def test_a_slow_read_is_sent_twice(shell: Held) -> None:
    with ThreadPoolExecutor(1) as readers:
        read = readers.submit(shell._race, RACE)
        until(lambda: shell.sent == ["http://first", "http://second"], "both are asked")
        shell.release.set()
        assert read.result(30)[0].good


@pytest.mark.parametrize("second", [200, 503, None])
def test_a_race_has_both_outcomes_if_both_are_there(second: int | None) -> None:
    def answer(send: Send) -> Outcome:
        if send is FIRST or second is None:
            return Lost(send.address, "ConnectError")
        return Reply(send.address, second, {})

    shell, awaited = Blocking(None, None), Awaited(None, None)
    shell._send = answer  # type: ignore[method-assign]

    async def awaited_answer(send: Send) -> Outcome:
        return answer(send)

    awaited._sent = awaited_answer  # type: ignore[method-assign]
    with closing(shell):
        raced = shell._race(RACE)
    assert raced == asyncio.run(awaited._race(RACE))
    assert [each.address for each in raced] == (
        ["http://second", "http://first"] if second == 200 else ["http://first", "http://second"]
    )


def test_more_reads_than_threads_are_sent_at_once_and_not_hedged(shell: Held) -> None:
    number = blocking._RACERS + 20
    with ThreadPoolExecutor(number) as readers:
        reads = [readers.submit(shell._race, RACE) for _ in range(number)]
        until(lambda: shell.sent.count("http://first") == number, "no read waits for a thread", 10)
        assert shell.sent.count("http://second") <= blocking._RACERS
        shell.release.set()
        assert all(read.result(30)[0].good for read in reads)
    assert shell._race(RACE)[0].good, "the threads are free again"
