"""What DuckDB asks of a table while it runs a statement: columns, and conditions on the key.

DuckDB's own Arrow sources are classes that it asks `accepts(predicate)` and `stream(columns, filters)`. Its Python
package takes others through a hook that isn't documented. So this module, the only one that knows it, is written for
one minor release of DuckDB, and a test finds out if the next one differs. The documented way, a subclass of pyarrow's
`Dataset`, gets the filter as an expression that can't be taken apart.

Only conditions on columns of the key and on the times of windows are accepted, because only they save reads. DuckDB
itself applies all others.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from duckdb import DuckDBPyConnection
from duckdb._sources import ArrowScanSource
from duckdb._sources.nodes import Binary, Col, In, Lit, Node

from holdfast.sql.messages import INDEXED, Condition, StoreScan

_TYPES: dict[str, type] = {
    "BOOLEAN": bool,
    "TINYINT": int,
    "SMALLINT": int,
    "INTEGER": int,
    "BIGINT": int,
    "VARCHAR": str,
    "BLOB": bytes,
    "TIMESTAMP WITH TIME ZONE": int,
}
"""Types whose values DuckDB and stored keys order alike. Floats have NaN, so they are left to DuckDB."""

_OPS = ("=", "<", "<=", ">", ">=")

Opener = Callable[[StoreScan], pa.RecordBatchReader]


class TableSource(ArrowScanSource):
    """A table whose rows are fetched when DuckDB scans it."""

    schema_is_stable = True

    def __init__(self, name: str, schema: pa.Schema, open_: Opener) -> None:
        super().__init__(None)
        self._name, self._open = name, open_
        indexed = (schema.metadata or {}).get(INDEXED, b"")
        self._indexed = frozenset(each.decode() for each in indexed.split(b"\x00") if each)
        self._schema = schema.remove_metadata()

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def accepts(self, predicate: Node) -> bool:
        return conditions_in(predicate, self._indexed) is not None

    def stream(self, columns: Sequence[int] | None, filters: Sequence[Node]) -> tuple[object, bool]:
        names = self._schema.names if columns is None else [self._schema.names[n] for n in columns]
        wanted = [condition for each in filters for condition in conditions_in(each, self._indexed) or ()]
        reader = self._open(StoreScan(self._name, tuple(names), tuple(wanted)))
        return reader.__arrow_c_stream__(), columns is not None


def register(connection: DuckDBPyConnection, name: str, source: TableSource) -> None:
    connection._register_arrow_source(name, source)


def conditions_in(node: Node, indexed: frozenset[str]) -> list[Condition] | None:
    """A predicate as conditions that all have to be met; None if it is anything else.

    >>> keys = frozenset({"player"})
    >>> conditions_in(Binary("=", Col(("player",)), Lit("ann", "VARCHAR")), keys)
    [Condition(column='player', op='=', values=('ann',))]
    >>> conditions_in(Binary(">", Col(("points",)), Lit(1, "BIGINT")), keys) is None
    True
    """
    found: list[Condition] = []
    pending: list[Node] = [node]
    while pending:
        match pending.pop():
            case Binary("AND", left, right):
                pending += [right, left]
            case Binary(op, Col((name,)), Lit() as literal) if op in _OPS and name in indexed and _is_known(literal):
                found.append(Condition(name, op, (_value(literal),)))
            case In(Col((name,)), values) if name in indexed and all(_is_known(each) for each in values):
                found.append(Condition(name, "in", tuple(_value(each) for each in values)))
            case _:
                return None
    return found


def _is_known(node: Node) -> bool:
    return isinstance(node, Lit) and node.type in _TYPES and type(node.value) is _TYPES[node.type]


def _value(node: Node) -> Any:
    assert isinstance(node, Lit)
    return node.value
