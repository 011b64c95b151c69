"""Why a statement has no result.

SqlRefused    INVALID   it isn't one SELECT, or needs files, settings or extensions
SqlMistake    INVALID   DuckDB can't make sense of it: a column that isn't there, a division by zero
SqlNoTable    INVALID   the same: a table that isn't there
SqlTooLarge   INVALID   it needed more time, memory or room for its result than it may have
SqlBusy       RETRY     as many statements as may run at once are running
SqlMissing    INVALID   DuckDB isn't installed
"""

from collections.abc import Sequence

from holdfast.errors import ErrorCategory, HoldfastError


class SqlError(HoldfastError):
    """A statement failed."""

    category = ErrorCategory.INVALID
    error = "sql_failed"


class SqlRefused(SqlError):
    error = "sql_refused"


class SqlMistake(SqlError):
    error = "sql_mistake"


class SqlNoTable(SqlMistake):
    """Has the names of the tables, as they are written in the statement."""

    def __init__(self, message: str, tables: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.tables = tuple(tables)


class SqlTooLarge(SqlError):
    error = "sql_too_large"


class SqlMissing(SqlError):
    error = "sql_missing"


class SqlBusy(SqlError):
    category = ErrorCategory.RETRY
    error = "sql_busy"


KINDS = {kind.__name__: kind for kind in (SqlRefused, SqlMistake, SqlNoTable, SqlTooLarge)}
"""The errors that a worker reports."""
