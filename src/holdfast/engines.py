"""For authors of engines, and of hooks that set RocksDB's options.

A user's own engine is named `engine="module:Class"`. It is called like an `EngineFactory` and has the methods of
`Engine`; `holdfast.testing.EngineConformance` tests it. A hook, `rocksdb_options="module:function"`, gets the store's
name and a `Tunable`.
"""

from holdfast.stores.engines.base import Changes, Engine, EngineFactory, EngineView, Mark, Resources
from holdfast.stores.engines.tuning import Tunable

__all__ = ["Changes", "Engine", "EngineFactory", "EngineView", "Mark", "Resources", "Tunable"]
