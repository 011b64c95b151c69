"""Options of the user's session that an app needs while it starts, and limits of its sources."""

import logging
import re
from datetime import timedelta
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.pipeline.spark import (
    ROWS_TO_FUNCTIONS,
    JobGroup,
    check_limits,
    limited_reader,
    query_options,
    session_of,
    with_options,
)
from tests.apps import game, write

pytestmark = pytest.mark.spark

DELAY = "spark.sql.streaming.pollingDelay"
REST = hf.RestSettings(port=0)
OPTIONS = query_options(timedelta(milliseconds=100), local_checkpoint=True)


def test_the_delay_between_two_looks_is_set_for_the_start_of_a_query_alone(spark: SparkSession) -> None:
    with with_options(spark, OPTIONS):
        assert spark.conf.get(DELAY) == "100ms"
    assert spark.conf.get(DELAY, None) is None


def test_a_delay_that_the_user_has_set_stays(spark: SparkSession) -> None:
    spark.conf.set(DELAY, "7ms")
    try:
        with with_options(spark, OPTIONS):
            assert spark.conf.get(DELAY) == "7ms"
        assert spark.conf.get(DELAY) == "7ms"
    finally:
        spark.conf.unset(DELAY)


def test_a_session_that_exists_takes_the_properties_that_can_change(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    partitions = "spark.sql.shuffle.partitions"
    late = {"spark.sql.warehouse.dir": "s3cret", "spark.executor.memory": "7m", "spark.hadoop.fs.s3a.secret": "s3cret"}
    same = {"spark.ui.enabled": "false"}
    before = spark.conf.get(partitions)
    assert before is not None
    with caplog.at_level(logging.WARNING, "holdfast"):
        try:
            assert session_of("points", hf.SparkSettings(config={partitions: "7", **same})).conf.get(partitions) == "7"
            assert not caplog.messages
            session_of("points", hf.SparkSettings(config={**late, **same, partitions: "9"}))
            assert spark.conf.get(partitions) == "9"
        finally:
            spark.conf.set(partitions, before)
    [message] = caplog.messages
    assert f"only when it is created: {', '.join(sorted(late))}. Set them where it is created" in message


def test_a_cancelled_group_starts_no_other_job(spark: SparkSession) -> None:
    """As for a version that is between two jobs when it is cancelled."""
    cancelled, other = (JobGroup(spark.sparkContext, f"group {name}") for name in "ab")
    try:
        cancelled.begin()
        assert spark.range(3).count() == 3
        cancelled.cancel()
        with pytest.raises(Py4JJavaError, match="SPARK_JOB_CANCELLED"):
            spark.range(3).count()
        other.begin()
        assert spark.range(3).count() == 3
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            spark.sparkContext._jsc.setLocalProperty(name, None)


def test_functions_get_rows_where_spark_waits_for_ever_if_they_get_columns() -> None:
    """A program whose function reads a Parquet source is in tests/test_lifecycle.py."""
    [option] = ROWS_TO_FUNCTIONS
    with_release = {
        release: query_options(timedelta(milliseconds=100), local_checkpoint=False, release=release)
        for release in ("4.1.1", "4.2.0", "4.2.1", "4.3.0")
    }
    assert [release for release, options in with_release.items() if option in options] == ["4.2.0", "4.2.1"]


def test_a_source_without_the_limit_of_the_settings_is_refused_with_what_to_write(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Not where a step hides it, nor in another case; a limit of the source's own counts."""
    few = hf.BatchSettings(max_files=5)
    bare = spark.readStream.format("JSON").schema("a string").load(str(tmp_path))
    with pytest.raises(TopologyError, match=re.escape("batch.max_files = 5 doesn't limit the source 'clicks'")) as why:
        check_limits({"clicks": bare.where("a > 'b'").selectExpr("a AS c")}, few)
    assert "Write app.reader('json') instead of spark.readStream.format('json')" in str(why.value)
    assert '.option("maxFilesPerTrigger", 5)' in str(why.value)
    assert check_limits({"clicks": bare}, hf.BatchSettings()) == []
    own = spark.readStream.schema("a string").option("MAXFILESPERTRIGGER", 1).csv(str(tmp_path))
    given = limited_reader(spark, "Parquet", few).schema("a string").load(str(tmp_path))
    assert check_limits({"own": own.select("a"), "given": given}, few) == []
    with pytest.raises(TopologyError, match="the source 'clicks'"):
        check_limits({"given": given, "clicks": bare}, few)


def test_a_limit_for_no_source_is_said(spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load()
    [note] = check_limits({"rate": rate}, hf.BatchSettings(max_records=5))
    assert note == "batch.max_records = 5 limits none of the app's sources: it is for kafka"


def test_a_start_refuses_a_limit_that_does_nothing(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    write(tmp_path / "input", 2, [game("alice", 1)])
    few = hf.BatchSettings(max_files=2)

    def app(folder: Path, *, limited: bool) -> hf.App:
        app = hf.App("points", settings=hf.Settings(base_dir=str(folder), batch=few, rest=REST), spark=spark)
        reader = app.reader("parquet") if limited else spark.readStream.format("parquet")
        frame = reader.schema("player string, points long, at timestamp").load(str(tmp_path / "input"))
        app.stream(frame, key="player", timestamp="at").group_by().count().store("points")
        return app

    with pytest.raises(TopologyError, match=r"batch.max_files = 2 doesn't limit .* Write app.reader\('parquet'\)"):
        app(tmp_path / "base", limited=False).start()
    assert not (tmp_path / "base").exists(), "nothing was written"
    with app(tmp_path / "base", limited=True) as limited:
        limited.process_all_available()
        assert limited.version == 1
