"""Holdfast: named, typed, durable state stores for PySpark, queryable while the stream runs.

Names are loaded when they are first used: an instance is a process without Spark, and importing PySpark and pandas into
it would cost seconds at every start and a hundred megabytes of its memory limit.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.app import App as App
    from holdfast.app import running as running
    from holdfast.client.async_client import AsyncClient as AsyncClient
    from holdfast.client.client import Client as Client
    from holdfast.errors import ErrorCategory as ErrorCategory
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.group.rebalances import Move as Move
    from holdfast.group.rebalances import RebalanceEvent as RebalanceEvent
    from holdfast.group.rebalances import RebalancePhase as RebalancePhase
    from holdfast.instance.events import RestoreEvent as RestoreEvent
    from holdfast.instance.events import RestorePhase as RestorePhase
    from holdfast.pipeline.sinks.builtin import console as console
    from holdfast.pipeline.sinks.builtin import files as files
    from holdfast.pipeline.sinks.builtin import foreach as foreach
    from holdfast.pipeline.sinks.builtin import memory as memory
    from holdfast.pipeline.spark import prepare_session as prepare_session
    from holdfast.settings.group import GroupSettings as GroupSettings
    from holdfast.settings.model import Settings as Settings
    from holdfast.settings.rest import RestSettings as RestSettings
    from holdfast.settings.sections import BatchSettings as BatchSettings
    from holdfast.settings.sections import LogSettings as LogSettings
    from holdfast.settings.sections import MemorySettings as MemorySettings
    from holdfast.settings.sections import RestoreSettings as RestoreSettings
    from holdfast.settings.sections import RetrySettings as RetrySettings
    from holdfast.settings.sections import SnapshotSettings as SnapshotSettings
    from holdfast.settings.sections import SparkSettings as SparkSettings
    from holdfast.settings.sections import StateSettings as StateSettings
    from holdfast.settings.security import SecuritySettings as SecuritySettings
    from holdfast.settings.sql import SqlSettings as SqlSettings
    from holdfast.states import AppState as AppState
    from holdfast.stores.access import DictBytes as DictBytes
    from holdfast.stores.access import Now as Now
    from holdfast.stores.formats.keys import decimal as decimal
    from holdfast.stores.kinds.base import NotBound as NotBound
    from holdfast.stores.kinds.base import Store as Store
    from holdfast.stores.kinds.global_store import GlobalStore as GlobalStore
    from holdfast.stores.kinds.keyvalue import KeyValueStore as KeyValueStore
    from holdfast.stores.kinds.keyvalue import ReadOnlyKeyValueStore as ReadOnlyKeyValueStore
    from holdfast.stores.kinds.session import ReadOnlySessionStore as ReadOnlySessionStore
    from holdfast.stores.kinds.session import Session as Session
    from holdfast.stores.kinds.session import SessionStore as SessionStore
    from holdfast.stores.kinds.timestamped import ReadOnlyTimestampedKeyValueStore as ReadOnlyTimestampedKeyValueStore
    from holdfast.stores.kinds.timestamped import TimestampedKeyValueStore as TimestampedKeyValueStore
    from holdfast.stores.kinds.timestamped import ValueAndTimestamp as ValueAndTimestamp
    from holdfast.stores.kinds.versioned import ReadOnlyVersionedKeyValueStore as ReadOnlyVersionedKeyValueStore
    from holdfast.stores.kinds.versioned import VersionedKeyValueStore as VersionedKeyValueStore
    from holdfast.stores.kinds.versioned import VersionedRecord as VersionedRecord
    from holdfast.stores.kinds.window import ReadOnlyWindowStore as ReadOnlyWindowStore
    from holdfast.stores.kinds.window import Windowed as Windowed
    from holdfast.stores.kinds.window import WindowStore as WindowStore
    from holdfast.stores.schema.declared import schema as schema
    from holdfast.stores.schema.declared import upcast as upcast
    from holdfast.topology.aggregates import approx_count_distinct as approx_count_distinct
    from holdfast.topology.aggregates import approx_quantile as approx_quantile
    from holdfast.topology.aggregates import avg as avg
    from holdfast.topology.aggregates import collect as collect
    from holdfast.topology.aggregates import count as count
    from holdfast.topology.aggregates import first as first
    from holdfast.topology.aggregates import frequent as frequent
    from holdfast.topology.aggregates import last as last
    from holdfast.topology.aggregates import max as max
    from holdfast.topology.aggregates import mean as mean
    from holdfast.topology.aggregates import min as min
    from holdfast.topology.aggregates import sum as sum
    from holdfast.topology.aggregation import Table as Table
    from holdfast.topology.cogrouping import cogroup as cogroup
    from holdfast.topology.endpoints import StoreViews as StoreViews
    from holdfast.topology.endpoints import endpoint as endpoint
    from holdfast.topology.global_tables import GlobalTable as GlobalTable
    from holdfast.topology.join_windows import JoinWindow as JoinWindow
    from holdfast.topology.join_windows import join_window as join_window
    from holdfast.topology.joined import Joined as Joined
    from holdfast.topology.parsing import json as json
    from holdfast.topology.processing import Processed as Processed
    from holdfast.topology.processor import Context as Context
    from holdfast.topology.processor import Processor as Processor
    from holdfast.topology.punctuation import punctuate as punctuate
    from holdfast.topology.reducing import ReducedTable as ReducedTable
    from holdfast.topology.sink import Rows as Rows
    from holdfast.topology.sink import Sink as Sink
    from holdfast.topology.sink import Timeline as Timeline
    from holdfast.topology.stream import Stream as Stream
    from holdfast.topology.window_reducing import ReducedWindowedTable as ReducedWindowedTable
    from holdfast.topology.windowing import WindowedTable as WindowedTable
    from holdfast.topology.windows import every as every
    from holdfast.topology.windows import hopping as hopping
    from holdfast.topology.windows import session as session
    from holdfast.topology.windows import sliding as sliding
    from holdfast.topology.windows import tumbling as tumbling

_HOMES = {
    "holdfast.app": ("App", "running"),
    "holdfast.client.async_client": ("AsyncClient",),
    "holdfast.client.client": ("Client",),
    "holdfast.errors": ("ErrorCategory", "HoldfastError"),
    "holdfast.group.rebalances": ("Move", "RebalanceEvent", "RebalancePhase"),
    "holdfast.instance.events": ("RestoreEvent", "RestorePhase"),
    "holdfast.pipeline.sinks.builtin": ("console", "files", "foreach", "memory"),
    "holdfast.pipeline.spark": ("prepare_session",),
    "holdfast.settings.group": ("GroupSettings",),
    "holdfast.settings.model": ("Settings",),
    "holdfast.settings.rest": ("RestSettings",),
    "holdfast.settings.sections": (
        "BatchSettings",
        "LogSettings",
        "MemorySettings",
        "RestoreSettings",
        "RetrySettings",
        "SnapshotSettings",
        "SparkSettings",
        "StateSettings",
    ),
    "holdfast.settings.security": ("SecuritySettings",),
    "holdfast.settings.sql": ("SqlSettings",),
    "holdfast.states": ("AppState",),
    "holdfast.stores.access": ("DictBytes", "Now"),
    "holdfast.stores.formats.keys": ("decimal",),
    "holdfast.stores.kinds.base": ("NotBound", "Store"),
    "holdfast.stores.kinds.global_store": ("GlobalStore",),
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
    "holdfast.topology.aggregates": (
        "approx_count_distinct",
        "approx_quantile",
        "avg",
        "collect",
        "count",
        "first",
        "frequent",
        "last",
        "max",
        "mean",
        "min",
        "sum",
    ),
    "holdfast.topology.aggregation": ("Table",),
    "holdfast.topology.cogrouping": ("cogroup",),
    "holdfast.topology.endpoints": ("StoreViews", "endpoint"),
    "holdfast.topology.global_tables": ("GlobalTable",),
    "holdfast.topology.join_windows": ("JoinWindow", "join_window"),
    "holdfast.topology.joined": ("Joined",),
    "holdfast.topology.parsing": ("json",),
    "holdfast.topology.processing": ("Processed",),
    "holdfast.topology.processor": ("Context", "Processor"),
    "holdfast.topology.punctuation": ("punctuate",),
    "holdfast.topology.reducing": ("ReducedTable",),
    "holdfast.topology.sink": ("Rows", "Sink", "Timeline"),
    "holdfast.topology.stream": ("Stream",),
    "holdfast.topology.window_reducing": ("ReducedWindowedTable",),
    "holdfast.topology.windowing": ("WindowedTable",),
    "holdfast.topology.windows": ("every", "hopping", "session", "sliding", "tumbling"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = list(_HOME_OF)


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}{_instead(name)}", name=name)
    found = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def _instead(name: str) -> str:
    """What there is instead of a name that PySpark's functions have."""
    from holdfast.errors import did_you_mean

    plain = name.replace("_", "").lower()
    found = next((what for names, what in _INSTEAD.items() if plain in names.split()), None)
    return f". {found or did_you_mean(name, __all__)}".rstrip(". ") if found or not name.startswith("_") else ""


_OWN_FUNCTION = "Keep it by a function of your own: group_by().aggregate_with(...)"
_INSTEAD = {
    "maxby minby": f"{_OWN_FUNCTION}; of the latest record by event time it is hf.last('column')",
    "countdistinct": "About how many there are: hf.approx_count_distinct('column'); exactly, a row per value: "
    "group_by('key', 'column').count()",
    "collectlist collectset arrayagg": "The last values: hf.collect('column', limit=100)",
    "median percentile percentileapprox approxpercentile": "hf.approx_quantile('column', 0.5)",
    "approxtopk mode": "hf.frequent('column', 10)",
    "stddev variance stddevsamp varsamp": f"Aggregate count, sum and the sum of squares. {_OWN_FUNCTION}",
}
"""By names of PySpark's functions, without underscores: what to use."""


def __dir__() -> list[str]:
    return __all__
