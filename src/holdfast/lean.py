"""An instance without pandas.

pyarrow imports pandas, where it is installed, at the first value it converts, to see whether that is one of pandas'.
Spark needs pandas and an instance doesn't: there it would cost a second of every start and 60 MB of the memory limit.
"""

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
