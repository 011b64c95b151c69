"""Runs a module of the tests as a program without pandas: `python -m tests.lean tests.stores.history <arguments>`.

pyarrow would import pandas, for 0.4 s of processor time in each of the programs that tests start and kill.
"""

import runpy
import sys

from holdfast import lean

if __name__ == "__main__":
    lean.share_one_allocator()
    lean.leave_pandas_out()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
