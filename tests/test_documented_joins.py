"""Kafka Streams' documented tables of joins, on real Spark."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.words import Version
from tests.apps import read, settings, write
from tests.documented_joins import OUTPUTS, SECONDS, SOURCES, batch_at, build, check

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_every_join_gives_the_documented_rows(spark: SparkSession, tmp_path: Path) -> None:
    """One app with every join, one version per step. In the quick tests, the test driver runs it."""
    for number, second in enumerate(SECONDS):
        for name, rows in batch_at(second).items():
            named = "fk" if name == "orders" else "value"
            columns = [("id", pa.string()), (named, pa.string()), ("gone", pa.bool_())]
            write(tmp_path / name, number, rows, pa.schema([*columns, ("at", pa.timestamp("us", "UTC"))]))
    app = hf.App("documented", settings=settings(tmp_path, batch=hf.BatchSettings(idle_interval="1h")), spark=spark)
    build(app, {name: read(spark, tmp_path / name, columns) for name, columns in SOURCES.items()})
    sinks = {name: hf.memory() for name in OUTPUTS}
    for name, sink in sinks.items():
        app._topology.add_sink(name, sink, name)
    with app:
        app.process_all_available()
        assert app.version == len(SECONDS)
    check(
        {
            name: {second: sink.versions.get(Version(n), []) for n, second in enumerate(SECONDS, 1)}
            for name, sink in sinks.items()
        }
    )
