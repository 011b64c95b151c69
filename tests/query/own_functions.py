"""Endpoints that instances of tests import."""

import asyncio
import datetime as dt
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import holdfast as hf

HELD = threading.Event()
REACHED = threading.Event()


@hf.endpoint("/api/state/players/{name}", reads="scores")
def player(stores: hf.StoreViews, name: str) -> dict[str, Any] | None:
    """The points of a player."""
    found = stores["scores"].get(name)
    return None if found is None else {"name": name, **found}


@hf.endpoint("/api/state/players/all", reads="scores")
def players(stores: hf.StoreViews, *, limit: int = 3) -> Iterator[Any]:
    found = stores["scores"].range()
    return ([key, row["points"]] for key, row in found) if limit == 3 else found


@hf.endpoint("/api/state/both/{name}/{level}", reads=["scores", "levels"])
def both(stores: hf.StoreViews, name: str, level: int, day: dt.date | None = None) -> dict[str, Any]:
    levels = stores["levels"]
    return {
        "points": stores["scores"].get(name),
        "level": levels.get((name, level)),
        "many": [[*key, value] for key, value in levels.get_many([(name, level), (name, -1)]).items()],
        "known": (name, level) in levels,
        "prefix": list(levels.prefix(name)),
        "backwards": [key for key, _ in levels.reverse_range()],
        "count": levels.approximate_count(),
        "day": day,
        "version": stores.version,
    }


@hf.endpoint("/api/state/counts", reads=["levels", "numbers"])
def counts(stores: hf.StoreViews) -> dict[str, Any]:
    levels, numbers = stores["levels"], stores["numbers"]
    return {
        "name": numbers.name,
        "count": numbers.count(),
        "about": numbers.approximate_count(),
        "keys": list(numbers),
        "values": list(numbers.values()),
        "default": [levels.get(("ann", n), "none") for n in (2, 9)] + [levels.get(("ann", 9), default=7)],
        "partitions": [view.count() for view in numbers.partitions],
    }


class Level(msgspec.Struct):
    n: int


LEVELS = hf.KeyValueStore("levels", key=(str, int), value=Level)


@hf.endpoint("/api/state/typed/{name}", reads=LEVELS)
def typed(stores: hf.StoreViews, name: str) -> list[Level]:
    """The values of a declared store are of its type."""
    return [Level(level.n + 1) for _, level in stores[LEVELS].prefix(name)]


@dataclass
class Entry:
    """A level that a player has. An answer of Holdfast's own has the same name."""

    level: Level
    before: "Entry | None" = None


class Career(msgspec.Struct):
    by_level: dict[str, Entry]
    best: Level | None
    days: list[dt.date]


@hf.endpoint("/api/state/careers/{name}", reads=LEVELS)
def career(stores: hf.StoreViews, name: str) -> Career | None:
    """The levels of a player, each with the one before it."""
    found: dict[str, Entry] = {}
    last = None
    for _, level in stores[LEVELS].prefix(name):
        found[str(level.n)] = last = Entry(level, last)
    return Career(found, last.level if last else None, [dt.date(2026, 1, 31)]) if found else None


@hf.endpoint("/api/state/careers", reads=LEVELS)
def careers(stores: hf.StoreViews) -> Iterator[Career]:
    """The same of two players, one after the other."""
    for name in ("ann", "nobody"):
        if (found := career(stores, name)) is not None:
            yield found


@hf.endpoint("/api/state/odd", reads=LEVELS)
def odd(stores: hf.StoreViews) -> dict[str, complex]:
    """A type that JSON schema doesn't have."""
    return {}


@hf.endpoint("/api/words/{item}", reads="words")
def words(stores: hf.StoreViews, item: str, each: bool = True) -> int:
    """How often an item was counted, in a store of a user's own kind."""
    if not each:
        return int(stores["words"].estimate("book", item))
    return sum(view.estimate("book", item) for view in stores["words"].partitions)


@hf.endpoint("/api/state/wrong/{what}", reads=["numbers"])
def wrong(stores: hf.StoreViews, what: str) -> Any:
    numbers = stores["numbers"]
    match what:
        case "raises":
            raise RuntimeError("too bad")
        case "file":
            return Path("/etc/holdfast/none").read_text()
        case "exits":
            sys.exit("closed")
        case "interrupts":
            raise KeyboardInterrupt("stopped")
        case "closes":
            raise GeneratorExit("left")
        case "cancels":
            raise asyncio.CancelledError("given up")
        case "object":
            return object()
        case "half":
            return "\ud800"
        case "endless":
            return iter(int, 1)
        case "other":
            return stores["scores"]
        case "writes":
            return numbers.put(1, 2)
        case "key":
            return numbers.get("not a number")
        case "floats":
            return [float("nan"), b"hello", dt.date(2026, 1, 31)]
        case "scans":
            while True:
                REACHED.set()
                list(numbers.items())
        case "hangs":
            REACHED.set()
            HELD.wait(30)
    return {"what": what}
