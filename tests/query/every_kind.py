"""An app with a store of every kind, a user's own one included, and entries in all of them."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

from examples.count_min_sketch import CountMinSketch
from holdfast.log.appfile import AppSpec, EndpointSpec
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.keyvalue import KeyValueStore
from holdfast.stores.kinds.scores import RANKING, SCORES, ScoreStore
from holdfast.stores.kinds.session import Session, SessionStore
from holdfast.stores.kinds.timestamped import TimestampedKeyValueStore
from holdfast.stores.kinds.versioned import VersionedKeyValueStore
from holdfast.stores.kinds.window import WindowStore
from holdfast.topology.endpoints import StoreViews, endpoint
from holdfast.words import TaskId
from tests.log.making import subtopologies_of
from tests.query.instances import Driver

START = 1_700_000_000_000
NOW = Now(START, START)
_BY_ROW: Any = Schema.of(game="string", player="string")
_BY_SCORE: Any = Schema.of(game="string", points="bigint", player="string")
_ROWS: Any = list[dict[str, Any]]

Puts = list[tuple[tuple[object, ...], tuple[Any, ...]]]
"""The key that a put belongs to, and its arguments."""

DECLARED: Mapping[Any, Puts] = {
    KeyValueStore("texts", value=dict): [((key,), (key, {"n": n, "key": key})) for n, key in enumerate("abc")],
    KeyValueStore("numbers", key=int, value=int): [((n,), (n, n * n)) for n in range(-5, 5)],
    KeyValueStore("reals", key=float, value=int): [((x,), (x, 1)) for x in (-1.5, 0.0, float("inf"), float("nan"))],
    KeyValueStore("pairs", key=(str, int), value=list): [(("a", n), (("a", n), [n])) for n in range(3)],
    KeyValueStore("blobs", key=bytes, value=bytes): [((b"\x00\xff",), (b"\x00\xff", b"\x01"))],
    KeyValueStore("expiring", value=int, ttl="1h"): [(("a",), ("a", 1))],
    TimestampedKeyValueStore("places", value=str): [(("a",), ("a", "Oslo", START))],
    WindowStore("plays", value=dict, size="10s", retention="1h"): [
        ((key,), (key, {"n": n}, START - n * 10_000)) for key in "ab" for n in range(5)
    ],
    SessionStore("visits", key=(str, int), value=int, gap="5s", retention="1h"): [
        ((key, 1), (Session((key, 1), START - 9_000, START), 7)) for key in "ab"
    ],
    VersionedKeyValueStore("prices", value=int, retention="1h"): [
        (("tea",), ("tea", n, START - n * 1_000)) for n in range(5)
    ],
    TimestampedKeyValueStore("best", value=_ROWS): [(("chess",), ("chess", [{"player": "ann", "points": 7}], START))],
    ScoreStore(f"best{SCORES}", key=_BY_ROW, value=int, group=1): [(("chess", "ann"), (("chess", "ann"), 7))],
    KeyValueStore(f"best{RANKING}", key=_BY_SCORE, value=dict): [
        (("chess", 7, "ann"), (("chess", 7, "ann"), {"level": 3}))
    ],
    CountMinSketch("words", width=64): [],
}


@endpoint("/api/squares/{n}", reads="numbers")
def square(stores: StoreViews, n: int, day: dt.date | None = None, more: bool = False) -> dict[str, int | None]:
    """The square of a number, if the store has it."""
    return {"n": n, "square": stores["numbers"].get(n)}


@endpoint("/api/keys/{key}", reads=["texts", "expiring"])
def anywhere(stores: StoreViews, key: str, most: int = 2) -> list[str] | None:
    """Which of two stores have a key."""
    return [name for name in ("texts", "expiring") if key in stores[name]][: max(0, most)] or None


ENDPOINTS = tuple(EndpointSpec(each.path, each.place, tuple(each.reads)) for each in (square, anywhere))
SPECS = tuple(store.spec(default_engine="rocksdb") for store in DECLARED)
APP = AppSpec(
    id="game",
    partitions=2,
    stores=SPECS,
    subtopologies=subtopologies_of({spec.name: 0 for spec in SPECS}),
    endpoints=ENDPOINTS,
)


def fill(driver: Driver) -> None:
    """Commits one version per store."""
    for store, puts in DECLARED.items():
        spec = store.spec(default_engine="rocksdb")
        by_task: dict[TaskId, DictBytes] = {}
        for key, put in puts:
            task = TaskId(0, partition_of(spec.key, key, APP.partitions))
            store.bind(by_task.setdefault(task, DictBytes()), NOW).put(*put)
        driver.commit_cells(spec, {task: dict(bytes_.entries) for task, bytes_ in by_task.items()})
