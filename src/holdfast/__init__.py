"""Holdfast: named, typed, durable state stores for PySpark, queryable while the stream runs.

Names are loaded when they are first used: an instance is a process without Spark, and importing PySpark and pandas into
it would cost seconds at every start and a hundred megabytes of its memory limit.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.errors import ErrorCategory, HoldfastError
    from holdfast.instance.events import RestoreEvent, RestorePhase
    from holdfast.pipeline.sinks.builtin import console, files, foreach, memory
    from holdfast.settings.model import Settings
    from holdfast.settings.sections import (
        BatchSettings,
        LogSettings,
        MemorySettings,
        RestoreSettings,
        RestSettings,
        RetrySettings,
        SnapshotSettings,
        SparkSettings,
        StateSettings,
    )
    from holdfast.states import AppState
    from holdfast.stores.access import DictBytes, Now
    from holdfast.stores.kinds.base import NotBound, Store
    from holdfast.stores.kinds.keyvalue import KeyValueStore, ReadOnlyKeyValueStore
    from holdfast.stores.kinds.session import ReadOnlySessionStore, Session, SessionStore
    from holdfast.stores.kinds.timestamped import (
        ReadOnlyTimestampedKeyValueStore,
        TimestampedKeyValueStore,
        ValueAndTimestamp,
    )
    from holdfast.stores.kinds.versioned import ReadOnlyVersionedKeyValueStore, VersionedKeyValueStore, VersionedRecord
    from holdfast.stores.kinds.window import ReadOnlyWindowStore, Windowed, WindowStore
    from holdfast.stores.schema.declared import schema, upcast
    from holdfast.topology.aggregates import count, first, last, max, mean, min, sum
    from holdfast.topology.aggregation import Table
    from holdfast.topology.processing import Processed
    from holdfast.topology.processor import Context, Processor
    from holdfast.topology.sink import Rows, Sink
    from holdfast.topology.stream import Stream

_HOMES = {
    "holdfast.app": ("App",),
    "holdfast.errors": ("ErrorCategory", "HoldfastError"),
    "holdfast.instance.events": ("RestoreEvent", "RestorePhase"),
    "holdfast.pipeline.sinks.builtin": ("console", "files", "foreach", "memory"),
    "holdfast.settings.model": ("Settings",),
    "holdfast.settings.sections": (
        "BatchSettings",
        "LogSettings",
        "MemorySettings",
        "RestSettings",
        "RestoreSettings",
        "RetrySettings",
        "SnapshotSettings",
        "SparkSettings",
        "StateSettings",
    ),
    "holdfast.states": ("AppState",),
    "holdfast.stores.access": ("DictBytes", "Now"),
    "holdfast.stores.kinds.base": ("NotBound", "Store"),
    "holdfast.stores.kinds.keyvalue": ("KeyValueStore", "ReadOnlyKeyValueStore"),
    "holdfast.stores.kinds.session": ("ReadOnlySessionStore", "Session", "SessionStore"),
    "holdfast.stores.kinds.timestamped": (
        "ReadOnlyTimestampedKeyValueStore",
        "TimestampedKeyValueStore",
        "ValueAndTimestamp",
    ),
    "holdfast.stores.kinds.versioned": ("ReadOnlyVersionedKeyValueStore", "VersionedKeyValueStore", "VersionedRecord"),
    "holdfast.stores.kinds.window": ("ReadOnlyWindowStore", "WindowStore", "Windowed"),
    "holdfast.stores.schema.declared": ("schema", "upcast"),
    "holdfast.topology.aggregates": ("count", "first", "last", "max", "mean", "min", "sum"),
    "holdfast.topology.aggregation": ("Table",),
    "holdfast.topology.processing": ("Processed",),
    "holdfast.topology.processor": ("Context", "Processor"),
    "holdfast.topology.sink": ("Rows", "Sink"),
    "holdfast.topology.stream": ("Stream",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "App",
    "AppState",
    "BatchSettings",
    "Context",
    "DictBytes",
    "ErrorCategory",
    "HoldfastError",
    "KeyValueStore",
    "LogSettings",
    "MemorySettings",
    "NotBound",
    "Now",
    "Processed",
    "Processor",
    "ReadOnlyKeyValueStore",
    "ReadOnlySessionStore",
    "ReadOnlyTimestampedKeyValueStore",
    "ReadOnlyVersionedKeyValueStore",
    "ReadOnlyWindowStore",
    "RestSettings",
    "RestoreEvent",
    "RestorePhase",
    "RestoreSettings",
    "RetrySettings",
    "Rows",
    "Session",
    "SessionStore",
    "Settings",
    "Sink",
    "SnapshotSettings",
    "SparkSettings",
    "StateSettings",
    "Store",
    "Stream",
    "Table",
    "TimestampedKeyValueStore",
    "ValueAndTimestamp",
    "VersionedKeyValueStore",
    "VersionedRecord",
    "WindowStore",
    "Windowed",
    "console",
    "count",
    "files",
    "first",
    "foreach",
    "last",
    "max",
    "mean",
    "memory",
    "min",
    "schema",
    "sum",
    "upcast",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    found = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
