"""A sink into a database that sees each version once, although it is told some twice.

A user's function is at least once: after a crash it gets the last version again. Written by version, that changes
nothing: a row is only replaced by one of a newer version, and one transaction covers rows and version.
"""

import sqlite3
from pathlib import Path

import pyarrow as pa

import holdfast as hf
from holdfast import Table


class SqliteUpsert:
    """Upserts each version's rows into a table with the columns player, total and version."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, version: int, rows: pa.Table) -> None:
        with sqlite3.connect(self._path) as database:
            database.execute("CREATE TABLE IF NOT EXISTS players (player TEXT PRIMARY KEY, total INT, version INT)")
            database.executemany(
                "INSERT INTO players VALUES (?, ?, ?) ON CONFLICT (player) DO UPDATE "
                "SET total = excluded.total, version = excluded.version WHERE excluded.version > players.version",
                [(row["player"], row["total"], version) for row in rows.select(["player", "total"]).to_pylist()],
            )


def keep_in_sqlite(table: Table, path: Path) -> None:
    """Sends a table's rows to SQLite."""
    table.sink(hf.foreach(SqliteUpsert(path)), name="sqlite")
