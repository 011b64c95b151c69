"""What the log remembers of a store: enough to read it without the code that wrote it, and to notice a change.

Specs stand in the app's file. At every start the code's specs are compared with the file's; a difference that would
make stored bytes unreadable is told to the user one sentence each.
"""

import re
from collections.abc import Sequence

import msgspec

from holdfast.errors import TopologyError
from holdfast.stores.types import Schema

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


class StoreSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One store, by name.

    >>> StoreSpec(name="scores", key=Schema.of(player="string"), codec="msgpack/1").engine
    'rocksdb'
    """

    name: str
    kind: str = "key-value"
    key: Schema
    value: Schema | None = None
    codec: str
    engine: str = "rocksdb"
    format: int = 1

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


def _changes(old: StoreSpec, new: StoreSpec) -> list[str]:
    lines = [
        f"store {old.name!r} has {what} {getattr(old, attribute)} in the log and {getattr(new, attribute)} in the code"
        for what, attribute in (("kind", "kind"), ("codec", "codec"), ("engine", "engine"), ("format", "format"))
        if getattr(old, attribute) != getattr(new, attribute)
    ]
    for what, was, now in (("key", old.key, new.key), ("value", old.value, new.value)):
        if was != now:
            lines.append(f"store {old.name!r} has {what} ({_text(was)}) in the log and ({_text(now)}) in the code")
    return lines


def _text(schema: Schema | None) -> str:
    return "no schema" if schema is None else str(schema)
