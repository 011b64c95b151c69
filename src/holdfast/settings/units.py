"""Durations, sizes and numbers as people write them (`"1h30m"`, `"256KiB"`, `"5M"`), and fields that accept them.

A field such as `Duration` is a descriptor: users assign a text or a value, and reading the field always gives a
value. Code passes `timedelta`s and numbers of bytes around, and nothing is parsed twice.
"""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any, Generic, TypeVar

from holdfast.errors import SettingsError

Given = TypeVar("Given")
Parsed = TypeVar("Parsed")

_MICROSECONDS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)\s*")

_BYTES = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B)", re.IGNORECASE)
_TIMES = {"k": 10**3, "m": 10**6, "g": 10**9}
_UNIT_OF = {unit.lower(): size for unit, size in _BYTES.items()}


def parse_duration(value: str | timedelta) -> timedelta:
    """A duration from a text with units (us, ms, s, m, h, d); a timedelta is returned unchanged.

    >>> parse_duration("1h30m"), parse_duration("250ms").total_seconds()
    (datetime.timedelta(seconds=5400), 0.25)
    """
    if isinstance(value, timedelta):
        return value
    text = str(value).strip()  # a number from a file has no unit and is rejected like any other text
    parts = _DURATION.findall(text)
    if not parts or _DURATION.sub("", text):
        raise SettingsError(f'{value!r} is not a duration. Write numbers with units, such as "10s" or "1h30m".')
    microseconds = sum(round(Decimal(number) * _MICROSECONDS[unit]) for number, unit in parts)
    try:
        return timedelta(microseconds=microseconds)
    except OverflowError:
        raise SettingsError(f"{value!r} is longer than 999,999,999 days, the longest possible duration.") from None


def format_duration(value: timedelta) -> str:
    """The shortest text that `parse_duration` reads back.

    >>> format_duration(timedelta(minutes=90)), format_duration(timedelta(0)), format_duration(timedelta(days=30))
    ('1h30m', '0s', '30d')
    """
    left = value // timedelta(microseconds=1)
    text = ""
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, left = divmod(left, _MICROSECONDS[unit])
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def parse_size(value: str | int) -> int:
    """A number of bytes from a text with a unit (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB), or from a number.

    >>> parse_size("256KiB"), parse_size("1.5 GB"), parse_size(12)
    (262144, 1500000000, 12)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise SettingsError(f'{value!r} is not a size. Write a number with a unit, such as "256KiB" or "1GiB".')
    return round(Decimal(match[1]) * _UNIT_OF[match[2].lower()])


def format_size(value: int) -> str:
    """A size in the largest binary unit that divides it.

    >>> format_size(262144), format_size(1000)
    ('256KiB', '1000B')
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value and value % _BYTES[unit] == 0:
            return f"{value // _BYTES[unit]}{unit}"
    return f"{value}B"


def shown_size(size: float) -> str:
    """A number of bytes for people.

    >>> shown_size(1536), shown_size(5 << 30), shown_size(12)
    ('1.50 KiB', '5.00 GiB', '12 B')
    """
    for unit, one in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= one:
            return f"{size / one:,.2f} {unit}"
    return f"{size:,.0f} B"


def parse_number(text: str) -> float:
    """A number as people write it: with a power of ten, with underscores, or with k, M or G for 10^3, 10^6 and 10^9.

    >>> parse_number("1.5M"), parse_number("5e6"), parse_number("1_000")
    (1500000.0, 5000000.0, 1000.0)
    """
    written = text.strip()
    times = _TIMES.get(written[-1:].lower())
    try:
        number = float(written if times is None else written[:-1]) * (times or 1)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise SettingsError(f'{text!r} is not a number. Write one such as "200", "5k", "1.5M", "2G" or "5e6".')
    return number


def parse_whole(text: str) -> int:
    """A whole number, written in the same way.

    >>> parse_whole("2k"), parse_whole("2e2")
    (2000, 200)
    """
    number = parse_number(text)
    if not number.is_integer():
        raise SettingsError(f"{text!r} is not a whole number. Use {math.floor(number)} or {math.ceil(number)}.")
    return int(number)


def parse_bytes(text: str) -> int:
    """A number of bytes, with a unit or without.

    >>> parse_bytes("200"), parse_bytes("2k"), parse_bytes("2KiB")
    (200, 2000, 2048)
    """
    return parse_size(text) if text.strip().lower().endswith("b") else parse_whole(text)


_SECRET = re.compile(r"secret|passw|pwd|token|credential|signature|sas|auth|key", re.IGNORECASE)
_HARMLESS = re.compile(r"(use|disable|allow|skip)_\w+|\w*skip_signature|\w+_file", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/\s]+@")  # up to the last @: a password may contain one
_QUERY = re.compile(r"(?<=://)([^?\s]*)\?\S+")  # signed addresses have their signature in the query string
HIDDEN = "******"


def redact(name: str, value: str) -> str:
    """A value without secrets: hidden if its name is that of a secret, and without credentials in an address.

    >>> redact("aws_secret_access_key", "abc"), redact("endpoint", "http://me:pw@host:9000"), redact("region", "eu-1")
    ('******', 'http://******@host:9000', 'eu-1')
    >>> redact("url", "s3://me:p@w@bucket/log?token=abc")
    's3://******@bucket/log?******'
    """
    if _SECRET.search(name) and not _HARMLESS.fullmatch(name):
        return HIDDEN
    return _QUERY.sub(rf"\1?{HIDDEN}", _USER_INFO.sub(f"{HIDDEN}@", value))


def _is_texts(items: object) -> bool:
    """Whether this is a mapping from text to text. In a file it could be anything."""
    return isinstance(items, Mapping) and all(isinstance(part, str) for item in items.items() for part in item)


class RedactedOptions(Mapping[str, str]):
    """Names with text values for another system. Printing them never shows a secret.

    >>> RedactedOptions({"region": "eu-1", "secret_access_key": "abc"})
    RedactedOptions({'region': 'eu-1', 'secret_access_key': '******'})
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, str] = {}) -> None:
        if not _is_texts(items):
            raise SettingsError('options are names with text values, such as {"region": "eu-1"}. Quote the values.')
        self._items = dict(items)

    def __getitem__(self, name: str) -> str:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def shown(self) -> dict[str, str]:
        return {name: redact(name, value) for name, value in self._items.items()}

    def __repr__(self) -> str:
        return f"RedactedOptions({self.shown()!r})"


class _Parsed(Generic[Given, Parsed]):
    """A dataclass field that is assigned one type and read as another."""

    def __init__(self, default: Given) -> None:
        self.default = self.parse(default)

    def parse(self, given: Given) -> Parsed:
        raise AssertionError(f"{type(self).__name__} must define parse()")

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, holder: Any, owner: type | None = None) -> Parsed:
        if holder is None:
            return self.default  # `dataclass` uses this as the default of the field
        value: Parsed = holder.__dict__[self.name]
        return value

    def __set__(self, holder: Any, given: Given) -> None:
        try:
            holder.__dict__[self.name] = self.parse(given)
        except SettingsError as error:
            raise SettingsError(f"{type(holder).path(self.name)}: {error}") from None


class Duration(_Parsed[str | timedelta, timedelta]):
    """A field that accepts `"10s"` or a timedelta and is read as a timedelta."""

    def parse(self, given: str | timedelta) -> timedelta:
        return parse_duration(given)


class Size(_Parsed[str | int, int]):
    """A field that accepts `"64MiB"` or a number and is read as a number of bytes."""

    def parse(self, given: str | int) -> int:
        return parse_size(given)


class OptionMap(_Parsed[Mapping[str, str], RedactedOptions]):
    """A field that accepts a mapping of texts and is read as RedactedOptions."""

    def parse(self, given: Mapping[str, str]) -> RedactedOptions:
        return given if isinstance(given, RedactedOptions) else RedactedOptions(given)
