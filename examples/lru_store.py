"""Stores of a fixed size: the entries that were used last stay, the others are evicted.

    .venv/bin/python examples/lru_store.py       # writes visits of pages, prints what the stores have kept, and ends

`max_entries=3` is a number per partition; this app has one partition, so each store has at most three pages.

- as an aggregate: `recent-pages` counts the visits of the pages that were visited last. Sinks get a row with `_deleted`
  for a page that is evicted.
- as a processor: `page-cache` is a cache in front of something slow. A hit counts as use (`refresh_on_read=True`), so a
  page that is read again and again stays.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

import holdfast as hf

VISITS = "page string, visitor string, at timestamp"
BATCHES = [
    [
        {"page": "home", "visitor": "ann", "at": "2026-01-01T12:00:00Z"},
        {"page": "hats", "visitor": "ann", "at": "2026-01-01T12:00:01Z"},
        {"page": "shoes", "visitor": "bob", "at": "2026-01-01T12:00:02Z"},
    ],
    [
        {"page": "home", "visitor": "bob", "at": "2026-01-01T12:01:00Z"},
        {"page": "socks", "visitor": "bob", "at": "2026-01-01T12:01:01Z"},
    ],
]


class Visit(msgspec.Struct):
    visitor: str


class Render(hf.Processor):
    """Renders a page unless it was rendered not long ago."""

    cache = hf.KeyValueStore("page-cache", value=str, max_entries=3, refresh_on_read=True)

    def process(self, key: str, event: Visit, ctx: hf.Context) -> None:
        if self.cache.get(key) is None:
            self.cache[key] = f"<h1>{key}</h1>"
            ctx.forward(key, {"rendered_for": event.visitor})


def build(app: hf.App, visits: Any, recent: hf.Sink, rendered: hf.Sink) -> None:
    """The topology, of a streaming DataFrame or of the records of a test."""
    stream = app.stream(visits, key="page", timestamp="at", name="visits")
    stream.group_by().aggregate(visits=hf.count()).store("recent-pages", max_entries=3).sink(recent)
    stream.process(Render, output="page string, rendered_for string").sink(rendered)


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "visits")
        source.mkdir()
        app = hf.App("lru", settings=hf.Settings(base_dir=folder, partitions=1), spark=spark)
        recent, rendered = hf.memory(), hf.memory()
        build(app, spark.readStream.schema(VISITS).json(str(source)), recent, rendered)
        with app:
            for number, visits in enumerate(BATCHES):
                Path(source, f"{number}.json").write_text("\n".join(map(json.dumps, visits)))
                app.process_all_available()
        print("evicted:", [row["page"] for row in recent.rows() if row["_deleted"]])
        print("rendered:", [row["page"] for row in rendered.rows()])


if __name__ == "__main__":
    main()
