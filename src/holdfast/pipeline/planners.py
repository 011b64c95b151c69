"""The planner of each operator, and the one place that runs them all.

A new operator needs a class in `topology/`, a module with its planner, and a line in `PLANNERS`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.pipeline.aggregation_plan import AggregationPlanner
from holdfast.pipeline.driver import BatchResult, Step
from holdfast.pipeline.due import must_run
from holdfast.pipeline.planning import Planner, configure, in_short
from holdfast.pipeline.processing_plan import ProcessingPlanner
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.source_readers import Reader, SourceReaders
from holdfast.pipeline.spark import SHUFFLE_CHECKS
from holdfast.pipeline.task import Limits
from holdfast.topology.aggregation import Aggregation
from holdfast.topology.processing import Processing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.topology.topology import Operator, SubTopology

PLANNERS: Mapping[type[Operator], type[Planner]] = {Aggregation: AggregationPlanner, Processing: ProcessingPlanner}

_BATCH = {"spark.sql.adaptive.enabled": "false", **SHUFFLE_CHECKS}


class SparkUnavailable(HoldfastError):
    """A Spark job failed because a worker or an executor died. Another attempt may succeed."""

    category = ErrorCategory.RETRY


class SparkRefused(HoldfastError):
    """Spark can't run the batch, and another attempt would fail too."""

    category = ErrorCategory.INVALID


class BatchTasks:
    """Runs the tasks of a version on Spark: one job per sub-topology, from one read of each source."""

    def __init__(self, subtopologies: Sequence[SubTopology], limits: Limits) -> None:
        self._partitions = limits.partitions
        self._planners: list[tuple[SubTopology, Planner]] = []
        readers: dict[str, list[Reader]] = {}
        for each in subtopologies:
            planner = PLANNERS[type(each.operator)](each, limits)
            self._planners.append((each, planner))
            repeatable = bool(each.stream.frame._jdf.queryExecution().analyzed().deterministic())
            reader = Reader(planner, each.stream.steps, repeatable)
            readers.setdefault(each.stream.source.name, []).append(reader)
        self._sources = {source: SourceReaders(own) for source, own in readers.items()}

    def compute(self, batches: Mapping[str, DataFrame], step: Step, locations: StateLocations) -> BatchResult:
        """The results of all tasks of this version; `batches` are the sources' records by name."""
        found = BatchResult()
        with _spark_errors():
            for source, readers in self._sources.items():
                batch = batches[source]
                configure(batch.sparkSession, {**_BATCH, "spark.sql.shuffle.partitions": str(self._partitions)})
                results, found.records[source] = readers.run(batch, step, locations)
                found.tasks += results
        return found

    def compute_idle(
        self, session: SparkSession, due: Collection[str], step: Step, locations: StateLocations
    ) -> BatchResult:
        """The results of a version without a batch: of the tasks that have to run in it."""
        found = BatchResult()
        with _spark_errors():
            for subtopology, planner in self._planners:
                if must_run(subtopology, due, step):
                    found.tasks += planner.run_idle(session, step, locations)
        return found


@contextlib.contextmanager
def _spark_errors() -> Iterator[None]:
    """Turns Spark's errors into our own."""
    try:
        yield
    except PySparkException as error:
        # PySpark raises its own classes of errors when the cause is the plan, the data or Python code.
        raise SparkRefused(f"Spark refused the batch: {in_short(str(error))}") from error
    except (Py4JError, ConnectionError) as error:  # a JVM that is gone too: the app's watcher then says so
        raise SparkUnavailable(f"Spark lost the batch's job: {in_short(str(error))}") from error
