"""The timestamped key-value store: one value per key, with the event time of the value.

The user chooses what an out-of-order put does. With `late="newest"` the value with the newest event time stays,
whenever it arrives; with `late="last"` the last put wins. A delete removes the time of the key along with its value.

Within a processor a put without a time uses the event time of the current record, so `store[key] = value` is enough.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Unpack, overload

from holdfast.errors import BadValue
from holdfast.stores.access import Now, ReadableBytes
from holdfast.stores.codecs.values import StoreCodec
from holdfast.stores.formats.cells import unpack
from holdfast.stores.kinds.base import K1, K2, K3, LATE, K, Time, V, View, millis
from holdfast.stores.kinds.containers import EntryStore, EntryView, KeyValueOptions
from holdfast.stores.layouts.base import ReadableEntries
from holdfast.stores.options import Length, one_of
from holdfast.stores.spec import TIMESTAMPED, StoreSpec


class ValueAndTimestamp(NamedTuple, Generic[V]):
    """A value and its event time, in milliseconds since 1970."""

    value: V
    timestamp: int


class TimestampedOptions(KeyValueOptions, total=False):
    """The options of a timestamped store."""

    late: Literal["newest", "last"]


class ReadOnlyTimestampedKeyValueStore(EntryView[K, V, ValueAndTimestamp[V]]):
    """Reads a timestamped key-value store."""

    def _attach(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, codec: StoreCodec[V]) -> None:
        super()._attach(spec, bytes_, now, codec)
        self._read = self._with_timestamp
        self._read_many = lambda cells: [self._with_timestamp(cell) for cell in cells]

    def _with_timestamp(self, cell: bytes) -> ValueAndTimestamp[V]:
        return ValueAndTimestamp(self._values.read(cell), unpack(cell).timestamp)


class TimestampedKeyValueStore(
    EntryStore[K, V, ValueAndTimestamp[V]], ReadOnlyTimestampedKeyValueStore[K, V], Generic[K, V]
):
    """One value per key, with its event time.

    >>> from holdfast.stores.access import DictBytes, Now
    >>> places = TimestampedKeyValueStore("places", value=str).bind(DictBytes(), Now(wall=0))
    >>> places.put("ann", "Oslo", 2_000); places.put("ann", "Rome", 1_000)
    >>> places.get("ann")
    ValueAndTimestamp(value='Oslo', timestamp=2000)
    """

    KIND: ClassVar[str | None] = TIMESTAMPED
    SINK_COLUMNS: ClassVar[tuple[str, ...]] = ("value", "timestamp")
    VIEW: ClassVar[type[View[Any, Any]]] = ReadOnlyTimestampedKeyValueStore

    _time_of_record: Callable[[], int] | None = None
    _newest_stays: bool
    _there: ReadableEntries
    """Where a put checks whether it is late. The user reads nothing there, so it refreshes nothing."""

    @overload
    def __init__(
        self: "TimestampedKeyValueStore[str, V]", name: str, *, value: type[V], **options: Unpack[TimestampedOptions]
    ): ...

    @overload
    def __init__(self, name: str, *, key: type[K], value: type[V], **options: Unpack[TimestampedOptions]): ...

    @overload
    def __init__(
        self: "TimestampedKeyValueStore[tuple[K1, K2], V]",
        name: str,
        *,
        key: tuple[type[K1], type[K2]],
        value: type[V],
        **options: Unpack[TimestampedOptions],
    ): ...

    @overload
    def __init__(
        self: "TimestampedKeyValueStore[tuple[K1, K2, K3], V]",
        name: str,
        *,
        key: tuple[type[K1], type[K2], type[K3]],
        value: type[V],
        **options: Unpack[TimestampedOptions],
    ): ...

    def __init__(self, name: str, *, value: Any, key: Any = str, **options: Unpack[TimestampedOptions]):
        super().__init__(name, key=key, value=value, **options)

    @classmethod
    def options(
        cls,
        where: str,
        *,
        late: str = "newest",
        ttl: Length | None = None,
        ttl_to_sinks: bool = False,
        max_entries: int | None = None,
        refresh_on_read: bool = False,
    ) -> dict[str, Any]:
        fields = super().options(
            where, ttl=ttl, ttl_to_sinks=ttl_to_sinks, max_entries=max_entries, refresh_on_read=refresh_on_read
        )
        if one_of(late, ("newest", "last"), "late", where) == "last":
            fields["options"] += (("late", "last"),)
        return fields

    @classmethod
    def describe_options(cls, spec: StoreSpec) -> Iterator[str]:
        yield from super().describe_options(spec)
        yield f"out of order: {'the last write wins' if spec.option('late') else 'the newest by event time stays'}"

    def _attach(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, codec: StoreCodec[V]) -> None:
        super()._attach(spec, bytes_, now, codec)
        self._there = self._entries_.without_touching()
        self._newest_stays = spec.option("late") != "last"

    def put(self, key: K, value: V | None, timestamp: Time | None = None, ttl: Length | int | None = None) -> None:
        """Sets the value and event time of a key; None deletes. The option `late` decides about a late put.

        The default timestamp is that of the processor's current record.
        """
        encoded, time = self._encode(key), self._record_time() if timestamp is None else millis(timestamp)
        if self._newest_stays:
            there = self._there.find(encoded)
            if there is not None and unpack(there).timestamp > time:
                self._count(LATE, 1)
                return
        if value is None:
            self._entries_.remove(encoded)
            return
        expires = self._expiry(ttl)
        self._entries_.put(encoded, self._values.cell(value, time, expires), expires)

    def __setitem__(self, key: K, value: ValueAndTimestamp[V] | V) -> None:
        """Sets a value with the time of a `ValueAndTimestamp`, or else with the time of the current record."""
        if isinstance(value, ValueAndTimestamp):
            self.put(key, value.value, value.timestamp)
        else:
            self.put(key, value)

    def follow_records(self, time: Callable[[], int]) -> None:
        self._time_of_record = time

    def _record_time(self) -> int:
        if self._time_of_record is None:
            raise BadValue(
                f"store {self.name!r} is used outside a processor, where there is no record to take the time from. "
                "Give it: put(key, value, timestamp), or store[key] = hf.ValueAndTimestamp(value, timestamp)."
            )
        return self._time_of_record()

    def read_only(self) -> ReadOnlyTimestampedKeyValueStore[K, V]:
        """The same entries, without the methods that change them."""
        return self._quiet_as(ReadOnlyTimestampedKeyValueStore)
