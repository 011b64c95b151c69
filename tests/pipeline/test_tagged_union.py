"""Several sources in one frame, on real Spark: each source gets its own rows back."""

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.tagged_union import TaggedUnion


@pytest.mark.spark
def test_each_source_gets_its_rows_also_those_without_values(spark: SparkSession) -> None:
    games = spark.createDataFrame([("ann", 1), (None, None)], "player string, points int")
    chats = spark.createDataFrame([("hi",), (None,)], "text string")
    union = TaggedUnion([("games", games), ("chats", chats)])
    assert [tuple(row) for row in union.of_source(union.frame, "games").collect()] == [("ann", 1), (None, None)]
    assert [tuple(row) for row in union.of_source(union.frame, "chats").collect()] == [("hi",), (None,)]
    assert union.frame.columns == ["s0", "s1"]  # a batch is cached, and each column costs time
