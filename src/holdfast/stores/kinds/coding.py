"""Values of a store in their cells, and the codec that reads and writes them."""

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from operator import countOf, itemgetter
from typing import Any, Generic, TypeVar, cast

from holdfast.errors import HoldfastError
from holdfast.stores.codecs.base import Codec, Quick
from holdfast.stores.codecs.values import StoreCodec, codec_of
from holdfast.stores.formats import cells
from holdfast.stores.formats.cells import FIRST_SCHEMA, HEADER_BYTES, NEVER, NO_TIMESTAMP, Cell
from holdfast.stores.formats.quick_cells import are_first, payload_of, quick_reader
from holdfast.stores.formats.times import Row, times_at
from holdfast.stores.spec import StoreSpec

V = TypeVar("V")

_AT_ONCE = 1_000
_cell: Callable[[Row], bytes] = itemgetter(1)


def codec_for(spec: StoreSpec, type_: Any, own: Codec[Any] | None = None) -> StoreCodec[Any]:
    """The codec of a store for values of a type. It is cached: making one takes as long as a hundred reads."""
    if own is not None or not isinstance(type_, Hashable):
        return codec_of(spec, type_, own)
    return _codec_of(spec, type_)


@lru_cache(maxsize=256)
def _codec_of(spec: StoreSpec, type_: Any) -> StoreCodec[Any]:
    return codec_of(spec, type_)


class Values(Generic[V]):
    """Values of a store in their cells. `lead`: how many bytes of the payload before the value belong to the layout.

    >>> from holdfast.stores.formats.types import Schema
    >>> spec = StoreSpec(name="scores", key=Schema.of(player="string"), codec="msgpack/1")
    >>> values = Values[int](codec_for(spec, int))
    >>> values.read(values.cell(3))
    3
    """

    def __init__(self, codec: StoreCodec[V], lead: int = 0) -> None:
        self._decode = codec.decode
        self._schema = codec.schema
        self.lead = lead
        self._skip = HEADER_BYTES + lead
        self._cut: Callable[[bytes], bytes] = itemgetter(slice(self._skip, None))
        self._plain = cells.pack(Cell(bytes(lead), schema=codec.schema))
        self._quick: Quick | None = getattr(codec, "quick", None)
        # The fast or slow reader and writer is chosen once, because every value goes through them.
        self._encode: Callable[[V], bytes] = _quick_writer(self._quick, codec.encode) if self._quick else codec.encode
        self._by_itself = quick = self._quick if codec.schema == FIRST_SCHEMA else None
        self.read: Callable[[bytes], V] = (
            quick_reader(quick.decode, self._read, self._skip, quick.failures) if quick else self._read
        )

    def cell(self, value: V, timestamp: int = NO_TIMESTAMP, expires: int = NEVER) -> bytes:
        """A value as it is stored."""
        if timestamp == NO_TIMESTAMP and expires == NEVER:
            return self._plain + self._encode(value)
        return cells.pack(Cell(bytes(self.lead) + self._encode(value), timestamp, expires, self._schema))

    def cells(self, values: Sequence[V | None], expires: int = NEVER) -> list[bytes] | None:
        """Many values as they are stored, without timestamps; None if one of the values is None."""
        quick = self._quick
        if quick is not None and countOf(map(type, values), quick.class_) == len(values):
            header = cells.pack(Cell(bytes(self.lead), NO_TIMESTAMP, expires, self._schema))
            try:
                return [header + data for data in map(quick.encode, values)]
            except quick.failures:
                pass  # one by one, the codec reports what is wrong
        if type(None) in map(type, values):
            return None
        return [self.cell(cast(V, value), NO_TIMESTAMP, expires) for value in values]

    def read_many(self, found: Sequence[bytes]) -> list[V]:
        """The values of many cells."""
        quick = self._by_itself
        if quick is not None and are_first(found):
            try:
                return list(map(quick.decode, map(self._cut, found)))
            except quick.failures:
                pass  # the codec itself reports what is wrong
        return [self._read(cell) for cell in found]

    def unreadable(self, rows: Sequence[Row]) -> tuple[bytes, bytes, HoldfastError] | None:
        """The first entry that this code wrote and can't read, with the error; None if there is none."""
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            try:
                self.read_many([cell for _, cell in some if len(cell) > self._skip])
            except HoldfastError:
                for key, data in some:
                    cell = cells.unpack(data)
                    # An empty value is a mark, and an entry of an older schema was only moved.
                    if cell.schema == self._schema and (payload := cell.payload[self.lead :]):
                        try:
                            self._decode(payload, cell.schema)
                        except HoldfastError as error:
                            return key, data, error
        return None

    def timed_reader(self, place: int) -> Callable[[Sequence[Row]], list[tuple[int, V]]]:
        """A reader of entries of one key that never expire: each value with the time at a place of its stored key."""
        quick, cut, slowly = self._by_itself, self._cut, self._read

        def one_by_one(rows: Sequence[Row]) -> list[tuple[int, V]]:
            return [(time, slowly(cell)) for time, (_, cell) in zip(times_at(rows, place), rows, strict=True)]

        if quick is None:
            return one_by_one
        decode, failures = quick.decode, quick.failures

        def at_once(rows: Sequence[Row]) -> list[tuple[int, V]]:
            found = list(map(_cell, rows))
            try:
                if are_first(found):
                    return list(zip(times_at(rows, place), map(decode, map(cut, found))))  # noqa: B905  `strict` costs 2 %
            except failures:
                pass  # one by one, the codec reports what is wrong
            return one_by_one(rows)

        return at_once

    def _read(self, data: bytes) -> V:
        payload, schema = payload_of(data)
        return self._decode(payload[self.lead :] if self.lead else payload, schema)


def _quick_writer(quick: Quick, slowly: Callable[[V], bytes]) -> Callable[[V], bytes]:
    class_, encode, failures = quick.class_, quick.encode, quick.failures

    def write(value: V) -> bytes:
        if type(value) is class_:
            try:
                return encode(value)
            except failures:
                pass  # the codec itself reports what is wrong
        return slowly(value)

    return write
