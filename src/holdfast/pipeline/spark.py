"""Spark as an app needs it: a session, the settings a batch runs under, and the batch's tasks as one job.

The user's own session stays as it is: what a fixed partitioning needs is set on the session of the batch, which Spark
clones for each query.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from holdfast import metrics
from holdfast.errors import ErrorCategory, HoldfastError, TopologyError
from holdfast.pipeline.aggregation_plan import TablePlan
from holdfast.pipeline.aggregation_task import AggregationWork
from holdfast.pipeline.driver import SOURCE, Step, steps
from holdfast.pipeline.plan_chooser import PlanChooser
from holdfast.pipeline.processing_plan import ProcessorPlan
from holdfast.pipeline.processing_task import Code, ProcessingWork
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import FastPlanRejected, TaskDone, TaskResult, decode
from holdfast.pipeline.shipping import ship
from holdfast.pipeline.task import READ_ROWS
from holdfast.pipeline.task_columns import BatchPlan
from holdfast.pipeline.worker import run_idle_partition, run_partition
from holdfast.stores.access import Now

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.topology.processor import Processed
    from holdfast.topology.stream import Table

logger = logging.getLogger(__name__)

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

_BATCH = {
    "spark.sql.adaptive.enabled": "false",
    **SHUFFLE_CHECKS,
}

_BY_BYTES = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(READ_ROWS),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
}
"""How many rows come to a task in one Arrow batch when a row may be large."""

_BY_ROWS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}
"""When none can. Any limit in bytes makes Spark add up the batch's size after every row, which
was 14 % of the JVM's time in the count benchmark (docs/decisions/0005)."""


_ROW_BY_ROW = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
}
"""For a processor whose records may be large: small batches, so that it can begin while Spark still makes the next."""


_batches = metrics.counter("holdfast_table_batches", "Batches of a table, by plan.", ["store", "plan"])

_COUNTED = ("keys", "dead")
_RESULT = StructType([StructField("result", BinaryType())])


class JavaMissing(HoldfastError):
    category = ErrorCategory.INVALID


class SparkUnavailable(HoldfastError):
    """A Spark job was lost: a worker or an executor died, a stage could not be finished. Another try may work."""

    category = ErrorCategory.RETRY


class SparkRefused(HoldfastError):
    """Spark can't run the batch, and would not the next time either."""

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


class SparkTasks:
    """Runs the tasks of a version on Spark, one job a table or processor, from one read of the source."""

    def __init__(
        self,
        tables: Sequence[Table],
        partitions: int,
        *,
        processors: Sequence[Processed] = (),
        state_bytes: int = 0,
        rewrite_entries: int = 0,
        chunk_rows: int,
        inline_bytes: int,
        max_ahead_millis: int,
    ) -> None:
        self._tables = tables
        self._plans = {table.topology: TablePlan(table, partitions, max_ahead_millis) for table in tables}
        self._choosers = {
            topology: PlanChooser(can_be_raw=BatchPlan.RAW in p.columns) for topology, p in self._plans.items()
        }
        self._processors = processors
        self._processor_plans = {p.topology: ProcessorPlan(p, partitions, max_ahead_millis) for p in processors}
        self._shipped = {p.topology: ship(Code(p.processor, p.event)) for p in processors}
        self._state_bytes = state_bytes
        self._rewrite_entries = rewrite_entries
        self._partitions = partitions
        self._chunk_rows = chunk_rows
        # What all tasks together may put into the commit is shared out among them before they start.
        self._inline_limit = inline_bytes // (partitions * (len(tables) + len(processors)))

    def compute(self, batch: DataFrame, step: Step, locations: StateLocations) -> list[TaskResult]:
        """The results of all tasks of this version."""
        session = batch.sparkSession
        for name, value in _BATCH.items():
            session.conf.set(name, value)
        session.conf.set("spark.sql.shuffle.partitions", str(self._partitions))
        several = len(self._tables) + len(self._processors) > 1
        source = batch.persist() if several else batch
        try:
            results = [result for table in self._tables for result in self._table(source, table, step, locations)]
            for processed in self._processors:
                results += self._processor(source, processed, step, locations)
            return results
        except PySparkException as error:
            # PySpark gives an error a class of its own when its cause is the plan, the data or Python code.
            raise SparkRefused(f"Spark refused the batch: {_in_short(str(error))}") from error
        except Py4JJavaError as error:
            raise SparkUnavailable(f"Spark lost the batch's job: {_in_short(str(error))}") from error
        finally:
            if several:
                source.unpersist()

    def _table(self, batch: DataFrame, table: Table, step: Step, locations: StateLocations) -> list[TaskResult]:
        chooser = self._choosers[table.topology]
        results = (
            None
            if chooser.plan is BatchPlan.WITH_DEAD_LETTERS
            else self._fast(batch, table, step, locations, chooser.plan)
        )
        in_vain = results is None and chooser.plan is not BatchPlan.WITH_DEAD_LETTERS
        taken = BatchPlan.WITH_DEAD_LETTERS if results is None else chooser.plan
        if results is None:
            results = self._by(batch, table, step, locations, BatchPlan.WITH_DEAD_LETTERS)
        _batches.labels(table.name, taken.value).inc()
        done = [result for result in results if isinstance(result, TaskDone)]
        records, keys, dead = sum(r.records for r in done), *(sum(r.counts.get(n, 0) for r in done) for n in _COUNTED)
        chooser.saw(records - dead, keys, dead_letters=in_vain or dead > 0)
        return results

    def _fast(
        self, batch: DataFrame, table: Table, step: Step, locations: StateLocations, plan: BatchPlan
    ) -> list[TaskResult] | None:
        """The results by a plan that can't carry every record; None where it could not."""
        try:
            results = self._by(batch, table, step, locations, plan)
        except PySparkException as error:
            # A record that can't be used may be what went wrong, say in a sum over all of them.
            logger.info("table %s, %s: %s", table.name, plan.value, _in_short(str(error)))
            return None
        for result in results:
            if isinstance(result, FastPlanRejected):
                logger.info("table %s, %s: %s", table.name, plan.value, result.message)
                return None
        return results

    def _by(
        self, batch: DataFrame, table: Table, step: Step, locations: StateLocations, plan: BatchPlan
    ) -> list[TaskResult]:
        plans = self._plans[table.topology]
        columns = plans.columns[plan]
        work = AggregationWork(
            topology=table.topology,
            version=step.version,
            source=SOURCE,
            store=table.spec,
            reducers=table.reducers,
            chunk_rows=self._chunk_rows,
            inline_limit=self._inline_limit,
            partitions=self._partitions,
            columns=columns,
            now=Now(step.wall, step.event),
            rewrite_entries=self._rewrite_entries,
        )
        for name, value in (_BY_ROWS if columns.bounded else _BY_BYTES).items():
            batch.sparkSession.conf.set(name, value)
        function = partial(run_partition, work, locations)
        with steps.labels("plan").time():
            tasks = plans.rows(batch, step.wall, plan).mapInArrow(function, _RESULT)
            if not plans.is_by_key(tasks, plan):
                tasks = plans.rows(batch, step.wall, plan, shuffle=True).mapInArrow(function, _RESULT)
        with steps.labels("tasks").time():
            # As Arrow, since rows through collect() take 25 ms more before the first of them is here.
            return [decode(result) for result in tasks.toArrow()["result"].to_pylist()]

    def _processor(
        self, batch: DataFrame, processed: Processed, step: Step, locations: StateLocations
    ) -> list[TaskResult]:
        plan = self._processor_plans[processed.topology]
        work = ProcessingWork(
            topology=processed.topology,
            version=step.version,
            source=SOURCE,
            now=Now(step.wall, step.event),
            name=processed.name,
            key=processed.key,
            stores=processed.stores,
            output=processed.output,
            columns=plan.columns,
            partitions=self._partitions,
            chunk_rows=self._chunk_rows,
            state_bytes=self._state_bytes,
            rewrite_entries=self._rewrite_entries,
            inline_limit=self._inline_limit,
            code=self._shipped[processed.topology],
        )
        session = batch.sparkSession
        for name, value in (_BY_ROWS if plan.bounded else _ROW_BY_ROW).items():
            session.conf.set(name, value)
        with steps.labels("plan").time():
            function = partial(run_partition, work, locations)
            tasks = plan.records(batch, step.wall).mapInArrow(function, _RESULT)
        with steps.labels("tasks").time():
            results = tasks.toArrow()["result"].to_pylist()
            if not results:
                # A plan that Spark can tell to be empty runs no task at all, and time has to pass in all of them.
                idle = partial(run_idle_partition, work, locations)
                every = session.range(0, self._partitions, 1, self._partitions)
                results = every.mapInArrow(idle, _RESULT).toArrow()["result"].to_pylist()
            return [decode(result) for result in results]


def _in_short(text: str, first: int = 4, last: int = 4) -> str:
    """The beginning of a long message, and the end, where a Python traceback has its error; without Java's stack."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return "\n".join(lines if len(lines) <= first + last else [*lines[:first], "...", *lines[-last:]])
