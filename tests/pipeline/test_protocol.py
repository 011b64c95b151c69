"""What to do with a batch, given the log: it is already committed, new, or a reason to stop."""

import pytest

from holdfast.log.commits import FORMAT, Clocks, Commit, SparkBatch, Writer
from holdfast.pipeline.protocol import (
    AlreadyCommitted,
    Compute,
    MissingVersions,
    NewCheckpoint,
    OtherOffsets,
    check_checkpoint,
    decide,
    following,
    next_wall,
)
from holdfast.words import Millis, Version


def commit(version: int, batch: SparkBatch | None, clocks: Clocks | None = None) -> Commit:
    return Commit(
        format=FORMAT,
        version=version,
        id=f"c{version}",
        previous=f"c{version - 1}" if version > 1 else None,
        log="log",
        app=1,
        clocks=clocks or Clocks(wall=0, event=None, sources={}),
        spark=batch,
        segments={},
        counts={},
        writer=Writer(id="w", host="h", pid=1, epoch=1),
    )


def batch(number: int, offsets: str | None = None, query: str = "q") -> SparkBatch:
    return SparkBatch(query=query, batch=number, offsets=offsets or f"offsets {number}")


class History(dict[int, Commit]):
    """Commits 1, 2 ... of batches 0, 1 ...; None is a version that the driver made without a batch."""

    @classmethod
    def of(cls, *batches: SparkBatch | None) -> "History":
        made: History = cls()
        for n, made_by in enumerate(batches, start=1):
            made[n] = commit(n, made_by or made[n - 1].spark)
        return made

    def decide(self, wanted: SparkBatch, restart_sources: bool = False) -> AlreadyCommitted | Compute:
        newest = self[max(self)] if self else None
        return decide(wanted, newest, self.get, restart_sources)


def test_the_first_batch_of_an_empty_log_is_version_1() -> None:
    assert History().decide(batch(0)) == Compute(Version(1))


def test_the_next_batch_is_the_next_version() -> None:
    assert History.of(batch(0), batch(1)).decide(batch(2)) == Compute(Version(3))


def test_a_log_without_sparks_last_batches_stops_the_app() -> None:
    with pytest.raises(MissingVersions, match="at batch 5 and the log ends with batch 0"):
        History.of(batch(0)).decide(batch(5))
    with pytest.raises(MissingVersions, match="at batch 57 and the log has none"):
        History().decide(batch(57))
    with pytest.raises(MissingVersions, match="read the missing records again, remove Spark's checkpoint; or"):
        check_checkpoint(None, "q", restart_sources=False, done=56)
    with pytest.raises(MissingVersions, match="at batch 4 and the log ends with batch 2"):
        check_checkpoint(commit(3, batch(2)), "q", restart_sources=False, done=4)
    check_checkpoint(commit(3, batch(2)), "q", restart_sources=False, done=2)
    check_checkpoint(commit(3, batch(2)), "q", restart_sources=True, done=4)
    assert History().decide(batch(57), restart_sources=True) == Compute(Version(1))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_batch_with_a_commit_is_not_computed_again(number: int) -> None:
    history = History.of(batch(0), batch(1), None, batch(2), None)
    version = {0: 1, 1: 3, 2: 5}[number]  # the newest version with that batch
    assert history.decide(batch(number)) == AlreadyCommitted(Version(version))


def test_the_same_batch_with_other_offsets_stops_the_app_and_shows_both() -> None:
    with pytest.raises(OtherOffsets, match=r"(?s)Recorded:\noffsets 1\nNow:\nelsewhere"):
        History.of(batch(0), batch(1)).decide(batch(1, "elsewhere"))


def entry(at: int, *sources: str) -> str:
    """An entry of Spark's offset log that was planned at this time."""
    return "\n".join(["v1", f'{{"batchTimestampMs":{at},"conf":{{}}}}', *sources])


def test_offsets_are_compared_by_source_and_not_by_the_time_they_were_planned_at() -> None:
    kafka = '{"topic":{"0":5,"1":9}}'
    history = History.of(batch(0, entry(1, kafka)))
    assert history.decide(batch(0, entry(2, '{"topic": {"1": 9, "0": 5}}'))) == AlreadyCommitted(Version(1))
    for other in ([], ['{"topic":{"0":6,"1":9}}'], [kafka, kafka], ["not JSON"]):
        with pytest.raises(OtherOffsets, match="holdfast checkpoint repair"):
            history.decide(batch(0, entry(1, *other)))


def test_equal_offsets_of_a_file_source_with_other_files_are_other_offsets() -> None:
    """Its offset is only a number. The files behind it are in Spark's checkpoint too, and can be lost with it."""
    made = SparkBatch("q", 0, entry(1, '{"logOffset":0}'), files=("digest",))
    history = History.of(made)
    assert history.decide(SparkBatch("q", 0, entry(2, '{"logOffset":0}'), files=("digest",))) == AlreadyCommitted(
        Version(1)
    )
    with pytest.raises(OtherOffsets):
        history.decide(SparkBatch("q", 0, entry(1, '{"logOffset":0}'), files=("another",)))


def test_a_batch_of_an_earlier_checkpoint_is_not_computed_again() -> None:
    """Two checkpoints in turn, with `restart_sources` set: Spark repeats the last batch of each."""
    history = History()
    for number, made in enumerate([batch(0), batch(1), batch(0, query="b")], start=1):
        history[number] = commit(number, following(history.get(number - 1), made))
    assert history.decide(batch(1), restart_sources=True) == AlreadyCommitted(Version(2))
    assert history.decide(batch(0, query="b"), restart_sources=True) == AlreadyCommitted(Version(3))
    assert history.decide(batch(2), restart_sources=True).version == 4
    with pytest.raises(OtherOffsets):
        history.decide(batch(1, "elsewhere"), restart_sources=True)
    history[4] = commit(4, following(history[3], batch(2)))
    assert following(history[4], batch(0, query="c")).earlier == {"q": 2, "b": 0}
    assert following(history[4], batch(3)).earlier == {"b": 0}, "not its own"
    assert history.decide(batch(0, query="b"), restart_sources=True) == AlreadyCommitted(Version(3))
    del history[3]
    with pytest.raises(OtherOffsets, match="does not have that one"):
        history.decide(batch(0, query="b"), restart_sources=True)


def test_the_setting_that_a_gap_names_works() -> None:
    with pytest.raises(MissingVersions, match='(?s)checkpoint repair.*on_new_checkpoint="restart_sources"'):
        History.of(batch(0)).decide(batch(5))
    decision = History.of(batch(0)).decide(batch(5), restart_sources=True)
    assert isinstance(decision, Compute)
    assert decision.version == 2
    assert "batches 1 to 4" in (decision.note or "")


def test_a_batch_whose_commit_was_cleaned_stops_the_app() -> None:
    history = History.of(batch(0), batch(1), batch(2))
    del history[1]
    with pytest.raises(OtherOffsets, match="batch 0 again"):
        history.decide(batch(0))


def test_a_new_checkpoint_is_refused_with_the_recorded_positions() -> None:
    with pytest.raises(NewCheckpoint, match="offsets 0"):
        History.of(batch(0)).decide(batch(0, query="another"))
    with pytest.raises(NewCheckpoint, match=r'repair <app>`.*as done:\n\{"topic":5\}$'):  # without Spark's own settings
        History.of(batch(0, entry(1, '{"topic":5}'))).decide(batch(0, query="another"))


def test_a_new_checkpoint_is_accepted_with_restart_sources() -> None:
    decision = History.of(batch(0)).decide(batch(0, query="another"), restart_sources=True)
    assert isinstance(decision, Compute)
    assert decision.version == 2
    assert "start over" in (decision.note or "")


def test_a_missing_checkpoint_is_found_at_the_start() -> None:
    newest = commit(3, batch(2))
    with pytest.raises(NewCheckpoint, match="is missing"):
        check_checkpoint(newest, None, restart_sources=False)
    check_checkpoint(newest, "q", restart_sources=False)
    check_checkpoint(newest, None, restart_sources=True)
    check_checkpoint(None, None, restart_sources=False)


def test_the_wall_clock_never_goes_back() -> None:
    previous = commit(1, None, Clocks(wall=100, event=None, sources={}))
    assert next_wall(previous, Millis(50)) == 100
    assert next_wall(previous, Millis(150)) == 150
