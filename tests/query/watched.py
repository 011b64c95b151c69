"""Watching from tests: server-sent events parsed, a client that reconnects, and a log with the stores of a test."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from holdfast.log.log import Log
from holdfast.log.segments import STATE, SegmentRef, seal
from holdfast.stores.access import DictBytes, Now
from holdfast.words import TaskId, Version
from tests.log.making import changes, next_commit


@dataclass(frozen=True)
class Event:
    """One block of a stream: an event, or a heartbeat, which has no data."""

    id: str | None = None
    name: str = "message"
    data: Any = None
    comment: str | None = None


def parsed(lines: Iterable[str]) -> Iterator[Event]:
    """The blocks of a stream, as its lines arrive."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif fields:
            data = json.loads(fields["data"]) if "data" in fields else None
            yield Event(fields.get("id"), fields.get("event", "message"), data, fields.get(""))
            fields = {}


@contextmanager
def watching(url: str, store: str, last: str | None = None, **params: str) -> Iterator[Iterator[Event]]:
    """The blocks of one connection."""
    headers = {"Last-Event-ID": last} if last else {}
    with httpx2.Client(timeout=60) as client:
        with client.stream("GET", f"{url}/v1/stores/{store}/watch", params=params, headers=headers) as answer:
            if answer.status_code != 200:
                answer.read()
                raise AssertionError(answer.text)
            yield parsed(answer.iter_lines())


def first(events: Iterator[Event], number: int) -> list[Event]:
    """The next events that have data."""
    found: list[Event] = []
    while len(found) < number:
        event = next(events)
        if event.data is not None:
            found.append(event)
    return found


@dataclass
class Follower:
    """A client that watches from version 1 on and reconnects wherever it may, until it is stopped."""

    urls: Callable[[], list[str]]
    store: str
    params: Mapping[str, str] = field(default_factory=dict)
    seen: list[Any] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    connections: int = 0
    last: str | None = None

    def __enter__(self) -> "Follower":
        self._stop = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()  # the thread ends with the next heartbeat, or with the instance

    def _run(self) -> None:
        while not self._stop.is_set():
            for url in self.urls():
                try:
                    self._follow(url)
                except httpx2.TransportError:
                    continue

    def _follow(self, url: str) -> None:
        with watching(
            url, self.store, self.last, **({} if self.last else {"from_version": "1"}), **self.params
        ) as all_:
            self.connections += 1
            for event in all_:
                if event.name == "end":
                    self.ends.append(event.data["error"])
                    return
                if event.data is not None:
                    self.seen.append(event.data)
                self.last = event.id or self.last
                if self._stop.is_set():
                    return


class KindDriver:
    """Commits what is put into stores of any kind, as a task does."""

    def __init__(self, log: Log, *, inline_limit: int = 1 << 20) -> None:
        self.log = log
        self._inline_limit = inline_limit
        self._newest = log.newest()
        self._state: dict[tuple[TaskId, str], DictBytes] = {}

    def commit(self, store: Any, task: TaskId, now: Now, use: Callable[[Any], object]) -> Version:
        """One version, in which a task uses a store."""
        spec = self.log.app.store(store.name)
        assert spec is not None
        bytes_ = self._state.setdefault((task, spec.name), DictBytes())
        before = dict(bytes_.entries)
        bound = store.bind(bytes_, now, spec=spec)
        bound.begin_version()
        use(bound)
        bound.end_of_version()
        after = dict(bytes_.entries)
        written = {key: after.get(key) for key in {**before, **after} if before.get(key) != after.get(key)}
        return self.write(spec.name, {task: written}, volatile=not spec.durable)

    def write(
        self, store: str, by_task: Mapping[TaskId, Mapping[bytes, bytes | None]], *, volatile: bool = False
    ) -> Version:
        version = Version(1 if self._newest is None else self._newest.version + 1)
        refs: dict[str, tuple[SegmentRef, ...]] = {}
        for task, cells in by_task.items():
            if cells:
                sealed = seal([(STATE, store, changes(cells))])
                ref = self.log.write_segment(task, version, sealed, inline_limit=self._inline_limit, volatile=volatile)
                refs[str(task)] = (ref,)
        parts = {"volatile": refs} if volatile else {"segments": refs}
        self._newest = next_commit(self.log, self._newest, **parts)  # type: ignore[arg-type]
        self.log.create_commit(self._newest)
        return version
