"""The app of the cluster tests: counts and sums per account, on a Spark cluster, with its state on other processes.

    python -m tests.cluster.counting <folder> <spark master> <S3 options as JSON> <standbys>

It runs until its standard input is closed, then processes what is left and says how many versions there are.
"""

import json
import logging
import sys
from pathlib import Path

import holdfast as hf
from tests.apps import INTERPRETED, read
from tests.s3 import BUCKET

APP = "accounts"
LOG_URL = f"s3://{BUCKET}/{APP}"
SCHEMA = "account string, amount long, at timestamp"


def build(folder: Path, master: str, options: dict[str, str], standbys: int) -> hf.App:
    config = {
        **INTERPRETED,
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.driver.host": "127.0.0.1",
    }
    settings = hf.Settings(
        base_dir=str(folder / "driver"),
        partitions=6,
        instances="external",
        standbys=standbys,
        log=hf.LogSettings(url=LOG_URL, options=options, clean_interval="2s"),
        snapshots=hf.SnapshotSettings(bytes="64KiB", age="5s"),
        spark=hf.SparkSettings(master=master, config=config),
        rest=hf.RestSettings(port=0),
    )
    app = hf.App(APP, settings=settings)
    app.spark.sparkContext.setLogLevel("ERROR")
    source = read(app.spark, folder / "input", SCHEMA)
    stream = app.stream(source, key="account", timestamp="at")
    stream.group_by().aggregate(n=hf.count(), total=hf.sum("amount")).store("accounts")
    return app


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    folder, master, options, standbys = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
    with build(folder, master, options, standbys) as app:
        print("running", flush=True)
        sys.stdin.read()
        app.process_all_available()
        print(json.dumps({"version": app.version}), flush=True)


if __name__ == "__main__":
    main()
