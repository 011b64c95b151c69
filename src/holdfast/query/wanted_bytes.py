"""The bytes of a part for code that knows nothing of requests: views of kinds, and a user's own functions.

A view may read a whole store within one call, such as a count or a rank. So the bytes themselves ask whether anyone
still waits (`wanted`), at every entry.
"""

from collections.abc import Iterator, Sequence

from holdfast.query.opening import OpenPart
from holdfast.query.wanted import check_wanted, while_wanted
from holdfast.stores.scans import Closing


class WantedBytes:
    """The bytes of a part, read as long as anyone waits for what is made of them."""

    def __init__(self, part: OpenPart) -> None:
        self._part = part
        self._bytes = part.store.bytes

    def get(self, key: bytes) -> bytes | None:
        check_wanted()
        with self._part.reading():
            return self._bytes.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        check_wanted()
        with self._part.reading():
            return self._bytes.get_many(keys)

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        with self._part.reading(), Closing(self._bytes.scan(start, stop, reverse=reverse)) as rows:
            yield from while_wanted(rows)

    def approximate_count(self) -> int:
        with self._part.reading():
            return self._bytes.approximate_count()
