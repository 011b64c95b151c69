"""Keys drawn at random before the shuffle, and an executor that is killed in the middle of the batch.

    python -m tests.crash.lost_executor <folder>

The stage before the shuffle runs again with other keys; mixing its two runs would count some records twice and lose
others. Prints how many records the store counts, and how many there were.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from tests.apps import entries_of, settings

RECORDS = 40_000


def main(folder: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.executorEnv.HOLDFAST_FAULT", os.environ["HOLDFAST_FAULT"])
        .config("spark.executorEnv.HOLDFAST_FAULT_DIR", os.environ["HOLDFAST_FAULT_DIR"])
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    source = folder / "input"
    spark.range(0, RECORDS, 1, 8).write.parquet(str(source))
    draw = F.expr("CAST(500 * CAST(reflect('java.lang.Math', 'random') AS double) AS int)")  # differs per run
    stream = spark.readStream.schema("id long").parquet(str(source)).withColumn("key", draw)
    app = hf.App("lost", settings=settings(folder, partitions=4), spark=spark)
    app.stream(stream, key="key").group_by().count().store("points")
    with app:
        app.process_all_available()
        counted = sum(value["count"] for value in entries_of(app).values())
    print(json.dumps({"counted": counted, "records": RECORDS, "version": app.version}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
