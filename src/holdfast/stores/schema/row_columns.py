"""Columns of rows of several schemas as columns of the newest: what a table reads after its columns changed."""

from collections.abc import Container

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.codecs.values import unknown_schema
from holdfast.stores.formats.rows import decode_rows, encode_rows
from holdfast.stores.schema.row_history import row_schemas, surviving
from holdfast.stores.spec import StoreSpec

_NOTHING = pa.scalar(None, pa.binary())


def newest_rows(spec: StoreSpec, payloads: pa.BinaryArray, schemas: pa.UInt16Array) -> pa.BinaryArray:
    """Rows of any schemas as rows of the newest; the same object if all rows are of the newest already."""
    if _all_newest(spec, schemas):
        return payloads
    rows = encode_rows(spec.columns, decode_columns(spec, payloads, schemas))
    return rows if payloads.null_count == 0 else pc.if_else(pc.is_valid(payloads), rows, _NOTHING)


def decode_columns(
    spec: StoreSpec, payloads: pa.BinaryArray, schemas: pa.UInt16Array, only: Container[str] | None = None
) -> list[pa.Array]:
    """The columns of `spec.columns`, or those with these names, in their order.

    They are null where there is no row, and in columns that the schema of the row didn't have.
    """
    if _all_newest(spec, schemas):
        return decode_rows(spec.columns, payloads, only)
    known = row_schemas(spec)
    fields = [field for field in spec.columns.fields if only is None or field.name in only]
    columns = {field.name: pa.nulls(len(payloads), field.field_type.arrow) for field in fields}
    for number in pc.unique(schemas.drop_null()).to_pylist():
        if number not in known:
            raise unknown_schema(spec, number)
        is_of = pc.fill_null(pc.equal(schemas, pa.scalar(number, pa.uint16())), False)
        kept = surviving(spec, number)
        rows = decode_rows(known[number], pc.if_else(is_of, payloads, _NOTHING))
        for field, column in zip(known[number].fields, rows, strict=True):
            if field.name in kept and field.name in columns:
                columns[field.name] = pc.if_else(is_of, column, columns[field.name])
    return list(columns.values())


def _all_newest(spec: StoreSpec, schemas: pa.UInt16Array) -> bool:
    # min_max ignores nulls and is null if there is nothing else.
    bounds = pc.min_max(schemas).as_py()
    return bounds["min"] is None or bounds["min"] == bounds["max"] == spec.schema
