"""How a question gets its answer: attempts at one instance after the other, until one answers or the deadline passes.

All questions are reads, so asking twice is harmless. One attempt may take half of the time that is left while there is
another instance to ask, and wait for its turn as long, so an instance that hangs never uses up the deadline. When all
have been asked and none could answer, the client waits as long as they say (Retry-After), reads the routing again and
starts over.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import msgspec

from holdfast.backoff import backoff
from holdfast.client.effects import (
    MISDIRECTED,
    Flow,
    Listen,
    Lost,
    Once,
    Outcome,
    Pause,
    Race,
    Raced,
    Reply,
    Request,
    Send,
)
from holdfast.client.errors import BadAnswer, NoAnswer, NotTrusted, Refused
from holdfast.client.refusals import refused
from holdfast.client.router import Router
from holdfast.clock import Clock
from holdfast.query.routes import Routing
from holdfast.settings.sections import RetrySettings

ROUTING = Request("/v1/routing")
_RETRY = RetrySettings(first="100ms", longest="1s")
_LEAST_SECONDS = 0.05
"""An attempt with less time than this isn't worth starting."""


@dataclass(frozen=True)
class Deadline:
    """When a call has to end."""

    seconds: float
    """How long it may take in all."""
    end: float
    """By the monotonic clock."""


@dataclass(frozen=True)
class Question:
    """A request, whom to ask first, and how long it may take."""

    request: Request
    deadline: "Deadline"
    task: str | None = None
    hedge: float | None = None
    """After how many seconds a second instance is asked too."""
    wait: float = 0.0
    """How long an instance may wait before it answers."""
    large: bool = False
    """The answer may be large: an attempt may take all of the time, but not be silent for half of it."""


class Asker:
    """Asks the instances of an app."""

    def __init__(self, router: Router, clock: Clock) -> None:
        self.router = router
        self._clock = clock

    def ask(self, question: Question) -> Flow[Reply]:
        """The answer; raises what the last instance said if there is none in time."""

        def send(address: str, seconds: float, others: list[str]) -> Flow[Outcome]:
            outcome: Outcome
            request = self.router.addressed(question.request)
            left = question.deadline.end - self._clock.monotonic()
            silence, time = (seconds, left) if question.large else (None, seconds)
            first = Send(address, request, time, silence, left, question.wait > 0)
            if question.large or question.hedge is None or not others or question.hedge >= seconds:
                outcome = yield first
            else:
                second = Send(others[0], request, seconds - question.hedge, waits=question.wait > 0)
                raced: Raced = yield Race(first, second, question.hedge)
                outcome = raced[0]
                if outcome.address != address:
                    self.router.slow(address)
                for other in raced[1:]:
                    if not _is_answer(other) and not _is_crowded(other):
                        self.router.lost(other.address)
            return outcome

        return (yield from self._attempts(question, send))

    def listen(self, question: Question, silence: float) -> Flow[Reply]:
        """An open answer, to be received."""

        def open_(address: str, seconds: float, others: list[str]) -> Flow[Outcome]:
            outcome: Outcome = yield Listen(address, self.router.addressed(question.request), seconds, silence)
            return outcome

        return (yield from self._attempts(question, open_))

    def routing(self, deadline: Deadline, *, now: bool = False) -> Flow[Routing]:
        """The routing; read if it isn't known, may be outdated, or is wanted as it is now."""
        if now or self.router.is_due():
            yield from self._refresh(deadline)
        assert self.router.routing is not None
        return self.router.routing

    def _attempts(self, question: Question, attempt: Callable[[str, float, list[str]], Flow[Outcome]]) -> Flow[Reply]:
        router, clock = self.router, self._clock
        deadline, end = question.deadline, question.deadline.end
        if router.is_due(question.task):
            yield from self._refresh(deadline)
        tried: dict[str, Outcome] = {}
        problem: Refused | None = None
        for rounds in itertools.count(1):
            addresses = router.order(question.task)
            advice = 0.0
            for n, address in enumerate(addresses):
                left = end - clock.monotonic()
                if left < _LEAST_SECONDS and tried:
                    raise problem or _no_answer(deadline, tried)
                others = addresses[n + 1 :]
                share = min(left, max(left / 2, question.wait + 0.5)) if others else left
                outcome = yield from attempt(address, max(share, _LEAST_SECONDS), others)
                tried[outcome.address] = outcome
                if _is_answer(outcome):
                    router.answered(outcome.address)
                    if outcome.good:
                        return _checked(outcome)
                    problem = problem_of(outcome)
                    advice = max(advice, _retry_after(outcome))
                elif not _is_crowded(outcome):
                    router.lost(outcome.address)
            pause = max(backoff(rounds, _RETRY), min(advice, _RETRY.longest.total_seconds()))
            if clock.monotonic() + pause + _LEAST_SECONDS >= end:
                raise problem or _no_answer(deadline, tried)
            yield Pause(pause)
            if router.is_due(question.task):
                yield from self._refresh(deadline)
        raise AssertionError("unreachable")

    def _refresh(self, deadline: Deadline) -> Flow[None]:
        """Reads the routing, once for all calls that need it meanwhile.

        Without an answer the former one stays; the first one is waited for.
        """
        tried: dict[str, str] = {}
        for rounds in itertools.count(1):
            left = max(deadline.end - self._clock.monotonic(), _LEAST_SECONDS)
            others: dict[str, str] | None = yield Once(self._read_routing(deadline), left)
            tried |= others or {}
            if self.router.routing is not None:
                return
            pause = backoff(rounds, _RETRY)
            if self._clock.monotonic() + pause + _LEAST_SECONDS >= deadline.end:
                raise NoAnswer(deadline.seconds, tried)
            yield Pause(pause)

    def _read_routing(self, deadline: Deadline) -> Flow[dict[str, str]]:
        """Asks each instance once, until one has answered: why those before it have not."""
        router = self.router
        tried: dict[str, str] = {}
        router.trying()
        untrusted = set[str]()
        for address in (addresses := router.order()):
            share = max((deadline.end - self._clock.monotonic()) / max(2, len(addresses)), _LEAST_SECONDS)
            outcome: Outcome = yield Send(address, router.addressed(ROUTING), share, first=True)
            if _is_answer(outcome):
                router.answered(address)
                if outcome.good and router.learn(_decoded(outcome, Routing)):
                    return tried
                tried[address] = "a routing of another log" if outcome.good else f"status {outcome.status}"
            else:
                router.lost(address)
                tried[address] = _reason(outcome)
                if isinstance(outcome, Lost) and outcome.untrusted:
                    untrusted.add(address)
        if router.routing is None and untrusted == {*addresses}:
            raise NotTrusted(tried)
        return tried


def _is_answer(outcome: Outcome) -> TypeGuard[Reply]:
    """Whether an instance of the app has answered, if only that it can't now."""
    return isinstance(outcome, Reply) and outcome.status != MISDIRECTED


def _is_crowded(outcome: Outcome) -> bool:
    """Whether the instance was not asked, which says nothing about it."""
    return isinstance(outcome, Lost) and outcome.crowded


def _no_answer(deadline: Deadline, tried: Mapping[str, Outcome]) -> NoAnswer:
    each = {address: _reason(outcome) for address, outcome in tried.items()}
    return NoAnswer(deadline.seconds, each, crowded=any(map(_is_crowded, tried.values())))


def _reason(outcome: Outcome) -> str:
    """Why an address is of no use: nobody answers there, the instance can't answer, or another app."""
    if _is_answer(outcome):
        return f"status {outcome.status}"
    return str(problem_of(outcome)) if isinstance(outcome, Reply) else outcome.reason


def decoded(reply: Reply) -> dict[str, Any]:
    """The JSON of an answer."""
    found: dict[str, Any] = _decoded(reply, dict[str, Any])
    return found


def _decoded(reply: Reply, type_: Any) -> Any:
    checked = _checked(reply)
    try:
        return msgspec.json.decode(checked.body, type=type_)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadAnswer(reply.address, reply.status, f"a body that isn't what was asked for ({error})") from error


def _checked(reply: Reply) -> Reply:
    if reply.status == 200:
        return reply
    raise problem_of(reply)


def problem_of(reply: Reply) -> Refused:
    """The problem that an answer has."""
    try:
        body = msgspec.json.decode(reply.body, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError):
        body = {}
    if "error" not in body:
        if reply.good:
            raise BadAnswer(reply.address, reply.status, f"the body {reply.body[:100]!r}")
        body = {"message": f"{reply.address} has answered with status {reply.status}.", "what_to_do": "Ask again."}
    return refused(reply.status, body)


def _retry_after(reply: Reply) -> float:
    text = reply.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) <= 6 else 0.0
