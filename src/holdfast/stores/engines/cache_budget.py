"""One budget for all caches, divided by use: a cache a store, whose capacities add up and move.

One cache for all would let a store that is scanned now and then push out what another looks up all day. A fixed share
each would leave memory idle with the stores that are hardly read. So every store has a cache of its own, never below a
minimum, and every few seconds capacity moves a step from where it isn't used to where it is missed.

`step` decides and touches nothing; `CacheBudget` measures, asks it and sets.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

LEAST = 4 * 1024 * 1024
"""What every cache has, if the budget allows: room for the indexes and filters in use."""

_FULL = 0.85
"""A cache that is fuller than this would hold more if it could."""
_PACE = 4
"""A step goes a quarter of the way, so that one busy second doesn't empty the others' caches."""


@dataclass(frozen=True)
class Use:
    """What one cache has, holds and was asked for since the last step. Reads may be weighted."""

    capacity: int
    used: int
    reads: float


def least_of(budget: int, caches: int) -> int:
    """The minimum of each: LEAST, or half of an equal share of a small budget.

    >>> least_of(64 << 20, 4) == LEAST, least_of(8_000, 4)
    (True, 1000)
    """
    return min(LEAST, budget // (2 * max(1, caches)))


def joined(budget: int, capacities: Mapping[str, int], name: str) -> dict[str, int]:
    """Capacities once there is one more cache: it gets an equal share, and the others make room in proportion.

    >>> joined(90, {}, "a")
    {'a': 90}
    >>> joined(90, {"a": 60, "b": 30}, "c")
    {'a': 40, 'b': 20, 'c': 30}
    """
    share = budget // (len(capacities) + 1)
    return fitted(budget, {each: size * (budget - share) / budget for each, size in capacities.items()} | {name: share})


def step(budget: int, uses: Mapping[str, Use]) -> dict[str, int]:
    """Capacities after one step; they add up to the budget, and none is below the minimum.

    Whoever is full and read wants a share by its reads; whoever isn't full keeps what it holds; whoever is full and not
    read can wait. Without anyone who wants more, nothing moves.

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
    """Whole sizes in the same proportions above the minimum, that add up to the budget.

    >>> fitted(10, {"a": 1.0, "b": 1.0, "c": 1.0})
    {'a': 4, 'b': 3, 'c': 3}
    """
    if not sizes:
        return {}
    least = least_of(budget, len(sizes))
    above = {name: max(0.0, size - least) for name, size in sizes.items()}
    room, wanted = budget - least * len(sizes), sum(above.values())
    exact = {name: room * (over / wanted if wanted else 1 / len(sizes)) for name, over in above.items()}
    found = {name: least + int(size) for name, size in exact.items()}
    for name in sorted(sizes, key=lambda each: (-sizes[each], each))[: budget - sum(found.values())]:
        found[name] += 1  # what rounding left over
    return found


class Sizable(Protocol):
    """A cache that can be made smaller and larger while it is used."""

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
        """An engine is about to use the caches of these stores."""
        with self._lock:
            self._users.update(stores)

    def release(self, stores: Iterable[str]) -> None:
        """An engine is closed. The share of a cache that no engine uses goes to the others."""
        with self._lock:
            self._users.subtract(stores)
            for store in [name for name in self._caches if self._users[name] <= 0]:
                self._caches.pop(store).set_capacity(0)
                del self._capacities[store], self._weights[store], self._reads[store]
            self._set(fitted(self._budget, self._capacities))

    def cache(self, store: str, weight: float = 1.0) -> C:
        """The cache of a store, made when first asked for."""
        with self._lock:
            if store not in self._caches:
                # Made small: the number of its shards follows from its first size, and a shard must hold a filter.
                self._caches[store] = self._make(max(1, least_of(self._budget, len(self._caches) + 1)))
                self._reads[store] = 0
                self._set(joined(self._budget, self._capacities, store))
            self._weights[store] = weight
            return self._caches[store]

    def read(self, store: str, keys: int) -> None:
        """Counts reads of a store. Two threads may lose a count to each other, which a share by use can bear."""
        if store in self._reads:
            self._reads[store] += keys

    def rebalance(self, budget: int) -> None:
        """One step; the budget may be another than before."""
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
        """Shrinks before it grows, so that the caches never hold more than the budget together."""
        before, self._capacities = self._capacities, dict(capacities)
        for name in sorted(capacities, key=lambda each: capacities[each] - before.get(each, 0)):
            if capacities[name] != before.get(name):
                self._caches[name].set_capacity(capacities[name])
