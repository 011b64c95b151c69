"""Creates and checks Spark sessions.

A user's own session is not changed: options for a fixed partitioning are set on the session of the batch, which Spark
clones for each query.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from holdfast.errors import ErrorCategory, HoldfastError, TopologyError
from holdfast.settings.sections import BatchSettings, SparkSettings
from holdfast.topology.plain_frames import quiet_options, use_this_python

logger = logging.getLogger(__name__)

SHUFFLE_CHECKS = {
    # The output of a stage that runs again with other rows must not be mixed with that of its first run.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}

SESSION = {
    "spark.ui.showConsoleProgress": "false",
    # For Python workers. Through TCP a task waits some 30 ms for delayed acknowledgements.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "holdfast.spark_daemon",
    **SHUFFLE_CHECKS,
}


_LIMITS = {
    "kafka": ("maxOffsetsPerTrigger", "max_records"),
    **dict.fromkeys(("parquet", "json", "csv", "orc", "text", "avro"), ("maxFilesPerTrigger", "max_files")),
}
"""Format → the source's option that limits a batch, and the setting for it."""

_POLLING = "spark.sql.streaming.pollingDelay"

LOCAL_CHECKPOINT = {
    # Each entry of a checkpoint in a local folder is a file. Hadoop's `FileContext`, which Spark uses by default,
    # starts ten programs per file (`readlink`, `chmod`), its `FileSystem` two: 55 and 15 ms (decision 0048).
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # A second file per entry, with a checksum. Hadoop writes and checks one already.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}

ROWS_TO_FUNCTIONS = {
    # In Spark 4.2 a Python function that gets the columns of a Parquet file or of a cached batch as they are waits for
    # ever: the JVM sends the schema of its arguments, which the worker doesn't read.
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
}


_SOURCE, _SOURCE_PACKAGE = "holdfast", "pyspark_holdfast"
"""The Spark source, and the package in which Spark finds it by itself."""


class JavaMissing(HoldfastError):
    category = ErrorCategory.INVALID


def check_java(environment: Mapping[str, str] = os.environ) -> None:
    """Raises if there is no Java."""
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    if java is None or not Path(java).exists():
        raise JavaMissing(
            "Spark runs on Java 17 or 21 and there is none here. On Debian or Ubuntu: apt-get install "
            "openjdk-17-jre-headless. Elsewhere: install a JDK and set JAVA_HOME."
        )


def session_of(app: str, settings: SparkSettings) -> SparkSession:
    """The Spark session of this process, with what it can take of `spark.config`, or a new one."""
    if SparkContext._active_spark_context is not None:
        session = SparkSession.builder.getOrCreate()
        prepare_session(session)
        _configure(session, settings.config)
        return session
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app).master(settings.master)
    quiet = quiet_options() if settings.quiet else {}
    for name, value in {**SESSION, **quiet, **settings.config}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _configure(session: SparkSession, config: Mapping[str, str]) -> None:
    """Sets properties of a session that exists. Which ones only a new session takes is logged."""
    late = sorted(name for name, value in config.items() if not _is_set(session, name, value))
    if late:
        logger.warning(
            "This process had a Spark session before the app, and a session takes these properties of spark.config "
            "only when it is created: %s. Set them where it is created, or create the app first.",
            ", ".join(late),
        )


def _is_set(session: SparkSession, name: str, value: str) -> bool:
    """Whether a running session has a property, after it was set if that is possible."""
    if session.conf.get(name, None) == value:
        return True
    if name.startswith("spark.hadoop."):  # the session takes it, and Hadoop doesn't see it
        return False
    try:
        session.conf.set(name, value)
    except AnalysisException:  # static, or of Spark's core
        return False
    return True


def prepare_session(spark: SparkSession) -> None:
    """Lets a session on this machine find Holdfast, for `spark.read.format("holdfast")` in a program without an app.

    Its Python workers run under this program's interpreter, unless `PYSPARK_PYTHON` names another one. An app does this
    with its own session. `spark` is a classic session.

        hf.prepare_session(spark)
        players = spark.read.format("holdfast").option("app", "game").load("players")
    """
    check_session(spark)
    use_this_python(spark)
    java: Any = spark._jsparkSession
    jvm: Any = spark._jvm
    if not str(spark.sparkContext.master).startswith("local") or _looks_here(jvm):
        return
    if java.sessionState().dataSourceManager().dataSourceExists(_SOURCE):
        return
    sessions = jvm.SparkSession
    active = sessions.getActiveSession()
    sessions.setActiveSession(java)  # Spark looks there for a source of the same name
    try:
        spark.dataSource.register(import_module(_SOURCE_PACKAGE).DefaultSource)
    finally:
        if active.isDefined():
            sessions.setActiveSession(active.get())


def _looks_here(jvm: Any) -> bool:
    """Whether Spark looks for data sources under this interpreter: it takes what its JVM was started with."""
    environment = jvm.java.lang.System.getenv()
    given = environment.get("PYSPARK_DRIVER_PYTHON") or environment.get("PYSPARK_PYTHON") or "python3"
    found = shutil.which(given, path=environment.get("PATH"))
    return found is not None and Path(found).parent == Path(sys.executable).parent


def limited_reader(session: SparkSession, format: str, settings: BatchSettings) -> DataStreamReader:
    """A reader with the source's option for `batch.max_records` or `batch.max_files`."""
    reader = session.readStream.format(format)
    option, setting = _LIMITS.get(format.lower(), (None, None))
    value = getattr(settings, setting) if setting else None
    return reader.option(option, value) if option and value is not None else reader


def check_limits(frames: Mapping[str, DataFrame], settings: BatchSettings) -> list[str]:
    """Raises if a source, by its name, was read without the limit that the settings have for its format.

    Only the reader of a source can take the limit. One with a limit of its own keeps it. Returns a note per setting
    that limits none of the sources.
    """
    given = {setting: getattr(settings, setting) for setting in ("max_records", "max_files")}
    useless = {setting for setting, value in given.items() if value is not None}
    if not useless:
        return []
    for name, frame in frames.items():
        for format, options in _sources_in(frame):
            option, setting = _LIMITS.get(format, (None, None))
            if option is None or setting is None or given[setting] is None:
                continue
            if not any(re.fullmatch("max[a-z]+pertrigger", each) for each in options):
                raise TopologyError(
                    f"batch.{setting} = {given[setting]} doesn't limit the source {name!r}: only the reader of a "
                    f"source can take it. Write app.reader({format!r}) instead of spark.readStream.format({format!r}), "
                    f'or give the reader a limit of its own: .option("{option}", {given[setting]}).'
                )
            useless.discard(setting)
    formats = {setting: [format for format, (_, own) in _LIMITS.items() if own == setting] for setting in useless}
    return [
        f"batch.{setting} = {given[setting]} limits none of the app's sources: it is for {', '.join(formats[setting])}"
        for setting in sorted(useless)
    ]


def _sources_in(frame: DataFrame) -> Iterator[tuple[str, set[str]]]:
    """The format and the names of the options of each source that a streaming DataFrame reads, in lower case."""
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        kind = str(leaf.getClass().getSimpleName())
        if kind == "StreamingRelation":
            source = leaf.dataSource()
            options = str(source.options().keys().mkString("\n"))
            yield str(source.className()).lower(), set(options.lower().split())
        elif kind == "StreamingRelationV2":
            yield str(leaf.sourceName()).lower(), {str(name).lower() for name in leaf.extraOptions().keySet()}


def query_options(interval: timedelta, *, local_checkpoint: bool, release: str = pyspark.__version__) -> dict[str, str]:
    """Options of a session while the app's query is started on it. The sessions of its batches have them too.

    With Spark's default of 10 ms between two looks a quiet app keeps a third of a core busy (docs/tuning.md).
    """
    options = {_POLLING: f"{interval // timedelta(milliseconds=1)}ms"}
    if release.startswith("4.2."):
        options |= ROWS_TO_FUNCTIONS
    return options | LOCAL_CHECKPOINT if local_checkpoint else options


@contextlib.contextmanager
def with_options(session: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Sets options of a session for a while. What the user has set stays."""
    own = {name: value for name, value in options.items() if session.conf.get(name, None) is None}
    for name, value in own.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in own:
            session.conf.unset(name)


def check_session(session: SparkSession) -> None:
    """Raises for a session that can't run an app."""
    if not hasattr(session, "_jsparkSession"):
        raise TopologyError(
            "Spark Connect can't run an app: foreachBatch would run on the server. Use a classic session, "
            "SparkSession.builder.master(...)."
        )


@dataclass(frozen=True)
class JobGroup:
    """The jobs of one thread, which another one can end. Those of Spark's own query are in a group of that query."""

    context: SparkContext
    name: str

    def begin(self) -> None:
        """The jobs of this thread are in the group from now on."""
        self.context.setJobGroup(self.name, "versions that the driver makes", interruptOnCancel=True)

    def cancel(self) -> None:
        """Cancels the group's jobs, also those that the thread has yet to start."""
        context: Any = self.context._jsc
        try:
            context.sc().cancelJobGroupAndFutureJobs(self.name)
        except (Py4JError, OSError) as error:
            logger.warning("Spark's jobs could not be cancelled, its JVM is gone: %s", error)
