"""A count-min sketch as a store: how often something was seen, about, in a fixed number of entries."""

import hashlib
from collections.abc import Iterator
from typing import Any, ClassVar, Unpack

import holdfast as hf
from holdfast.stores.kinds.base import Options, View

ROWS = 4
WIDTH = 64


class ReadOnlySketch(View[str, int]):
    """Each word has a counter in each of a few rows; the smallest of them is the least wrong."""

    def estimate(self, word: str) -> int:
        return min(0 if cell is None else self._values.read(cell) for _, cell in self._counters(word))

    def _counters(self, word: str) -> Iterator[tuple[bytes, bytes | None]]:
        for row in range(ROWS):
            digest = hashlib.blake2b(word.encode(), digest_size=8, salt=bytes([row])).digest()
            place = self._encode(f"{row}/{int.from_bytes(digest) % WIDTH}")
            yield place, self._bytes.get(place)


class Sketch(hf.Store[str, int], ReadOnlySketch):
    """Counts words in `ROWS` times `WIDTH` entries, however many words there are."""

    VIEW: ClassVar[type[View[Any, Any]]] = ReadOnlySketch

    def __init__(self, name: str, **options: Unpack[Options]) -> None:
        super().__init__(name, key=str, value=int, **options)

    def add(self, word: str) -> None:
        for place, cell in list(self._counters(word)):
            count = 0 if cell is None else self._values.read(cell)
            self._writable.put(place, self._values.cell(count + 1))
