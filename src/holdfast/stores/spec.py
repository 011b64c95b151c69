"""What the log remembers of a store: enough to read it without the code that wrote it, and to notice a change.

Specs stand in the app's file. At every start the code's specs are compared with the file's; a difference that would
make stored bytes unreadable is told to the user one sentence each.
"""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, Literal

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


Options = tuple[tuple[str, int | float | str | bool], ...]
"""Options of a kind of store by name. One that isn't there has its default, which is falsy."""


class NumberedSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """One schema a store's values have had: its number, a fingerprint of it, and its fields in words."""

    number: int
    fingerprint: str
    fields: str
    lifts: tuple[int, ...] = ()
    """The numbers from which the code has an upcaster to the next."""


class RowValues(msgspec.Struct, frozen=True, tag="rows"):
    """Values that are an aggregate's rows."""

    columns: Schema
    """All columns: those that are shown first, then those that only merges need."""

    @property
    def shown(self) -> Schema:
        """The columns that sinks and queries show.

        >>> from holdfast.stores.formats.types import Field
        >>> print(RowValues(Schema((Field("mean", "double"), Field("mean#count", "bigint", "mean")))).shown)
        mean double
        """
        return Schema(tuple(field for field in self.columns.fields if not field.hidden_in))


class TypedValues(msgspec.Struct, frozen=True, tag="typed"):
    """Values of a Python type. The store's `schemas` have what they look like."""


TYPED_VALUES: Final = TypedValues()


class StoreSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One store, by name. Times are in milliseconds; 0 means none.

    >>> StoreSpec(name="scores", key=Schema.of(player="string"), codec="msgpack/1").engine
    'rocksdb'
    """

    name: str
    # With factories these are always written, as they were before there were the others.
    kind: str = msgspec.field(default_factory=lambda: KEY_VALUE)
    key: Schema
    value: RowValues | TypedValues = msgspec.field(default_factory=TypedValues)
    codec: str
    engine: str = msgspec.field(default_factory=lambda: "rocksdb")
    format: int = msgspec.field(default_factory=lambda: 1)
    ttl_ms: int = 0
    """How long an entry lives after it was written, by the commit's wall clock."""
    retention_ms: int = 0
    """How long windows, sessions and history are kept, by the commit's event clock."""
    slice_ms: int = 0
    """How much time one slice covers; slices are dropped whole. Fixed when the store is made."""
    max_entries: int = 0
    """The most entries of one partition; the least recently used go."""
    fixed: Options = ()
    """Options of the store's kind that stored bytes depend on: they can't change."""
    options: Options = ()
    """The other options of the store's kind."""
    durable: bool = True
    everywhere: bool = False
    """A global store: every instance has the whole of it."""
    profile: str = "balanced"
    options_hook: str | None = None
    """`module:function` that receives the store's engine options."""
    schema: int = 1
    schemas: tuple[NumberedSchema, ...] = ()
    """Every schema the values have had, the newest last. Code knows its own alone; the log has them all."""
    from_now: tuple[str, ...] = ()
    """Aggregates that may begin in the middle: they leave out what came before they were added."""
    aggregates: tuple[tuple[str, str], ...] = ()
    """What each aggregate of a table computes, such as `("best", "max(score)")`. Files of before have none."""
    stream_key: Schema | None = None
    """The key of the stream whose processor keeps the store: what its partitions go by. Files of before have none."""
    clock: Literal["event", "wall"] | None = None
    """What retention goes by: event time, or the wall clock if the stream has none. Files of before don't say: by event
    time from the app's first on, and by the wall clock until then."""

    def __post_init__(self) -> None:
        check_name(self.name)

    def option(self, name: str) -> Any:
        """An option of the store's kind; None where it has its default."""
        return next((value for each, value in (*self.fixed, *self.options) if each == name), None)

    @property
    def columns(self) -> Schema:
        """The columns of an aggregate's rows."""
        if isinstance(self.value, RowValues):
            return self.value.columns
        raise TopologyError(
            f"store {self.name!r} has typed values, and no columns. Only an aggregate's store has them."
        )


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise TopologyError(
            f"{name!r} can't name a store. Use 1 to 100 of a-z, 0-9, '.', '_' and '-', the first a letter or digit."
        )


def differences(old: Sequence[StoreSpec], new: Sequence[StoreSpec]) -> list[str]:
    """What changed from the stores the log has to those the code has, one sentence each, in the order of names.

    >>> key = Schema.of(player="string")
    >>> for line in differences([StoreSpec(name="scores", key=key, codec="rows/1")], []): print(line)
    store 'scores' is in the log and not in the code. A store can't be removed from an app yet: declare it as it was
    """
    before, after = {spec.name: spec for spec in old}, {spec.name: spec for spec in new}
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            lines.append(
                f"store {name!r} is in the log and not in the code. A store can't be removed from an app yet: declare "
                "it as it was"
            )
        elif name not in before:
            lines.append(f"store {name!r} is in the code and not in the log")
        else:
            lines += _changes(before[name], after[name])
    return lines


_FIXED: Final = ("kind", "codec", "engine", "format", "durable", "everywhere")
"""What stored bytes, or the place they are in, depend on, whatever the kind."""

BESIDE: Final = "keep the store as it was and add one under a new name beside it, or give the app a new id"
"""What to do where a store can't change. It has to stay declared: a store that is in the log can't be removed."""

_ANEW: Final = f"Not possible in place: {BESIDE}"


def _changes(old: StoreSpec, new: StoreSpec) -> list[str]:
    own = sorted({name for name, _ in old.fixed + new.fixed})
    lines = [
        f"store {old.name!r} has {name.removesuffix('_ms')} {_shown(old, name)} in the log and {_shown(new, name)} in "
        f"the code. {_ANEW}"
        for name in (*_FIXED, *own)
        if _value(old, name) != _value(new, name)
    ]
    if old.key != new.key:
        lines.append(f"store {old.name!r} has key ({old.key}) in the log and ({new.key}) in the code. {_ANEW}")
    if old.stream_key and new.stream_key and old.stream_key != new.stream_key:
        lines.append(
            f"store {old.name!r} is kept by the stream's key, which is ({old.stream_key}) in the log and "
            f"({new.stream_key}) in the code: records would meet state of other keys, or none. If only the column has "
            "another name now, give it back its own: df.withColumnRenamed(...). Otherwise keep the processor as it was "
            "and add one with stores of new names, or give the app a new id"
        )
    if old.clock and new.clock and old.clock != new.clock:
        without, with_ = "the wall clock, since its stream has no timestamp=,", "event time"
        was, now = (without, with_) if old.clock == "wall" else (with_, without)
        lines.append(
            f"store {old.name!r} goes by {was} in the log and by {now} in the code. The clock of its retention would "
            "jump: what is hidden could come back, and only on replicas that have not dropped it yet. Leave the "
            f"stream's timestamp= as it was; or {BESIDE}"
        )
    if type(old.value) is not type(new.value):
        was, now = _text(old.value), _text(new.value)
        lines.append(f"store {old.name!r} has {was} in the log and {now} in the code. {_ANEW}")
    for what, attribute in (("ttl", "ttl_ms"), (kept_as(new), "retention_ms"), ("max_entries", "max_entries")):
        before, after = getattr(old, attribute), getattr(new, attribute)
        if bool(before) != bool(after):
            # Either changes where an entry stands or what stands before its value.
            has = f"has {what} {_shown(old, attribute)}" if before else f"has no {what}"
            lines.append(f"store {old.name!r} {has} in the log and {_shown(new, attribute)} in the code. {_ANEW}")
    if old.ttl_ms > new.ttl_ms > 0:
        was, now = _shown(old, "ttl_ms"), _shown(new, "ttl_ms")
        # An aggregate is written by its records, not by put().
        leave = f"Leave it at {was}, which single entries can go below by put(..., ttl=)"
        stay = leave if isinstance(old.value, TypedValues) else f"Leave it at {was}"
        lines.append(
            f"store {old.name!r} has ttl {was} in the log and {now} in the code. Entries it would hide could come back "
            f"if it grew again, deleted ones too. {stay}; or {BESIDE}"
        )
    if new.retention_ms > old.retention_ms > 0:
        set_by = "" if old.aggregates else " (by retention=, or where that isn't set by size, gap and grace)"
        lines.append(
            f"store {old.name!r} has {kept_as(old)} {_shown(old, 'retention_ms')} in the log and "
            f"{_shown(new, 'retention_ms')} in the code. What the shorter one has hidden would come back, and only on "
            f"replicas that have not dropped it yet. Leave it at {_shown(old, 'retention_ms')} or less{set_by}; or "
            f"{BESIDE}"
        )
    return lines


def kept_as(spec: StoreSpec) -> str:
    """The option that says how long a store keeps what has an end."""
    return "history" if spec.aggregates else "retention"


def _value(spec: StoreSpec, name: str) -> Any:
    return getattr(spec, name) if name in spec.__struct_fields__ else spec.option(name)


def _shown(spec: StoreSpec, name: str) -> str:
    """An option as a user writes it: milliseconds as a duration, nothing as none."""
    value = _value(spec, name)
    if name.endswith("_ms"):
        return format_duration(timedelta(milliseconds=value)) if value else "none"
    return "none" if value is None or (name == "max_entries" and not value) else str(value)


def _text(value: RowValues | TypedValues) -> str:
    return f"rows of ({value.columns})" if isinstance(value, RowValues) else "typed values"
