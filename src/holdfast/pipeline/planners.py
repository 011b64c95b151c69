"""The planner of each operator, and the one place that runs them all.

A new operator needs a class in `topology/`, a module with its planner, and a line in `PLANNERS`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from holdfast.pipeline.aggregation_plan import AggregationPlanner
from holdfast.pipeline.driver import BatchResult, Step
from holdfast.pipeline.due import must_run
from holdfast.pipeline.failing import LETTER, Failed, LettersWork, advice, can_fail, readers_of, stop_for
from holdfast.pipeline.foreign_key_plan import ForeignKeyJoinPlanner, IndexPlanner, LinksPlanner
from holdfast.pipeline.global_join_plan import GlobalJoinPlanner
from holdfast.pipeline.job_order import planning, run_in_order, running, with_session
from holdfast.pipeline.join_plan import JoinPlanner
from holdfast.pipeline.lookup_plan import LookupPlanner, TableJoinPlanner
from holdfast.pipeline.plan_chooser import FailureMemory
from holdfast.pipeline.planning import ROW_BY_ROW, Planner, collect, configure, in_short, with_tasks
from holdfast.pipeline.processing_plan import ProcessingPlanner
from holdfast.pipeline.reader_records import ReaderRecords
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import TaskDone, TaskResult
from holdfast.pipeline.sealed import sealed_frame
from holdfast.pipeline.source_readers import Reader, SourceReaders, Steps, reporting_first
from holdfast.pipeline.spark import SHUFFLE_CHECKS
from holdfast.pipeline.spark_errors import FailedInQuery, SparkRefused, concerns_data, spark_errors
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
from holdfast.topology.lookups import LooksUp, TableJoin
from holdfast.topology.outputs import DerivedOutput
from holdfast.topology.plain_frames import static_frame
from holdfast.topology.processing import Processing
from holdfast.topology.stream import SOURCE
from holdfast.topology.table_joins import TableTableJoin
from holdfast.topology.tables import Changelog
from holdfast.topology.topology import OutputOf, Source, StaticRows
from holdfast.topology.windowing import WindowedAggregation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.topology.processor import OnError
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
}

Origin = Source | OutputOf | StaticRows
Reporting = Mapping[Reader, Sequence[Reader]]
"""For each reader, those that report what neither of them can use."""

_BATCH = {"spark.sql.adaptive.enabled": "false", **SHUFFLE_CHECKS}


def planner_of(subtopology: SubTopology, limits: Limits) -> Planner:
    """The planner of a sub-topology, with as many partitions as it has."""
    own = replace(limits, partitions=subtopology.partitions(limits.partitions))
    return PLANNERS[type(subtopology.operator)](subtopology, own)


def dependencies_of(subtopologies: Sequence[SubTopology]) -> dict[str, set[str]]:
    """Sub-topology → those that run before it: it reads their output, or looks up their table."""
    owners = {output.name: each.name for each in subtopologies for output in each.outputs}
    found: dict[str, set[str]] = {}
    for each in subtopologies:
        origins = [branch.origin for branch in each.stream.branches]
        found[each.name] = {owners[origin.name] for origin in origins if isinstance(origin, OutputOf)}
        if isinstance(each.operator, LooksUp):
            found[each.name] |= {*each.operator.tables} - {each.name}
    return found


class BatchTasks:
    """Runs the tasks of a version on Spark: one job per sub-topology, from one read of each source.

    A sub-topology that reads the output of another runs after it, over the rows that its tasks have sealed. Those that
    need nothing of each other run at the same time.
    """

    def __init__(
        self, subtopologies: Sequence[SubTopology], limits: Limits, sources: Sequence[str], static: StaticTables
    ) -> None:
        """`sources` are the names of the sources in the order of Spark's checkpoint."""
        self._partitions, self._static = limits.partitions, static
        self.dependencies = dependencies_of(subtopologies)
        # What others read travels with each of their tasks, so only little of it is returned to the driver.
        read = set().union(*self.dependencies.values())
        few = replace(limits, inline_limit=limits.inline_share)
        self._planners = {
            each.name: (each, planner_of(each, few if each.name in read else limits)) for each in subtopologies
        }
        self._outputs = {output.name: output for each in subtopologies for output in each.outputs}
        readers: dict[Origin, list[Reader]] = {}
        self._readers: dict[Planner, list[Reader]] = {}
        for each, planner in self._planners.values():
            self._readers[planner] = readers_of(each, planner)
            for reader in self._readers[planner]:
                readers.setdefault(reader.branch.origin, []).append(reader)
        self._of_sources = {origin: own for origin, own in readers.items() if isinstance(origin, Source)}
        self._names = sources
        self._failures = {planner: FailureMemory() for planner in self._readers}
        self._reports = {planner: FailureMemory() for planner in self._readers}
        self._inline_limit = limits.inline_limit
        self._first = {reader: first for own in readers.values() for reader, first in reporting_first(own).items()}
        self._read_sources(checked=False)

    def _read_sources(self, *, checked: bool) -> None:
        self._sources = {
            source: SourceReaders(source, own, checked=checked) for source, own in self._of_sources.items()
        }
        selected = {source.name: readers.selected for source, readers in self._sources.items()}
        self._union = TaggedUnion([(name, selected[name]) for name in self._names])

    def check_steps(self) -> None:
        """Takes the steps that can fail out of `query_frame`. Between two queries."""
        self._read_sources(checked=True)

    @cached_property
    def arrow(self) -> Mapping[str, str]:
        """Spark's options for the size of Arrow batches, which all jobs of a version share."""
        wanted = [planner.arrow for _, planner in self._planners.values()]
        return wanted[0] if all(each == wanted[0] for each in wanted) else ROW_BY_ROW

    @property
    def query_frame(self) -> DataFrame:
        """What the app's streaming query reads: all sources in one frame."""
        return self._union.frame

    def _steps(self, reader: Reader) -> Steps:
        """The steps of a reader that the streaming query has not applied, and what its operator computes."""
        own = reader.steps
        if isinstance(origin := reader.branch.origin, Source):
            own = self._sources[origin].own_steps(reader)
        return (*own, *reader.computed)

    def reporting(self, planner: Planner) -> Reporting:
        """For each reader of a planner, those that report what neither of them can use."""
        first = {reader: self._first[reader] for reader in self._readers[planner]}
        return {reader: others for reader, others in first.items() if others}

    def compute(self, batch: DataFrame, step: Step, locations: StateLocations) -> BatchResult:
        """The results of all tasks of this version. `batch` has the rows of `query_frame`."""
        several = sum(len(readers.readers) for readers in self._sources.values()) > 1
        if several:
            batch = batch.persist()
        try:
            with spark_errors():
                selected = {source: self._union.of_source(batch, source.name) for source in self._sources}
                version = _Version(self, batch.sparkSession, step, locations, selected, batch=batch)
                return BatchResult(version.run(), version.records())
        except SparkRefused as error:
            if concerns_data(error.__cause__) and any(each.can_be_checked for each in self._sources.values()):
                raise FailedInQuery(str(error)) from error.__cause__
            raise
        finally:
            if batch.is_cached:
                batch.unpersist()

    def compute_idle(
        self, session: SparkSession, due: Collection[str], step: Step, locations: StateLocations
    ) -> BatchResult:
        """The results of a version without a batch: of the tasks that have to run in it."""
        with spark_errors():
            return BatchResult(_Version(self, session, step, locations, {}, due).run())


@dataclass
class _Version:
    """One version on Spark."""

    tasks: BatchTasks
    session: SparkSession
    step: Step
    locations: StateLocations
    selected: Mapping[Source, DataFrame]
    """The records of each source. Empty in a version without a batch."""
    due: Collection[str] = ()
    batch: DataFrame | None = None
    results: dict[Planner, list[TaskResult]] = field(default_factory=dict)
    letters: list[TaskResult] = field(default_factory=list)
    """Of the tasks that wrote the letters of failed records."""
    left_out: set[Planner] = field(default_factory=set)
    """Those that have not seen all records: some were unusable, and others report them."""
    failed: dict[Planner, int] = field(default_factory=dict)
    """How many records have failed."""
    checked: set[Planner] = field(default_factory=set)
    """Those for whose records a step has failed."""
    _checked_records: dict[Reader, ReaderRecords] = field(default_factory=dict)

    def run(self) -> list[TaskResult]:
        """The results of all tasks. Where one has failed, no further sub-topology runs."""
        options = {**_BATCH, **self.tasks.arrow, "spark.sql.shuffle.partitions": str(self.tasks._partitions)}
        configure(self.session, options)
        run_in_order(self.tasks.dependencies, self._run, with_session(self.session))
        return [*self._all_results(), *self.letters]

    def _run(self, name: str) -> bool:
        """Runs one sub-topology; False if a task failed."""
        subtopology, planner = self.tasks._planners[name]
        with planning():
            results = self._run_records(subtopology, planner)
            if results is not None:
                self.results[planner] = results
            elif (self.selected and planner.every_version) or must_run(subtopology, self.due, self.step):
                self.results[planner] = planner.run_idle(self.session, self.step, self._locations(subtopology))
        return all(isinstance(result, TaskDone) for result in self.results.get(planner, ()))

    def _run_records(self, subtopology: SubTopology, planner: Planner) -> list[TaskResult] | None:
        """The results of the tasks of one planner; None if there can't be any records."""
        failures, cause = self.tasks._failures[planner], None
        if not failures.expected:
            try:
                results = self._run_unchecked(subtopology, planner)
            except (PySparkException, Py4JJavaError) as error:
                steps = (self.tasks._steps(reader) for reader in self.tasks._readers[planner])
                if not concerns_data(error) or not any(map(can_fail, steps)):
                    raise
                cause = error
            else:
                return results
        return self._run_checked(subtopology, planner, cause)

    def _run_unchecked(self, subtopology: SubTopology, planner: Planner) -> list[TaskResult] | None:
        first, reports = self.tasks.reporting(planner), self.tasks._reports[planner]
        locations = self._locations(subtopology)
        records, _ = self._records(planner, first if reports.expected else {})
        if records is None:
            return None
        results = planner.run(records, self.step, locations)
        is_dead = any(isinstance(each, TaskDone) and each.counts.get("dead") for each in results)
        if is_dead and first and not reports.expected and all(isinstance(each, TaskDone) for each in results):
            records, _ = self._records(planner, first)  # without those that another reader reports
            assert records is not None
            results = planner.run(records, self.step, locations)
        reports.saw(failed=is_dead)
        return results

    def _run_checked(
        self, subtopology: SubTopology, planner: Planner, cause: Exception | None
    ) -> list[TaskResult] | None:
        """The same where an expression fails for some records: they are set apart."""
        self.checked.add(planner)
        if self.batch is not None:
            self.batch.persist()  # several jobs read it now, and must see the same records
        records, failed = self._records(planner, self.tasks.reporting(planner))
        if records is None:
            return None
        with running():
            stop_for(failed, cause)
        try:
            results = planner.run(records, self.step, self._locations(subtopology))
        except (PySparkException, Py4JJavaError) as error:
            if concerns_data(error) and (text := "".join(map(self._advice, self.tasks._readers[planner]))):
                raise SparkRefused(f"Spark refused the batch: {in_short(str(error))}{text}") from error
            raise
        letters = self._write_letters(subtopology, failed)
        self.failed[planner] = sum(sum(each.counts.values()) for each in letters if isinstance(each, TaskDone))
        self.tasks._failures[planner].saw(failed=bool(letters))
        self.letters += letters
        return results

    def _advice(self, reader: Reader) -> str:
        origin = self._origin(reader.branch.origin)
        return "" if origin is None else advice(origin, self.tasks._steps(reader))

    def _write_letters(self, subtopology: SubTopology, failed: Sequence[Failed]) -> list[TaskResult]:
        """The results of the tasks that write the letters of failed records, or count those that are skipped."""
        done: list[TaskResult] = []
        kinds: tuple[OnError, ...] = ("skip", "dead_letter")
        for on_error in kinds:
            frames = [each.letters.select(LETTER) for each in failed if each.on_error == on_error]
            if frames:
                work = LettersWork(
                    subtopology.number, self.step.version, subtopology.name, self.tasks._inline_limit, on_error
                )
                letters = reduce(lambda one, other: one.unionAll(other), frames)
                letters = letters.repartition(self.tasks._partitions, LETTER)
                done += collect(with_tasks(letters, work, self.locations))
        return [each for each in done if not isinstance(each, TaskDone) or each.counts]

    def _locations(self, subtopology: SubTopology) -> StateLocations:
        """Where its tasks find state, and what the tasks of tables that they look up have sealed."""
        if not isinstance(subtopology.operator, LooksUp) or not subtopology.operator.tables:
            return self.locations
        planners = (self.tasks._planners[table][1] for table in subtopology.operator.tables)
        done = (
            result for planner in planners for result in self.results.get(planner, ()) if isinstance(result, TaskDone)
        )
        return replace(self.locations, sealed={each.task: (*each.segments, *each.volatile) for each in done})

    def records(self) -> dict[str, int]:
        """How many records each source had."""
        return {source.name: self._count(source, readers) for source, readers in self.tasks._sources.items()}

    def _count(self, source: Source, readers: SourceReaders) -> int:
        if (counting := readers.counting) is not None and counting.planner not in self.left_out:
            done = [each for each in self.results.get(counting.planner, []) if isinstance(each, TaskDone)]
            origins = [reader.branch.origin for reader in self.tasks._readers[counting.planner]]
            if len(origins) == 1:
                return sum(each.records for each in done) + self.failed.get(counting.planner, 0)
            if origins.count(source) == 1 and counting.planner not in self.checked:
                return sum(each.sources.get(source.name, 0) for each in done)
        # An extra job: a median of 107 to 192 ms on a loaded machine for 1,000 to 1,000,000 cached records.
        return self.selected[source].count()

    def _records(self, planner: Planner, reporting: Reporting) -> tuple[DataFrame | None, list[Failed]]:
        """The records of a sub-topology's stream, None if there can't be any, and those that failed.

        Merged ones have their origin's name. Unusable ones that the readers of `reporting` report are left out.
        """
        readers = self.tasks._readers[planner]
        found = [(reader.branch.origin.name, self._of(reader, reporting.get(reader, ()))) for reader in readers]
        frames = [(name, *each) for name, each in found if each is not None]
        failed = [each for _, _, own in frames for each in own]
        if not frames or len(readers) == 1:
            return (frames[0][1] if frames else None), failed
        tagged = (frame.withColumn(SOURCE, F.lit(name)) for name, frame, _ in frames)
        return reduce(lambda one, other: one.unionByName(other), tagged), failed

    def _of(self, reader: Reader, reporting: Sequence[Reader]) -> tuple[DataFrame, list[Failed]] | None:
        """The records of one branch, and those that failed."""
        frame = self._origin(reader.branch.origin)
        if frame is None:
            return None
        own = self._reader_records(reader, frame, checked=reader.planner in self.checked)
        if not reporting and not own.checked:
            return own.all(), []
        if reporting:
            self.left_out.add(reader.planner)
        # The steps of others may fail, whether they have run yet or not.
        return own.unreported([self._reader_records(other, frame, checked=True) for other in reporting])

    def _reader_records(self, reader: Reader, frame: DataFrame, *, checked: bool) -> ReaderRecords:
        origin = reader.branch.origin
        unread = self.tasks._sources[origin].unread if isinstance(origin, Source) else ()
        records = ReaderRecords(reader, frame, self.tasks._steps(reader), self.step.wall, checked, unread)
        return self._checked_records.setdefault(reader, records) if checked else records

    def _origin(self, origin: Origin) -> DataFrame | None:
        """The records of a source or an output, before the steps of a branch."""
        if isinstance(origin, Source):
            return self.selected.get(origin)
        if isinstance(origin, StaticRows):
            unread = self.tasks._static.is_unread(origin)
            return static_frame(origin.frame, self.session) if unread else None
        output = self.tasks._outputs[origin.name]
        assert isinstance(output, DerivedOutput)
        time = self.step.wall if self.step.event is None else self.step.event
        return sealed_frame(self.session, output, self._all_results(), time, self.locations)

    def _all_results(self) -> list[TaskResult]:
        return [result for _, planner in self.tasks._planners.values() for result in self.results.get(planner, ())]
