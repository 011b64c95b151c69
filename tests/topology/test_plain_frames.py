"""The Spark session on which a test driver runs stateless steps."""

import sys

import pytest
from pyspark.sql import SparkSession

from holdfast.topology.plain_frames import local_session


@pytest.mark.spark
def test_functions_run_under_the_python_of_the_test(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not under the first `python3` in `PATH`, which Spark takes."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3")
    assert local_session().sparkContext.pythonExec == sys.executable
