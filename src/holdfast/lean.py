"""An instance without pandas, and with one allocator.

pyarrow imports pandas, where it is installed, at the first value it converts, to see whether that is one of pandas'.
Spark needs pandas and an instance doesn't: there it would cost a second of every start and 60 MB of the memory limit.

Arrow brings an allocator of its own, which keeps what was freed beside what RocksDB and numpy's keeps. With the
system's for all of them an instance with a limit of 512 MiB and 5M keys under load is at 628 MiB; with Arrow's own
(mimalloc) it is at 780, with jemalloc at 750.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of instances", name=fullname)
        return None


def leave_pandas_out() -> None:
    """From here on this process can't import pandas. To be called before pyarrow converts anything."""
    sys.meta_path.insert(0, _NoPandas())


def share_one_allocator() -> None:
    """Arrow takes its memory from the C library. Call it before pyarrow is imported; a user's own choice stands."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
