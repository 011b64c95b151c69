"""A store's values in their cells, and the codec that reads and writes them."""

import contextlib
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Generic, TypeVar, cast

from holdfast.stores import cells
from holdfast.stores.cells import FIRST_SCHEMA, FORMAT, HEADER_BYTES, NEVER, NO_TIMESTAMP, Cell
from holdfast.stores.codecs.base import Quick
from holdfast.stores.spec import StoreSpec
from holdfast.stores.values import Codec, StoreCodec, codec_of

V = TypeVar("V")

_format = itemgetter(0)


def codec_for(spec: StoreSpec, type_: Any, own: Codec[Any] | None = None) -> StoreCodec[Any]:
    """The codec of a store for values of a type, made once: making one takes as long as a hundred reads."""
    if own is not None or not isinstance(type_, Hashable):
        return codec_of(spec, type_, own)
    return _codec_of(spec, type_)


@lru_cache(maxsize=256)
def _codec_of(spec: StoreSpec, type_: Any) -> StoreCodec[Any]:
    return codec_of(spec, type_)


class Values(Generic[V]):
    """A store's values in their cells. `lead`: bytes of the payload before the value that belong to the store.

    >>> from holdfast.stores.types import Schema
    >>> spec = StoreSpec(name="scores", key=Schema.of(player="string"), codec="msgpack/1")
    >>> values = Values[int](codec_for(spec, int))
    >>> values.read(values.cell(3))
    3
    """

    def __init__(self, codec: StoreCodec[V], lead: int = 0) -> None:
        self._encode, self._decode = codec.encode, codec.decode
        self._schema = codec.schema
        self._lead = lead
        self._skip = HEADER_BYTES + lead
        self._plain = cells.pack(Cell(bytes(lead), schema=codec.schema))
        self._quick: Quick | None = getattr(codec, "quick", None)
        # Which way a value is read is settled here, since every read goes through it.
        by_itself = self._quick is not None and codec.schema == FIRST_SCHEMA
        self.read: Callable[[bytes], V] = self._quick_reader(self._quick) if by_itself and self._quick else self._read

    def cell(self, value: V, timestamp: int = NO_TIMESTAMP, expires: int = NEVER) -> bytes:
        """A value as it is stored."""
        if timestamp == NO_TIMESTAMP and expires == NEVER:
            return self._plain + self._encode(value)
        return cells.pack(Cell(bytes(self._lead) + self._encode(value), timestamp, expires, self._schema))

    def cells(self, values: Sequence[V], expires: int = NEVER) -> list[bytes]:
        """Many values as they are stored, without timestamps."""
        quick = self._quick
        if quick is not None and set(map(type, values)) == {quick.class_}:
            header = cells.pack(Cell(bytes(self._lead), NO_TIMESTAMP, expires, self._schema))
            with contextlib.suppress(*quick.failures):
                return [header + data for data in map(quick.encode, values)]
        return [self.cell(value, NO_TIMESTAMP, expires) for value in values]

    def read_many(self, found: Sequence[bytes]) -> list[V]:
        """The values of many cells."""
        if self._quick is not None and set(map(_format, found)) <= {FORMAT}:
            return self.read_many_without_expiry(found)
        return [self._read(cell) for cell in found]

    def read_many_without_expiry(self, found: Sequence[bytes]) -> list[V]:
        """The same for cells that never expire, quicker: their formats needn't be looked at.

        Read as format 1, a later format's payload begins with the end of its expiry, which is zero: MessagePack's
        number 0, with more after it. That is no value of any type, so the decoder refuses it.
        """
        quick = self._quick
        if quick is not None and self._schema == FIRST_SCHEMA:
            decode, skip = quick.decode, self._skip
            try:
                return [decode(cell[skip:]) for cell in found]
            except quick.failures:
                pass  # one by one the format is looked at, and the codec says what is wrong
        return [self._read(cell) for cell in found]

    def read_known(self, found: Sequence[bytes | None]) -> list[V | None]:
        """The same where some have no cell."""
        quick = self._quick
        if quick is not None and self._schema == FIRST_SCHEMA:
            decode, skip, slowly = quick.decode, self._skip, self._read
            with contextlib.suppress(*quick.failures):
                return [
                    None if cell is None else decode(cell[skip:]) if cell[0] == FORMAT else slowly(cell)
                    for cell in found
                ]
        return [None if cell is None else self._read(cell) for cell in found]

    def _read(self, data: bytes) -> V:
        if data[0] == FORMAT:
            return self._decode(data[self._skip :], FIRST_SCHEMA)
        cell = cells.unpack(data)
        return self._decode(cell.payload[self._lead :], cell.schema)

    def _quick_reader(self, quick: Quick) -> Callable[[bytes], V]:
        decode, failures, skip, slowly = quick.decode, quick.failures, self._skip, self._read

        def read(data: bytes) -> V:
            if data[0] == FORMAT:
                try:
                    return cast(V, decode(data[skip:]))
                except failures:
                    pass  # the codec itself says what is wrong
            return slowly(data)

        return read
