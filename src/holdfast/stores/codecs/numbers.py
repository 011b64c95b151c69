"""The forms that numbers have in MessagePack: the first byte tells which one it is, and so how long it is.

>>> FORMS[int].of(b"\\x07"), FORMS[int].of(b"\\xcd\\x01\\x00"), FORMS[float].of(b"\\x07")
('B', 'H', None)
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class NumberForms:
    """The forms of one type's numbers, as what `struct` calls them."""

    small: bool
    """Whether 0 to 127 stand for themselves, in one byte."""
    marked: Mapping[int, str]
    """Those with a first byte of their own."""

    def of(self, payload: bytes | bytearray) -> str | None:
        """The form of the number that a payload is; None where it is none, or has another length than its form."""
        if len(payload) == 1:
            return "B" if self.small and payload[0] < 0x80 else None
        form = self.marked.get(payload[0]) if payload else None
        return form if form is not None and len(payload) == struct.calcsize(form) + 1 else None


FORMS: Mapping[type, NumberForms] = {
    int: NumberForms(
        small=True, marked=dict(zip(range(0xCC, 0xD4), ("B", "H", "I", "Q", "b", "h", "i", "q"), strict=True))
    ),
    float: NumberForms(small=False, marked={0xCB: "d"}),
}
