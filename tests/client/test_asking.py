"""Whom the client asks, how often and for how long: the core alone, with outcomes that the test chooses."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.client.core import Core
from holdfast.client.effects import Lost, Outcome, Pause, Race, Reply, Send
from holdfast.client.errors import (
    BadAddress,
    BadAnswer,
    BadKey,
    KeyNotFound,
    NoAnswer,
    NotReady,
    Refused,
    UnknownStore,
    VersionGone,
)
from holdfast.client.frames import of_statement, of_store
from holdfast.client.router import SUSPECT_SECONDS
from holdfast.client.store_flows import StoreFlows
from holdfast.client.turns import longest_wait
from holdfast.client.watching import watch
from holdfast.clock import ManualClock
from holdfast.query.routes import Routing
from holdfast.stores.formats.partition import partition_of
from tests.client.effects import ROUTING, A, B, C, Played, reply

SCHEMA = ROUTING.stores[0].key
KEY = next(n for n in range(100) if partition_of(SCHEMA, (n,), 2) == 0)
"""A key of task 0_0: a is its active instance, b its standby."""
PROBLEM = {"error": "not_ready", "message": "Task 0_0 is being restored.", "what_to_do": "Ask again."}
REFUSED = "ConnectError"


def value(send: Send, instance: str = "") -> Reply:
    names = {address: name for name, address in ROUTING.instances.items()}
    served = {"task": "0_0", "instance": instance or names[send.address], "version": 3}
    return reply(send.address, {"key": KEY, "value": send.address, **served})


class World:
    """A client whose instances do what a test says: by address, an outcome of each question for a key."""

    def __init__(self, *, seeds: tuple[str, ...] = (A,), routing: Routing = ROUTING, hedge: str | None = None) -> None:
        self.clock = ManualClock()
        self.routing = routing
        self.answers: dict[str, Callable[[Send], Outcome]] = {}
        self.core = Core(seeds, hedge=hedge, clock=self.clock)
        self.played = Played(self.clock, self._answer)

    def _answer(self, send: Send) -> Outcome:
        answer = self.answers.get(send.address, value)
        if send.request.path == "/v1/routing":
            return Lost(send.address, REFUSED) if self._is_down(send, answer) else reply(send.address, self.routing)
        return answer(send)

    def _is_down(self, send: Send, answer: Callable[[Send], Outcome]) -> bool:
        return isinstance(answer(send), Lost)

    def get(self, **options: object) -> object:
        return self.played.run(StoreFlows[object](self.core, "numbers").get(KEY, None, {}, options))


def down(send: Send) -> Outcome:
    return Lost(send.address, REFUSED)


def frozen(send: Send) -> Outcome:
    return Lost(send.address, "silence")


def crowded(send: Send) -> Outcome:
    return Lost(send.address, "not asked: 8 requests of this client were under way there", crowded=True)


def busy(send: Send) -> Outcome:
    return reply(send.address, PROBLEM, 503, retry_after="1")


def another_app(send: Send) -> Outcome:
    told = {"message": "This is an instance of the app 'other'.", "what_to_do": "Give the client other addresses."}
    return reply(send.address, {"error": "another_app", **told}, 421)


def test_the_active_instance_of_the_key_is_asked_and_no_other() -> None:
    world = World(seeds=(C,))
    assert world.get() == A
    assert world.get() == A
    assert world.played.asked == [A, A] and world.played.refreshed == 1


def test_a_refused_connection_leads_to_the_standby_and_to_a_new_routing() -> None:
    world = World()
    world.get()
    world.answers[A] = down
    world.clock.advance(2)
    assert world.get() == B
    assert world.played.asked[1:] == [A, B]
    world.routing = Routing(
        app="game", version=4, generation=2, stores=ROUTING.stores, instances=ROUTING.instances, tasks={"0_0": ("c",)}
    )
    assert world.get() == C, "the routing was read again"


def test_an_instance_that_was_lost_is_asked_last_for_a_while() -> None:
    world = World(seeds=(A, B))
    world.answers[A] = down
    assert [world.get(), world.get()] == [B, B]
    assert world.played.asked == [B, B], "that it doesn't answer was seen when the routing was read"
    del world.answers[A]
    world.clock.advance(SUSPECT_SECONDS + 1)
    assert world.get() == A


def test_a_frozen_instance_gets_half_of_the_time_at_most() -> None:
    world = World(seeds=(B,))
    world.get()
    world.answers[A] = frozen
    start = world.clock.monotonic()
    assert world.get(timeout="8s") == B
    assert world.clock.monotonic() - start == pytest.approx(4)


def test_a_call_whose_turn_does_not_come_asks_the_standby_and_holds_nothing_against_the_instance() -> None:
    world = World(seeds=(B,))
    world.get()
    world.answers[A] = crowded
    assert world.get() == B
    del world.answers[A]
    world.clock.advance(2)
    assert world.get() == A
    assert world.played.refreshed == 1


def test_a_call_waits_for_its_turn_no_longer_than_an_instance_that_hangs_may_take() -> None:
    world = World(seeds=(B,))
    world.get()
    world.get(timeout="8s")
    sent = world.played.effects[-1]
    assert isinstance(sent, Send) and (longest_wait(sent), sent.in_all) == (4.0, 8.0)
    with pytest.raises(BadAnswer):
        world.played.run(of_store(world.core, "numbers", (), {"timeout": "8s"}))  # its answer may be large
    sent = world.played.effects[-1]
    assert isinstance(sent, Send) and (longest_wait(sent), sent.seconds) == (4.0, 8.0)


def test_a_call_that_had_no_turn_says_so() -> None:
    world = World()
    world.get()
    world.answers |= {A: crowded, B: crowded, C: crowded}
    with pytest.raises(
        NoAnswer, match="The 1 s of the call have passed while it waited .* were under way there"
    ) as error:
        world.get(timeout="1s")
    assert "get_many" in str(error.value) and "No instance" not in str(error.value)
    assert {*error.value.tried} == {A, B, C}


def test_the_routing_does_not_wait_for_a_turn() -> None:
    world = World()
    world.get()
    sent = [effect for effect in world.played.effects if isinstance(effect, Send)]
    assert [(each.request.path == "/v1/routing", each.first) for each in sent] == [(True, True), (False, False)]


def test_all_are_asked_again_until_the_deadline() -> None:
    world = World()
    world.get()
    world.answers |= {A: busy, B: busy, C: busy}
    start = world.clock.monotonic()
    with pytest.raises(NotReady, match="Task 0_0 is being restored. Ask again.") as error:
        world.get(timeout="5s")
    assert 3 < world.clock.monotonic() - start <= 5
    assert {*world.played.asked} == {A, B, C}
    assert error.value.status == 503 and error.value.error == "not_ready"


def test_a_refusal_that_passes_isnt_noticed() -> None:
    world = World()
    world.get()
    world.answers |= {A: busy, B: busy, C: busy}
    left = [3]

    def recovers(send: Send) -> Outcome:
        left[0] -= 1
        return busy(send) if left[0] else value(send)

    world.answers[B] = recovers
    assert world.get() == B
    assert any(isinstance(effect, Pause) for effect in world.played.effects)


def test_clients_that_were_refused_together_do_not_come_back_together() -> None:
    def pauses() -> list[float]:
        world = World()
        world.get()
        world.answers |= {A: down, B: down, C: down}
        with pytest.raises(NoAnswer):
            world.get(timeout="10s")
        return [effect.seconds for effect in world.played.effects if isinstance(effect, Pause)]

    found, other = pauses(), pauses()
    assert all(bound / 2 <= pause <= bound for pause, bound in zip(found, [0.1, 0.2, 0.4, 0.8, 1.0], strict=False))
    assert len(found) >= 5 and found[:5] != other[:5]


def test_without_any_answer_the_error_names_what_was_tried() -> None:
    world = World(seeds=(A, B))
    world.answers |= {A: down, B: down}
    with pytest.raises(NoAnswer) as error:
        world.get(timeout="1s")
    assert error.value.tried == {A: REFUSED, B: REFUSED}


def test_a_refusal_for_good_is_raised_at_once() -> None:
    world = World()
    problem = {"error": "wrong_kind", "message": "Store 'numbers' is a window store.", "what_to_do": "Ask windows."}
    world.answers[A] = lambda send: reply(send.address, problem, 400)
    with pytest.raises(Refused, match="window store"):
        world.get()
    assert world.played.asked == [A]


def test_a_missing_key_is_the_default() -> None:
    world = World()
    problem = {"error": "key_not_found", "message": "No 1.", "what_to_do": "Check it.", "version": 9, "task": "0_0"}
    world.answers[A] = lambda send: reply(send.address, problem, 404)
    assert world.get() is None
    entry = world.played.run(StoreFlows[object](world.core, "numbers").entry(KEY, {}, {}))
    assert (entry.found, entry.version) == (False, 9)
    assert (entry.source.role, entry.source.committed, entry.source.instances) == (None, None, ()), "it didn't say"
    assert issubclass(KeyNotFound, KeyError)


def test_a_store_that_was_added_is_found_and_an_unknown_one_isnt() -> None:
    world = World()
    world.get()
    with pytest.raises(UnknownStore, match="'game' has no store 'scores'. It has numbers."):
        world.played.run(StoreFlows[object](world.core, "scores").get(1, None, {}, {}))
    assert world.played.refreshed == 2


@pytest.mark.parametrize("columns", [of_statement, of_store])
def test_the_long_time_of_columns_is_not_waited_for_where_no_instance_answers(columns: Callable[..., object]) -> None:
    world = World()
    world.answers[A] = down
    flow: Any = columns(world.core, "numbers", None, {})
    with pytest.raises(NoAnswer, match="in 10 s"):
        world.played.run(flow)
    assert world.clock.monotonic() <= 10


class Restarted(World):
    """An app that can be watched, doesn't answer for a minute after its first answer, and then has other versions."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[float] = []
        self.answers = dict.fromkeys((A, B, C), self._watched)

    def _watched(self, send: Send) -> Outcome:
        if self.opened and self.clock.monotonic() < self.opened[0] + 60:
            return down(send)
        if "watch" in send.request.path:
            self.opened.append(self.clock.monotonic())
            change = {"key": 1, "value": len(self.opened), "version": len(self.opened), "task": "0_0"}
            self.played.arriving.append(b"id: a-%d\ndata: %b\n\n" % (len(self.opened), msgspec.json.encode(change)))
            if len(self.opened) == 3:
                gone = {"error": "version_gone", "message": "Version 2 is gone.", "what_to_do": "Read the store."}
                return reply(send.address, gone, 410)
        return reply(send.address, {})

    def watch(self, **options: object) -> None:
        self.played.run(watch(StoreFlows[object](self.core, "numbers"), {}, None, options))


def test_a_watch_outlasts_a_restart_of_the_app_and_ends_with_a_refusal() -> None:
    world = Restarted()
    with pytest.raises(VersionGone):
        world.watch()
    assert [change.value for change in world.played.items] == [1, 2]
    assert world.clock.monotonic() > 60


def test_a_watch_with_a_timeout_ends_where_no_instance_answers_for_as_long() -> None:
    world = Restarted()
    with pytest.raises(NoAnswer, match="in 20 s"):
        world.watch(timeout="20s")
    assert [change.value for change in world.played.items] == [1] and world.clock.monotonic() < 30


def test_the_first_connection_of_a_watch_has_the_time_of_a_call() -> None:
    world = Restarted()
    world.opened.append(world.clock.monotonic())
    with pytest.raises(NoAnswer, match="in 10 s"):
        world.watch()


def test_an_answer_of_another_instance_means_that_the_routing_is_outdated() -> None:
    world = World()
    world.answers[A] = lambda send: value(send, instance="c")
    world.get()
    world.clock.advance(2)
    world.get()
    assert world.played.refreshed == 2


@pytest.mark.parametrize(("log", "generation"), [("", 0), ("another", 9)])
def test_an_older_routing_and_one_of_another_log_are_not_taken(log: str, generation: int) -> None:
    world = World()
    world.get()
    places = {"instances": ROUTING.instances, "tasks": {"0_0": ("c",)}}
    world.routing = Routing(app="game", log=log, version=1, generation=generation, stores=ROUTING.stores, **places)  # type: ignore[arg-type]
    world.played.run(world.core.asker.routing(world.core.deadline({}), now=True))
    assert world.get() == A


def test_requests_name_the_log_and_an_address_of_another_app_is_not_used() -> None:
    world = World(seeds=(A, B), routing=msgspec.structs.replace(ROUTING, log="ab12"))
    world.get()
    world.answers[A] = another_app
    assert world.get() == B
    sent = [effect for effect in world.played.effects if isinstance(effect, Send)]
    assert [each.request.headers.get("holdfast-log") for each in sent] == [None, "ab12", "ab12", "ab12"]
    world.answers |= {B: another_app, C: down}
    with pytest.raises(NoAnswer, match="http://a:1: This is an instance of the app 'other'. Give") as error:
        world.get(timeout="1s")
    assert {*error.value.tried} == {A, B, C} and error.value.tried[C] == REFUSED


def test_the_routing_is_read_at_most_once_per_second() -> None:
    world = World()
    world.answers[A] = lambda send: value(send, instance="c")
    for _ in range(10):
        world.get()
    assert world.played.refreshed == 1


def test_a_slow_read_is_hedged_only_if_asked() -> None:
    world = World(hedge="50ms")
    world.get()
    world.answers[A] = frozen
    assert world.get() == B
    races = [effect for effect in world.played.effects if isinstance(effect, Race)]
    assert (races[-1].first.address, races[-1].second.address, races[-1].after) == (A, B, 0.05)
    world.get()
    assert world.played.effects[-1].first.address == B, "for a second, the slow one is asked last"  # type: ignore[union-attr]
    world.clock.advance(2)
    del world.answers[A]
    assert world.get() == A
    unhedged = World()
    unhedged.get()
    assert not any(isinstance(effect, Race) for effect in unhedged.played.effects)


@pytest.mark.parametrize(("gone", "reads"), [(down, 1), (another_app, 1), (frozen, 2)])
def test_a_client_that_hedges_reads_the_routing_again_when_an_owner_is_gone(
    gone: Callable[[Send], Outcome], reads: int
) -> None:
    world = World(seeds=(B,), hedge="50ms")
    world.get()
    world.answers[A] = gone
    for _ in range(reads):
        world.clock.advance(2)
        assert world.get() == B
    moved = {"instances": ROUTING.instances, "tasks": {"0_0": ("c",)}}
    world.routing = Routing(app="game", version=4, generation=2, stores=ROUTING.stores, **moved)  # type: ignore[arg-type]
    world.clock.advance(2)
    assert world.get() == C
    assert world.played.refreshed > 1


def test_one_slow_answer_is_no_reason_to_read_the_routing_again() -> None:
    world = World(hedge="50ms")
    world.get()
    for _ in range(5):
        world.answers[A] = frozen
        assert world.get() == B
        del world.answers[A]
        world.clock.advance(2)
        assert world.get() == A
    assert world.played.refreshed == 1


@pytest.mark.parametrize(("options", "wait"), [({}, None), ({"at_least": 3}, "2s"), ({"at": 3, "wait": "5s"}, "5s")])
def test_an_instance_waits_less_than_the_call_may_take(options: dict[str, object], wait: str | None) -> None:
    world = World()
    world.get(**options)
    sent = [effect for effect in world.played.effects if isinstance(effect, Send)][-1]
    assert f"wait={wait}" in sent.request.path if wait else "wait" not in sent.request.path
    world.get(at_least=3, timeout="1s")
    assert "wait=400ms" in [effect for effect in world.played.effects if isinstance(effect, Send)][-1].request.path


@pytest.mark.parametrize("given", ["a:1", "http://a:1/"])
def test_an_address_needs_no_scheme(given: str) -> None:
    world = World(seeds=(given,))
    world.get()
    assert {send.address for send in world.played.effects if isinstance(send, Send)} == {A}


@pytest.mark.parametrize(
    "given", ["", "http://", "ftp://a:1", "grpc://a:1", "a:http", "a:99999", "a b:1", "http://[::1", "a:1?x=1", ":8080"]
)
def test_what_cant_be_an_address_is_refused_at_once(given: str) -> None:
    with pytest.raises(BadAddress, match="is not an address of REST. Give those .* such as http://localhost:8080"):
        Core([given])
    with pytest.raises(BadAddress, match=r"None is not an address of REST: app.address is None before app.start\(\)"):
        Core([None])  # type: ignore[list-item]
    with pytest.raises(BadAddress, match="8080 is not an address of REST: its type is int"):
        Core([8080])  # type: ignore[list-item]
    with pytest.raises(BadAddress, match="There are no addresses"):
        Core([])


@pytest.mark.parametrize("given", ["alice", b"alice"])
def test_one_key_where_several_are_wanted_is_refused(given: object) -> None:
    world = World()
    with pytest.raises(BadKey, match="'alice' is one key, not several. Give a list: .*'alice'.*"):
        world.played.run(StoreFlows[object](world.core, "numbers").get_many(given, {}, {}))  # type: ignore[arg-type]
    assert world.played.asked == []


def test_something_else_than_an_instance_is_named() -> None:
    world = World()
    world.answers[A] = lambda send: Reply(send.address, 404, {}, b"<html>nginx</html>")
    with pytest.raises(BadAnswer, match="http://a:1 has answered with status 404"):
        world.get()
