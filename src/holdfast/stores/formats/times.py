"""Times within stored keys: 8 bytes each, big-endian, sign bit flipped, like any integer in a key."""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter

_SIGN = 1 << 63
_TIME = struct.Struct(">Q")
_pack_time = _TIME.pack
_POSITIVE = 0x80
"""The first of the 8 bytes of a time between 1970 and two million years later."""

Row = tuple[bytes, bytes]
"""A stored key and its cell."""

_key: Callable[[Row], bytes] = itemgetter(0)


def time_bytes(time: int) -> bytes:
    """A time, or any signed number, within a key.

    >>> time_bytes(5).hex()
    '8000000000000005'
    """
    try:
        return _pack_time(time + _SIGN)
    except struct.error:
        return b"\x00" * 8 if time < 0 else b"\xff" * 8


def time_at(data: bytes, place: int) -> int:
    """The time at a position of a key; a negative position counts from the key's end."""
    number: int = _TIME.unpack_from(data, place)[0]
    return number - _SIGN


def times_at(rows: Sequence[Row], place: int) -> Sequence[int]:
    """`time_at` for many entries of one key, in order or in reverse. Their stored keys have the same length.

    >>> times_at([(b"k" + time_bytes(5), b""), (b"k" + time_bytes(6), b"")], -8)
    (5, 6)
    """
    if not rows:
        return ()
    first, last, keys = rows[0][0], rows[-1][0], len(rows)
    length = len(first)
    whole = bytearray().join(map(_key, rows))
    if first[place] == last[place] == _POSITIVE:  # then all entries between them have this byte too
        whole[length + place :: length] = bytes(keys)  # clears the flipped sign bits of all times
        return _times(keys, length, place)(whole)
    return [number - _SIGN for number in _times(keys, length, place)(whole)]


@lru_cache(maxsize=64)
def _times(keys: int, length: int, place: int) -> Callable[[bytearray], tuple[int, ...]]:
    """Reads the number at a position of this many keys of that length. Faster than numpy for a few dozen keys."""
    return struct.Struct(">" + f"{length + place}xQ{-8 - place}x" * keys).unpack
