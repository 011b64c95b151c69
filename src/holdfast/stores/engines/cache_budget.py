"""One memory budget for all block caches, divided by use: one cache per store, whose capacities add up to the budget.

In one common cache, a store that is scanned now and then would evict the blocks that another store needs all day. With
fixed shares, stores that are rarely read would leave memory idle. So every store has its own cache, never below a
minimum. Every few seconds, capacity moves one step from caches that don't need it to caches that do.

`step` decides without side effects; `CacheBudget` measures, calls it and sets the capacities.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

LEAST = 4 * 1024 * 1024
"""The minimum of every cache, if the budget allows it: room for the indexes and filters in use."""

_FULL = 0.85
"""A cache that is fuller than this would use more capacity."""
_PACE = 4
"""A step goes a quarter of the way, so that one busy second doesn't empty the other caches."""


@dataclass(frozen=True)
class Use:
    """One cache's capacity, the bytes used of it, and its (weighted) reads since the last step."""

    capacity: int
    used: int
    reads: float


def least_of(budget: int, caches: int) -> int:
    """The minimum per cache: LEAST, or half of an equal share of a small budget.

    >>> least_of(64 << 20, 4) == LEAST, least_of(8_000, 4)
    (True, 1000)
    """
    return min(LEAST, budget // (2 * max(1, caches)))


def joined(budget: int, capacities: Mapping[str, int], name: str) -> dict[str, int]:
    """Capacities with one more cache: it gets an equal share, and the others shrink in proportion.

    >>> joined(90, {}, "a")
    {'a': 90}
    >>> joined(90, {"a": 60, "b": 30}, "c")
    {'a': 40, 'b': 20, 'c': 30}
    """
    share = budget // (len(capacities) + 1)
    return fitted(budget, {each: size * (budget - share) / budget for each, size in capacities.items()} | {name: share})


def step(budget: int, uses: Mapping[str, Use]) -> dict[str, int]:
    """Capacities after one step. They add up to the budget, and none is below the minimum.

    A cache that is full and read gets a share by its reads. A cache that isn't full keeps the bytes it uses. A cache
    that isn't read shrinks. If no cache is full and read, nothing changes.

    >>> step(80, {"busy": Use(40, 40, 900), "idle": Use(40, 40, 0)})
    {'busy': 45, 'idle': 35}
    >>> step(80, {"busy": Use(40, 10, 900), "idle": Use(40, 40, 0)})
    {'busy': 40, 'idle': 40}
    """
    hungry = {name for name, use in uses.items() if use.reads > 0 and use.used >= _FULL * use.capacity}
    if not hungry:
        return fitted(budget, {name: use.capacity for name, use in uses.items()})
    least = least_of(budget, len(uses))
    resting = {
        name: max(least, min(use.capacity, use.used * 9 / 8) if use.reads > 0 else least)
        for name, use in uses.items()
        if name not in hungry
    }
    left = max(0, budget - sum(resting.values()) - least * len(hungry))
    reads = sum(uses[name].reads for name in hungry)
    aims = resting | {name: least + left * uses[name].reads / reads for name in hungry}
    return fitted(budget, {name: use.capacity + (aims[name] - use.capacity) / _PACE for name, use in uses.items()})


def fitted(budget: int, sizes: Mapping[str, float]) -> dict[str, int]:
    """Integer sizes that add up to the budget, with the same proportions above the minimum.

    >>> fitted(10, {"a": 1.0, "b": 1.0, "c": 1.0})
    {'a': 4, 'b': 3, 'c': 3}
    """
    if not sizes:
        return {}
    least = least_of(budget, len(sizes))
    above = {name: max(0.0, size - least) for name, size in sizes.items()}
    room, wanted = budget - least * len(sizes), sum(above.values())
    exact = {name: room * (extra / wanted if wanted else 1 / len(sizes)) for name, extra in above.items()}
    found = {name: least + int(size) for name, size in exact.items()}
    for name in sorted(sizes, key=lambda each: (-sizes[each], each))[: budget - sum(found.values())]:
        found[name] += 1  # the remainder from rounding
    return found


class Sizable(Protocol):
    """A cache whose capacity can change while it is in use."""

    def set_capacity(self, capacity: int) -> None: ...

    def get_usage(self) -> int: ...


C = TypeVar("C", bound=Sizable)


class CacheBudget(Generic[C]):
    """The caches of one process, by store."""

    def __init__(self, budget: int, make: Callable[[int], C]) -> None:
        self._budget = budget
        self._make = make
        self._lock = threading.Lock()
        self._caches: dict[str, C] = {}
        self._capacities: dict[str, int] = {}
        self._weights: dict[str, float] = {}
        self._reads: dict[str, int] = {}
        self._users: Counter[str] = Counter()

    def hold(self, stores: Iterable[str]) -> None:
        """Called before an engine uses the caches of these stores."""
        with self._lock:
            self._users.update(stores)

    def release(self, stores: Iterable[str]) -> None:
        """Called when an engine was closed. The share of a cache that no engine uses goes to the others."""
        with self._lock:
            self._users.subtract(stores)
            for store in [name for name in self._caches if self._users[name] <= 0]:
                self._caches.pop(store).set_capacity(0)
                del self._capacities[store], self._weights[store], self._reads[store]
            self._set(fitted(self._budget, self._capacities))

    def cache(self, store: str, weight: float = 1.0) -> C:
        """The cache of a store, made by the first call."""
        with self._lock:
            if store not in self._caches:
                # Made small: the first size decides the number of shards, and a shard must have room for a filter.
                self._caches[store] = self._make(max(1, least_of(self._budget, len(self._caches) + 1)))
                self._reads[store] = 0
                self._set(joined(self._budget, self._capacities, store))
            self._weights[store] = weight
            return self._caches[store]

    def read(self, store: str, keys: int) -> None:
        """Counts reads of a store, without a lock: two threads may lose a count, which matters little here."""
        if store in self._reads:
            self._reads[store] += keys

    def rebalance(self, budget: int) -> None:
        """Makes one step, with a budget that may differ from the last one."""
        with self._lock:
            self._budget = budget
            uses = {
                name: Use(self._capacities[name], cache.get_usage(), self._reads[name] * self._weights[name])
                for name, cache in self._caches.items()
            }
            self._reads = dict.fromkeys(self._reads, 0)
            self._set(step(budget, uses))

    def capacities(self) -> dict[str, int]:
        with self._lock:
            return dict(self._capacities)

    def _set(self, capacities: Mapping[str, int]) -> None:
        """Shrinks caches before it grows others, so that together they never exceed the budget."""
        before, self._capacities = self._capacities, dict(capacities)
        for name in sorted(capacities, key=lambda each: capacities[each] - before.get(each, 0)):
            if capacities[name] != before.get(name):
                self._caches[name].set_capacity(capacities[name])
