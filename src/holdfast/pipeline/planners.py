"""The planner of each operator, and the one place that runs them all.

A new operator needs a class in `topology/`, a module with its planner, and a line in `PLANNERS`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from holdfast.pipeline.aggregation_plan import AggregationPlanner
from holdfast.pipeline.clock_columns import ReadTimes
from holdfast.pipeline.driver import BatchResult, Step
from holdfast.pipeline.failing import readers_of
from holdfast.pipeline.foreign_key_plan import ForeignKeyJoinPlanner, IndexPlanner, LinksPlanner
from holdfast.pipeline.global_join_plan import GlobalJoinPlanner
from holdfast.pipeline.join_plan import JoinPlanner
from holdfast.pipeline.lookup_plan import LookupPlanner, TableJoinPlanner
from holdfast.pipeline.parsing_plan import UnreadablePlanner
from holdfast.pipeline.plan_chooser import FailureMemory
from holdfast.pipeline.planning import ROW_BY_ROW, Planner, configure
from holdfast.pipeline.processing_plan import ProcessingPlanner
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.source_readers import Origin, Reader, SourceReaders, Steps, reporting_first, used_of
from holdfast.pipeline.spark import SHUFFLE_CHECKS
from holdfast.pipeline.spark_errors import FailedInQuery, SparkRefused, concerns_data, spark_errors
from holdfast.pipeline.spark_version import Reporting, SparkVersion
from holdfast.pipeline.stage_plan import SharedJob
from holdfast.pipeline.stages import StagePlace, stages_of
from holdfast.pipeline.static_plan import StaticTablePlanner
from holdfast.pipeline.static_tables import StaticTables
from holdfast.pipeline.table_plan import TablePlanner
from holdfast.pipeline.tagged_union import TaggedUnion
from holdfast.pipeline.task import Limits
from holdfast.pipeline.windowed_plan import WindowedPlanner
from holdfast.topology.aggregation import Aggregation
from holdfast.topology.foreign_keys import ForeignKeyIndex, ForeignKeyJoin, Links
from holdfast.topology.global_joins import GlobalJoin
from holdfast.topology.global_tables import StaticTable
from holdfast.topology.joining import StreamJoin
from holdfast.topology.lookups import TableJoin
from holdfast.topology.parsing import Unreadable
from holdfast.topology.processing import Processing
from holdfast.topology.table_joins import TableTableJoin
from holdfast.topology.tables import Changelog
from holdfast.topology.topology import OutputOf, Source
from holdfast.topology.windowing import WindowedAggregation
from holdfast.words import Millis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.topology.topology import Operator, SubTopology

PLANNERS: Mapping[type[Operator], type[Planner]] = {
    Aggregation: AggregationPlanner,
    WindowedAggregation: WindowedPlanner,
    Processing: ProcessingPlanner,
    Changelog: TablePlanner,
    TableJoin: LookupPlanner,
    TableTableJoin: TableJoinPlanner,
    Links: LinksPlanner,
    ForeignKeyIndex: IndexPlanner,
    ForeignKeyJoin: ForeignKeyJoinPlanner,
    StreamJoin: JoinPlanner,
    StaticTable: StaticTablePlanner,
    GlobalJoin: GlobalJoinPlanner,
    Unreadable: UnreadablePlanner,
}


def planner_of(subtopology: SubTopology, limits: Limits) -> Planner:
    """The planner of a sub-topology, with as many partitions as it has."""
    own = replace(limits, partitions=subtopology.partitions(limits.partitions))
    return PLANNERS[type(subtopology.operator)](subtopology, own)


_BATCH = {
    "spark.sql.adaptive.enabled": "false",
    # A cached batch is read a few times, at once: to compress it takes longer than it saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    **SHUFFLE_CHECKS,
}


def dependencies_of(subtopologies: Sequence[SubTopology]) -> dict[str, set[str]]:
    """Sub-topology → those that run before it: it reads their output, or looks up their table."""
    owners = {output.name: each.name for each in subtopologies for output in each.outputs}
    found: dict[str, set[str]] = {}
    for each in subtopologies:
        origins = [branch.origin for branch in each.stream.branches]
        found[each.name] = {owners[origin.name] for origin in origins if isinstance(origin, OutputOf)}
        found[each.name] |= {*each.operator.tables} - {each.name}
    return found


class BatchTasks:
    """Runs the tasks of a version on Spark: one job per stage of sub-topologies, from one read of each source.

    A sub-topology that reads the output of a former stage runs over the rows that its tasks have sealed. Stages that
    need nothing of each other run at the same time.
    """

    def __init__(
        self,
        subtopologies: Sequence[SubTopology],
        limits: Limits,
        sources: Sequence[str],
        static: StaticTables,
        former: Mapping[str, DataFrame],
    ) -> None:
        """`sources` are the names of the sources in the order of Spark's checkpoint.

        `former` has the stand-ins of those that nobody reads any more.
        """
        self.partitions, self.static = limits.partitions, static
        self.dependencies = dependencies_of(subtopologies)
        # What others read travels with each of their tasks, so only little of it is returned to the driver.
        read = set().union(*self.dependencies.values())
        few = replace(limits, inline_limit=limits.inline_share)
        self.planners = {
            each.name: (each, planner_of(each, few if each.name in read else limits)) for each in subtopologies
        }
        self.outputs = {output.name: output for each in subtopologies for output in each.outputs}
        readers: dict[Origin, list[Reader]] = {}
        self.readers: dict[Planner, list[Reader]] = {}
        for each, planner in self.planners.values():
            self.readers[planner] = readers_of(each, planner)
            for reader in self.readers[planner]:
                readers.setdefault(reader.branch.origin, []).append(reader)
        self._of_sources = {origin: own for origin, own in readers.items() if isinstance(origin, Source)}
        self._names, self._former = sources, former
        self.failures = {planner: FailureMemory() for planner in self.readers}
        self.unseen = {source: FailureMemory() for source in self._of_sources}
        """Whether the tasks of a source's witnesses are expected to miss records of it."""
        self.reports = {planner: FailureMemory() for planner in self.readers}
        self.inline_limit, self.max_ahead_millis = limits.inline_limit, limits.max_ahead_millis
        self._first = {reader: first for own in readers.values() for reader, first in reporting_first(own).items()}
        self.stages = {stage[0]: stage for stage in stages_of(self._places())}
        self.beside = {name for stage in self.stages.values() for name in stage if {*self._sealed_by(name)} & {*stage}}
        """The sub-topologies that read another's output in the same task."""
        self.jobs = {first: SharedJob(self.planners[first][0].partitions(limits.partitions)) for first in self.stages}
        self._read_sources(checked=False)

    def _read_sources(self, *, checked: bool) -> None:
        self.sources = {source: SourceReaders(source, own, checked=checked) for source, own in self._of_sources.items()}
        selected = {**self._former, **{source.name: readers.query for source, readers in self.sources.items()}}
        self._union = TaggedUnion([(name, selected[name]) for name in self._names])

    def check_steps(self) -> None:
        """Takes the steps that can fail out of `query_frame`. Between two queries."""
        self._read_sources(checked=True)

    def _places(self) -> dict[str, StagePlace]:
        """Where each sub-topology can run."""
        return {
            name: StagePlace(
                (tuple(field.type for field in each.key.fields), each.partitions(self.partitions))
                if planner.by_key
                else None,
                self.dependencies[name],
                {*(each.operator.tables if each.operator.beside_tables else ()), *self._sealed_by(name)},
            )
            for name, (each, planner) in self.planners.items()
        }

    def _sealed_by(self, name: str) -> list[str]:
        """The sub-topology whose output this one can read in the same task: by the same key, without steps."""
        each, planner = self.planners[name]
        (reader, *others) = self.readers[planner]
        origin = reader.branch.origin
        if others or reader.steps or reader.computed or not isinstance(origin, OutputOf):
            return []
        of, _ = self.planners[origin.subtopology]
        same_key = each.key.names == of.key.names and of.operator.keeps_key
        return [of.name] if same_key and planner.can_read_sealed else []

    @cached_property
    def job_dependencies(self) -> dict[str, set[str]]:
        """Stage → those that run before it, by the names of their first sub-topologies."""
        stage_of = {name: first for first, stage in self.stages.items() for name in stage}
        return {
            first: {stage_of[each] for name in stage for each in self.dependencies[name]} - {first}
            for first, stage in self.stages.items()
        }

    @cached_property
    def arrow(self) -> Mapping[str, str]:
        """Spark's options for the size of Arrow batches, which all jobs of a version share."""
        wanted = [planner.arrow for _, planner in self.planners.values()]
        return wanted[0] if all(each == wanted[0] for each in wanted) else ROW_BY_ROW

    @property
    def query_frame(self) -> DataFrame:
        """What the app's streaming query reads: all sources in one frame."""
        return self._union.frame

    def steps(self, reader: Reader) -> Steps:
        """The steps of a reader that the streaming query has not applied, and what its operator computes."""
        own = reader.steps
        if isinstance(origin := reader.branch.origin, Source):
            own = self.sources[origin].own_steps(reader)
        return (*own, *reader.computed)

    def reporting(self, planner: Planner) -> Reporting:
        """For each reader of a planner, those that report what neither of them can use."""
        first = {reader: self._first[reader] for reader in self.readers[planner]}
        return {reader: others for reader, others in first.items() if others}

    def used(self, planner: Planner) -> set[str]:
        """The columns that the app uses of the sources of a planner."""
        return used_of(self.readers[planner], {source: own.used for source, own in self.sources.items()})

    def others_use_more(self, planner: Planner) -> bool:
        """Whether a dead letter of a planner has columns that the planner doesn't use."""
        used = self.used(planner)
        return any(len(each.letter_columns(used)) > len(each.columns) for each in self.readers[planner])

    def compute(self, batch: DataFrame, step: Step, locations: StateLocations) -> BatchResult:
        """The results of all tasks of this version. `batch` has the rows of `query_frame`."""
        with spark_errors():
            self._configure(batch.sparkSession)
        times = self._times(batch, step)
        read = times.batch
        selected: dict[Source, DataFrame] = {}
        try:
            with spark_errors():
                read = self._kept(read, if_=self._several and self._union.is_tagged)
                for source, readers in self.sources.items():
                    records = readers.of_batch(self._union.of_source(read, source.name))
                    often = self._several if not self._union.is_tagged else readers.computes_once
                    selected[source] = self._kept(records, if_=often)
                rows = read if self._union.is_tagged else next(iter(selected.values()), read)
                at = _at(step, locations)
                version = SparkVersion(self, batch.sparkSession, step, at, selected, batch=rows, times=times)
                return BatchResult(version.run(), version.records(), version.read())
        except SparkRefused as error:
            if concerns_data(error.__cause__) and any(each.can_be_checked for each in self.sources.values()):
                raise FailedInQuery(str(error)) from error.__cause__
            raise
        finally:
            for each in {id(frame): frame for frame in (read, *selected.values()) if frame.is_cached}.values():
                with spark_errors():
                    each.unpersist()

    @property
    def _several(self) -> bool:
        """Whether the records of a batch are read more than once."""
        return sum(len(readers.readers) for readers in self.sources.values()) > 1

    @staticmethod
    def _kept(frame: DataFrame, *, if_: bool) -> DataFrame:
        # Each reader has a Spark task per partition of the batch, and a union of sources has as many as they all.
        return frame.coalesce(frame.sparkSession.sparkContext.defaultParallelism).persist() if if_ else frame

    def _times(self, batch: DataFrame, step: Step) -> ReadTimes:
        """The times of sources of which no task sees all records, read in the same pass."""
        wanted = {
            source.name: readers.time_columns(self._union.tag(source.name))
            for source, readers in self.sources.items()
            if readers.times and (len(readers.witnesses) < len(readers.times) or self.unseen[source].expected)
        }
        with spark_errors():
            return ReadTimes(batch, wanted, self.latest(step))

    def latest(self, step: Step) -> Millis:
        """The latest event time that moves a clock in a version."""
        return Millis(step.wall + self.max_ahead_millis)

    def _configure(self, session: SparkSession) -> None:
        configure(session, {**_BATCH, **self.arrow, "spark.sql.shuffle.partitions": str(self.partitions)})

    def compute_idle(
        self, session: SparkSession, due: Collection[str], step: Step, locations: StateLocations
    ) -> BatchResult:
        """The results of a version without a batch: of the tasks that have to run in it."""
        with spark_errors():
            self._configure(session)
            return BatchResult(SparkVersion(self, session, step, _at(step, locations), {}, due).run())


def _at(step: Step, locations: StateLocations) -> StateLocations:
    """Where the tasks of a version find the state that it builds on."""
    return replace(locations, previous=step.previous)
