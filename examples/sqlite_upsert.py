"""A sink that writes each version to a database exactly once, although it may get a version twice.

    .venv/bin/python examples/sqlite_upsert.py      # reads examples/data/games, prints the table and ends

A sink gets each version at least once: after a crash it gets the last version again. The database therefore stores the
newest version and the id of its commit in the same transaction as the rows, and ignores a version that it already has.
If the log is set back to an older state, such as a backup, other commits get the numbers of versions that are in the
database; so when the app starts, the sink compares what it has with the log, and refuses. When a store deletes a key
(`max_entries=`), the row has `_deleted` set and is deleted here too.
"""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import Table


class SqliteUpsert:
    """Keeps the newest row per player in a table with the columns player, total and version."""

    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, timeline: hf.Timeline) -> None:
        with closing(sqlite3.connect(self._path)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS players (player TEXT PRIMARY KEY, total INT, version INT)")
            database.execute(
                "CREATE TABLE IF NOT EXISTS written (one INT PRIMARY KEY CHECK (one = 1), version INT, commit_id TEXT)"
            )
            if (newest := self._newest(database)) is not None:
                timeline.check(*newest, place=f"the database {self._path}")

    def write(self, version: int, commit: str, rows: Iterator[hf.Rows]) -> None:
        tables = [part.table for part in rows]
        if not tables:
            return
        with closing(sqlite3.connect(self._path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            newest = self._newest(database)
            if newest is None or version > newest[0]:
                self._write(database, version, pa.concat_tables(tables))
                database.execute("REPLACE INTO written VALUES (1, ?, ?)", (version, commit))
            database.execute("COMMIT")

    def _newest(self, database: sqlite3.Connection) -> tuple[int, str] | None:
        """The newest version in the database, and the id of its commit."""
        row: tuple[int, str] | None = database.execute("SELECT version, commit_id FROM written").fetchone()
        return row

    def _write(self, database: sqlite3.Connection, version: int, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            if row.get("_deleted"):  # only stores that can delete have this column
                database.execute("DELETE FROM players WHERE player = ?", (row["player"],))
            else:
                database.execute("REPLACE INTO players VALUES (?, ?, ?)", (row["player"], row["total"], version))


def keep_in_sqlite(table: Table, path: Path) -> None:
    """Sends the changed rows of a table to SQLite."""
    table.sink(SqliteUpsert(path), name="sqlite")


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    games = spark.readStream.schema("player string, points int, at timestamp").json(
        str(Path(__file__).parent / "data" / "games")
    )
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "players.sqlite")
        app = hf.App("upsert", settings=hf.Settings(base_dir=folder, rest=hf.RestSettings(port=0)), spark=spark)
        stream = app.stream(games, key="player", timestamp="at")
        keep_in_sqlite(stream.group_by().aggregate(total=hf.sum("points")).store("players"), database)
        with app:
            app.process_all_available()
        with closing(sqlite3.connect(database)) as rows:
            for player, total, version in rows.execute("SELECT * FROM players ORDER BY total DESC"):
                print(f"{player:<8}{total:>6} points, last changed by version {version}")


if __name__ == "__main__":
    main()
