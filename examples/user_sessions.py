"""User sessions: clicks of a user that are at most 30 minutes apart are one session.

    .venv/bin/python examples/user_sessions.py   # reads examples/data/clicks, prints the sessions, and ends

A session grows with each click, and two sessions become one when a late click lies between them. `sessions.py` builds
sessions in a processor; this is the same in three lines.

    ann     ● home    ● shoes         ● checkout                          ● home
            12:00     12:20           12:50                               18:00
            ├─────────────────────────┤                                   ├
              3 clicks, from home to checkout                               1 click
"""

import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf

CLICKS = "user string, page string, at timestamp"


def build(app: hf.App, clicks: Any) -> hf.WindowedTable:
    """The topology, of a streaming DataFrame or of the records of a test."""
    return (
        app.stream(clicks, key="user", timestamp="at", name="clicks")
        .group_by()
        .window(hf.session("30m", grace="5m"))
        .aggregate(clicks=hf.count(), entry=hf.first("page"), exit=hf.last("page"))
        .store("user-sessions", retention="7d")  # GET /v1/stores/user-sessions/sessions/ann
    )


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    clicks = spark.readStream.schema(CLICKS).json(str(Path(__file__).parent / "data" / "clicks"))
    with tempfile.TemporaryDirectory() as folder:
        app = hf.App("user-sessions", settings=hf.Settings(base_dir=folder), spark=spark)
        changes = hf.memory()
        build(app, clicks).sink(changes)
        with app:
            app.process_all_available()
        for row in sorted(changes.rows(), key=lambda row: (row["user"], row["window_start"])):
            start, end = row["window_start"], row["window_end"]
            print(f"{row['user']} {start:%H:%M}-{end:%H:%M}: {row['clicks']} clicks, {row['entry']} to {row['exit']}")


if __name__ == "__main__":
    main()
