"""Performs the effects of flows with blocking calls. Any number of threads may use it."""

import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from functools import cached_property
from typing import Any

import httpx2

from holdfast.client.bounded import ending, transport_of
from holdfast.client.effects import (
    Effect,
    Emit,
    Flow,
    Listen,
    Lost,
    Once,
    Outcome,
    Pause,
    Race,
    Raced,
    Receive,
    Reply,
    Send,
    T,
    counted_first,
)
from holdfast.client.errors import ClientClosed
from holdfast.client.http import LIMITS, headers_of, lost, request_of
from holdfast.client.turns import Turns, longest_wait
from holdfast.clock import SYSTEM_CLOCK, Clock

_RACERS = 64
"""Threads for hedged reads: two per read under way. Reads beyond them are not hedged: requests that wait for a thread
would make answers later, and second ones would add load when there is most of it."""


class _Opened:
    """The answer that a flow has open, if any."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._address = ""
        self._chunks: Iterator[bytes] = iter(())

    def hold(self, address: str, response: httpx2.Response, stack: ExitStack) -> None:
        self._address, self._chunks, self._stack = address, response.iter_bytes(), stack

    def receive(self) -> bytes | Lost:
        try:
            return next(self._chunks, b"")
        except httpx2.RequestError as error:
            return lost(self._address, error)

    def close(self) -> None:
        self._stack.close()
        self._stack = ExitStack()


class Blocking:
    """Performs effects; keeps its connections until it is closed."""

    def __init__(self, token: str | None, tls: ssl.SSLContext | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._http = httpx2.Client(
            verify=True if tls is None else tls,
            headers=headers_of(token),
            limits=LIMITS,
            transport=transport_of(tls, clock),
        )
        self._clock = clock
        self._free = threading.Semaphore(_RACERS)
        self._turns = Turns[Future[bool]](Future)
        self._lock = threading.Lock()
        self._once: Future[Any] | None = None

    def close(self) -> None:
        self._http.close()
        if "_racers" in self.__dict__:
            self._racers.shutdown(wait=False, cancel_futures=True)

    def run(self, flow: Flow[T]) -> T:
        """The result of a flow that emits nothing."""
        with closing(_Opened()) as opened:
            try:
                effect = next(flow)
                while True:
                    effect = flow.send(self._perform(effect, opened))
            except StopIteration as done:
                result: T = done.value
                return result

    def iterate(self, flow: Flow[None]) -> Iterator[Any]:
        """The items that a flow emits."""
        with closing(flow), closing(_Opened()) as opened:
            outcome: Any = None
            while True:
                try:
                    effect = flow.send(outcome)
                except StopIteration:
                    return
                if isinstance(effect, Emit):
                    yield effect.item
                    outcome = None
                else:
                    outcome = self._perform(effect, opened)

    def _perform(self, effect: Effect, opened: _Opened) -> Any:
        if self._http.is_closed:
            raise ClientClosed()
        match effect:
            case Send():
                return self._send(effect)
            case Race():
                return self._race(effect)
            case Listen():
                opened.close()
                return self._listen(effect, opened)
            case Receive():
                return opened.receive()
            case Pause():
                self._clock.sleep(effect.seconds)
            case Once():
                return self._shared(effect)
        return None

    def _shared(self, once: Once) -> Any:
        with self._lock:
            shared, mine = self._once, self._once is None
            if shared is None:
                shared = self._once = Future()
        if mine:
            try:
                shared.set_result(self.run(once.flow))
            except Exception as error:  # noqa: BLE001  raised below, and to those who wait
                shared.set_exception(error)
            finally:
                self._once = None
                shared.cancel()  # if this thread is interrupted
        try:
            return shared.result(once.seconds)
        except (TimeoutError, CancelledError):
            return None

    def _send(self, send: Send) -> Outcome:
        coming = self._turns.take(send)
        turn = send if coming is None else self._turn(send, coming)
        if isinstance(turn, Lost):
            return turn
        try:
            outcome = self._sent(turn)
            if isinstance(outcome, Lost):
                self._turns.lost(send.address)
            return outcome
        finally:
            self._turns.end(send)

    def _turn(self, send: Send, coming: "Future[bool]") -> Send | Lost:
        start = self._clock.monotonic()
        try:
            wait([coming], longest_wait(send))
        except BaseException:  # this thread is interrupted
            if isinstance(self._turns.settled(send, coming, 0.0), Send):
                self._turns.end(send)
            raise
        return self._turns.settled(send, coming, self._clock.monotonic() - start)

    def _sent(self, send: Send) -> Outcome:
        end = self._clock.monotonic() + send.seconds
        parts = []
        try:
            with (
                ending(end),
                self._http.stream(**request_of(send)) as response,
            ):
                for part in response.iter_bytes():
                    parts.append(part)
                    if self._clock.monotonic() > end:  # what has arrived already is read without waiting
                        return Lost(send.address, "the answer took too long")
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            return lost(send.address, error)
        return Reply(send.address, response.status_code, response.headers, b"".join(parts))

    def _listen(self, listen: Listen, opened: _Opened) -> Outcome:
        try:
            # Once it is open, the answer goes on for as long as something arrives.
            with ending(self._clock.monotonic() + listen.seconds), ExitStack() as stack:
                response = stack.enter_context(self._http.stream(**request_of(listen)))
                body = b"" if response.status_code == 200 else response.read()
                if response.status_code == 200:
                    opened.hold(listen.address, response, stack.pop_all())
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            return lost(listen.address, error)
        return Reply(listen.address, response.status_code, response.headers, body)

    def _race(self, race: Race) -> Raced:
        first = self._started(race.first)
        if first is None:
            return (self._send(race.first),)
        done, _ = wait([first], race.after)
        if done and first.result().good:
            return (first.result(),)
        second = self._started(race.second)
        racing = [first] if second is None else [first, second]
        done, _ = wait(racing, return_when=FIRST_COMPLETED)
        if not any(each.result().good for each in done):
            done, _ = wait(racing)
        return counted_first([each.result() for each in racing if each in done])

    def _started(self, send: Send) -> "Future[Outcome] | None":
        """The outcome to come of a request that a thread sends at once; None if no thread is free."""
        if not self._free.acquire(blocking=False):
            return None
        sent = self._racers.submit(self._send, send)
        sent.add_done_callback(lambda _: self._free.release())
        return sent

    @cached_property
    def _racers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_RACERS, thread_name_prefix="holdfast-hedge")
