"""The base of all kinds of stores: declarations, bound stores, and views.

A user declares and uses a store by the same class:

    class Sessions(hf.Processor):
        sessions = hf.KeyValueStore("user-sessions", value=UserSession)

A declared store is a name, types and options; `spec()` is what the log keeps of it. `bind` returns a working copy with
the bytes of one partition, the time of one version and a counter. A user's own kind is a subclass of `Store`.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from itertools import islice
from typing import Any, ClassVar, Generic, Self, TypedDict, TypeVar, cast

import msgspec

from holdfast.errors import BadSpan, BadValue, ErrorCategory, HoldfastError, SettingsError, shown
from holdfast.settings.units import parse_duration
from holdfast.stores.access import Now, OrderedBytes, ReadableBytes
from holdfast.stores.codecs.base import Codec, name_of
from holdfast.stores.codecs.names import codec_id
from holdfast.stores.codecs.packed import JSON, MESSAGE_PACK
from holdfast.stores.codecs.values import StoreCodec, schema_of
from holdfast.stores.codecs.values import codec_for as made_codec
from holdfast.stores.formats.keys import key_schema_of
from holdfast.stores.formats.times import Row
from holdfast.stores.formats.typed_keys import Encoder, key_encoder, keys_decoder, keys_encoder
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.coding import Values, codec_for
from holdfast.stores.kinds.queries import Query
from holdfast.stores.layouts.base import FEW, Count, Counted, Layout
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.layouts.rewriter import Rewriter
from holdfast.stores.options import ROCKSDB, Length, check_options, check_tuned, common_fields
from holdfast.stores.scans import chained, close
from holdfast.stores.spec import TYPED_VALUES, RowValues, StoreSpec, TypedValues

K = TypeVar("K")
V = TypeVar("V")
K1 = TypeVar("K1")
K2 = TypeVar("K2")
K3 = TypeVar("K3")

Time = int | dt.datetime
"""Milliseconds since 1970, or a datetime with a time zone."""

REFUSED = "expired"
"""Counts writes that came too late: their entries would be hidden already."""
LATE = "late"
"""Counts puts that were ignored because the store has a newer value by event time."""

CHECKED_CODECS = (MESSAGE_PACK, JSON)
"""The codecs that write the fields of a value unchecked. The others check each field, or are the user's own."""

PLAIN_TYPES = (int, str, float, bool, bytes)
"""Types without fields, of which a put checks everything."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)
_SIGN = 1 << 63
_ALL = (1 << 63) - 1


class NotBound(HoldfastError):
    """A declared store was used as if it had data."""

    category = ErrorCategory.INVALID

    def __init__(self, store: object, name: str) -> None:
        super().__init__(
            f"{type(store).__name__}({name!r}) is a declaration and has no data here. Use it as self.<name> within a "
            "processor's process(), or give it data with store.bind(DictBytes(), Now(wall=0))."
        )


class Declaration:
    """What is declared in a processor's class: it has a name, and no data until it is bound."""

    _name: str

    def __getattr__(self, attribute: str) -> Any:
        # Only called for missing attributes: a declaration lacks those that `_attach` sets.
        if attribute.startswith("_") and not attribute.startswith("__") and "_bytes" not in self.__dict__:
            raise NotBound(self, self.__dict__.get("_name", ""))
        raise AttributeError(f"{type(self).__name__} has no attribute {attribute!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"


class KeyedOptions(TypedDict, total=False):
    """The options of a store whose key is its stream's; `holdfast.stores.options` checks them."""

    codec: str | Codec[Any] | None
    engine: str | None
    durable: bool
    profile: str
    everywhere: bool
    rocksdb_options: str | None


class Options(KeyedOptions, total=False):
    """The options of every store of a processor."""

    other_key: bool


@dataclass(frozen=True)
class Prefetch:
    """What a task may read in bulk before it uses a store: single keys, and ranges from start to before stop."""

    keys: list[bytes]
    ranges: list[tuple[bytes, bytes]]


def check_span(first: Time | None, last: Time | None) -> None:
    """Raises for a span of time that ends before it begins: nobody asks for nothing."""
    if first is not None and last is not None and millis(last) < millis(first):
        raise BadSpan(f"The span of time ends at {last}, before it begins at {first}. Swap its ends, or leave one out.")


def millis(time: Time) -> int:
    """A time in milliseconds since 1970.

    >>> millis(dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)), millis(5)
    (1000, 5)
    """
    if type(time) is int:
        if -_SIGN <= time < _SIGN:
            return time
        raise BadValue(f"{time} is not a time: it doesn't fit into 64 bits. Give milliseconds since 1970.")
    if isinstance(time, dt.datetime) and time.tzinfo is not None:
        return (time - _EPOCH) // _MILLISECOND
    if isinstance(time, dt.datetime):
        raise BadValue(f"{time!r} has no time zone. Give it one, such as tzinfo=datetime.UTC.")
    raise BadValue(f"{time!r} is not a time. Give milliseconds since 1970 or a datetime with a time zone.")


def length_in_ms(length: Length | int, option: str, store: str) -> int:
    """A length of time in a call of a store: a text, a timedelta or milliseconds.

    >>> length_in_ms("1s", "ttl", "scores"), length_in_ms(5, "ttl", "scores")
    (1000, 5)
    """
    try:
        given = dt.timedelta(milliseconds=length) if type(length) is int else length
        found = parse_duration(given) // _MILLISECOND  # type: ignore[arg-type]
    except OverflowError:
        raise BadValue(f"store {store!r}: {option}={length!r} is longer than 999,999,999 days.") from None
    except SettingsError as error:
        raise BadValue(f"store {store!r}: {option}={length!r}: {error}") from None
    if found <= 0:
        raise BadValue(f"store {store!r}: {option}={length!r} is too short. Give a millisecond or more.")
    return found


class View(Generic[K, V]):
    """Reads the typed entries of one store at one time.

    Without a value type, values are plain dicts, lists and numbers.
    """

    _name: str
    _spec: StoreSpec
    _bytes: ReadableBytes
    _now: Now
    _layout: Layout
    _values: Values[V]
    _encode: Encoder
    _encode_many: Callable[[Sequence[Any]], list[bytes]]
    _decode_many: Callable[[Sequence[bytes]], list[Any]]

    def __init__(
        self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, *, value: Any = Any, codec: Codec[V] | None = None
    ) -> None:
        self._name = spec.name
        self._attach(spec, bytes_, now, codec_for(spec, value, codec))

    @property
    def name(self) -> str:
        return self._name

    def _attach(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, codec: StoreCodec[V]) -> None:
        """Makes this a view of these bytes at this time. Kinds add what they need."""
        self._spec, self._bytes, self._now = spec, bytes_, now
        self._layout = layout_of(spec)
        self._values = Values(codec)
        self._encode, self._encode_many = key_encoder(spec.key), keys_encoder(spec.key)
        self._decode_many = keys_decoder(spec.key)

    def approximate_count(self) -> int:
        """How many entries there are: up to 1,000 exactly, beyond that by the estimate of the engine."""
        some = self._count_some(FEW)
        return some.entries if some.entries < FEW else max(FEW, self._layout.estimate(self._bytes, some))

    def count(self) -> int:
        """How many entries there are, counted one by one."""
        return self._count_some(_ALL).entries

    def _count_some(self, most: int) -> Counted:
        """Counts the first entries, up to `most`."""
        rows = chained(self._bytes.scan(start, stop) for start, stop in self._layout.areas(self._now))
        number = sum(1 for _ in islice(rows, most))
        close(rows)
        return Counted(number, number)

    def _as(self, view: type["ViewType"]) -> "ViewType":
        """The same entries as a view with fewer methods."""
        found = view.__new__(view)
        found.__dict__.update(self.__dict__)
        return found


ViewType = TypeVar("ViewType", bound=View[Any, Any])


class Store(Declaration, View[K, V]):
    """A declared store of any kind, or its bound copy."""

    KIND: ClassVar[str | None] = None
    """The name of the kind in the log; a user's own kind has the place of its class."""
    VIEW: ClassVar[type[View[Any, Any]]] = View
    """The view of a store of this kind."""
    BY_KEY: ClassVar[bool] = False
    """Whether each entry has a key of its own, so that REST reads it by `keys` and `range`."""
    SINK_COLUMNS: ClassVar[tuple[str, ...]] = ()
    """The columns of a changed entry that sinks get: `value`, `timestamp`. Empty: sinks can't get changes."""
    QUERIES: ClassVar[tuple[Query, ...]] = ()
    """Further queries over REST."""

    _writable: OrderedBytes
    _count: Count

    def __init__(self, name: str, *, key: Any, value: Any, **options: Any) -> None:
        self._name = name
        self._key_schema = key_schema_of(key)
        self._type, self._codec = value, options.pop("codec", None)
        self._options = options
        self.declaration = id(self)  # also in copies: processors that share a store have the same one
        self._declared = self._described()  # so that errors are raised on the line of the declaration

    @classmethod
    def kind(cls) -> str:
        return cls.KIND or f"{cls.__module__}:{cls.__qualname__}"

    @classmethod
    def options(cls, *where: Any, **given: Any) -> dict[str, Any]:
        """The fields of `StoreSpec` that the options of this kind become.

        A kind takes `where`, the first words of its errors, and each of its options by name. Options without a field
        of their own go into `fixed` if stored bytes depend on them, and into `options` otherwise; the view reads both
        with `self._spec.option(name)`.
        """
        return {}

    @classmethod
    def spec_of(
        cls,
        name: str,
        *,
        key: Schema,
        codec: str,
        value: RowValues | TypedValues = TYPED_VALUES,
        where: str = "",
        default_engine: str = ROCKSDB,
        **given: Any,
    ) -> StoreSpec:
        """The spec of a store of this kind with these options.

        >>> Store.spec_of("s", key=Schema.of(k="string"), codec="bytes/1", durable=False).durable
        False
        """
        where = where or f"store {name!r}"
        own = _options_of(cls.options)
        given = {option: value for option, value in given.items() if value is not None}
        check_options(given, own | _COMMON | {"codec"}, where)
        fields = cls.options(where, **{option: given[option] for option in given if option in own})
        given = {"engine": default_engine} | given
        common = common_fields(where, **{option: given[option] for option in given if option not in own})
        spec = StoreSpec(name=name, kind=cls.kind(), key=key, value=value, codec=codec, **fields, **common)
        check_tuned(spec, where)
        return spec

    def spec(self, *, default_engine: str = ROCKSDB) -> StoreSpec:
        """What the log keeps of this store. A store without an engine of its own has the app's."""
        if self.engine is not None or default_engine == self._declared.engine:
            return self._declared
        spec = msgspec.structs.replace(self._declared, engine=default_engine)
        check_tuned(spec, repr(self))
        return spec

    @classmethod
    def describe_options(cls, spec: StoreSpec) -> Iterator[str]:
        """The options of this kind in words, one line per option."""
        return iter(())

    @classmethod
    def describe_spec(cls, spec: StoreSpec) -> Iterator[str]:
        """A store of this kind in words: every option it has, with its numbers."""
        yield f"store {spec.name} ({spec.kind} on {spec.engine}), key ({spec.key})"
        yield from (f"  {line}" for line in cls.describe_options(spec))
        if spec.one_partition:
            yield "  global: in one partition, which every instance has and every task reads"
        elif spec.everywhere:
            yield "  everywhere: every instance has the whole of it"
        if spec.other_key:
            yield "  other key than the stream: an entry is in the partition that wrote it"
        kept = "durable" if spec.durable else "not durable: in no snapshot, never restored"
        hook = f", options by {spec.options_hook}" if spec.options_hook else ""
        yield f"  {kept}, profile {spec.profile}{hook}, codec {spec.codec}"

    def describe(self) -> str:
        """This store in words, as `app.describe()` has it."""
        return "\n".join(self.describe_spec(self.spec()))

    def _described(self) -> StoreSpec:
        codec = codec_id(self._codec)
        schema = schema_of(self._type, codec)
        if schema is not None:
            made_codec(codec, self._type)  # raises for a type that the codec can't encode
        spec = self.spec_of(self._name, key=self._key_schema, codec=codec, where=repr(self), **self._options)
        if schema is None:
            return spec
        return msgspec.structs.replace(spec, schema=schema.number, schemas=(schema,))

    @property
    def engine(self) -> str | None:
        """The engine that the user named, if any."""
        engine: str | None = self._options.get("engine")
        return engine

    def bind(
        self, bytes_: OrderedBytes, now: Now, count: Count = lambda name, number: None, *, spec: StoreSpec | None = None
    ) -> Self:
        """A working copy over the bytes of one partition, at the time of one version. `spec`: the one in the log."""
        bound = type(self).__new__(type(self))
        bound.__dict__.update(self.__dict__)
        bound._writable, bound._count = bytes_, count
        spec = spec or self.spec()
        bound._attach(spec, bytes_, now, self.value_codec(spec))
        return bound

    def value_codec(self, spec: StoreSpec) -> StoreCodec[V]:
        """What reads values of every schema in the log's spec, and writes those of the newest."""
        own = None if isinstance(self._codec, str) else self._codec
        return codec_for(spec, self._type, own)

    def follow_records(self, time: Callable[[], int]) -> None:
        """Called by a task on every bound store: `time` returns the event time of the current record."""

    def begin_version(self) -> None:
        """Called by a task on every bound store before the first record of a version."""

    def end_of_version(self) -> None:
        """Called by a task on every bound store after the last record of a version."""

    def begin_record(self) -> None:
        """Called by a task before each record if the processor's `on_error` isn't "fail".

        A kind that keeps something in memory beside its bytes notes it here, and restores it in `undo_record`.
        """

    def undo_record(self) -> None:
        """Called by a task if the record has failed, after its bytes were restored."""

    def check_record(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Called by a task with the changes of such a record: the same as `check_written` for a version."""
        self.check_written(changes)

    def check_written(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Called by a task with the changes of a version: raises for a value that can't be read again.

        A put checks the class of a value, not its fields: checking them costs less here, for all values at once.
        """
        plain = self._spec.codec == MESSAGE_PACK and self._type in PLAIN_TYPES
        if self.KIND is None or self._type is Any or self._spec.codec not in CHECKED_CODECS or plain:
            return
        areas = self._layout.entry_areas
        written = [row for row in changes.items() if row[1] is not None and row[0][:1] in areas]
        found = self._values.unreadable(cast(list[Row], written))
        if found is None:
            return
        key, cell, error = found
        plain = Values[Any](codec_for(self._spec, Any), self._values.lead).read(cell)
        raise BadValue(
            f"store {self._name!r}: the value put under the key {shown(self._key_in(key))} can't be read again as "
            f"{name_of(self._type)}: {error.__cause__ or error}. It was {shown(plain, 200)}. "
            "Put values whose fields are of their types, or give a field a type that allows what it holds, "
            "such as int | None."
        )

    def _key_in(self, stored: bytes) -> Any:
        """The key of a stored entry."""
        return self._decode_many([self._layout.own_key(stored)])[0]

    def rewriter(self) -> Rewriter:
        """The rewrite of old entries of a bound store."""
        return Rewriter(self._spec, self._now, self.value_codec(self._spec))

    def prefetch(self, keys: Sequence[K], times: Sequence[int]) -> Prefetch:
        """What `process` is likely to read for records with these keys and event times."""
        return Prefetch(self._encode_many(list(dict.fromkeys(keys))), [])


def _options_of(taken: Callable[..., Any]) -> set[str]:
    """The keyword-only parameters of a function."""
    return {name for name, each in signature(taken).parameters.items() if each.kind is Parameter.KEYWORD_ONLY}


_COMMON = _options_of(common_fields)
