"""Steps that fail for some records on real Spark: Python functions, transforms, and steps that all stores share."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.pipeline.failing import RecordFailed
from holdfast.pipeline.spark_errors import SparkRefused
from tests.apps import entries_of, write
from tests.pipeline.test_checking import kept_by
from tests.test_failing_records import TEXT, letters_of, text, text_app

pytestmark = pytest.mark.spark

BATCH = [text("ann", "1"), text("bob", "2"), text("ann", "x"), text("cleo", "3"), text("bob", "y")]
SUMS = {"ann": 1, "bob": 2, "cleo": 3}


def number(column: str | Column) -> Column:
    """A Python function of one row."""

    def as_number(value: str) -> int:
        return int(value)

    return F.udf(as_number, "int")(column)


def of_frames(frames: Iterator[Any]) -> Iterator[Any]:
    for frame in frames:
        yield frame.assign(n=frame["text"].astype("int32"))


SCHEMA = "player string, text string, at timestamp, n int"


def framed(stream: hf.Stream) -> hf.Stream:
    return stream.transform(lambda df: df.mapInPandas(of_frames, SCHEMA))


def sums(app: hf.App, store: str) -> dict[str, int]:
    return {key: row["n"] for key, row in entries_of(app, store).items()}


def test_records_that_fail_in_python_are_skipped_or_kept(spark: SparkSession, tmp_path: Path) -> None:
    """In a step that all stores share, in a transform of one of them, and in an aggregate."""
    write(tmp_path / "input", 1, BATCH, TEXT)
    app, stream = text_app(spark, tmp_path, timestamp=None, on_error="dead_letter")
    positive = stream.where(number("text") > 0)
    positive.group_by().aggregate(n=hf.sum(number("text"))).store("sums")
    framed(positive).group_by().aggregate(n=hf.sum("n")).store("frames")
    skipping = framed(stream.on_error("skip")).group_by().aggregate(n=hf.sum("n")).store("skipping")
    before = kept_by(spark)
    with app:
        app.process_all_available()
        assert [sums(app, name) for name in ("sums", "frames", skipping.name)] == [SUMS] * 3
        newest = app._started().log.newest()
        assert not kept_by(spark) - before, "what the checks have kept is freed with the version"
    (first, record), second = letters_of(tmp_path)
    assert (record, second[1]) == ("x", "y")
    assert first.startswith("where(Column<'>(as_number(text), 0)'>) failed: "), "without addresses of the JVM"
    assert "failed: as_number() raised ValueError: invalid literal for int() with base 10: 'x' (at " in first
    assert newest is not None
    assert (newest.counts["records"], newest.counts["dead"]) == (5, 2)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda stream: stream.where("CAST(text AS int) > 0"), r"\[CAST_INVALID_INPUT\] The value 'x'"),
        pytest.param(framed, r"transform\(\) failed: of_frames\(\) raised ValueError", marks=pytest.mark.slow),
    ],
    ids=["where", "transform"],
)
def test_a_failing_step_that_all_stores_share_names_the_record(
    spark: SparkSession, tmp_path: Path, step: Callable[[hf.Stream], hf.Stream], reason: str
) -> None:
    """It is part of Spark's query, which is started again without it. Good batches before it are not repeated."""
    write(tmp_path / "input", 1, [text("ann", "1")], TEXT)
    write(tmp_path / "input", 2, BATCH[:3], TEXT)
    app, stream = text_app(spark, tmp_path)
    shared = step(stream)
    shared.group_by().count().store("counts")
    shared.group_by().aggregate(last=hf.max("text")).store("texts")
    with app:
        with pytest.raises(RecordFailed, match=rf'{reason}.*"text":"x".*Nothing of the batch was committed'):
            app.process_all_available()
        newest = app._started().log.newest()
    assert newest is not None and newest.version == 1


def test_a_transform_that_is_not_row_by_row_says_so(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, BATCH, TEXT)
    app, stream = text_app(spark, tmp_path, on_error="skip")
    numbers = stream.with_column("k", "1")

    def summed(df: DataFrame) -> DataFrame:
        return df.groupBy("player", "at", "text").agg(F.sum(F.expr("CAST(text AS int)")).alias("n"))

    numbers.transform(summed).group_by().aggregate(n=hf.sum("n")).store("sums")
    with (
        app,
        pytest.raises(SparkRefused, match=r"(?s)transform\(\) doesn't compute each row from one row \(Aggregate\)"),
    ):
        app.process_all_available()
