"""Specs: what the log keeps of a store. A spec is enough to read the store without the code that wrote it.

Specs are in the app's file. At every start they are compared with the specs of the code. Each difference that would
make stored bytes unreadable is reported to the user in one sentence.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

import msgspec

from holdfast.errors import TopologyError
from holdfast.settings.units import format_duration
from holdfast.stores.formats.types import Schema

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


KEY_VALUE: Final = "key-value"
TIMESTAMPED: Final = "timestamped"
VERSIONED: Final = "versioned"
WINDOW: Final = "window"
SESSION: Final = "session"


KindOptions = tuple[tuple[str, int | float | str | bool], ...]
"""Options of a kind of store by name. A missing option has its default, which is falsy."""


class NumberedSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """One schema of a store's values: its number, its fingerprint, and its fields as text."""

    number: int
    fingerprint: str
    fields: str
    upcast_from: tuple[int, ...] = ()
    """The numbers from which the code has an upcaster to the next number."""


class RowValues(msgspec.Struct, frozen=True, tag="rows"):
    """Values that are rows of an aggregate."""

    by_processor: ClassVar[bool] = False
    columns: Schema
    """All columns: first those that users see, then those that only merges need."""

    @property
    def shown(self) -> Schema:
        """The columns that sinks and queries show.

        >>> from holdfast.stores.formats.types import Field
        >>> print(RowValues(Schema((Field("mean", "double"), Field("mean#count", "bigint", "mean")))).shown)
        mean double
        """
        return Schema(tuple(field for field in self.columns.fields if not field.hidden_in))

    def visible(self, value: object) -> object:
        """A value as readers see it: a row without its hidden columns."""
        return {name: value[name] for name in _shown_names(self)} if isinstance(value, Mapping) else value

    def __str__(self) -> str:
        return f"rows of ({self.columns})"


@lru_cache(maxsize=256)
def _shown_names(rows: RowValues) -> tuple[str, ...]:
    return rows.shown.names


class TypedValues(msgspec.Struct, frozen=True, tag="typed"):
    """Values of a Python type. The store's `schemas` describe them."""

    by_processor: ClassVar[bool] = True
    """Whether a processor puts the values: under any key, and with a TTL of their own if it likes."""

    def visible(self, value: object) -> object:
        return value

    def __str__(self) -> str:
        return "typed values"


TYPED_VALUES: Final = TypedValues()


class Removed(msgspec.Struct, frozen=True):
    """A store that the code no longer has: the newest version then, and the wall clock of that version."""

    until: int
    wall: int


ONLY_PARTITION: Final = 0
"""The partition of a store with `one_partition`."""


class StoreSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One store, by name. Times are in milliseconds; 0 means none.

    >>> StoreSpec(name="scores", key=Schema.of(player="string"), codec="msgpack/1").engine
    'rocksdb'
    """

    name: str
    # Fields with factories are always written to the app's file; others only if they differ from the default.
    kind: str = msgspec.field(default_factory=lambda: KEY_VALUE)
    key: Schema
    value: RowValues | TypedValues = msgspec.field(default_factory=TypedValues)
    codec: str
    engine: str = msgspec.field(default_factory=lambda: "rocksdb")
    format: int = msgspec.field(default_factory=lambda: 1)
    ttl_ms: int = 0
    """How long an entry is kept after it was written, by the wall clock of the commit."""
    retention_ms: int = 0
    """How long windows, sessions and history are kept, by `clock`."""
    slice_ms: int = 0
    """How much time one slice covers; slices are dropped whole. Fixed when the store is made."""
    max_entries: int = 0
    """The limit of entries per partition; the least recently used are evicted."""
    fixed: KindOptions = ()
    """Options of the store's kind that stored bytes depend on: they can't change."""
    options: KindOptions = ()
    """The other options of the store's kind."""
    durable: bool = True
    everywhere: bool = False
    """A global store: every instance has the whole of it."""
    one_partition: bool = False
    """A global table: one task has all of its rows, and the tasks of other sub-topologies read them."""
    other_key: bool = False
    """The key is not that of the stream: an entry is in the partition that wrote it, and two may have the same key."""
    profile: str = "balanced"
    options_hook: str | None = None
    """`module:function` that receives the store's engine options."""
    schema: int = 1
    schemas: tuple[NumberedSchema, ...] = ()
    """Every schema that the values have had, the newest last. The code knows only its own; the log has all."""
    from_now: tuple[str, ...] = ()
    """Aggregates that may start late: they don't count records from before they were added. The same for the columns of
    a table from a changelog."""
    aggregates: tuple[tuple[str, str], ...] = ()
    """What each aggregate of a table computes, such as `("best", "max(score)")`."""
    stream_key: Schema | None = None
    """The key of the stream whose processor has the store: it decides the partition."""
    clock: Literal["event", "wall"] = "event"
    """What measures retention: event time, or the wall clock if the stream has no event time."""
    after: int = 0
    """The store begins after this version. The log sets it: the newest version when the store was added."""
    removed: Removed | None = None
    """Set by the log when the code no longer has the store, which is kept for a while."""

    def __post_init__(self) -> None:
        check_name(self.name)

    def partitions(self, of_app: int) -> int:
        """How many partitions the store has in an app with this many."""
        return 1 if self.one_partition else of_app

    def option(self, name: str) -> Any:
        """An option of the store's kind; None where it has its default."""
        return next((value for each, value in (*self.fixed, *self.options) if each == name), None)

    @property
    def columns(self) -> Schema:
        """The columns of an aggregate's rows."""
        if isinstance(self.value, RowValues):
            return self.value.columns
        raise TopologyError(
            f"store {self.name!r} has typed values, and no columns. Only the store of an aggregate has columns."
        )


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise TopologyError(
            f"{name!r} can't be the name of a store, a source, a processor or an output. Use 1 to 100 of a-z, 0-9, "
            "'.', '_' and '-', the first a letter or digit."
        )


_FIXED: Final = ("kind", "codec", "engine", "format", "durable", "everywhere", "one_partition")
"""The fields that stored bytes, or the place they are in, depend on, in any kind."""

KEEP_AND_ADD: Final = "add a store under a new name, beside this one or instead of it, or give the app a new id"
"""What to do if a store can't change."""

_NOT_IN_PLACE: Final = f"Not possible in place: {KEEP_AND_ADD}"


def differences(old: StoreSpec, new: StoreSpec) -> list[str]:
    """Why a store of the log can't be used as the code declares it, one sentence each.

    >>> old = StoreSpec(name="scores", key=Schema.of(player="string"), codec="rows/1")
    >>> [line] = differences(old, msgspec.structs.replace(old, engine="memory"))
    >>> line.partition(". ")[0]
    "store 'scores' has engine rocksdb in the log and memory in the code"
    """
    own = sorted({name for name, _ in old.fixed + new.fixed})
    lines = [
        f"store {old.name!r} has {name.removesuffix('_ms')} {shown(old, name)} in the log and {shown(new, name)} in "
        f"the code. {_NOT_IN_PLACE}"
        for name in (*_FIXED, *own)
        if _value(old, name) != _value(new, name)
    ]
    if old.key != new.key:
        lines.append(f"store {old.name!r} has key ({old.key}) in the log and ({new.key}) in the code. {_NOT_IN_PLACE}")
    if old.stream_key and new.stream_key and old.stream_key != new.stream_key:
        lines.append(
            f"store {old.name!r} is kept by the stream's key, which is ({old.stream_key}) in the log and "
            f"({new.stream_key}) in the code: records would find the state of other keys, or none. If only the column "
            "was renamed, rename it back: df.withColumnRenamed(...). Otherwise keep the processor as it was "
            "and add one with stores of new names, or give the app a new id"
        )
    if old.retention_ms and new.retention_ms and old.clock != new.clock:
        without, with_ = "the wall clock, since its stream has no timestamp=,", "event time"
        was, now = (without, with_) if old.clock == "wall" else (with_, without)
        lines.append(
            f"store {old.name!r} measures retention by {was} in the log and by {now} in the code. The clock "
            "would jump: hidden entries could come back, and only on replicas that have not dropped them yet. Leave "
            f"the stream's timestamp= as it was; or {KEEP_AND_ADD}"
        )
    if type(old.value) is not type(new.value):
        lines.append(f"store {old.name!r} has {old.value} in the log and {new.value} in the code. {_NOT_IN_PLACE}")
    for what, attribute in (("ttl", "ttl_ms"), (kept_as(new), "retention_ms"), ("max_entries", "max_entries")):
        before, after = getattr(old, attribute), getattr(new, attribute)
        if bool(before) != bool(after):
            # Either changes where an entry is stored or what is stored before its value.
            has = f"has {what} {shown(old, attribute)}" if before else f"has no {what}"
            lines.append(
                f"store {old.name!r} {has} in the log and {shown(new, attribute)} in the code. {_NOT_IN_PLACE}"
            )
    if old.ttl_ms > new.ttl_ms > 0:
        was, now = shown(old, "ttl_ms"), shown(new, "ttl_ms")
        # An aggregate is written by its records, not by put().
        leave = f"Leave it at {was}, which single entries can go below by put(..., ttl=)"
        stay = leave if old.value.by_processor else f"Leave it at {was}"
        lines.append(
            f"store {old.name!r} has ttl {was} in the log and {now} in the code. Entries that it would hide could come "
            f"back if it grew again, deleted ones too. {stay}; or {KEEP_AND_ADD}"
        )
    if new.retention_ms > old.retention_ms > 0:
        by_size = old.kind in (WINDOW, SESSION)
        set_by = " (by retention=, or where that isn't set by size, gap and grace)" if by_size else ""
        lines.append(
            f"store {old.name!r} has {kept_as(old)} {shown(old, 'retention_ms')} in the log and "
            f"{shown(new, 'retention_ms')} in the code. Entries that the shorter one has hidden would come back, and "
            f"only on replicas that have not dropped them yet. Leave it at {shown(old, 'retention_ms')} or "
            f"less{set_by}; or {KEEP_AND_ADD}"
        )
    return lines


def kept_as(spec: StoreSpec) -> str:
    """The option that sets the retention of a store."""
    return "history" if isinstance(spec.value, RowValues) and spec.kind == VERSIONED else "retention"


def _value(spec: StoreSpec, name: str) -> Any:
    return getattr(spec, name) if name in spec.__struct_fields__ else spec.option(name)


def shown(spec: StoreSpec, name: str) -> str:
    """A field or an option as a user writes it: milliseconds as a duration, 0 and None as none."""
    value = _value(spec, name)
    if name.endswith("_ms"):
        return format_duration(timedelta(milliseconds=value)) if value else "none"
    return "none" if value is None or (name == "max_entries" and not value) else str(value)
