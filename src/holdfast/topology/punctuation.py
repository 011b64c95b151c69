"""Punctuators: methods of a processor that are called when time has passed, with or without records.

No schedule is stored. Both clocks are in the log, so each version knows which punctuators fire in it: those for which
its clock has passed a multiple of their interval since the version before.

    every 30 s      0:00      0:30      1:00      1:30      2:00
    clock            |         |         |         |         |
    versions           1   2       3                      4     5
    fires                          ✓ (passed 0:30)        ✓ (passed 1:00 and 1:30: once)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar

from holdfast.errors import TopologyError, did_you_mean
from holdfast.settings.units import format_duration
from holdfast.stores.access import Now
from holdfast.stores.layouts.due import AT_ONCE
from holdfast.stores.options import Length, millis

Clock = Literal["stream", "wall"]

CLOCKS: Final = ("stream", "wall")
_MARK: Final = "__holdfast_punctuators__"
_EXAMPLE: Final = 'Such as @hf.punctuate(every="30s", time="wall").'

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class Schedule:
    """How often a punctuator fires, and the clock that measures it."""

    every_ms: int
    time: Clock

    def __str__(self) -> str:
        """
        >>> str(Schedule(30_000, "wall"))
        'every 30s of wall time'
        """
        return f"every {format_duration(timedelta(milliseconds=self.every_ms))} of {self.time} time"

    def clock(self, now: Now) -> int | None:
        return now.wall if self.time == "wall" else now.event

    def fires(self, before: Now | None, now: Now) -> bool:
        """Whether it fires in a version, given its clocks and those of the version before.

        An app has no event time before its first records, so a punctuator by stream time fires as soon as there is one.

        >>> half = Schedule(30_000, "stream")
        >>> half.fires(Now(0, 29_999), Now(0, 30_000)), half.fires(Now(0, 30_000), Now(0, 59_999))
        (True, False)
        >>> half.fires(Now(0, None), Now(0, 7)), half.fires(Now(0, 0), Now(0, 3_600_000))
        (True, True)
        """
        if before is None or (reached := self.clock(now)) is None:
            return False
        was = self.clock(before)
        return was is None or reached // self.every_ms > was // self.every_ms

    def next_due(self, before: Now, event: int | None) -> int | None:
        """When it fires by the wall clock if no record arrives; None: not before the next record.

        `before` are the clocks that the newest version was computed with, `event` is its event clock.

        >>> Schedule(30_000, "wall").next_due(Now(45_000), None)
        60000
        """
        if self.time == "wall":
            return (before.wall // self.every_ms + 1) * self.every_ms
        return AT_ONCE if self.fires(before, Now(before.wall, event)) else None


@dataclass(frozen=True)
class Punctuator:
    """A method of a processor, and when it is called."""

    method: str
    schedule: Schedule


@dataclass(frozen=True)
class Punctuation:
    """A call of a punctuator in one version: the method, and the time of its clock."""

    method: str
    now: int


def fired(punctuators: Sequence[Punctuator], before: Now | None, now: Now) -> tuple[Punctuation, ...]:
    """The punctuators that fire in a version, in the order of their declaration."""
    found = []
    for each in punctuators:
        if each.schedule.fires(before, now):
            time = each.schedule.clock(now)
            assert time is not None
            found.append(Punctuation(each.method, time))
    return tuple(found)


def punctuate(*, every: Length, time: Clock) -> Callable[[F], F]:
    """Calls a method `(self, now, ctx)` of a processor each time a clock passes a multiple of `every`.

        class Batching(hf.Processor):
            @hf.punctuate(every="30s", time="wall")
            def flush(self, now, ctx): ...

    `time="wall"` is the wall clock, and passes without records too; `time="stream"` is event time. It is called after
    the records of a version, in every partition, and once however many intervals have passed.
    """
    where = f"@hf.punctuate(every={every!r}, time={time!r})"
    if time not in CLOCKS:
        raise TopologyError(
            f"{where}: time= is 'stream' or 'wall', and got {time!r}. {did_you_mean(str(time), CLOCKS)}{_EXAMPLE}"
        )
    schedule = Schedule(millis(every, "every", where), time)

    def mark(method: F) -> F:
        _check_signature(method, where)
        setattr(method, _MARK, (schedule, *_schedules(method)))
        return method

    return mark


def punctuators_of(processor: type) -> tuple[Punctuator, ...]:
    """The punctuators of a class in the order of their declaration, those of base classes first.

    A subclass that overrides a punctuator without the decorator removes it.
    """
    names = dict.fromkeys(name for each in reversed(processor.__mro__) for name in vars(each))
    return tuple(
        Punctuator(name, schedule) for name in names for schedule in _schedules(inspect.getattr_static(processor, name))
    )


def _schedules(method: Any) -> tuple[Schedule, ...]:
    found: tuple[Schedule, ...] = getattr(method, _MARK, ()) if callable(method) else ()
    return found


def _check_signature(method: Callable[..., object], where: str) -> None:
    if not inspect.isfunction(method):
        raise TopologyError(
            f"{where} is for methods of a processor, and got {method!r}. Write def flush(self, now, ctx)."
        )
    try:
        inspect.signature(method).bind(None, 0, None)
    except TypeError as error:
        name = method.__qualname__
        raise TopologyError(
            f"{where}: {name}{inspect.signature(method)} can't be called with a time and a context ({error}). Write "
            f"def {method.__name__}(self, now, ctx)."
        ) from None
