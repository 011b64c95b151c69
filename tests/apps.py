"""Apps for tests: small settings, files as a source, results over REST."""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from examples.sqlite_upsert import SqliteUpsert
from holdfast.words import Version

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ENGINES = ["rocksdb", pytest.param("memory", marks=pytest.mark.slow)]
"""Where both engines do the same for seconds, the second one is for `make crash`: engines have tests of their own."""

# Tests run hundreds of plans once, over a few records each. Without compiling each plan to bytecode the JVM took 84
# s of processor time for 29 of these tests instead of 102. Programs that users would start, such as `test_lifecycle.py`
# does, have Spark's defaults; other tests ask for `compiled_plans`.
INTERPRETED: dict[str, str] = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings of Spark for short tests."""

PAGE = 25
"""Small pages, so that stores are read through cursors too."""

RECORD = pa.schema([("player", pa.string()), ("points", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def game(player: str | None, points: int | None = 1, at: datetime | None = NOON) -> dict[str, Any]:
    return {"player": player, "points": points, "at": at}


def write(folder: Path, number: int, records: Sequence[Mapping[str, Any]], schema: pa.Schema = RECORD) -> None:
    """Writes one file of records, which is one batch. Files are read in the order of their numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    path, hidden = folder / f"{number:04d}.parquet", folder / f"_{number:04d}"
    pq.write_table(pa.Table.from_pylist(list(records), schema), hidden)
    # Spark may list the folder at any moment: with today's time on this file it would ignore those that come after.
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    hidden.rename(path)


def read(spark: SparkSession, folder: Path, schema: str = "player string, points long, at timestamp") -> DataFrame:
    """The folder as a stream, one file per batch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def settings(folder: Path, **changes: Any) -> hf.Settings:
    chosen: dict[str, Any] = {
        "base_dir": str(folder / "base"),
        "partitions": 2,
        "rest": hf.RestSettings(port=0),
        "retry": hf.RetrySettings(attempts=3, first="10ms", longest="50ms"),
        **changes,
    }
    return hf.Settings(**chosen)


def points_app(
    session: SparkSession,
    folder: Path,
    /,
    change: Callable[[hf.Stream], hf.Stream] = lambda stream: stream,
    sink: hf.Sink | None = None,
    **changes: Any,
) -> hf.App:
    """Games and points per player, from `folder/input`."""
    app = hf.App("points", settings=settings(folder, **changes), spark=session)
    stream = change(app.stream(read(session, folder / "input"), key="player", timestamp="at"))
    table = stream.group_by().aggregate(games=hf.count(), points=hf.sum("points")).store("points")
    if sink is not None:
        table.sink(sink, name="sink")
    return app


def get(app: hf.App, path: str) -> tuple[int, Any]:
    """Status and JSON of a request."""
    try:
        with urllib.request.urlopen(f"{app.address}{path}") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def entries_of(app: hf.App, store: str = "points") -> dict[Any, Any]:
    """All entries of a store at the app's newest version."""
    deadline = time.monotonic() + 60
    while True:
        status, page = get(app, f"/v1/stores/{store}/range?limit={PAGE}")
        assert status == 200, page
        if page["version"] >= app.version:
            break
        assert time.monotonic() < deadline, f"version {page['version']} of {app.version}"
        time.sleep(0.02)
    entries = page["entries"]
    while page.get("cursor"):
        status, page = get(app, f"/v1/stores/{store}/range?limit={PAGE}&cursor={page['cursor']}")
        assert status == 200, page
        entries += page["entries"]
    return {tuple(e["key"]) if isinstance(e["key"], list) else e["key"]: e["value"] for e in entries}


def finish(app: hf.App, store: str = "points") -> dict[Any, Any]:
    """Runs the app until it has processed all input and stops it. Returns the store's entries."""
    with app:
        app.process_all_available()
        return entries_of(app, store)


class Twice:
    """The sink of an example, whose columns have other names, that keeps what it gets and can get it again."""

    kind = "database"

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.upsert = SqliteUpsert(path)
        self._columns = list(columns)
        self._sent: list[tuple[Version, str, list[hf.Rows]]] = []

    def open(self, timeline: hf.Timeline) -> None:
        self.upsert.open(timeline)

    def write(self, version: Version, commit: str, rows: Iterator[hf.Rows]) -> None:
        renamed = [replace(part, table=part.table.rename_columns(self._columns)) for part in rows]
        self._sent.append((version, commit, renamed))
        self.upsert.write(version, commit, iter(renamed))

    def write_again(self) -> None:
        """Every version once more, the newest one first."""
        for version, commit, rows in reversed(self._sent):
            self.upsert.write(version, commit, iter(rows))
