"""The base of window, session and versioned stores: keys with times after them, and late writes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, cast

from holdfast.stores.access import Now, OrderedBytes, ReadableBytes
from holdfast.stores.codecs.values import StoreCodec
from holdfast.stores.formats.typed_keys import Decoder, Encoder, beginning_decoder, beginning_encoder
from holdfast.stores.kinds.base import REFUSED, K, Prefetch, Store, V, View
from holdfast.stores.layouts.base import Counted
from holdfast.stores.layouts.timed import NEWEST, TimedEntries
from holdfast.stores.options import words
from holdfast.stores.spec import StoreSpec, kept_as


class TimedView(View[K, V]):
    """Reads entries by key and time."""

    ENTRIES: ClassVar[type[TimedEntries]]
    TIMES = 1
    """How many times follow the key."""

    _beginning: Encoder
    _key_of: Decoder
    _timed: TimedEntries

    def _attach(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, codec: StoreCodec[V]) -> None:
        super()._attach(spec, bytes_, now, codec)
        self._beginning = beginning_encoder(spec.key)
        self._key_of = beginning_decoder(spec.key, self._times())
        self._timed = self.ENTRIES(spec, cast(OrderedBytes, bytes_), now)  # a view has no method that writes

    def _count_some(self, most: int) -> Counted:
        return self._timed.count(most)

    def _times(self) -> int:
        return self.TIMES

    def _beginning_or_none(self, key: K | None) -> bytes | None:
        return None if key is None else self._beginning(key)


class TimedStore(Store[K, V], TimedView[K, V]):
    """Writes entries by key and time, unless they would be hidden already."""

    @classmethod
    def describe_options(cls, spec: StoreSpec) -> Iterator[str]:
        clock = "event time" if spec.clock == "event" else "the wall clock"
        yield f"{kept_as(spec)} {words(spec.retention_ms)} by {clock}, in slices of {words(spec.slice_ms)}"

    def begin_record(self) -> None:
        self._timed.begin_record()

    def undo_record(self) -> None:
        self._timed.undo_record()

    def _key_in(self, stored: bytes) -> Any:
        own = self._layout.own_key(stored)
        return super()._key_in(stored) if own is stored else self._key_of(own)

    def _refused(self, time: int) -> bool:
        """Whether an entry of that time would be hidden; if so, it is counted."""
        if time > self._timed.kept_after:
            return False
        self._count(REFUSED, 1)
        return True

    def _prefetched_ranges(
        self, keys: Sequence[K], times: Sequence[int], span: Callable[[int, int], tuple[int, int | None]]
    ) -> Prefetch:
        """Per key, its entries in the slices of the span that `span` makes of its earliest and latest time."""
        return Prefetch([NEWEST], self._timed.ranges(keys, times, self._beginning, span))
