"""Quick answers to `GET /v1/stores/{store}/keys/{key}`: values that a replica of this process has.

A lookup takes some microseconds, and a web framework around it ten times as long. So these requests are answered in
front of Starlette, as long as nothing has to wait and nothing has to be explained. In every other case (the key is
missing or can't be read, the task is being restored or elsewhere, the URL is unusual) there is no answer here, and the
endpoint of `rest` answers as if it had been asked first. Both make the body with `answer_body`, and a property test
compares them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import HoldfastError
from holdfast.instance.config import Role
from holdfast.log.appfile import AppSpec
from holdfast.query.answers import KeyAnswer
from holdfast.query.http_protocol import Headers
from holdfast.query.keytext import key_parser, render_key
from holdfast.query.measuring import Answered, Observe
from holdfast.query.problems import Problem
from holdfast.query.queries import Kinds
from holdfast.query.reader import StoreReader
from holdfast.query.render import Renderer
from holdfast.query.showing import shown
from holdfast.query.task_reader import Served
from holdfast.stores.access import Now
from holdfast.stores.formats.keys import key_encoder
from holdfast.stores.formats.partition import partitioner
from holdfast.stores.layouts.base import Layout
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId, Version

KEYS_PATH = "/v1/stores/{store}/keys/{key:any}"

RendererOf = Callable[[str], Renderer]
"""How the values of a store are shown, by its newest known spec."""


def answer_body(
    spec: StoreSpec,
    values: Sequence[object],
    members: Mapping[str, Any],
    task: TaskId,
    version: Version,
    now: Now,
    served: Served,
) -> bytes:
    """The JSON of one entry."""
    return msgspec.json.encode(
        KeyAnswer(
            store=spec.name,
            key=render_key(spec.key, values),
            version=version,
            committed=now.wall if version else None,
            event_time=now.event,
            task=str(task),
            role=served.role,
            instance=served.instance,
            **members,
        )
    )


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What lookups in one store need, by one app file."""

    app: AppSpec
    spec: StoreSpec
    layout: Layout
    tasks: Sequence[TaskId]
    parse: Callable[[str], tuple[object, ...]]
    encode: Callable[[Sequence[object]], bytes]
    partition: Callable[[Sequence[object], int], int]
    render: Renderer


class KeyAnswers:
    """The bodies of answers with status 200."""

    def __init__(self, reader: StoreReader, kinds: Kinds, renderer_of: RendererOf) -> None:
        self._reader = reader
        self._kinds = kinds
        self._renderer_of = renderer_of
        self._prepared: dict[bytes, _Prepared] = {}

    def body(self, path: bytes) -> tuple[bytes, Answered] | None:
        """The answer to a path as it was sent, and where it came from; None if the endpoint has to answer."""
        parts = _lookup(path)
        if parts is None:
            return None
        try:
            return self._found(parts[3], parts[5])
        except (HoldfastError, Problem, UnicodeDecodeError, RecursionError):
            return None  # the endpoint meets the same error, and explains it

    def _found(self, store: bytes, sent: bytes) -> tuple[bytes, Answered] | None:
        prepared = self._prepared.get(store)
        if prepared is None or prepared.app is not self._reader.app:
            prepared = self._prepare(store)
        text = (unquote_to_bytes(sent) if b"%" in sent else sent).decode()
        if prepared is None:
            return None
        spec = prepared.spec
        values = prepared.parse(text)
        task = prepared.tasks[prepared.partition(values, len(prepared.tasks))]
        reader = self._reader.local_task(task)
        if reader is None:
            return None
        got = reader.get(spec.name, prepared.encode(values))
        cell = prepared.layout.visible(got.value, got.now)
        if cell is None or cell.schema > spec.schema:
            return None
        members = shown(prepared.render, cell)
        body = answer_body(spec, values, members, task, got.version, got.now, got.served)
        return body, Answered.LOCAL if got.served.role is Role.ACTIVE else Answered.STANDBY

    def _prepare(self, store: bytes) -> _Prepared | None:
        """None for stores whose entries are in several places. No name of a store needs percent-encoding."""
        app, name = self._reader.app, store.decode()
        spec = self._reader.specs[name]
        self._kinds.check_by_key(spec)
        layout = layout_of(spec)
        if not layout.one_place:
            return None
        prepared = self._prepared[store] = _Prepared(
            app,
            spec,
            layout,
            self._reader.tasks_of(name),
            key_parser(spec.key),
            key_encoder(spec.key),
            partitioner(spec.key),
            self._renderer_of(name),
        )
        return prepared


_BEGINNING = [b"", b"v1", b"stores"]


def _lookup(path: bytes) -> Sequence[bytes] | None:
    """The parts of a path that may have a quick answer."""
    if b"?" in path or b"#" in path or not path.isascii():
        return None
    parts = path.split(b"/", 5)
    return parts if len(parts) == 6 and parts[4] == b"keys" and parts[:3] == _BEGINNING else None


class KeysFirst:
    """An application that answers lookups of keys at once if it can, and hands everything else to another one."""

    def __init__(self, keys: KeyAnswers, others: ASGIApp, observe: Observe) -> None:
        self._keys = keys
        self._others = others
        self._observe = observe

    def quick_answer(self, url: bytes, headers: Headers) -> bytes | None:
        began = SYSTEM_CLOCK.monotonic()
        found = self._keys.body(url)
        if found is None:
            return None
        body, answered = found
        self._observe(SYSTEM_CLOCK.monotonic() - began, answered)
        return body

    def is_lookup(self, url: bytes, headers: Headers) -> bool:
        return _lookup(url) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._others(scope, receive, send)
