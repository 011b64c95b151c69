"""Columns of records that come without Spark: what stands in for a streaming DataFrame in a test.

A topology asks a DataFrame for little more than its columns and their types, which need no Spark session. Where it has
a stateless step or a SQL expression, Spark is started, on this machine, for an empty DataFrame with the same columns.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


logger = logging.getLogger(__name__)

_QUIET = Path(__file__).with_name("quiet-log4j2.properties")


class PlainFrame:
    """Columns and types under the names that a DataFrame has for them."""

    isStreaming: ClassVar[bool] = True  # noqa: N815  PySpark's name

    def __init__(self, schema: StructType) -> None:
        self.schema = schema
        self.columns: list[str] = list(schema.names)

    @classmethod
    def of_arrow(cls, schema: pa.Schema) -> PlainFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        return cls(from_arrow_schema(schema, prefer_timestamp_ntz=True))

    @property
    def sparkSession(self) -> SparkSession:  # noqa: N802  PySpark's name
        return local_session()

    @cached_property
    def dataframe(self) -> DataFrame:
        """An empty DataFrame with these columns. Starts Spark."""
        return self.sparkSession.createDataFrame([], self.schema)


class StaticFrame(PlainFrame):
    """Rows that come without Spark: what stands in for a static DataFrame."""

    isStreaming: ClassVar[bool] = False  # noqa: N815  PySpark's name

    def __init__(self, table: pa.Table) -> None:
        super().__init__(PlainFrame.of_arrow(table.schema).schema)
        self.table = table


def static_table(frame: DataFrame | PlainFrame) -> pa.Table:
    """The rows of a static DataFrame as Arrow columns."""
    return frame.table if isinstance(frame, StaticFrame) else spark_frame(frame).toArrow()


def static_frame(frame: DataFrame | PlainFrame, session: SparkSession) -> DataFrame:
    """A static DataFrame on Spark."""
    return session.createDataFrame(frame.table) if isinstance(frame, StaticFrame) else spark_frame(frame)


def spark_frame(frame: DataFrame | PlainFrame) -> DataFrame:
    """A DataFrame with the columns of a frame."""
    return frame.dataframe if isinstance(frame, PlainFrame) else frame


def arrow_schema(frame: DataFrame | PlainFrame) -> pa.Schema:
    """The columns of a frame as Arrow columns, timestamps in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    return pa.schema([(field.name, to_arrow_type(field.dataType, timezone="UTC")) for field in frame.schema.fields])


def local_session() -> SparkSession:
    """The Spark session of this process, or a small one on this machine."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").appName("holdfast-test")
    options = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", **quiet_options()}
    for name, value in options.items():
        builder = builder.config(name, value)
    session = SparkSession.getActiveSession()
    if session is None:
        if SparkContext._active_spark_context is None:
            logger.warning(
                "Spark is started on this machine, which takes some seconds: a step or an expression of the topology "
                "needs it. Choosing columns, keys, aggregates of columns, windows, joins and processors don't."
            )
        session = builder.getOrCreate()
    use_this_python(session)
    return session


def quiet_options() -> dict[str, str]:
    """Options of a new session with which Spark prints only errors; none if Spark has a configuration of its own.

    Spark reads its configuration of log4j before anything else, so a level that is set later is too late for a banner.
    """
    home = os.environ.get("SPARK_HOME")
    folders = [os.environ.get("SPARK_CONF_DIR"), os.path.join(home, "conf") if home else None]
    if any(folder and os.path.isfile(os.path.join(folder, "log4j2.properties")) for folder in folders):
        return {}
    return {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_QUIET.as_uri()}"}


def use_this_python(spark: SparkSession) -> None:
    """Spark's Python workers on this machine run under `PYSPARK_PYTHON`, or the interpreter that the app runs under.

    A context takes `PYSPARK_PYTHON` when it is created; one that was created without it has `python3`.
    """
    context = spark.sparkContext
    if context.pythonExec == "python3" and str(context.master).startswith("local"):
        context.pythonExec = os.environ.get("PYSPARK_PYTHON", sys.executable)
