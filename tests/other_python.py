"""A program whose `python3` lacks Holdfast: an app on a session that was there before, and Spark's source.

Prints what it finds as JSON. `tests/test_spark_source.py` starts it.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import holdfast as hf
from tests.apps import INTERPRETED, settings


def main(folder: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(map=dict(INTERPRETED))
    session = builder.getOrCreate()
    app = hf.App("points", settings=settings(folder))
    reader = app.reader("parquet").schema("player string, points long, at timestamp")
    stream = app.stream(reader.load(str(folder / "input")), key="player", timestamp="at")
    stream.group_by().aggregate(points=hf.sum("points")).store("points")
    with app:
        app.process_all_available()
        other = session.newSession()  # as in a program without an app
        hf.prepare_session(other)
        read = [each.read.format("holdfast").option("address", str(app.address)) for each in (session, other)]
        found = [{row["player"]: row["points"] for row in each.load("points").collect()} for each in read]
    print(json.dumps({"found": found, "one session": app.spark is session}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
