"""What is kept by key and time, as JSON: the windows, the sessions and the history of one key.

Each kind of store has its own question; asking another one is an error that names the path to use. Times are in
milliseconds since 1970, or ISO with a zone, or `-1h`: that long before the store's time at the version that is read.
"""

import datetime as dt
import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from holdfast.errors import SettingsError, TopologyError
from holdfast.query.problems import Problem
from holdfast.query.reader import Slice, TaskStore
from holdfast.query.render import answered, shown, to_json
from holdfast.settings import parse_duration
from holdfast.stores.access import Now
from holdfast.stores.kinds.base import View, millis
from holdfast.stores.kinds.containers import Closing
from holdfast.stores.kinds.session import ReadOnlySessionStore
from holdfast.stores.kinds.versioned import ReadOnlyVersionedKeyValueStore
from holdfast.stores.kinds.window import ReadOnlyWindowStore
from holdfast.stores.layouts.slices import retention_time
from holdfast.stores.spec import KEY_VALUE, SESSION, TIMESTAMPED, VERSIONED, WINDOW, StoreSpec
from holdfast.words import Version

Item = dict[str, object]

PATHS: Mapping[str, tuple[str, ...]] = {
    KEY_VALUE: ("keys", "range"),
    TIMESTAMPED: ("keys", "range"),
    VERSIONED: ("keys", "range", "history"),
    WINDOW: ("windows",),
    SESSION: ("sessions",),
}
"""What a store of each kind can be asked, as it stands in a URL. Of a versioned one, keys and ranges are the latest."""

_WRITTEN = {"range": "range?from=&to=", "keys": "keys/{key}"}


def check_path(spec: StoreSpec, path: str) -> None:
    """Refuses a question that a store of this kind has no answer to; any answer would be a lie."""
    known = PATHS.get(spec.kind)
    if known is None:
        raise Problem(
            400,
            "wrong_kind",
            f"Store {spec.name!r} is of the app's own kind {spec.kind}: how its entries lie isn't known here.",
            "Keep what is to be queried in a store of one of Holdfast's kinds beside it.",
            {"kind": spec.kind},
        )
    if path not in known:
        ways = ", ".join(f"/v1/stores/{spec.name}/{_WRITTEN.get(each, f'{each}/{{key}}?from=&to=')}" for each in known)
        raise Problem(
            400, "wrong_kind", f"Store {spec.name!r} is a {spec.kind} store.", f"Ask {ways}.", {"kind": spec.kind}
        )


def items(
    spec_at: Callable[[Version], StoreSpec], path: str, key: Any, given: Mapping[str, str], limit: int
) -> Callable[[TaskStore], list[Item]]:
    """A reader of one key's windows, sessions or history: one more than `limit` of them, to tell whether there are.

    `spec_at` gives the store's spec as it was at a version.
    """

    def read(store: TaskStore) -> list[Item]:
        spec = spec_at(store.version)
        now = Now(store.now.wall, retention_time(spec, store.now))
        from_, to = _time(given, "from", now), _time(given, "to", now)
        found = {"windows": _windows, "sessions": _sessions, "history": _history}[path]
        with Closing(found(spec, store, key, from_, to)) as rows:
            return list(itertools.islice(rows, limit + 1))

    return read


_ORDER = {"windows": itemgetter("start"), "sessions": itemgetter("end", "start"), "history": itemgetter("timestamp")}


def merged(path: str, parts: Sequence[Slice[Item]]) -> list[Item]:
    """What the tasks have of one key, in the order of time.

    A processor may write under another key than its record's, so one key may lie in several tasks. Each item then says
    in `task` whose it is; where one task has them all, nothing needs to be said.
    """
    holding = [part for part in parts if part.entries]
    if len(holding) == 1:
        return list(holding[0].entries)
    told = ([{**item, "task": str(part.task)} for item in part.entries] for part in holding)
    return list(heapq.merge(*told, key=_ORDER[path]))


def _windows(spec: StoreSpec, store: TaskStore, key: Any, from_: int | None, to: int | None) -> Iterator[Item]:
    view = _view(ReadOnlyWindowStore, spec, store)
    with view.fetch(key, from_=from_, to=to) as windows:
        for start, value in windows:
            yield {"start": start, "end": start + spec.window_ms, **answered(to_json(value))}


def _sessions(spec: StoreSpec, store: TaskStore, key: Any, from_: int | None, to: int | None) -> Iterator[Item]:
    view = _view(ReadOnlySessionStore, spec, store)
    with view.find(key, from_, to) as sessions:
        for session, value in sessions:
            yield {"start": session.start, "end": session.end, **answered(to_json(value))}


def _history(spec: StoreSpec, store: TaskStore, key: Any, from_: int | None, to: int | None) -> Iterator[Item]:
    view = _view(ReadOnlyVersionedKeyValueStore, spec, store)
    with view.history(key, from_, to) as records:
        for record in records:
            is_row = spec.value is not None and not isinstance(record.value, bytes)
            value = shown(record.value) if is_row else record.value
            yield {**answered(to_json(value)), "timestamp": record.timestamp, "valid_to": record.valid_to}


def _view(kind: Callable[..., Any], spec: StoreSpec, store: TaskStore) -> Any:
    """The store as its kind reads it. Values of a codec that this process doesn't have are bytes."""
    try:
        view: View[Any, Any] = kind(spec, store.bytes, store.now, value=None)
    except TopologyError:
        view = kind(msgspec.structs.replace(spec, codec="bytes/1", value=None), store.bytes, store.now)
    return view


def _time(given: Mapping[str, str], name: str, now: Now) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        return parse_time(text, now)
    except (ValueError, OverflowError, SettingsError):
        what = "Give milliseconds since 1970, an ISO time with a zone such as 2026-01-31T12:00:00Z, or -1h."
        raise Problem(400, "bad_time", f"{name}={text[:100]!r} is no time.", what) from None


def parse_time(text: str, now: Now) -> int:
    """A time in milliseconds since 1970.

    >>> now = Now(wall=0, event=10_000_000)
    >>> parse_time("1500", now), parse_time("1970-01-01T00:00:02Z", now), parse_time("-1h", now)
    (1500, 2000, 6400000)
    """
    if text.lstrip("-").isascii() and text.lstrip("-").isdigit() and len(text) <= 19:
        return int(text)
    if text.startswith("-"):
        return now.stream - parse_duration(text[1:]) // dt.timedelta(milliseconds=1)
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return millis(moment)
