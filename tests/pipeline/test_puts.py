"""How many objects a version writes: its commit, one for all small segments, one per large one. Sinks: only rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.log import names
from holdfast.log.objects import Storage
from holdfast.pipeline.aggregation_task import AggregationWork
from holdfast.pipeline.driver import Step
from holdfast.pipeline.processing_task import ProcessingWork
from holdfast.pipeline.sinks.builtin import Files
from holdfast.pipeline.sinks.runner import Feed, SinkRunner, opened
from holdfast.settings.sections import LogSettings
from holdfast.words import Version
from tests.crash.machine import PARTITIONS, Machine, Record, _spark_batch
from tests.log.making import Watched, alone, crash_at

MANY = [(f"player-{n}", 1) for n in range(20)]


class CountingMachine(Machine):
    """A machine that records what it writes to its log. Tasks return segments of up to `inline` bytes."""

    inline = 64 << 10

    def storage(self) -> Storage:
        self.watched = Watched(super().storage())
        return self.watched

    def work(self, step: Step) -> AggregationWork | ProcessingWork:
        work = super().work(step)
        return replace(work, limits=replace(work.limits, chunk_rows=1_000, inline_limit=self.inline))

    def version(self, records: list[Record]) -> list[str]:
        """Makes a version, brings the replicas to it, and returns the folders of the objects it wrote to the log."""
        self.watched.calls.clear()
        self.driver.process(_spark_batch(self.done, records), lambda step: self.computed(records, step))
        self.done += 1
        written = [name.partition("/")[0] + "/" for call, name in self.watched.calls if call.startswith("create")]
        for replica in self.replicas.values():
            replica.catch_up(self.newest)
        return written

    @property
    def newest(self) -> Version:
        assert self.driver.newest is not None
        return Version(self.driver.newest.version)


@pytest.fixture
def machine(tmp_path: Path) -> CountingMachine:
    return counting(tmp_path)


def counting(folder: Path) -> CountingMachine:
    machine = CountingMachine(folder)
    machine.driver._inline_bytes = LogSettings().inline_bytes  # crash tests have no room for segments in commits
    return machine


def test_a_version_writes_its_commit_and_nothing_else(machine: CountingMachine) -> None:
    for records in (MANY, MANY[:1], []):
        assert machine.version(records) == [names.COMMITS]


def test_small_segments_that_the_commit_has_no_room_for_are_one_more_object(
    machine: CountingMachine, tmp_path: Path
) -> None:
    machine.driver._inline_bytes = 100
    for records in (MANY, MANY[:10]):
        assert machine.version(records) == [names.SEGMENTS, names.COMMITS]
    twin = counting(tmp_path / "twin")
    for records in (MANY, MANY[:10]):
        twin.version(records)
    assert machine.state() == twin.state()


def test_each_segment_that_is_too_large_to_be_returned_is_one_more_object(machine: CountingMachine) -> None:
    machine.inline = 0
    assert machine.version(MANY) == [names.SEGMENTS] * PARTITIONS + [names.COMMITS]


def test_a_sink_writes_nothing_in_a_version_without_rows_for_it(machine: CountingMachine) -> None:
    machine.version(MANY)
    before = machine.files()
    assert len(before) == PARTITIONS + 1, "one file per task, and the list of the version's files"
    machine.version([])
    assert machine.files() == before
    assert machine.memory.versions.keys() == {1}


def test_the_next_commit_has_the_positions_of_the_sinks(machine: CountingMachine) -> None:
    for version in (1, 2, 3):
        machine.version(MANY[:version])
        assert machine.driver.newest is not None
        assert {*machine.driver.newest.sinks.values()} == {version - 1}
        assert [name.partition(":")[0] for name in machine.driver.newest.sinks] == ["files", "rows", "folder"]


def test_a_clean_stop_writes_the_positions_once(machine: CountingMachine) -> None:
    machine.version(MANY)
    machine.watched.calls.clear()
    machine.sinks.stop()
    machine.sinks.stop()
    assert [name for call, name in machine.watched.calls if call == "create"] == [names.sink_positions(Version(1))]
    machine.restart()
    assert machine.memory.versions == {}, "no sink gets the version again"
    machine.watched.calls.clear()
    machine.sinks.stop()
    assert not [name for call, name in machine.watched.calls if call == "create"], "nothing has changed since"


def test_after_a_crash_the_sinks_get_the_newest_version_again(machine: CountingMachine) -> None:
    machine.version(MANY[:1])
    machine.version(MANY[:2])
    before = machine.files()
    machine.restart()
    assert machine.memory.versions.keys() == {2}
    assert machine.files() == before, "each version is in the files once"


def test_a_sink_that_is_gone_and_comes_back_continues_where_it_was(machine: CountingMachine) -> None:
    machine.version(MANY)
    machine.version(MANY[:1])
    feeds = [Feed("files", machine.output(), Files(f"memory://{machine.name}-files"))]
    machine.sinks = SinkRunner(machine.log, opened(feeds, machine.log), retry=lambda call: call(), check_leads=alone)
    machine.driver = machine.new_driver()
    machine.version(MANY[:2])
    machine.version(MANY[:2])
    machine.restart()
    assert machine.memory.versions.keys() == {2, 3, 4}


def test_a_sink_that_failed_gets_its_version_at_the_next_start(machine: CountingMachine) -> None:
    machine.version(MANY)
    with crash_at("sink.before"):
        machine.version(MANY[:1])
    machine.sinks.stop()
    machine.restart()
    assert machine.memory.versions.keys() == {2}
