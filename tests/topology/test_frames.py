"""Expressions as messages show them."""

import pytest
from pyspark.sql import Column
from pyspark.sql import functions as F

from holdfast.topology.frames import written


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_an_expression_is_shown_in_the_same_way_each_time() -> None:
    """Reasons of dead letters have it, and are compared and grouped."""
    assert [written(each) for each in expressions()] == [written(each) for each in expressions()]
    assert [written(each) for each in expressions()] == [
        "Column<'twice(points)'>",
        "Column<'twice(...)'>",
        "Column<'transform(x, x_1 -> transform(y, x_2 -> +(x_1, x_2)))'>",
        "Column<'aggregate(x, 0, (x_1, y_2) -> +(x_1, y_2))'>",
        "Column<'concat('home -> town', x_7)'>",
    ]


def expressions() -> list[Column]:
    """Each call makes new ones, which Spark numbers on."""

    def twice(points: int) -> int:
        return 2 * points

    on_spark = F.udf(twice, "int")
    return [
        on_spark("points"),
        on_spark(F.col("points") + 1),
        F.transform("x", lambda each: F.transform("y", lambda other: each + other)),
        F.aggregate("x", F.lit(0), lambda total, each: total + each),
        F.concat(F.lit("home -> town"), "x_7"),
    ]
