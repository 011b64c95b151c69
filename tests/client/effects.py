"""Plays a flow of the client's core without I/O: a function gives the outcome of each effect."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

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
    counted_first,
)
from holdfast.clock import ManualClock
from holdfast.query.routes import Routing, StoreRoute
from holdfast.stores.formats.types import Schema

T = TypeVar("T")
A, B, C = "http://a:1", "http://b:1", "http://c:1"
ROUTING = Routing(
    app="game",
    version=3,
    generation=1,
    stores=(StoreRoute(store="numbers", kind="key-value", key=Schema.of(n="bigint"), subtopology=0, partitions=2),),
    instances={"a": A, "b": B, "c": C},
    tasks={"0_0": ("a", "b"), "0_1": ("b", "a")},
)
OK = 200


def reply(address: str, body: object, status: int = OK, **headers: str) -> Reply:
    return Reply(address, status, {name.replace("_", "-"): text for name, text in headers.items()}, encoded(body))


def encoded(body: object) -> bytes:
    return msgspec.json.encode(body)


class Played:
    """What a flow has done: its effects, its emitted items, and its result."""

    def __init__(self, clock: ManualClock, answer: Callable[[Send], Outcome]) -> None:
        self._clock = clock
        self._answer = answer
        self.effects: list[Effect] = []
        self.items: list[Any] = []
        self.arriving: list[bytes] = []
        """What an open answer has still to send."""

    @property
    def asked(self) -> list[str]:
        """The addresses that were asked something else than the routing."""
        sends = [effect for effect in self.effects if isinstance(effect, Send)]
        return [send.address for send in sends if send.request.path != "/v1/routing"]

    @property
    def refreshed(self) -> int:
        """How often the routing was asked for."""
        return len([each for each in self.effects if isinstance(each, Send)]) - len(self.asked)

    def run(self, flow: Flow[T]) -> T:
        outcome: Any = None
        while True:
            try:
                effect = flow.send(outcome)
            except StopIteration as done:
                result: T = done.value
                return result
            self.effects.append(effect)
            outcome = self._outcome(effect)

    def _outcome(self, effect: Effect) -> Any:
        match effect:
            case Send():
                return self._answered(effect)
            case Race():
                return self._raced(effect)
            case Listen():
                return self._answered(Send(effect.address, effect.request, effect.seconds))
            case Receive():
                return self.arriving.pop(0) if self.arriving else b""
            case Pause():
                self._clock.advance(effect.seconds)
            case Once():
                return self.run(effect.flow)
            case Emit():
                self.items.append(effect.item)
        return None

    def _raced(self, race: Race) -> Raced:
        first = self._answer(race.first)
        if first.good:
            return (first,)
        if isinstance(first, Lost) and first.reason == "silence":
            self._clock.advance(race.after)
            second = self._answered(race.second)
            return (second,) if second.good else counted_first([first, second])
        return counted_first([first, self._answered(race.second)])

    def _answered(self, send: Send) -> Outcome:
        outcome = self._answer(send)
        if isinstance(outcome, Lost) and outcome.reason == "silence":
            self._clock.advance(send.seconds)
        return outcome
