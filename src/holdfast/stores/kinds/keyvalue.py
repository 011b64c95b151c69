"""The key-value store: one value per key.

Without options an entry stays until it is deleted. With `ttl=` every entry expires some time after it was put, by the
wall clock; `put(..., ttl=)` sets that for one entry. With `max_entries=` a partition keeps the entries used last.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar, Unpack, overload

from holdfast.stores.access import Now, ReadableBytes
from holdfast.stores.codecs.values import StoreCodec
from holdfast.stores.formats.cells import NO_TIMESTAMP
from holdfast.stores.kinds.base import K1, K2, K3, K, V, View
from holdfast.stores.kinds.containers import EntryStore, EntryView, KeyValueOptions
from holdfast.stores.options import Length
from holdfast.stores.scans import ROWS
from holdfast.stores.spec import KEY_VALUE, StoreSpec


class ReadOnlyKeyValueStore(EntryView[K, V, V]):
    """Reads a key-value store.

    >>> from holdfast.stores.access import DictBytes
    >>> store = KeyValueStore("scores", value=int).bind(DictBytes(), Now(wall=0))
    >>> store.put("ann", 3)
    >>> view = store.read_only()
    >>> view.get("ann"), view.get("bob"), hasattr(view, "put")
    (3, None, False)
    """

    def _attach(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, codec: StoreCodec[V]) -> None:
        super()._attach(spec, bytes_, now, codec)
        self._read, self._read_many = self._values.read, self._values.read_many


class KeyValueStore(EntryStore[K, V, V], ReadOnlyKeyValueStore[K, V]):
    """One value per key.

    >>> from holdfast.stores.access import DictBytes
    >>> scores = KeyValueStore("scores", key=(str, int), value=float).bind(DictBytes(), Now(wall=0))
    >>> scores["ann", 1] = 3.5
    >>> scores["ann", 1], ("bob", 1) in scores, dict(scores.prefix("ann"))
    (3.5, False, {('ann', 1): 3.5})
    """

    KIND: ClassVar[str | None] = KEY_VALUE
    SINK_COLUMNS: ClassVar[tuple[str, ...]] = ("value",)
    VIEW: ClassVar[type[View[Any, Any]]] = ReadOnlyKeyValueStore

    @overload
    def __init__(self: "KeyValueStore[str, V]", name: str, *, value: type[V], **options: Unpack[KeyValueOptions]): ...

    @overload
    def __init__(self, name: str, *, key: type[K], value: type[V], **options: Unpack[KeyValueOptions]): ...

    @overload
    def __init__(
        self: "KeyValueStore[tuple[K1, K2], V]",
        name: str,
        *,
        key: tuple[type[K1], type[K2]],
        value: type[V],
        **options: Unpack[KeyValueOptions],
    ): ...

    @overload
    def __init__(
        self: "KeyValueStore[tuple[K1, K2, K3], V]",
        name: str,
        *,
        key: tuple[type[K1], type[K2], type[K3]],
        value: type[V],
        **options: Unpack[KeyValueOptions],
    ): ...

    def __init__(self, name: str, *, value: Any, key: Any = str, **options: Unpack[KeyValueOptions]):
        super().__init__(name, key=key, value=value, **options)

    def put(self, key: K, value: V | None, ttl: Length | int | None = None) -> None:
        """Sets the value of a key, for as long as `ttl` if given; None deletes, as in Kafka Streams."""
        encoded = self._encode(key)
        if value is None:
            self._entries_.remove(encoded)
            return
        expires = self._expires if ttl is None else self._expiry(ttl)
        self._entries_.put(encoded, self._values.cell(value, NO_TIMESTAMP, expires), expires)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def update(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Sets many keys, given as a mapping or as pairs. For many keys this is faster than single puts."""
        for keys, values in _taken(entries):
            cells = self._values.cells(values, self._expires)
            if cells is None:
                for key, value in zip(keys, values, strict=True):
                    self.put(key, value)
            else:
                self._entries_.put_many(self._encode_many(keys), cells, self._expires)

    def read_only(self) -> ReadOnlyKeyValueStore[K, V]:
        """The same entries, without the methods that change them."""
        return self._quiet_as(ReadOnlyKeyValueStore)


def _taken(entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> Iterator[tuple[list[K], list[V]]]:
    """Keys and values, in batches."""
    if isinstance(entries, Mapping):
        left, theirs = iter(entries.keys()), iter(entries.values())
        while keys := list(islice(left, ROWS)):
            yield keys, list(islice(theirs, ROWS))
        return
    pairs = iter(entries)
    while True:
        keys, values = [], []
        for key, value in islice(pairs, ROWS):  # zip(*...) would keep all pairs in memory
            keys.append(key)
            values.append(value)
        if not keys:
            return
        yield keys, values
