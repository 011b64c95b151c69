"""An app that runs until Ctrl-C. Each task waits for the file `go`, so that a batch is under way as long as needed.

python -m tests.interrupted <folder>
"""

import signal
import sys
import time
from pathlib import Path

from pyspark.sql import functions as F

import holdfast as hf
from tests.apps import points_app


def main(folder: Path) -> None:
    # A shell that starts the tests in the background lets its programs ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    spark = hf.App("session", settings=hf.Settings(spark=hf.SparkSettings(master="local[2]"))).spark
    spark.sparkContext.setLogLevel("ERROR")

    def waits(points: int) -> int:
        (folder / "busy").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
        return points

    def change(stream: hf.Stream) -> hf.Stream:
        return stream.with_column("points", F.udf(waits, "long")("points"))

    points_app(spark, folder, change, stop_timeout="60s").run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
