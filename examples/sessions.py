"""Visits to a shop, built from clicks: a processor with three kinds of stores.

.venv/bin/python examples/sessions.py     # makes up some clicks, processes them, prints the visits and ends
"""

import json
import os
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

import holdfast as hf


class Click(msgspec.Struct):
    """The columns of the stream that the processor uses."""

    page: str
    at: datetime


class Visitor(msgspec.Struct, frozen=True):
    """What is known about a visitor."""

    clicks: int = 0
    last_page: str = ""


class Visits(hf.Processor):
    """Clicks less than half an hour apart are one visit."""

    visitors = hf.KeyValueStore("visitors", value=Visitor, ttl="90d")
    visits = hf.SessionStore("visits", value=int, gap="30m")
    hours = hf.WindowStore("clicks-by-hour", value=int, size="1h", retention="7d")

    def process(self, key: str, event: Click, ctx: hf.Context) -> None:
        visitor = self.visitors.get(key, Visitor())
        self.visitors[key] = Visitor(visitor.clicks + 1, event.page)
        hour = ctx.timestamp // 3_600_000 * 3_600_000
        self.hours.put(key, (self.hours.fetch(key, hour) or 0) + 1, hour)
        visit = self.visits.merge(key, ctx.timestamp, None, lambda one, other: one + other, 1)
        if visit is not None and event.page == "checkout":
            ctx.forward(key, {"clicks": self.visits.get(key, visit.start, visit.end), "at": event.at})


def write_clicks(folder: Path) -> None:
    """Two files of made-up clicks. The second has a late click that joins two visits."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    clicks = [
        [("ann", "shoes", 0), ("bob", "hats", 5), ("ann", "hats", 20), ("ann", "checkout", 70)],
        [("ann", "shoes", 45), ("bob", "checkout", 50), ("bob", "thanks", 51)],
    ]
    folder.mkdir()
    for number, batch in enumerate(clicks):
        lines = [
            json.dumps({"visitor": visitor, "page": page, "at": (noon + timedelta(minutes=minutes)).isoformat()})
            for visitor, page, minutes in batch
        ]
        path = folder / f"{number}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark takes the older file first


def build(spark: SparkSession, folder: Path) -> hf.App:
    """The app over the clicks in `folder/clicks`."""
    settings = hf.Settings(base_dir=str(folder / "holdfast"), partitions=2, rest=hf.RestSettings(port=0))
    app = hf.App("visits", settings=settings, spark=spark)
    clicks = (
        spark.readStream.schema("visitor string, page string, at timestamp")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder / "clicks"))
    )
    visits = app.stream(clicks, key="visitor", timestamp="at").process(
        Visits, output="visitor string, clicks bigint, at timestamp"
    )
    visits.sink(hf.console())
    return app


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        write_clicks(Path(folder) / "clicks")
        with build(spark, Path(folder)) as app:
            app.process_all_available()
            print(app.describe())
    spark.stop()


if __name__ == "__main__":
    main()
