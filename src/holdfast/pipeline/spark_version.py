"""One version on Spark: the jobs of its stages, each over the records of one batch.

The sub-topologies of a stage run in one job (`stage_plan`). Some batches can't: a record fails in an expression, a fast
plan of an aggregation is rejected, or two sub-topologies report the same unusable record. Then each sub-topology runs
in jobs of its own, in the order of declaration.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from holdfast.pipeline.checking import free
from holdfast.pipeline.clock_columns import ReadTimes, read_times
from holdfast.pipeline.driver import Step, steps
from holdfast.pipeline.due import must_run
from holdfast.pipeline.failing import LETTER, Failed, LettersWork, advice, can_fail, stop_for
from holdfast.pipeline.job_order import planning, run_in_order, running, with_session
from holdfast.pipeline.planning import Planner, SealedTaskRows, TaskRows, collect, in_short, with_tasks
from holdfast.pipeline.reader_records import ReaderRecords
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import SKIPPED, FastPlanRejected, TaskDone, TaskResult
from holdfast.pipeline.sealed import sealed_frame
from holdfast.pipeline.source_readers import Origin, Reader, SourceReaders
from holdfast.pipeline.spark_errors import SparkRefused, concerns_data
from holdfast.pipeline.stage_work import StageDone
from holdfast.topology.derived import hidden_of
from holdfast.topology.frames import unlogged
from holdfast.topology.outputs import DerivedOutput
from holdfast.topology.plain_frames import static_frame
from holdfast.topology.topology import Source, StaticRows
from holdfast.words import Millis, TaskId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.pipeline.planners import BatchTasks
    from holdfast.topology.processor import OnError
    from holdfast.topology.topology import SubTopology


logger = logging.getLogger(__name__)

Reporting = Mapping[Reader, Sequence[Reader]]
"""For each reader, those that report what neither of them can use."""


@dataclass
class SparkVersion:
    """One version."""

    tasks: BatchTasks
    session: SparkSession
    step: Step
    locations: StateLocations
    selected: Mapping[Source, DataFrame]
    """The records of each source. Empty in a version without a batch."""
    due: Collection[str] = ()
    batch: DataFrame | None = None
    times: ReadTimes | None = None
    results: dict[Planner, list[TaskResult]] = field(default_factory=dict)
    letters: list[TaskResult] = field(default_factory=list)
    """Of the tasks that wrote the letters of failed records."""
    left_out: set[Planner] = field(default_factory=set)
    """Those that have not seen all records: some were unusable, and others report them."""
    failed: dict[Planner, int] = field(default_factory=dict)
    """How many records have failed."""
    counted: dict[str, int] = field(default_factory=dict)
    """The records of sources that a shared job has counted."""
    checked: set[Planner] = field(default_factory=set)
    """Those for whose records a step has failed."""
    _checked_records: dict[Reader, ReaderRecords] = field(default_factory=dict)
    _kept: list[DataFrame] = field(default_factory=list)
    """The rows that Spark keeps until the end of the version, to set failed records apart."""

    def run(self) -> list[TaskResult]:
        """The results of all tasks. Where one has failed, no further sub-topology runs."""
        try:
            run_in_order(self.tasks.job_dependencies, self._run, with_session(self.session))
        finally:
            free(self._kept)
        return [*self._all_results(), *self.letters]

    def _run(self, first: str) -> bool:
        """Runs one stage; False if a task failed."""
        stage = self.tasks.stages[first]
        with planning(), unlogged():
            if len(stage) > 1 and self._run_shared(first):
                return self._succeeded(stage)
            return all(self._run_alone(name) for name in stage)

    def _succeeded(self, names: Sequence[str]) -> bool:
        planners = (self.tasks.planners[name][1] for name in names)
        return all(isinstance(each, TaskDone) for planner in planners for each in self.results.get(planner, ()))

    def _run_alone(self, name: str) -> bool:
        """Runs one sub-topology in jobs of its own; False if a task failed."""
        subtopology, planner = self.tasks.planners[name]
        results = self._run_records(subtopology, planner)
        if results is not None:
            self.results[planner] = results
        elif (self.selected and planner.every_version) or must_run(subtopology, self.due, self.step):
            self.results[planner] = planner.run_idle(self.session, self.step, self._locations(subtopology))
        return self._succeeded([name])

    def _run_shared(self, first: str) -> bool:
        """Runs the sub-topologies of a stage in one job; False if they have to run alone, for their records."""
        stage = [self.tasks.planners[name] for name in self.tasks.stages[first]]
        job = self.tasks.jobs[first]
        if any(self.tasks.failures[planner].expected for _, planner in stage):
            return False
        with steps.labels("plan").time():
            members = [self._member(*each) for each in stage]
        rows = [each for each in members if each is not None]
        if len(rows) < len(members):
            return False
        try:
            done = job.run(rows, self._uncounted(stage), self.locations)
        except (PySparkException, Py4JJavaError) as error:
            if not concerns_data(error):
                raise
            logger.info("the sub-topologies %s run alone: %s", ", ".join(self.tasks.stages[first]), error)
            return False
        if not done:
            return False
        found = {planner: _results_of(subtopology, done) for subtopology, planner in stage}
        if any(isinstance(each, FastPlanRejected) for own in found.values() for each in own):
            return False
        dead = {planner: has_dead_letters(own) for planner, own in found.items()}
        if any(dead[planner] and self._came_unexpected(planner) for planner in found):
            return False  # some of them may be reported by others, or lack columns
        for (_, planner), member in zip(stage, rows, strict=True):
            planner.saw(member.plan, found[planner])
            self.tasks.reports[planner].saw(failed=dead[planner])
        self.results |= found
        for source in (name for each in done for name in each.counted):
            self.counted[source] = sum(each.counted.get(source, 0) for each in done)
        return True

    def _member(self, subtopology: SubTopology, planner: Planner) -> TaskRows | SealedTaskRows | None:
        """A sub-topology as a member of its stage; None if it has no records, or can't read them there."""
        if subtopology.name in self.tasks.beside:
            (reader,) = self.tasks.readers[planner]
            return planner.of_sealed(self._output(reader.branch.origin.name), self.step, self._time)
        records, _ = self._records(planner, dead=self.tasks.reports[planner].expected)
        return None if records is None else planner.planned(records, self.step, self._locations(subtopology).sealed)

    def _run_records(self, subtopology: SubTopology, planner: Planner) -> list[TaskResult] | None:
        """The results of the tasks of one planner; None if there can't be any records."""
        failures, cause = self.tasks.failures[planner], None
        if not failures.expected:
            try:
                results = self._run_unchecked(subtopology, planner)
            except (PySparkException, Py4JJavaError) as error:
                steps = (self.tasks.steps(reader) for reader in self.tasks.readers[planner])
                if not concerns_data(error) or not any(map(can_fail, steps)):
                    raise
                cause = error
                logger.warning(
                    "a step of %s has failed for a record, and Spark may have logged that with its traces. The batch "
                    "runs again with a check of each step, and such records are treated as on_error= says",
                    subtopology.name,
                )
            else:
                return results
        return self._run_checked(subtopology, planner, cause)

    def _run_unchecked(self, subtopology: SubTopology, planner: Planner) -> list[TaskResult] | None:
        reports, locations = self.tasks.reports[planner], self._locations(subtopology)
        records, _ = self._records(planner, dead=reports.expected)
        if records is None:
            return None
        results = planner.run(records, self.step, locations)
        is_dead = has_dead_letters(results)
        if is_dead and self._came_unexpected(planner) and all(isinstance(each, TaskDone) for each in results):
            records, _ = self._records(planner, dead=True)
            assert records is not None
            results = planner.run(records, self.step, locations)
        reports.saw(failed=is_dead)
        return results

    def _came_unexpected(self, planner: Planner) -> bool:
        """Whether unusable records of a planner may be such that others report, or lack columns of a dead letter."""
        if self.tasks.reports[planner].expected:
            return False
        return bool(self.tasks.reporting(planner)) or self.tasks.others_use_more(planner)

    def _run_checked(
        self, subtopology: SubTopology, planner: Planner, cause: Exception | None
    ) -> list[TaskResult] | None:
        """The same where an expression fails for some records: they are set apart."""
        self.checked.add(planner)
        if self.batch is not None:
            self.batch.persist()  # several jobs read it now, and must see the same records
        records, failed = self._records(planner, dead=True)
        if records is None:
            return None
        with running():
            stop_for(failed, cause)
        try:
            results = planner.run(records, self.step, self._locations(subtopology))
        except (PySparkException, Py4JJavaError) as error:
            if concerns_data(error) and (text := "".join(map(self._advice, self.tasks.readers[planner]))):
                raise SparkRefused(f"Spark refused the batch: {in_short(str(error))}{text}") from error
            raise
        letters = self._write_letters(subtopology, failed)
        self.failed[planner] = sum(sum(each.counts.values()) for each in letters if isinstance(each, TaskDone))
        self.tasks.failures[planner].saw(failed=bool(letters))
        self.letters += letters
        return results

    def _advice(self, reader: Reader) -> str:
        origin = self._origin(reader.branch.origin)
        return "" if origin is None else advice(origin, self.tasks.steps(reader))

    def _write_letters(self, subtopology: SubTopology, failed: Sequence[Failed]) -> list[TaskResult]:
        """The results of the tasks that write the letters of failed records, or count those that are skipped."""
        done: list[TaskResult] = []
        kinds: tuple[OnError, ...] = ("skip", "dead_letter")
        for on_error in kinds:
            frames = [each.letters.select(LETTER) for each in failed if each.on_error == on_error]
            if frames:
                work = LettersWork(
                    subtopology.number, self.step.version, subtopology.name, self.tasks.inline_limit, on_error
                )
                letters = reduce(lambda one, other: one.unionAll(other), frames)
                letters = letters.repartition(self.tasks.partitions, LETTER)
                done += collect(with_tasks(letters, work, self.locations))
        return [each for each in done if not isinstance(each, TaskDone) or each.counts]

    def _locations(self, subtopology: SubTopology) -> StateLocations:
        """Where its tasks find state, and what the tasks of tables that they look up have sealed."""
        if not subtopology.operator.tables:
            return self.locations
        planners = (self.tasks.planners[table][1] for table in subtopology.operator.tables)
        done = (
            result for planner in planners for result in self.results.get(planner, ()) if isinstance(result, TaskDone)
        )
        return replace(self.locations, sealed={each.task: (*each.segments, *each.volatile) for each in done})

    def records(self) -> dict[str, int]:
        """How many records each source had."""
        return {source.name: self._count(source, readers) for source, readers in self.tasks.sources.items()}

    def read(self) -> dict[str, Millis | None]:
        """The largest event time of each source that has read records, where tasks may not have seen all of them."""
        assert self.times is not None
        found = self.times.found()
        for source, readers in self.tasks.sources.items():
            if not readers.witnesses:
                continue
            missed = any(self._missed(reader.planner) for reader in readers.witnesses.values())
            self.tasks.unseen[source].saw(failed=missed)
            if missed and not self.times.noted(source.name):
                # The first time: later ones are noted. As long as a count of the same records.
                found |= read_times(
                    self.selected[source], source.name, readers.time_columns(), self.tasks.latest(self.step)
                )
        return found

    def _missed(self, planner: Planner) -> bool:
        """Whether the tasks of a planner have not seen the times of all records: some were unusable, or failed."""
        aside = planner in self.left_out or planner in self.checked
        return aside or has_failed_records(self.results.get(planner, ()))

    def _count(self, source: Source, readers: SourceReaders) -> int:
        if (counting := self._counting(source, readers)) is not None:
            done = [each for each in self.results.get(counting, []) if isinstance(each, TaskDone)]
            if len(self.tasks.readers[counting]) == 1:
                return sum(each.records for each in done) + self.failed.get(counting, 0)
            return sum(each.sources.get(source.name, 0) for each in done)
        if source.name in self.counted:
            return self.counted[source.name]
        # An extra job: a median of 107 to 192 ms on a loaded machine for 1,000 to 1,000,000 cached records.
        return self.selected[source].count()

    def _counting(self, source: Source, readers: SourceReaders) -> Planner | None:
        """The planner whose tasks count all records of a source; None if there is none."""
        if (counting := readers.counting) is None or counting.planner in self.left_out:
            return None
        origins = [reader.branch.origin for reader in self.tasks.readers[counting.planner]]
        is_exact = origins.count(source) == 1 and counting.planner not in self.checked
        return counting.planner if len(origins) == 1 or is_exact else None

    def _uncounted(self, stage: Sequence[tuple[SubTopology, Planner]]) -> dict[str, DataFrame]:
        """The sources of a stage that are counted separately: no planner gets all their records."""
        read = {reader.branch.origin for _, planner in stage for reader in self.tasks.readers[planner]}
        return {
            source.name: self.selected[source]
            for source, readers in self.tasks.sources.items()
            if source in read and source.name not in self.counted and self._counting(source, readers) is None
        }

    def _records(self, planner: Planner, *, dead: bool) -> tuple[DataFrame | None, list[Failed]]:
        """The records of a sub-topology's stream, None if there can't be any, and those that failed.

        If unusable ones are expected (`dead`), those that others report are left out, and the records have all columns
        of a dead letter.
        """
        readers = self.tasks.readers[planner]
        found = [each for reader in readers if (each := self._of(reader, dead=dead)) is not None]
        failed = [each for _, own in found for each in own]
        frames = [frame for frame, _ in found]
        return (reduce(lambda one, other: one.unionByName(other), frames) if frames else None), failed

    def _of(self, reader: Reader, *, dead: bool) -> tuple[DataFrame, list[Failed]] | None:
        """The records of one branch, and those that failed."""
        frame = self._origin(reader.branch.origin)
        if frame is None:
            return None
        own = self._reader_records(reader, frame, checked=reader.planner in self.checked)
        reporting = self.tasks.reporting(reader.planner).get(reader, ()) if dead else ()
        if not reporting and not own.checked:
            return own.all(dead=dead), []
        if reporting:
            self.left_out.add(reader.planner)
        # The steps of others may fail, whether they have run yet or not.
        return own.unreported([self._reader_records(other, frame, checked=True) for other in reporting])

    def _reader_records(self, reader: Reader, frame: DataFrame, *, checked: bool) -> ReaderRecords:
        origin = reader.branch.origin
        source = self.tasks.sources[origin] if isinstance(origin, Source) else None
        records = ReaderRecords(
            reader,
            frame,
            self.tasks.steps(reader),
            self.step.wall,
            checked,
            source.unread if source else hidden_of([origin]),
            self._kept,
            whole=source is not None and source.uses_all(reader),
            used=self.tasks.used(reader.planner),
        )
        return self._checked_records.setdefault(reader, records) if checked else records

    def _origin(self, origin: Origin) -> DataFrame | None:
        """The records of a source or an output, before the steps of a branch."""
        if isinstance(origin, Source):
            return self.selected.get(origin)
        if isinstance(origin, StaticRows):
            unread = self.tasks.static.is_unread(origin)
            return static_frame(origin.frame, self.session) if unread else None
        return sealed_frame(self.session, self._output(origin.name), self._all_results(), self._time, self.locations)

    def _output(self, name: str) -> DerivedOutput:
        output = self.tasks.outputs[name]
        assert isinstance(output, DerivedOutput)
        return output

    @property
    def _time(self) -> Millis:
        """The time of rows that have none of their own."""
        return self.step.wall if self.step.event is None else self.step.event

    def _all_results(self) -> list[TaskResult]:
        return [result for _, planner in self.tasks.planners.values() for result in self.results.get(planner, ())]


def _results_of(subtopology: SubTopology, done: Sequence[StageDone]) -> list[TaskResult]:
    """The results of one sub-topology's tasks."""
    return [each for own in done for each in own.tasks if TaskId.parse(each.task).subtopology == subtopology.number]


def has_failed_records(results: Sequence[TaskResult]) -> bool:
    """Whether records were dead letters, or failed and were skipped."""
    done = (each for each in results if isinstance(each, TaskDone))
    return any(name.partition("/")[0] in ("dead", SKIPPED) for each in done for name in each.counts)


def has_dead_letters(results: Sequence[TaskResult]) -> bool:
    return any(isinstance(each, TaskDone) and each.counts.get("dead") for each in results)
