"""Models of each kind of store: the expected answers, from dictionaries alone.

A model keeps everything it was told and decides what is visible when it is asked. The operations are drawn as plain
tuples; a model and its store are given the same ones.
"""

from typing import Any, Protocol

from hypothesis import strategies as st

import holdfast as hf

KEYS = ["a", "a\0", "b", "ab"]
TIMES = st.integers(0, 60_000) | st.integers(0, 12).map(lambda n: n * 5_000)
"""Any time, or one of a few, so that a delete or another put often has the same time."""
NEVER = 10**15
Answers = dict[str, Any]


def stream_time(now: hf.Now) -> int:
    """Event time, or the wall clock in an app without event time."""
    return now.wall if now.event is None else now.event


class Model(Protocol):
    """A kind of store: its declaration, its operations, and the expected answers."""

    def declared(self) -> Any: ...

    def operations(self) -> st.SearchStrategy[tuple[Any, ...]]: ...

    def do(self, operation: tuple[Any, ...], now: hf.Now) -> None: ...

    def end_of_version(self) -> None: ...

    def answers(self, now: hf.Now, at: list[int]) -> Answers:
        """All reads at these times."""

    def ask(self, store: Any, at: list[int]) -> Answers:
        """The same reads, of a store."""


class KeyValue:
    """Entries with a value and an expiry; beyond a limit the least recently used are evicted.

    Expired entries are hidden and take no room. The last entries that a version touches stay, at
    most that number even before it ends; earlier entries make room when it does.
    """

    def __init__(self, *, ttl: int | None = None, most: int | None = None, refresh: bool = False) -> None:
        self.ttl, self.most, self.refresh = ttl, most, refresh
        self.entries: dict[str, tuple[Any, int]] = {}
        self.touched: set[str] = set()

    def declared(self) -> Any:
        ttl = None if self.ttl is None else f"{self.ttl}ms"
        return hf.KeyValueStore("s", value=int, ttl=ttl, max_entries=self.most, refresh_on_read=self.refresh)

    def operations(self) -> st.SearchStrategy[tuple[Any, ...]]:
        key = st.sampled_from(KEYS)
        ttl = st.none() | st.integers(1, self.ttl or 20_000)
        return st.one_of(
            st.tuples(st.just("put"), key, st.integers(0, 99), ttl),
            st.tuples(st.just("delete"), key),
            st.tuples(st.just("get"), key),
        )

    def do(self, operation: tuple[Any, ...], now: hf.Now) -> None:
        what, key, *rest = operation
        self.entries = {each: entry for each, entry in self.entries.items() if entry[1] > now.wall}
        if what == "put":
            value, ttl = rest
            ttl = ttl or self.ttl
            self._touch(key, (value, NEVER if ttl is None else now.wall + ttl))
        elif what == "delete":
            self.entries.pop(key, None)
        elif self.refresh and key in self.entries:
            self._touch(key, self.entries[key])

    def _touch(self, key: str, entry: tuple[Any, int]) -> None:
        self.entries.pop(key, None)
        self.entries[key] = entry
        self.touched.add(key)
        touched = [each for each in self.entries if each in self.touched]
        if self.most is not None and len(touched) > self.most:
            del self.entries[touched[0]]

    def end_of_version(self) -> None:
        self.touched.clear()
        while self.most is not None and len(self.entries) > self.most:
            del self.entries[next(iter(self.entries))]

    def apply(self, store: Any, operation: tuple[Any, ...]) -> None:
        what, key, *rest = operation
        if what == "put":
            store.put(key, rest[0], ttl=rest[1])
        elif what == "delete":
            store.delete(key)
        else:
            store.get(key)

    def answers(self, now: hf.Now, at: list[int]) -> Answers:
        there = {key: value for key, (value, expires) in sorted(self.entries.items()) if expires > now.wall}
        return {
            "get": [there.get(key) for key in KEYS],
            "scan": list(there.items()),
            "back": list(there.items())[::-1],
            "range": [(key, value) for key, value in there.items() if "a\0" <= key <= "ab"],
        }

    def ask(self, store: Any, at: list[int]) -> Answers:
        assert store.get_many(KEYS) == {key: store[key] for key in KEYS if key in store}
        return {
            "get": [store.get(key) for key in KEYS],
            "scan": list(store.scan()),
            "back": list(store.scan(reverse=True)),
            "range": list(store.range("a\0", "ab")),
        }


class Timestamped(KeyValue):
    """The same with an event time beside each value, by which a put may be late. An ignored one touches nothing."""

    def __init__(self, late: Any, *, ttl: int | None = None, most: int | None = None, refresh: bool = False) -> None:
        super().__init__(ttl=ttl, most=most, refresh=refresh)
        self.late = late

    def declared(self) -> Any:
        ttl = None if self.ttl is None else f"{self.ttl}ms"
        return hf.TimestampedKeyValueStore(
            "s", value=int, late=self.late, ttl=ttl, max_entries=self.most, refresh_on_read=self.refresh
        )

    def operations(self) -> st.SearchStrategy[tuple[Any, ...]]:
        key = st.sampled_from(KEYS)
        ttl = st.none() | st.integers(1, self.ttl or 20_000)
        put = st.tuples(st.just("put"), key, st.none() | st.integers(0, 99), TIMES, ttl)
        return put | st.tuples(st.just("get"), key)

    def do(self, operation: tuple[Any, ...], now: hf.Now) -> None:
        what, key, *rest = operation
        if what == "put":
            value, time, ttl = rest
            there = self.entries.get(key)
            if self.late == "newest" and there is not None and there[0][1] > time and there[1] > now.wall:
                return
            operation = ("delete", key) if value is None else ("put", key, (value, time), ttl)
        super().do(operation, now)

    def apply(self, store: Any, operation: tuple[Any, ...]) -> None:
        if operation[0] == "put":
            store.put(*operation[1:])
        else:
            super().apply(store, operation)


class Window:
    """Values by key and start."""

    def __init__(self, *, retention: int = 20_000, duplicates: bool = False) -> None:
        self.retention, self.duplicates = retention, duplicates
        self.entries: dict[tuple[str, int], list[int]] = {}

    def declared(self) -> Any:
        keep = f"{self.retention}ms"
        return hf.WindowStore("s", value=int, size="1s", retention=keep, duplicates=self.duplicates)

    def operations(self) -> st.SearchStrategy[tuple[Any, ...]]:
        key = st.sampled_from(KEYS)
        return st.one_of(
            st.tuples(st.just("put"), key, st.integers(0, 99), TIMES),
            st.tuples(st.just("delete"), key, TIMES),
        )

    def do(self, operation: tuple[Any, ...], now: hf.Now) -> None:
        what, key, *rest = operation
        start = rest[-1]
        if what == "delete" or (not self.duplicates and start > stream_time(now) - self.retention):
            self.entries.pop((key, start), None)
        if what == "put" and start > stream_time(now) - self.retention:
            self.entries.setdefault((key, start), []).append(rest[0])

    def end_of_version(self) -> None:
        pass

    def apply(self, store: Any, operation: tuple[Any, ...]) -> None:
        getattr(store, operation[0])(*operation[1:])

    def answers(self, now: hf.Now, at: list[int]) -> Answers:
        kept = stream_time(now) - self.retention
        there = [
            ((key, start), value)
            for (key, start), values in sorted(self.entries.items())
            for value in values
            if start > kept
        ]
        first, last = min(at), max(at)
        inside = [((key, start), value) for (key, start), value in there if first <= start <= last]
        return {
            "one": [next((v for k, v in reversed(there) if k == (key, t)), None) for key in KEYS for t in at],
            "fetch": [[(s, v) for (k, s), v in inside if k == key] for key in KEYS],
            "back": [[(s, v) for (k, s), v in there if k == key][::-1] for key in KEYS],
            "all": inside,
            "all back": inside[::-1],
            "keys": [((k, s), v) for (k, s), v in inside if "a\0" <= k <= "ab"],
        }

    def ask(self, store: Any, at: list[int]) -> Answers:
        first, last = min(at), max(at)

        def plain(rows: Any) -> list[tuple[tuple[str, int], int]]:
            return [((windowed.key, windowed.start), value) for windowed, value in rows]

        return {
            "one": [store.fetch(key, time) for key in KEYS for time in at],
            "fetch": [list(store.fetch(key, from_=first, to=last)) for key in KEYS],
            "back": [list(store.fetch(key, reverse=True)) for key in KEYS],
            "all": plain(store.fetch_all(first, last)),
            "all back": plain(store.fetch_all(first, last, reverse=True)),
            "keys": plain(store.fetch_keys("a\0", "ab", first, last)),
        }


class Sessions:
    """Values by key, start and end."""

    def __init__(self, *, retention: int = 20_000) -> None:
        self.retention = retention
        self.entries: dict[tuple[str, int, int], int] = {}

    def declared(self) -> Any:
        return hf.SessionStore("s", value=int, gap="2s", retention=f"{self.retention}ms")

    def operations(self) -> st.SearchStrategy[tuple[Any, ...]]:
        key = st.sampled_from(KEYS)
        return st.one_of(
            st.tuples(st.just("put"), key, TIMES, st.integers(0, 5_000), st.integers(0, 99)),
            st.tuples(st.just("remove"), key, TIMES, st.integers(0, 5_000)),
            st.tuples(st.just("merge"), key, TIMES),
        )

    def do(self, operation: tuple[Any, ...], now: hf.Now) -> None:
        what, key, time, *rest = operation
        kept = stream_time(now) - self.retention - 1
        if what == "put" and time + rest[0] > kept:
            self.entries[key, time, time + rest[0]] = rest[1]
        elif what == "remove":
            self.entries.pop((key, time, time + rest[0]), None)
        elif what == "merge":
            near = [
                (k, start, end)
                for k, start, end in self.entries
                if k == key and end > kept and end >= time - 2_000 and start <= time + 2_000
            ]
            if near or time > kept:
                value = sum(self.entries.pop(each) for each in near) + 1
                start = min([time, *(each[1] for each in near)])
                end = max([time, *(each[2] for each in near)])
                self.entries[key, start, end] = value

    def end_of_version(self) -> None:
        pass

    def apply(self, store: Any, operation: tuple[Any, ...]) -> None:
        what, key, time, *rest = operation
        if what == "put":
            store.put(hf.Session(key, time, time + rest[0]), rest[1])
        elif what == "remove":
            store.remove(hf.Session(key, time, time + rest[0]))
        else:
            store.merge(key, time, None, lambda one, other: one + other, 1)

    def answers(self, now: hf.Now, at: list[int]) -> Answers:
        kept = stream_time(now) - self.retention - 1
        there = sorted(((k, e, s), v) for (k, s, e), v in self.entries.items() if e > kept)
        found = [((k, s, e), v) for (k, e, s), v in there]
        first, last = min(at), max(at)
        near = [((k, s, e), v) for (k, s, e), v in found if e >= first and s <= last]
        return {
            "fetch": [[each for each in found if each[0][0] == key] for key in KEYS],
            "find": [[each for each in near if each[0][0] == key] for key in KEYS],
            "back": [[each for each in near if each[0][0] == key][::-1] for key in KEYS],
            "keys": [each for each in near if "a\0" <= each[0][0] <= "ab"],
            "all back": near[::-1],
            "get": [v for (_, _, _), v in found],
        }

    def ask(self, store: Any, at: list[int]) -> Answers:
        first, last = min(at), max(at)

        def plain(rows: Any) -> list[tuple[tuple[str, int, int], int]]:
            return [(tuple(session), value) for session, value in rows]

        return {
            "fetch": [plain(store.fetch(key)) for key in KEYS],
            "find": [plain(store.find(key, first, last)) for key in KEYS],
            "back": [plain(store.find(key, first, last, reverse=True)) for key in KEYS],
            "keys": plain(store.find_keys("a\0", "ab", first, last)),
            "all back": plain(store.find_keys(None, None, first, last, reverse=True)),
            "get": [store.get(*session) for session, _ in store.find_keys(None, None)],
        }


class Versioned:
    """Per key, the value put at each time; None is a delete."""

    def __init__(self, *, retention: int = 20_000) -> None:
        self.retention = retention
        self.said: dict[str, dict[int, int | None]] = {}

    def declared(self) -> Any:
        return hf.VersionedKeyValueStore("s", value=int, retention=f"{self.retention}ms")

    def operations(self) -> st.SearchStrategy[tuple[Any, ...]]:
        return st.tuples(st.just("put"), st.sampled_from(KEYS), st.none() | st.integers(0, 99), TIMES)

    def do(self, operation: tuple[Any, ...], now: hf.Now) -> None:
        _, key, value, time = operation
        if time >= stream_time(now) - self.retention:
            self.said.setdefault(key, {})[time] = value

    def end_of_version(self) -> None:
        pass

    def apply(self, store: Any, operation: tuple[Any, ...]) -> None:
        store.put(*operation[1:])

    def answers(self, now: hf.Now, at: list[int]) -> Answers:
        """The latest value is known at any time since it started; earlier ones at times within the retention."""
        kept = stream_time(now) - self.retention
        first, last = max(min(at), kept), max(at)
        records = {key: self._records(key) for key in KEYS}
        history = {
            key: [(v, f, t) for v, f, t in records[key] if f <= last and (t is None or (t > first and first <= last))]
            for key in KEYS
        }
        return {
            "latest": [next((r for r in records[key] if r[2] is None), None) for key in KEYS],
            "as of": [
                next((r for r in records[key] if r[1] <= time and (r[2] is None or kept <= time < r[2])), None)
                for key in KEYS
                for time in at
            ],
            "history": list(history.values()),
            "back": [rows[::-1] for rows in history.values()],
        }

    def _records(self, key: str) -> list[tuple[int, int, int | None]]:
        said = sorted(self.said.get(key, {}).items())
        ends = [*(time for time, _ in said[1:]), None][: len(said)]
        return [(value, time, end) for (time, value), end in zip(said, ends, strict=True) if value is not None]

    def ask(self, store: Any, at: list[int]) -> Answers:
        first, last = min(at), max(at)

        def plain(record: Any) -> Any:
            return None if record is None else tuple(record)

        return {
            "latest": [plain(store.get(key)) for key in KEYS],
            "as of": [plain(store.get(key, as_of=time)) for key in KEYS for time in at],
            "history": [[tuple(each) for each in store.history(key, first, last)] for key in KEYS],
            "back": [[tuple(each) for each in store.history(key, first, last, reverse=True)] for key in KEYS],
        }


def entries_in(store: Any) -> int:
    """How many entries a store of any kind shows."""
    if hasattr(store, "history"):
        return sum(1 for key in KEYS for _ in store.history(key))
    if hasattr(store, "find_keys"):
        return sum(1 for _ in store.find_keys(None, None))
    return sum(1 for _ in (store.fetch_all() if hasattr(store, "fetch_all") else store.scan()))


MODELS: dict[str, Any] = {
    "key-value": KeyValue,
    "ttl": lambda: KeyValue(ttl=9_000),
    "max-entries": lambda: KeyValue(most=2),
    "max-entries-refreshed": lambda: KeyValue(most=2, refresh=True),
    "max-entries-ttl": lambda: KeyValue(most=3, ttl=9_000),
    "max-entries-ttl-refreshed": lambda: KeyValue(most=2, ttl=9_000, refresh=True),
    "timestamped-newest": lambda: Timestamped("newest"),
    "timestamped-newest-ttl": lambda: Timestamped("newest", ttl=9_000),
    "timestamped-last-ttl": lambda: Timestamped("last", ttl=9_000),
    "timestamped-max-entries": lambda: Timestamped("newest", most=2),
    "timestamped-max-entries-refreshed": lambda: Timestamped("newest", most=2, refresh=True),
    "timestamped-max-entries-last-ttl": lambda: Timestamped("last", most=2, ttl=9_000, refresh=True),
    "window": Window,
    "window-duplicates": lambda: Window(duplicates=True),
    "session": Sessions,
    "versioned": Versioned,
}
