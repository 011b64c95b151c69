"""What can be said with any read: how fresh its answer has to be, and how long it may take."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal, TypedDict

from holdfast.client.errors import BadParameter
from holdfast.errors import ErrorCategory, HoldfastError, SettingsError, did_you_mean
from holdfast.settings.units import format_duration, parse_duration

Duration = str | timedelta
"""Such as "5s", or a timedelta."""


class ReadOptions(TypedDict, total=False):
    """Without any, the answer is what the nearest replica has."""

    require: Literal["active"]
    """No standby answers."""
    max_lag: int | Duration
    """How many versions, or how much time, the answer may be behind the newest version."""
    at_least: int
    """That version or a later one, such as the `version` of a former answer."""
    at: int | Literal["latest"]
    """Exactly that version, or the newest, of all partitions."""
    wait: Duration
    """How long an instance may wait for such a version."""
    timeout: Duration
    """How long the call may take, with all its attempts. The client's, unless given."""
    hedge: Duration
    """After how long without an answer another replica is asked too. The client's, unless given."""


_ALL = frozenset(ReadOptions.__annotations__)
_OTHERS = ("fields", "limit", "partial", "reverse")
"""Names of other arguments that some reads have."""
_FRESHNESS = ("require", "max_lag", "at_least", "at", "wait")


class UnknownOption(HoldfastError, TypeError):
    """A read has an argument that it doesn't know."""

    category = ErrorCategory.INVALID


def check_names(options: Mapping[str, object]) -> None:
    """Python lets any name through to `**options`. A misspelt one would be ignored.

    >>> check_names({"at_least": 7})
    """
    if options.keys() <= _ALL:
        return
    unknown = min(options.keys() - _ALL)
    near = did_you_mean(unknown, (*_ALL, *_OTHERS))
    raise UnknownOption(
        f"{unknown!r} is not an argument of this read. {near}Options of all reads are {', '.join(sorted(_ALL))}."
    )


def shown(fields: Sequence[str], partial: bool) -> dict[str, object]:
    """What some reads can be told besides: which fields of values are shown, and whether partitions may be left out.

    >>> shown(["points"], False)
    {'fields': ['points'], 'partial': None}
    """
    return {"fields": fields, "partial": partial or None}


def parameters_of(options: Mapping[str, object]) -> dict[str, str]:
    """The parameters of a request that options stand for.

    >>> parameters_of({"max_lag": timedelta(seconds=5), "at_least": 7, "timeout": "1s"})
    {'max_lag': '5s', 'at_least': '7'}
    """
    return {name: text_of(options[name]) for name in _FRESHNESS if options.get(name) is not None}


def text_of(value: object) -> str:
    return format_duration(value) if isinstance(value, timedelta) else str(value)


def seconds(name: str, duration: Duration) -> float:
    """The seconds of an option that is a duration.

    >>> seconds("hedge", "250ms")
    0.25
    """
    try:
        return parse_duration(duration).total_seconds()
    except SettingsError:
        what = 'Give a text with units, such as "10s" or "250ms", or a timedelta.'
        raise BadParameter(f"{name}={duration!r:.100} is not a duration.", what, 400) from None
