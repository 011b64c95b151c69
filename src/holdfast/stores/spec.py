"""What the log remembers of a store: enough to read it without the code that wrote it, and to notice a change.

Specs stand in the app's file. At every start the code's specs are compared with the file's; a difference that would
make stored bytes unreadable is told to the user one sentence each.
"""

import re
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from holdfast.errors import TopologyError
from holdfast.stores.types import Schema

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


KEY_VALUE: Final = "key-value"
TIMESTAMPED: Final = "timestamped"
VERSIONED: Final = "versioned"
WINDOW: Final = "window"
SESSION: Final = "session"
KINDS: Final = (KEY_VALUE, TIMESTAMPED, VERSIONED, WINDOW, SESSION)
"""The kinds that come with Holdfast. A user's own is named by its place, `module:Class`."""


class SchemaVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """One shape a store's values have had: its number, a fingerprint of it, and its fields in words."""

    number: int
    fingerprint: str
    fields: str
    lifts: tuple[int, ...] = ()
    """The numbers from which the code has an upcaster to the next."""


class StoreSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One store, by name. Times are in milliseconds; 0 means none.

    >>> StoreSpec(name="scores", key=Schema.of(player="string"), codec="msgpack/1").engine
    'rocksdb'
    """

    name: str
    # With factories these are always written, as they were before there were the others.
    kind: str = msgspec.field(default_factory=lambda: KEY_VALUE)
    key: Schema
    value: Schema | None = msgspec.field(default_factory=lambda: None)
    codec: str
    engine: str = msgspec.field(default_factory=lambda: "rocksdb")
    format: int = msgspec.field(default_factory=lambda: 1)
    ttl_ms: int = 0
    """How long an entry lives after it was written, by the commit's wall clock."""
    retention_ms: int = 0
    """How long windows, sessions and history are kept, by the commit's event clock."""
    slice_ms: int = 0
    """How much time one slice covers; slices are dropped whole. Fixed when the store is made."""
    window_ms: int = 0
    grace_ms: int = 0
    max_entries: int = 0
    """The most entries of one partition; the least recently used go."""
    refresh_on_read: bool = False
    duplicates: bool = False
    late: Literal["newest", "last"] = "newest"
    """What an out-of-order put does: the newest by event time stays, or the last write wins."""
    durable: bool = True
    everywhere: bool = False
    """A global store: every instance has the whole of it."""
    profile: str = "balanced"
    options_hook: str | None = None
    """`module:function` that receives the store's engine options."""
    schema: int = 1
    schemas: tuple[SchemaVersion, ...] = ()
    """Every shape the values have had, the newest last. Code knows its own alone; the log has them all."""
    from_now: tuple[str, ...] = ()
    """Aggregates that may begin in the middle: they leave out what came before they were added."""
    aggregates: tuple[tuple[str, str], ...] = ()
    """What each aggregate of a table computes, such as `("best", "max(score)")`. Files of before have none."""

    def __post_init__(self) -> None:
        check_name(self.name)


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise TopologyError(
            f"{name!r} can't name a store. Use 1 to 100 of a-z, 0-9, '.', '_' and '-', the first a letter or digit."
        )


def differences(old: Sequence[StoreSpec], new: Sequence[StoreSpec]) -> list[str]:
    """What changed from the stores the log has to those the code has, one sentence each, in the order of names.

    >>> key = Schema.of(player="string")
    >>> for line in differences([StoreSpec(name="scores", key=key, codec="rows/1")], []): print(line)
    store 'scores' is in the log and not in the code
    """
    before, after = {spec.name: spec for spec in old}, {spec.name: spec for spec in new}
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            lines.append(f"store {name!r} is in the log and not in the code")
        elif name not in before:
            lines.append(f"store {name!r} is in the code and not in the log")
        else:
            lines += _changes(before[name], after[name])
    return lines


_FIXED: Final = (
    ("kind", "kind"),
    ("codec", "codec"),
    ("engine", "engine"),
    ("format", "format"),
    ("window size", "window_ms"),
    ("duplicates", "duplicates"),
    ("durable", "durable"),
    ("everywhere", "everywhere"),
)
"""What stored bytes, or the place they are in, depend on."""

_ANEW: Final = "Not possible in place: give the store a new name, or the app a new id"


def _changes(old: StoreSpec, new: StoreSpec) -> list[str]:
    lines = [
        f"store {old.name!r} has {what} {getattr(old, attribute)} in the log and {getattr(new, attribute)} in the "
        f"code. {_ANEW}"
        for what, attribute in _FIXED
        if getattr(old, attribute) != getattr(new, attribute)
    ]
    if old.key != new.key:
        lines.append(f"store {old.name!r} has key ({old.key}) in the log and ({new.key}) in the code. {_ANEW}")
    if (old.value is None) != (new.value is None):
        was, now = _text(old.value), _text(new.value)
        lines.append(f"store {old.name!r} has value ({was}) in the log and ({now}) in the code. {_ANEW}")
    for what, attribute in (("ttl", "ttl_ms"), ("max_entries", "max_entries")):
        before, after = getattr(old, attribute), getattr(new, attribute)
        if bool(before) != bool(after):
            # Either changes where an entry stands or what stands before its value.
            has = f"has {what} {before}" if before else f"has no {what}"
            lines.append(f"store {old.name!r} {has} in the log and {after or 'none'} in the code. {_ANEW}")
    if old.ttl_ms > new.ttl_ms > 0:
        lines.append(
            f"store {old.name!r} has ttl {old.ttl_ms} ms in the log and {new.ttl_ms} ms in the code. Entries it would "
            "hide could come back if it grew again, deleted ones too. Put with a shorter ttl=, or give the store a new "
            "name"
        )
    return lines


def _text(schema: Schema | None) -> str:
    return "no schema" if schema is None else str(schema)
