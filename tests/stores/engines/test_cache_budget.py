"""One budget for all caches: capacities add up, move to stores that need them, and none falls below the minimum."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.engines.cache_budget import LEAST, CacheBudget, Use, fitted, joined, least_of, step

MIB = 1 << 20
BUDGET = 100 * MIB

_USES = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(st.integers(0, BUDGET), st.floats(0, 1.2), st.sampled_from([0.0, 0.5, 1.0, 1_000.0, 1e9])),
    min_size=1,
)


def uses_of(drawn: dict[str, tuple[int, float, float]]) -> dict[str, Use]:
    return {name: Use(size, int(size * full), reads) for name, (size, full, reads) in drawn.items()}


@given(_USES, st.integers(0, 4 * BUDGET))
def test_capacities_add_up_and_keep_the_minimum(drawn: dict[str, tuple[int, float, float]], budget: int) -> None:
    found = step(budget, uses_of(drawn))
    assert found.keys() == drawn.keys()
    assert sum(found.values()) == budget
    assert min(found.values()) >= least_of(budget, len(found))


@given(_USES)
def test_a_new_cache_gets_a_share_and_the_sum_stays(drawn: dict[str, tuple[int, float, float]]) -> None:
    capacities = fitted(BUDGET, {name: size for name, (size, _, _) in drawn.items()})
    found = joined(BUDGET, capacities, "new")
    assert sum(found.values()) == BUDGET
    assert abs(found["new"] - BUDGET // len(found)) < MIB + BUDGET // len(found)


def settled(uses: dict[str, Use], steps: int = 40) -> dict[str, int]:
    """The capacities after many steps, if caches fill up to their capacity or their need."""
    needs = {name: use.used for name, use in uses.items() if use.used < use.capacity}
    for _ in range(steps):
        sizes = step(BUDGET, uses)
        uses = {n: Use(sizes[n], min(sizes[n], needs.get(n, sizes[n])), uses[n].reads) for n in uses}
    return {name: use.capacity for name, use in uses.items()}


def test_an_idle_store_shrinks_to_the_minimum() -> None:
    half = BUDGET // 2
    found = settled({"busy": Use(half, half, 1_000), "idle": Use(half, half, 0)})
    assert found["idle"] == pytest.approx(LEAST, rel=0.05)


def test_busy_stores_share_by_their_reads() -> None:
    half = BUDGET // 2
    found = settled({"a": Use(half, half, 3_000), "b": Use(half, half, 1_000)})
    assert (found["a"] - LEAST) / (found["b"] - LEAST) == pytest.approx(3, rel=0.05)


def test_a_small_store_keeps_what_it_uses_and_gets_no_more() -> None:
    half = BUDGET // 2
    found = settled({"small": Use(half, 10 * MIB, 1_000_000), "large": Use(half, half, 10)})
    assert 10 * MIB <= found["small"] <= 13 * MIB


def test_a_step_is_a_quarter_of_the_way() -> None:
    half = BUDGET // 2
    found = step(BUDGET, {"busy": Use(half, half, 1), "idle": Use(half, half, 0)})
    assert found["busy"] - half == pytest.approx((half - LEAST) / 4, rel=0.01)


def test_nothing_changes_when_no_cache_needs_more() -> None:
    uses = {"a": Use(60 * MIB, 10 * MIB, 9_000), "b": Use(40 * MIB, 40 * MIB, 0)}
    assert step(BUDGET, uses) == {"a": 60 * MIB, "b": 40 * MIB}


class Cache:
    """A cache that is always full."""

    seen = 0

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def set_capacity(self, capacity: int) -> None:
        self.capacity = capacity
        self.seen += 1

    def get_usage(self) -> int:
        return self.capacity


def test_capacity_follows_reads() -> None:
    budget = CacheBudget(BUDGET, Cache)
    budget.hold(["a", "b"])
    a, b = budget.cache("a"), budget.cache("b")
    assert budget.cache("a") is a
    assert (a.capacity, b.capacity) == (BUDGET // 2, BUDGET // 2)
    for _ in range(40):
        budget.read("a", 100)
        budget.rebalance(BUDGET)
        assert a.capacity + b.capacity == BUDGET
    assert b.capacity < 1.1 * LEAST
    assert budget.capacities() == {"a": a.capacity, "b": b.capacity}
    set_so_far = a.seen
    budget.rebalance(BUDGET)
    assert a.seen == set_so_far  # no reads, so nothing is set
    budget.rebalance(BUDGET // 2)
    assert a.capacity + b.capacity == BUDGET // 2


def test_the_share_of_a_cache_that_no_engine_uses_goes_to_the_others() -> None:
    budget = CacheBudget(BUDGET, Cache)
    budget.hold(["a", "b"])
    budget.hold(["b"])
    a, b = budget.cache("a"), budget.cache("b")
    budget.release(["b"])
    assert (a.capacity, b.capacity) == (BUDGET // 2, BUDGET // 2), "one engine still uses it"
    budget.release(["b"])
    assert (a.capacity, b.capacity) == (BUDGET, 0)
    assert budget.capacities() == {"a": BUDGET}
    budget.read("b", 1)  # by a view that is being closed
    budget.hold(["b"])
    assert budget.cache("b").capacity == a.capacity == BUDGET // 2


def test_reads_of_a_heavier_store_count_for_more() -> None:
    budget = CacheBudget(BUDGET, Cache)
    heavy, light = budget.cache("heavy", 2.0), budget.cache("light", 0.5)
    for _ in range(40):
        budget.read("heavy", 100)
        budget.read("light", 100)
        budget.rebalance(BUDGET)
    assert (heavy.capacity - LEAST) / (light.capacity - LEAST) == pytest.approx(4, rel=0.05)
