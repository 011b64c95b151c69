"""The engines there are, by name. A new one is a module and a line here; the contract tests find it in this table."""

from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import TopologyError
from holdfast.stores.engine import Engine, EngineFactory, Resources
from holdfast.stores.memory import MemoryEngine
from holdfast.stores.rocksdb import RocksEngine

ENGINES: dict[str, EngineFactory] = {
    "rocksdb": RocksEngine,
    "memory": MemoryEngine,
}


def open_engine(name: str, path: Path, families: Sequence[str], resources: Resources) -> Engine:
    """Opens a folder, or makes it. A folder that a checkpoint made is opened the same way."""
    factory = ENGINES.get(name)
    if factory is None:
        raise TopologyError(f"there is no engine {name!r}. Use one of {', '.join(sorted(ENGINES))}.")
    return factory(path, families, resources)
