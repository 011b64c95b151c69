"""Tombstones from a reducer: returning None deletes the key, and whoever follows the table is told.

    .venv/bin/python examples/tombstones.py      # writes changes of a stock, prints what a sink gets, and ends

The stock of an article is the sum of its changes. When nothing is left, the article is deleted from the store. Its last
row has `_deleted`, so that a copy of the table elsewhere can delete it too.

    changes    hats +5   socks +1   hats -2   ─►   socks -1           shoes +4
    stock      hats: 3   socks: 1             ─►   (no socks)         shoes: 4
    a sink     hats 3    socks 1              ─►   socks, _deleted    shoes 4
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf

CHANGES = "article string, change int, at timestamp"
MORNING = [
    {"article": "hats", "change": 5, "at": "2026-01-01T08:00:00Z"},
    {"article": "socks", "change": 1, "at": "2026-01-01T08:00:01Z"},
    {"article": "hats", "change": -2, "at": "2026-01-01T08:30:00Z"},
]
EVENING = [
    {"article": "socks", "change": -1, "at": "2026-01-01T18:00:00Z"},
    {"article": "shoes", "change": 4, "at": "2026-01-01T18:10:00Z"},
]


def left(stock: int, change: int) -> int | None:
    """What is left, None for nothing."""
    return (stock + change) or None


def build(app: hf.App, changes: Any) -> hf.ReducedTable:
    """The topology, of a streaming DataFrame or of the records of a test."""
    stream = app.stream(changes, key="article", timestamp="at", name="changes")
    return stream.group_by().reduce(left, of="change").store("stock")  # GET /v1/stores/stock/keys/hats


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "changes")
        source.mkdir()
        app = hf.App("stock", settings=hf.Settings(base_dir=folder), spark=spark)
        rows = hf.memory()
        build(app, spark.readStream.schema(CHANGES).json(str(source))).sink(rows)
        with app:
            for number, changes in enumerate((MORNING, EVENING)):
                Path(source, f"{number}.json").write_text("\n".join(map(json.dumps, changes)))
                app.process_all_available()
        for row in rows.rows():
            print(row["article"], "deleted" if row["_deleted"] else row["value"])


if __name__ == "__main__":
    main()
