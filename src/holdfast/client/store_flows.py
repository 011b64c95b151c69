"""What can be asked about one store, as flows: requests of REST, and answers as Python values."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic

import msgspec

from holdfast.client.answers import AnswerPage, AnswerSource, D, Past, Spanned, StoreEntry, V
from holdfast.client.asking import decoded
from holdfast.client.core import Core, path
from holdfast.client.effects import Emit, Flow, Request
from holdfast.client.errors import BadKey, DamagedData, KeyNotFound
from holdfast.client.keys import StoreKeys, converter, in_path, in_python, loose_text
from holdfast.client.options import parameters_of, text_of
from holdfast.query.keytext import render_scalar
from holdfast.query.routes import StoreRoute

Time = int | str | datetime | timedelta
"""Milliseconds since 1970, an ISO time with a zone, a datetime with a zone; "-1h" or a timedelta: before the clock of
the store."""

_PAGE = 1_000
"""Entries per request of a range."""
_LONGEST_PATH = 8_000
"""A longer key is sent in a body: servers and proxies limit the length of a path."""


class StoreFlows(Generic[V]):
    """One store. `value` is the type that values are converted to; None leaves them as JSON has them."""

    def __init__(self, core: Core, store: str, value: Any = None) -> None:
        self.store = store
        self.core = core
        self.convert = converter(store, value)

    def entry(self, key: object, given: Mapping[str, Any], options: Mapping[str, Any]) -> Flow[StoreEntry[V]]:
        options = self.core.settled(options)
        deadline = self.core.deadline(options)
        keys = yield from self.core.keys(self.store, deadline)
        task = keys.task(key)
        where = path(self.store, f"keys/{in_path(keys.text(key))}", _parameters(given, options))
        if len(where) > _LONGEST_PATH and "as_of" not in given:
            (entry,) = yield from self.entries([key], given, options)
            return entry
        try:
            reply = yield from self.core.ask(Request(where), options, deadline, task)
        except KeyNotFound as missing:
            said = missing.more
            task = said.get("task", task)
            return StoreEntry(key=key, value=None, found=False, task=task, source=AnswerSource.of(said))
        body = decoded(reply)
        self.core.router.served(reply.address, body["task"], body.get("instance", ""))
        return self._entry(keys, body, AnswerSource.of(body))

    def get(
        self, key: object, default: D | None, given: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Flow[V | D | None]:
        entry = yield from self.entry(key, given, options)
        return _readable(entry).value if entry.found else default

    def get_many(
        self, wanted: Sequence[object], given: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Flow[dict[Any, V | None]]:
        """The values of those keys that the store has, by key."""
        if len(wanted) == 0:
            yield from self.core.keys(self.store, self.core.deadline(options))  # the store has to be there all the same
            return {}
        found = yield from self.entries(wanted, given, options)
        return {entry.key: _readable(entry).value for entry in found if entry.found}

    def entries(
        self, wanted: Sequence[object], given: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Flow[AnswerPage[StoreEntry[V]]]:
        """One entry per key, in the order of the keys."""
        if isinstance(wanted, str | bytes):  # a sequence too: each of its characters would be a key
            raise BadKey(f"{wanted!r:.200} is one key, not several.", f"Give a list: [{wanted!r:.200}].", 400)
        options = self.core.settled(options)
        deadline = self.core.deadline(options)
        keys = yield from self.core.keys(self.store, deadline)
        # One request, so that they can be of one version: to the instance that has most of them.
        tasks = Counter(keys.task(key) for key in wanted)
        body = msgspec.json.encode([keys.member(key) for key in wanted])
        where = path(self.store, "keys", _parameters(given, options))
        request = Request(where, "POST", body, {"content-type": "application/json"})
        task = tasks.most_common(1)[0][0] if tasks else None
        reply = yield from self.core.ask(request, options, deadline, task)
        answer = decoded(reply)
        source = AnswerSource.of(answer)
        return AnswerPage([self._entry(keys, each, source) for each in answer["entries"]], source, more=False)

    def range(self, given: Mapping[str, Any], limit: int | None, options: Mapping[str, Any]) -> Flow[None]:
        """Emits entries in key order."""
        keys = yield from self.core.keys(self.store, self.core.deadline(options))
        bounds = {name: keys.text(given[name]) for name in ("from", "to", "prefix") if given.get(name) is not None}
        asked = {**given, **bounds}
        yield from self._pages("range", "entries", asked, limit, options, partial(self._entry, keys))

    def _pages(
        self,
        where: str,
        member: str,
        given: Mapping[str, Any],
        limit: int | None,
        options: Mapping[str, Any],
        item: Callable[[Mapping[str, Any], AnswerSource], object],
    ) -> Flow[None]:
        """Emits the items of one page after the other. Each page has the whole time of the call."""
        options = self.core.settled(options)
        fresh, cursor, left = dict(options), None, limit
        while left is None or left > 0:
            page = {"limit": _PAGE if left is None else min(left, _PAGE), "cursor": cursor}
            request = Request(path(self.store, where, _parameters({**given, **page}, fresh)))
            reply = yield from self.core.ask(request, options, self.core.deadline(options))
            body = decoded(reply)
            source = AnswerSource.of(body)
            for each in body[member]:
                yield Emit(item(each, source))
            cursor, left = body["cursor"], None if left is None else left - len(body[member])
            if cursor is None:
                return
            if "at" in fresh:
                fresh["at"] = source.version  # the pages are of one version, or the next one is refused

    def count(self, between: Mapping[str, Any], given: Mapping[str, Any], options: Mapping[str, Any]) -> Flow[int]:
        options = self.core.settled(options)
        deadline = self.core.deadline(options)
        keys = yield from self.core.keys(self.store, deadline)
        bounds = {name: keys.text(key) for name, key in between.items() if key is not None}
        where = path(self.store, "count", _parameters({**bounds, **given}, options))
        reply = yield from self.core.ask(Request(where), options, deadline)
        return int(decoded(reply)["count"])

    def items(
        self, query: str, key: object, given: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Flow[tuple[StoreKeys, dict[str, Any]]]:
        """The answer of a query for one key."""
        options = self.core.settled(options)
        deadline = self.core.deadline(options)
        keys = yield from self.core.keys(self.store, deadline)
        where = path(self.store, f"{query}/{in_path(loose_text(key))}", _parameters(given, options))
        try:
            reply = yield from self.core.ask(Request(where), options, deadline, keys.task_if_key(key))
        except BadKey as refused:  # the key of a query need not be that of the store, so instances check it
            raise in_python(refused) from None
        return keys, decoded(reply)

    def query(
        self, query: str, key: object, given: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Flow[AnswerPage[dict[str, Any]]]:
        _, body = yield from self.items(query, key, given, options)
        return AnswerPage(body[query], AnswerSource.of(body), more=body["more"])

    def spans(
        self, query: str, key: object, given: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Flow[AnswerPage[Spanned[V]]]:
        """The windows or sessions of a key."""
        _, body = yield from self.items(query, key, given, options)
        source = AnswerSource.of(body)
        return AnswerPage([self._spanned(key, each, source) for each in body[query]], source, more=body["more"])

    def all_spans(
        self, query: str, given: Mapping[str, Any], limit: int | None, options: Mapping[str, Any]
    ) -> Flow[None]:
        """Emits the windows or sessions of all keys, by key."""
        keys = yield from self.core.keys(self.store, self.core.deadline(options))
        bounds = {name: keys.text(given[name]) for name in ("key_from", "key_to") if given[name] is not None}
        for_all = {**given, **bounds}

        def item(body: Mapping[str, Any], source: AnswerSource) -> Spanned[V]:
            return self._spanned(keys.python(body["key"]), body, source)

        yield from self._pages(query, query, for_all, limit, options, item)

    def history(self, key: object, given: Mapping[str, Any], options: Mapping[str, Any]) -> Flow[AnswerPage[Past[V]]]:
        _, body = yield from self.items("history", key, given, options)
        found = [
            Past(
                key=key,
                value=self.value(each, key),
                timestamp=each["timestamp"],
                valid_to=each["valid_to"],
                schema=each.get("schema"),
                task=each.get("task"),
            )
            for each in body["history"]
        ]
        return AnswerPage(found, AnswerSource.of(body), more=body["more"])

    def top(self, group: object, given: Mapping[str, Any], options: Mapping[str, Any]) -> Flow[AnswerPage[V]]:
        """The best rows of a leaderboard."""
        _, body = yield from self.items("top", group, given, options)
        return AnswerPage([self.value(row, group) for row in body["top"]], AnswerSource.of(body), more=body["more"])

    def rank(self, key: object, options: Mapping[str, Any]) -> Flow[int | None]:
        _, body = yield from self.items("rank", key, {}, options)
        return body["rank"][0]["rank"] if body["rank"] else None

    def route(self) -> Flow[StoreRoute]:
        """How the store is keyed and spread."""
        keys = yield from self.core.keys(self.store, self.core.deadline({}))
        return keys.route

    def _spanned(self, key: object, body: Mapping[str, Any], source: AnswerSource) -> Spanned[V]:
        return Spanned(
            key=key,
            start=body["start"],
            end=body["end"],
            value=self.value(body, key),
            schema=body.get("schema"),
            task=body.get("task"),
            source=source,
        )

    def value(self, body: Mapping[str, Any], key: object) -> Any:
        """A value of an answer in the type that was asked for; as it was written where only an upcaster can read it."""
        found = body.get("value")
        return self.convert(found, key) if body.get("upcast", True) else found

    def _entry(self, keys: StoreKeys, body: Mapping[str, Any], source: AnswerSource) -> StoreEntry[V]:
        key = keys.python(body["key"])
        return StoreEntry(
            key=key,
            value=self.value(body, key),
            found=body.get("found", True),
            timestamp=body.get("timestamp"),
            expires=body.get("expires"),
            valid_to=body.get("valid_to"),
            schema=body.get("schema"),
            task=body.get("task"),
            error=body.get("error"),
            source=source,
        )


def _readable(entry: StoreEntry[V]) -> StoreEntry[V]:
    if entry.error is not None:
        what = "Ask the operator to look at the instance's log. `entries` returns the values of the other keys."
        raise DamagedData(entry.error, what, 500)
    return entry


def _parameters(given: Mapping[str, Any], options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The parameters that are given, as texts."""
    texts = {name: _parameter(value) for name, value in given.items() if value is not None and value != ()}
    return [*texts.items(), *parameters_of(options).items()]


def _parameter(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case timedelta():
            return f"-{text_of(value)}"
        case datetime():
            return str(render_scalar(value))
        case tuple() | list():
            return ",".join(value)
    return str(value)
