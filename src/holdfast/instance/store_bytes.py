"""One store of a read view as the bytes that a typed store reads: this is how queries see a replica."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from holdfast.instance.read_views import ReadView


class StoreBytes:
    """A store at one version, as `ReadableBytes`. The read view is the caller's to close."""

    def __init__(self, view: ReadView, store: str) -> None:
        self._view = view
        self._store = store

    def get(self, key: bytes) -> bytes | None:
        return self._view.get(self._store, key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._view.get_many(self._store, pa.array(keys, pa.binary())).to_pylist()
        return found

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._view.scan(self._store, start, stop, reverse=reverse)

    def approximate_count(self) -> int:
        return self._view.pinned.engines.approximate_count(self._store)
