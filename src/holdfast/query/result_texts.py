"""Results of SQL as JSON and CSV, made a batch of rows at a time.

A value as a Python object takes up to 16 times as much memory as in a column. So only the objects of one batch exist at
a time, and the memory of an answer is that of its text, which is limited as the columns are.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.csv

from holdfast.query.render import rows_of, to_json
from holdfast.sql.errors import SqlTooLarge
from holdfast.stores.formats.arrow_values import python_values

_BATCH_ROWS: Final = 1_000
_BATCH_BYTES: Final = 1 << 20


def json_rows(rows: pa.Table, most: int) -> bytearray:
    """The rows as a JSON array of arrays, of `most` bytes at most.

    >>> json_rows(pa.table({"a": [1, 2], "b": ["x", None]}), 100)
    bytearray(b'[[1,"x"],[2,null]]')
    """
    text = bytearray(b"[")
    for batch in _batches(rows):
        if len(text) > 1:
            text += b","
        text += msgspec.json.encode(rows_of(batch))[1:-1]
        _check(len(text), most, "JSON")
    text += b"]"
    return text


def csv_of(rows: pa.Table, most: int) -> bytes:
    """The rows as CSV with a header, of `most` bytes at most. What isn't a plain value is JSON text."""
    sink = pa.BufferOutputStream()
    texts = pa.schema([(field.name, field.type if _is_plain(field.type) else pa.string()) for field in rows.schema])
    with pyarrow.csv.CSVWriter(sink, texts) as writer:
        for batch in _batches(rows):
            writer.write_table(pa.table([_plain(column) for column in batch.columns], schema=texts))
            _check(sink.tell(), most, "CSV")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _batches(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in tables of 1,000, or of fewer if these have more than a mebibyte."""
    if not rows.num_rows:
        return
    size = max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows.num_rows // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def _check(size: int, most: int, format_: str) -> None:
    if size > most:
        raise SqlTooLarge(
            f"The result has more than {most >> 20} MiB as {format_}. Select fewer rows or columns, or ask for Arrow "
            "with Accept: application/vnd.apache.arrow.stream."
        )


def _is_plain(type_: pa.DataType) -> bool:
    simple = pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_boolean
    return any(is_it(type_) for is_it in simple)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if _is_plain(column.type):
        return column
    shown = [None if value is None else to_json(value) for value in python_values(column)]
    texts = [each if each is None or isinstance(each, str) else msgspec.json.encode(each).decode() for each in shown]
    return pa.chunked_array([pa.array(texts, pa.string())])
