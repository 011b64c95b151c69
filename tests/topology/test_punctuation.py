"""When punctuators fire, and which declarations are refused."""

from itertools import pairwise
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.stores.access import Now
from holdfast.stores.layouts.due import AT_ONCE
from holdfast.topology.punctuation import Punctuation, Punctuator, Schedule, fired, punctuators_of

WALL, STREAM = Schedule(30_000, "wall"), Schedule(30_000, "stream")


class Flushing(hf.Processor):
    def process(self, key: str, event: Any, ctx: hf.Context) -> None: ...

    @hf.punctuate(every="30s", time="wall")
    def flush(self, now: int, ctx: hf.Context) -> None: ...

    @hf.punctuate(every="30s", time="stream")
    def close_windows(self, now: int, ctx: hf.Context) -> None: ...


BOTH = (Punctuator("flush", WALL), Punctuator("close_windows", STREAM))


def test_a_punctuator_fires_in_the_version_that_passes_its_time_and_once() -> None:
    walls = [0, 29_999, 30_000, 30_001, 59_999, 180_000, 180_000, 209_999, 210_000]
    fires = [WALL.fires(Now(before), Now(wall)) for before, wall in pairwise(walls)]
    assert fires == [False, True, False, False, True, False, False, True]


def test_stream_time_fires_with_the_first_event_time_and_wall_time_does_not_fire_in_the_first_version() -> None:
    assert not STREAM.fires(None, Now(0, 7))
    assert not WALL.fires(None, Now(30_000, 7))
    assert not STREAM.fires(Now(0), Now(30_000))
    assert STREAM.fires(Now(0), Now(0, 7))
    assert STREAM.fires(Now(0, -1), Now(0, 0)), "times before 1970"


def test_each_gets_the_time_of_its_own_clock() -> None:
    assert fired(BOTH, Now(0, 0), Now(31_000, 95_000)) == (
        Punctuation("flush", 31_000),
        Punctuation("close_windows", 95_000),
    )
    assert fired(BOTH, Now(0, 0), Now(31_000, 29_000)) == (Punctuation("flush", 31_000),)


def test_without_records_only_the_wall_clock_makes_a_punctuator_due() -> None:
    assert WALL.next_due(Now(29_999), None) == 30_000
    assert WALL.next_due(Now(30_000), None) == 60_000
    assert STREAM.next_due(Now(500, 29_999), 29_999) is None
    assert STREAM.next_due(Now(500, 29_999), 30_000) == AT_ONCE, "the newest version has moved the clock: due at once"


def test_punctuators_are_found_in_the_order_of_declaration_and_can_be_removed() -> None:
    class More(Flushing):
        @hf.punctuate(every="1h", time="stream")
        @hf.punctuate(every="1m", time="wall")
        def report(self, now: int, ctx: hf.Context) -> None: ...

        def flush(self, now: int, ctx: hf.Context) -> None: ...

    assert punctuators_of(Flushing) == BOTH
    hourly = Punctuator("report", Schedule(3_600_000, "stream"))
    assert punctuators_of(More) == (BOTH[1], hourly, Punctuator("report", Schedule(60_000, "wall")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": "30s", "time": "event"}, r"time= is 'stream' or 'wall', and got 'event'"),
        ({"every": "30s", "time": "walls"}, r"Did you mean 'wall'\?"),
        ({"every": "often", "time": "wall"}, r"every='often'"),
        ({"every": "0s", "time": "wall"}, r"is too short. Use 1ms or more"),
    ],
)
def test_a_wrong_option_is_refused_at_the_declaration(options: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        hf.punctuate(**options)


def test_a_method_with_another_signature_is_refused_at_the_declaration() -> None:
    def no_context(self: Any, now: int) -> None: ...

    def one_more(self: Any, now: int, ctx: hf.Context, more: int) -> None: ...

    mark = hf.punctuate(every="30s", time="wall")
    for wrong in (no_context, one_more):
        with pytest.raises(TopologyError, match=rf"{wrong.__name__}.* can't be called .*{wrong.__name__}\(self, now"):
            mark(wrong)
    with pytest.raises(TopologyError, match="is for methods of a processor"):
        mark(Flushing)
