"""Spark's daemon of Python workers for the tests' session: workers have its imports from the start.

Spark starts another worker after each task that raises, and wherever one was idle for a minute. Each would import
pyspark, pandas and holdfast again, for 0.7 s of processor time. Sessions that an app creates have another daemon,
`holdfast.spark_daemon`.
"""

import importlib
import os

from pyspark import daemon

from holdfast import spark_daemon

WANTED = ("pandas", "pyarrow.flight", "pyspark.worker", "holdfast.pipeline.planners")


def main() -> None:
    # numpy's linear algebra starts threads, which a fork would lose. Nothing here needs them.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for name in WANTED:
        importlib.import_module(name)
    daemon.worker = spark_daemon.worker
    daemon.manager()


if __name__ == "__main__":
    main()
