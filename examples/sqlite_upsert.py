"""A sink into a database that sees each version once, although it is told some twice.

A user's function is at least once: after a crash it gets the last version again. The database notes which version it
has, in the same transaction as the rows, and does nothing for one that it has already. A row of a key that its store
lets go of (`max_entries=`) comes with `_deleted` and goes here too; since no version is written twice, none revives it.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa

import holdfast as hf
from holdfast import Table


class SqliteUpsert:
    """Keeps each version's rows in a table with the columns player, total and version."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, version: int, rows: pa.Table) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS players (player TEXT PRIMARY KEY, total INT, version INT)")
            database.execute("CREATE TABLE IF NOT EXISTS written (one INT PRIMARY KEY CHECK (one = 1), version INT)")
            database.execute("BEGIN IMMEDIATE")
            newest = database.execute("SELECT version FROM written").fetchone()
            if newest is None or version > newest[0]:
                self._write(database, version, rows)
            database.execute("COMMIT")

    def _write(self, database: sqlite3.Connection, version: int, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            if row.get("_deleted"):  # only rows of a store that can delete have it
                database.execute("DELETE FROM players WHERE player = ?", (row["player"],))
            else:
                database.execute("REPLACE INTO players VALUES (?, ?, ?)", (row["player"], row["total"], version))
        database.execute("REPLACE INTO written VALUES (1, ?)", (version,))


def keep_in_sqlite(table: Table, path: Path) -> None:
    """Sends a table's rows to SQLite."""
    table.sink(hf.foreach(SqliteUpsert(path)), name="sqlite")
