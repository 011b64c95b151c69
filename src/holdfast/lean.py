"""An instance without pandas, and with one allocator.

pyarrow imports pandas, if it is installed, at the first value it converts, to check whether that is one of pandas'.
Spark needs pandas and an instance doesn't: it would add a second to every start and use 60 MB of the memory limit.

Arrow has an allocator of its own, which keeps freed memory beside what RocksDB and numpy keep. With the system's
allocator for all of them an instance with a limit of 512 MiB and 5M keys under load uses 628 MiB; with Arrow's own
(mimalloc) it uses 780, with jemalloc 750.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas:
    """A finder of modules. Its abstract class would import twenty more of them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of instances", name=fullname)
        return None


def leave_pandas_out() -> None:
    """Keeps this process from importing pandas. Call it before pyarrow converts anything."""
    sys.meta_path.insert(0, _NoPandas())


def share_one_allocator() -> None:
    """Makes Arrow use the C library's allocator. Call it before pyarrow is imported; a user's own choice is kept."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
