"""The client without I/O: what both shells share."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from holdfast.client.addresses import addresses_of
from holdfast.client.asking import Asker, Deadline, Question, decoded
from holdfast.client.effects import Flow, Reply, Request
from holdfast.client.errors import NoSuchPath, UnknownStore
from holdfast.client.keys import StoreKeys, in_path, query_string
from holdfast.client.options import Duration, check_names, seconds
from holdfast.client.router import Router
from holdfast.clock import SYSTEM_CLOCK, Clock

TIMEOUT = "10s"
_WAITED_FOR = ("at", "at_least", "max_lag")
_WAIT_SECONDS = 2.0


class Core:
    """What one client knows, and how it asks."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        timeout: Duration = TIMEOUT,
        hedge: Duration | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.router = Router(addresses_of(addresses), clock)
        self.asker = Asker(self.router, clock)
        self._timeout = seconds("timeout", timeout)
        self._hedge = None if hedge is None else seconds("hedge", hedge)
        self._clock = clock
        self._keys: dict[str, StoreKeys] = {}

    def deadline(self, options: Mapping[str, Any], default: float | None = None) -> Deadline:
        """The end of a call that starts now. Every read asks for it first, so its options are checked here."""
        check_names(options)
        given = options.get("timeout")
        time = default or self._timeout if given is None else seconds("timeout", given)
        return Deadline(time, self._clock.monotonic() + time)

    def settled(self, options: Mapping[str, Any], default: float | None = None) -> Mapping[str, Any]:
        """The options with how long an instance may wait, if they demand a version.

        Instances would wait for two seconds: a call with less time would take one that waits for one that hangs.
        """
        if options.get("wait") is not None or not any(options.get(name) is not None for name in _WAITED_FOR):
            return options
        wait = min(_WAIT_SECONDS, 0.4 * self.deadline(options, default).seconds)
        return {**options, "wait": timedelta(milliseconds=int(1000 * wait))}

    def question(
        self,
        request: Request,
        options: Mapping[str, Any],
        deadline: Deadline,
        task: str | None = None,
        *,
        large: bool = False,
    ) -> Question:
        hedge, wait = options.get("hedge"), options.get("wait")
        return Question(
            request,
            deadline,
            task,
            self._hedge if hedge is None else seconds("hedge", hedge),
            0.0 if wait is None else seconds("wait", wait),
            large,
        )

    def ask(
        self, request: Request, options: Mapping[str, Any], deadline: Deadline, task: str | None = None
    ) -> Flow[Reply]:
        return (yield from self.asker.ask(self.question(request, options, deadline, task)))

    def keys(self, store: str, deadline: Deadline) -> Flow[StoreKeys]:
        """The keys of a store, by the newest routing. A store that isn't known may have been added since."""
        routing = yield from self.asker.routing(deadline)
        known = self._keys.get(store)
        route = routing.store(store)
        if route is None:
            routing = yield from self.asker.routing(deadline, now=True)
            route = routing.store(store)
        if route is None:
            # With a token the routing has only the stores that it may read. The store itself says whether it is there.
            with suppress(NoSuchPath):  # the name of no store
                asked = Request(path(in_path(store), "count", [("approximate", "true")]))
                yield from self.ask(asked, {}, deadline)
            raise _unknown_store(store, routing.app, [each.store for each in routing.stores])
        if known is None or known.route != route:
            known = self._keys[store] = StoreKeys(route)
        return known

    def stores(self) -> Flow[list[dict[str, Any]]]:
        """The stores of the app, as GET /v1/stores describes them."""
        reply = yield from self.ask(Request("/v1/stores"), {}, self.deadline({}))
        return list(decoded(reply)["stores"])


def path(store: str, rest: str, parameters: Sequence[tuple[str, str]] = ()) -> str:
    return f"/v1/stores/{store}/{rest}{query_string(parameters)}"


def _unknown_store(store: str, app: str, stores: Sequence[str]) -> UnknownStore:
    """For a store that the routing doesn't have."""
    there = f"It has {', '.join(stores)}." if stores else "It has no stores."
    return UnknownStore(f"{app!r} has no store {store!r}. {there}", "Ask for one of them.", 404, {"stores": [*stores]})
