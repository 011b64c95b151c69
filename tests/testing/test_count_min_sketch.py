"""The example of a user's own kind of store: it conforms, its counts are never too low, and processors can use it."""

import random
from typing import Any

import pytest

import holdfast as hf
from examples.count_min_sketch import ROWS, WIDTH, CountMinSketch, ReadOnlyCountMinSketch, places
from holdfast.testing import ProcessorTest, StoreConformance

KEYS = ("home", "shop")
ITEMS = [f"user-{n}" for n in range(300)]


class TestSketch(StoreConformance):
    def declared(self) -> CountMinSketch:
        return CountMinSketch("visits")

    def write(self, store: CountMinSketch, dice: random.Random) -> None:
        store.add(dice.choice(KEYS), dice.choice(ITEMS), dice.randrange(1, 9))

    def content(self, store: Any) -> object:
        return [(key, item, store.estimate(key, item)) for key in KEYS for item in ITEMS[:40]]


@pytest.fixture
def sketch() -> CountMinSketch:
    return CountMinSketch("visits").bind(hf.DictBytes(), hf.Now(wall=0))


def test_a_count_is_never_too_low_and_rarely_much_too_high(sketch: CountMinSketch) -> None:
    dice = random.Random(3)
    truth: dict[str, int] = {}
    for _ in range(5_000):
        item, number = f"item-{dice.randrange(3_000)}", dice.randrange(1, 20)
        truth[item] = truth.get(item, 0) + number
        sketch.add("home", item, number)
    total = sum(truth.values())
    assert sketch.total("home") == total
    over = {item: sketch.estimate("home", item) - count for item, count in truth.items()}
    assert min(over.values()) >= 0
    bound = 2.72 * total / WIDTH  # exceeded with probability e**-ROWS
    assert sum(each > bound for each in over.values()) <= 0.0184 * len(truth)
    assert ROWS == 4


def test_keys_are_separate(sketch: CountMinSketch) -> None:
    sketch.add("home", "ann", 5)
    assert sketch.estimate("shop", "ann") == 0
    assert sketch.total("shop") == 0


def test_the_prefetched_range_covers_all_reads(sketch: CountMinSketch) -> None:
    wanted = sketch.prefetch(["home", "home"], [1, 2])
    assert len(wanted.ranges) == 1
    start, stop = wanted.ranges[0]
    sketch.add("home", "ann")
    sketch.add("homf", "ann")
    written = [key for key, _ in sketch._writable.scan(b"\x01", None)]
    assert len([key for key in written if start <= key < stop]) == len(list(places("ann")))


def test_its_read_only_view_cannot_write(sketch: CountMinSketch) -> None:
    sketch.add("home", "ann", 2)
    view = sketch.read_only()
    assert type(view) is ReadOnlyCountMinSketch
    assert view.estimate("home", "ann") == 2
    assert not hasattr(view, "add")


class Pages(hf.Processor):
    visits = CountMinSketch("page-visits")

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.visits.add(key, event.url)
        ctx.forward(key, {"about": self.visits.estimate(key, event.url)})


def test_a_processor_uses_it_like_any_store() -> None:
    test = ProcessorTest(Pages)
    assert test.pipe("eu", {"url": "/a"}) == [("eu", {"about": 1})]
    assert test.pipe("eu", {"url": "/a"}) == [("eu", {"about": 2})]
    assert test.pipe("us", {"url": "/a"}) == [("us", {"about": 1})]
