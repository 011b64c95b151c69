"""The engines by name. A new engine is one module and one line here; the contract tests find it in this table.

A user's own engine needs no line: its name is `module:Class`, which every instance can import.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from holdfast.errors import TopologyError
from holdfast.stores.engines.base import Engine, EngineFactory, Resources
from holdfast.stores.engines.memory import MemoryEngine
from holdfast.stores.engines.rocksdb import RocksEngine
from holdfast.stores.places import imported
from holdfast.stores.spec import StoreSpec

ENGINES: dict[str, EngineFactory] = {"rocksdb": RocksEngine, "memory": MemoryEngine}


def engine_factory(name: str) -> EngineFactory:
    """The factory of the engine of that name.

    >>> engine_factory("memory") is engine_factory("holdfast.stores.engines.memory:MemoryEngine") is MemoryEngine
    True
    """
    if name in ENGINES:
        return ENGINES[name]
    if ":" in name:
        return cast(EngineFactory, imported(name, f"engine {name!r}"))
    raise TopologyError(
        f"there is no engine {name!r}. Use one of {', '.join(sorted(ENGINES))}, or 'module:Class' for one of your own."
    )


def open_engine(name: str, path: Path, stores: Sequence[StoreSpec], resources: Resources) -> Engine:
    """Opens the engine in a folder, which is created if needed. A checkpoint is opened the same way."""
    return engine_factory(name)(path, stores, resources)
