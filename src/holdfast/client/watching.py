"""Watching a store: its changes in order, without gap or repeat, across lost connections and killed instances.

The id of each event names a place in the log, which is the same on every instance. So after a lost connection the
client goes on after the last id that it has seen, wherever it is answered.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.client.answers import Change
from holdfast.client.core import path
from holdfast.client.effects import Emit, Flow, Lost, Pause, Receive, Request
from holdfast.client.errors import ClientError
from holdfast.client.events import Event, EventParser
from holdfast.client.keys import StoreKeys
from holdfast.client.refusals import refused
from holdfast.client.store_flows import StoreFlows
from holdfast.errors import ErrorCategory

log = logging.getLogger(__name__)

SILENCE_SECONDS: Final = 45.0
"""How long a connection may be silent: three heartbeats of an instance."""
_PAUSE_SECONDS: Final = 0.1
"""Between two connections, so that a proxy that closes them at once isn't asked all the time."""


def watch(
    flows: StoreFlows[Any], given: Mapping[str, Any], after: str | None, options: Mapping[str, Any]
) -> Flow[None]:
    """Emits changes for ever. Raises when a watch is refused or a version is gone.

    The first connection has the time of a call. Once it was open, the watch outlasts any time in which no instance
    answers, such as a restart of the app, unless `timeout` is given.
    """
    core, store, last = flows.core, flows.store, after
    has_limit = True
    keys = yield from core.keys(store, core.deadline(options))
    texts = [(name, keys.text(given[name])) for name in ("key", "prefix") if given.get(name) is not None]
    if given.get("from_version") is not None:
        texts.append(("from_version", str(given["from_version"])))
    while True:
        headers = {"accept": "text/event-stream", **({} if last is None else {"last-event-id": last})}
        question = core.question(Request(path(store, "watch", texts), headers=headers), {}, core.deadline(options))
        try:
            reply = yield from core.asker.listen(question, SILENCE_SECONDS)
        except ClientError as error:
            if has_limit or error.category is not ErrorCategory.RETRY:
                raise
            log.warning("the watch of %s goes on when an instance answers. %s", store, error)
            continue
        has_limit = options.get("timeout") is not None
        parser, ended = EventParser(), False
        while not ended:
            data = yield Receive()
            if isinstance(data, Lost) or not data:
                core.router.lost(reply.address)
                break
            for event in parser.feed(data):
                if event.name == "end":
                    _check_may_go_on(event)
                    core.router.lost(reply.address)
                    ended = True
                elif event.data:
                    yield Emit(_change(flows, keys, event, event.id or last or ""))
                last = event.id or last
        yield Pause(_PAUSE_SECONDS)


def _change(flows: StoreFlows[Any], keys: StoreKeys, event: Event, id: str) -> Change[Any]:
    body: dict[str, Any] = msgspec.json.decode(event.data)
    key = keys.python(body["key"])
    return Change(
        id=id,
        key=key,
        value=flows.value(body, key),
        deleted=body.get("deleted", False),
        start=body.get("start"),
        end=body.get("end"),
        timestamp=body.get("timestamp"),
        schema=body.get("schema"),
        version=body["version"],
        committed=body.get("committed"),
        task=body["task"],
        error=body.get("error"),
    )


def _check_may_go_on(event: Event) -> None:
    """The last event of a connection says why it ends; some reasons end the watch."""
    problem = refused(503, msgspec.json.decode(event.data))
    if problem.category is not ErrorCategory.RETRY:
        raise problem
