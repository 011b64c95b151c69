"""Windows of numbers, all at once: what one reads most often of a window store are the counts of one key.

Entries of one key have stored keys of one length, and their numbers mostly have one form. Then they are rows of one
width, and two `struct`s read all times and all numbers: 11 µs for 60 windows, where one by one takes 15. Whatever is
otherwise (another format, a number of another form, a time before 1970) is left to those who read one by one.

Lengths are compared as sums. So a cell that is cut short is noticed, unless another is longer by just as much;
RocksDB's own checksums stand before that.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from holdfast.stores.codecs.numbers import NumberForms
from holdfast.stores.formats.cells import FORMAT
from holdfast.stores.kinds.keying import POSITIVE, Row

_key: Callable[[Row], bytes] = itemgetter(0)
_cell: Callable[[Row], bytes] = itemgetter(1)


def timed_numbers(forms: NumberForms, place: int, skip: int) -> Callable[[Sequence[Row]], list[tuple[int, Any]] | None]:
    """What reads entries of one key, in order or backwards, as (time, number); None where it can't.

    The time is at a place from the end of the stored key, the number after so many bytes of the cell.
    """

    def read(rows: Sequence[Row]) -> list[tuple[int, Any]] | None:
        if not rows:
            return []
        (key, cell), number = rows[0], len(rows)
        if (form := forms.of(cell[skip:])) is None:
            return None
        length, width = len(key), len(cell)
        times, values = bytearray().join(map(_key, rows)), b"".join(map(_cell, rows))
        firsts = values[skip::width]
        if (
            len(times) != number * length
            or len(values) != number * width
            or times[length + place :: length].count(POSITIVE) != number
            or values[::width].count(FORMAT) != number
            or (not firsts.isascii() if width == skip + 1 else firsts.count(firsts[0]) != number)
        ):
            return None
        times[length + place :: length] = bytes(number)  # without it, what is left are the times
        times_of = _each(number, "Q", length + place, -8 - place)
        return list(zip(times_of(times), _each(number, form, width - struct.calcsize(form), 0)(values)))  # noqa: B905

    return read


@lru_cache(maxsize=64)
def _each(number: int, form: str, before: int, after: int) -> Callable[[bytes | bytearray], tuple[Any, ...]]:
    """What takes a number out of each of so many rows, with so many bytes before it and after it."""
    return struct.Struct(">" + f"{before}x{form}{after}x" * number).unpack
