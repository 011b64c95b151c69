"""The planner of each operator, and the one place that runs them all.

A new operator needs a class in `topology/`, a module with its planner, and a line in `PLANNERS`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.pipeline.aggregation_plan import AggregationPlanner
from holdfast.pipeline.driver import BatchResult, Step
from holdfast.pipeline.due import must_run
from holdfast.pipeline.planning import Planner, configure, in_short
from holdfast.pipeline.processing_plan import ProcessingPlanner
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import TaskDone
from holdfast.pipeline.source_readers import Reader, SourceReaders
from holdfast.pipeline.spark import SHUFFLE_CHECKS
from holdfast.pipeline.tagged_union import TaggedUnion
from holdfast.pipeline.task import Limits
from holdfast.pipeline.windowed_plan import WindowedPlanner
from holdfast.topology.aggregation import Aggregation
from holdfast.topology.processing import Processing
from holdfast.topology.stream import SOURCE
from holdfast.topology.windowing import WindowedAggregation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.topology.topology import Operator, Source, SubTopology
    from holdfast.words import Millis

PLANNERS: Mapping[type[Operator], type[Planner]] = {
    Aggregation: AggregationPlanner,
    WindowedAggregation: WindowedPlanner,
    Processing: ProcessingPlanner,
}

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
        self._planners = [(each, PLANNERS[type(each.operator)](each, limits)) for each in subtopologies]
        readers: dict[Source, list[Reader]] = {}
        self._readers: dict[Planner, list[Reader]] = {}
        for each, planner in self._planners:
            self._readers[planner] = [Reader(planner, branch) for branch in each.stream.branches]
            for reader in self._readers[planner]:
                readers.setdefault(reader.branch.source, []).append(reader)
        self._sources = {source: SourceReaders(source, own) for source, own in readers.items()}
        self._union = TaggedUnion([(source.name, readers.selected) for source, readers in self._sources.items()])

    @property
    def query_frame(self) -> DataFrame:
        """What the app's streaming query reads: all sources in one frame."""
        return self._union.frame

    def compute(self, batch: DataFrame, step: Step, locations: StateLocations) -> BatchResult:
        """The results of all tasks of this version. `batch` has the rows of `query_frame`."""
        configure(batch.sparkSession, {**_BATCH, "spark.sql.shuffle.partitions": str(self._partitions)})
        several = sum(map(len, self._readers.values())) > 1
        if several:
            batch = batch.persist()
        try:
            with _spark_errors():
                return self._computed(batch, step, locations)
        finally:
            if several:
                batch.unpersist()

    def _computed(self, batch: DataFrame, step: Step, locations: StateLocations) -> BatchResult:
        selected = {source: self._union.of_source(batch, source.name) for source in self._sources}
        results = {
            planner: planner.run(self._records(planner, selected, step.wall), step, locations)
            for _, planner in self._planners
        }
        found = BatchResult(tasks=[result for own in results.values() for result in own])
        for source, readers in self._sources.items():
            counting = readers.counting
            if counting is None or len(self._readers[counting.planner]) > 1:
                # An extra job: a median of 107 to 192 ms on a loaded machine for 1,000 to 1,000,000 cached records.
                found.records[source.name] = selected[source].count()
            else:
                done = (each for each in results[counting.planner] if isinstance(each, TaskDone))
                found.records[source.name] = sum(each.records for each in done)
        return found

    def _records(self, planner: Planner, selected: Mapping[Source, DataFrame], wall: Millis) -> DataFrame:
        """The records of a sub-topology's stream; those of a merged one have the name of their source."""
        frames = [
            (source := reader.branch.source, self._sources[source].records(selected[source], reader, wall))
            for reader in self._readers[planner]
        ]
        if len(frames) == 1:
            return frames[0][1]
        tagged = (frame.withColumn(SOURCE, F.lit(source.name)) for source, frame in frames)
        return reduce(lambda one, other: one.unionByName(other), tagged)

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
