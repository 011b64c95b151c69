"""A store's values in their cells, and the codec that reads and writes them."""

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from operator import countOf, itemgetter
from typing import Any, Generic, TypeVar, cast

from holdfast.stores import cells
from holdfast.stores.cells import FIRST_SCHEMA, FORMAT, HEADER_BYTES, NEVER, NO_TIMESTAMP, Cell
from holdfast.stores.codecs.base import Quick
from holdfast.stores.kinds.keying import Row, times_at
from holdfast.stores.spec import StoreSpec
from holdfast.stores.values import Codec, StoreCodec, codec_of

V = TypeVar("V")

_FORMAT_1 = bytes([FORMAT])
_cell: Callable[[Row], bytes] = itemgetter(1)


def codec_for(spec: StoreSpec, type_: Any, own: Codec[Any] | None = None) -> StoreCodec[Any]:
    """The codec of a store for values of a type, made once: making one takes as long as a hundred reads."""
    if own is not None or not isinstance(type_, Hashable):
        return codec_of(spec, type_, own)
    return _codec_of(spec, type_)


@lru_cache(maxsize=256)
def _codec_of(spec: StoreSpec, type_: Any) -> StoreCodec[Any]:
    return codec_of(spec, type_)


def all_begin_with(beginning: bytes, found: Sequence[bytes]) -> bool:
    """Whether all of these cells do. In order, the others are between the first and the last: two looks are enough.

    >>> all_begin_with(b"a", [b"ab", b"a", b"ac"]), all_begin_with(b"a", [b"ab", b"ba", b"ac"])
    (True, False)
    """
    return not found or (min(found).startswith(beginning) and max(found).startswith(beginning))


class Values(Generic[V]):
    """A store's values in their cells. `lead`: bytes of the payload before the value that belong to the store.

    >>> from holdfast.stores.types import Schema
    >>> spec = StoreSpec(name="scores", key=Schema.of(player="string"), codec="msgpack/1")
    >>> values = Values[int](codec_for(spec, int))
    >>> values.read(values.cell(3))
    3
    """

    def __init__(self, codec: StoreCodec[V], lead: int = 0) -> None:
        self._decode = codec.decode
        self._schema = codec.schema
        self._lead = lead
        self._skip = HEADER_BYTES + lead
        self._cut: Callable[[bytes], bytes] = itemgetter(slice(self._skip, None))
        self._plain = cells.pack(Cell(bytes(lead), schema=codec.schema))
        self._quick: Quick | None = getattr(codec, "quick", None)
        # Which way a value is written and read is settled here, since all of them go through it.
        self._encode: Callable[[V], bytes] = _quick_writer(self._quick, codec.encode) if self._quick else codec.encode
        self._by_itself = self._quick if codec.schema == FIRST_SCHEMA else None
        self.read: Callable[[bytes], V] = self._quick_reader(self._by_itself) if self._by_itself else self._read

    def cell(self, value: V, timestamp: int = NO_TIMESTAMP, expires: int = NEVER) -> bytes:
        """A value as it is stored."""
        if timestamp == NO_TIMESTAMP and expires == NEVER:
            return self._plain + self._encode(value)
        return cells.pack(Cell(bytes(self._lead) + self._encode(value), timestamp, expires, self._schema))

    def cells(self, values: Sequence[V | None], expires: int = NEVER) -> list[bytes] | None:
        """Many values as they are stored, without timestamps; None where one of them is none."""
        quick = self._quick
        if quick is not None and countOf(map(type, values), quick.class_) == len(values):
            header = cells.pack(Cell(bytes(self._lead), NO_TIMESTAMP, expires, self._schema))
            try:
                return [header + data for data in map(quick.encode, values)]
            except quick.failures:
                pass  # one by one the codec says what is wrong
        if type(None) in map(type, values):
            return None
        return [self.cell(cast(V, value), NO_TIMESTAMP, expires) for value in values]

    def read_many(self, found: Sequence[bytes]) -> list[V]:
        """The values of many cells."""
        quick = self._by_itself
        if quick is not None and all_begin_with(_FORMAT_1, found):
            try:
                return list(map(quick.decode, map(self._cut, found)))
            except quick.failures:
                pass  # the codec itself says what is wrong
        return [self._read(cell) for cell in found]

    def timed_reader(self, place: int) -> Callable[[Sequence[Row]], list[tuple[int, V]]]:
        """What reads entries of one key that never expire: each value with the time at a place of its stored key.

        Their formats needn't be looked at. Read as format 1, a later format's payload begins with the end of its
        expiry, which is zero: MessagePack's number 0, with more after it. That is no value of any type, so the decoder
        refuses it.
        """
        quick, cut, slowly = self._by_itself, self._cut, self._read

        def one_by_one(rows: Sequence[Row]) -> list[tuple[int, V]]:
            return [(time, slowly(cell)) for time, (_, cell) in zip(times_at(rows, place), rows, strict=True)]

        if quick is None:
            return one_by_one
        decode, failures = quick.decode, quick.failures

        def at_once(rows: Sequence[Row]) -> list[tuple[int, V]]:
            times = times_at(rows, place)
            try:
                return list(zip(times, map(decode, map(cut, map(_cell, rows)))))  # noqa: B905  `strict` costs 2 %
            except failures:
                return one_by_one(rows)  # which looks at the formats, and the codec says what is wrong

        return at_once

    def read_known(self, found: Sequence[bytes | None]) -> list[V | None]:
        """The same where some have no cell."""
        if all(found):
            return cast(list[V | None], self.read_many(cast(Sequence[bytes], found)))
        values = iter(self.read_many([cell for cell in found if cell is not None]))
        return [None if cell is None else next(values) for cell in found]

    def _read(self, data: bytes) -> V:
        if data[:1] == _FORMAT_1 and len(data) >= self._skip:
            return self._decode(data[self._skip :], FIRST_SCHEMA)
        cell = cells.unpack(data)
        return self._decode(cell.payload[self._lead :], cell.schema)

    def _quick_reader(self, quick: Quick) -> Callable[[bytes], V]:
        decode, skip, slowly = quick.decode, self._skip, self._read
        failures: tuple[type[Exception], ...] = (*quick.failures, IndexError)

        def read(data: bytes) -> V:
            try:
                if data[0] == FORMAT:
                    return cast(V, decode(data[skip:]))
            except failures:
                pass  # the codec itself says what is wrong
            return slowly(data)

        return read


def _quick_writer(quick: Quick, slowly: Callable[[V], bytes]) -> Callable[[V], bytes]:
    class_, encode, failures = quick.class_, quick.encode, quick.failures

    def write(value: V) -> bytes:
        if type(value) is class_:
            try:
                return encode(value)
            except failures:
                pass  # the codec itself says what is wrong
        return slowly(value)

    return write
