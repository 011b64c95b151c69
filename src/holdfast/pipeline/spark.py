"""Spark's session: what an app needs of one, and one made by the settings.

The user's own session stays as it is: what a fixed partitioning needs is set on the session of the batch, which Spark
clones for each query.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.errors import ErrorCategory, HoldfastError, TopologyError

SHUFFLE_CHECKS = {
    # A stage that runs again with other rows (a random key, a lost executor) must not be mixed with its first run.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}

_SESSION = {
    "spark.ui.showConsoleProgress": "false",
    # Between Spark and its Python workers; through TCP a task waits some 30 ms for delayed acknowledgements.
    "spark.python.unix.domain.socket.enabled": "true",
    **SHUFFLE_CHECKS,
}


class JavaMissing(HoldfastError):
    category = ErrorCategory.INVALID


def check_java(environment: Mapping[str, str] = os.environ) -> None:
    """Raises where no Java 17 or newer is to be found, with how to get it."""
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    if java is None or not Path(java).exists():
        raise JavaMissing(
            "Spark runs on Java 17 or 21 and there is none here. On Debian or Ubuntu: apt-get install "
            "openjdk-17-jre-headless. Elsewhere: install a JDK and set JAVA_HOME."
        )


def create_session(app: str, master: str, config: Mapping[str, str]) -> SparkSession:
    """A Spark session for an app that was handed none."""
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in {**_SESSION, **config}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def check_session(session: SparkSession) -> None:
    """Raises for a session that can't carry an app."""
    if not hasattr(session, "_jsparkSession"):
        raise TopologyError(
            "Spark Connect can't run an app: foreachBatch would run on the server. Take a classic session, "
            "SparkSession.builder.master(...)."
        )
