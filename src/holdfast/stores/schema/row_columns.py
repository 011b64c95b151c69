"""Whole columns of rows of several layouts, as columns of the newest: what a table reads after its columns changed."""

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.codecs.values import unknown_schema
from holdfast.stores.formats.rows import decode_rows, encode_rows
from holdfast.stores.schema.history import row_schemas, surviving
from holdfast.stores.spec import StoreSpec

_NOTHING = pa.scalar(None, pa.binary())


def newest_rows(spec: StoreSpec, payloads: pa.BinaryArray, schemas: pa.UInt16Array) -> pa.BinaryArray:
    """Rows of whatever layouts as rows of the newest; the very same column where they all are already."""
    if _all_newest(spec, schemas):
        return payloads
    rows = encode_rows(spec.columns, decode_columns(spec, payloads, schemas))
    return rows if payloads.null_count == 0 else pc.if_else(pc.is_valid(payloads), rows, _NOTHING)


def decode_columns(spec: StoreSpec, payloads: pa.BinaryArray, schemas: pa.UInt16Array) -> list[pa.Array]:
    """The columns of `spec.columns`; null where there is no row, and in columns that a row's layout didn't have."""
    if _all_newest(spec, schemas):
        return decode_rows(spec.columns, payloads)
    layouts = row_schemas(spec)
    columns = {field.name: pa.nulls(len(payloads), field.field_type.arrow) for field in spec.columns.fields}
    for number in pc.unique(schemas.drop_null()).to_pylist():
        if number not in layouts:
            raise unknown_schema(spec, number)
        is_of = pc.fill_null(pc.equal(schemas, pa.scalar(number, pa.uint16())), False)
        kept = surviving(spec, number)
        rows = decode_rows(layouts[number], pc.if_else(is_of, payloads, _NOTHING))
        for field, column in zip(layouts[number].fields, rows, strict=True):
            if field.name in kept:
                columns[field.name] = pc.if_else(is_of, column, columns[field.name])
    return [columns[field.name] for field in spec.columns.fields]


def _all_newest(spec: StoreSpec, schemas: pa.UInt16Array) -> bool:
    # min_max passes over nulls and is null where there is nothing else.
    bounds = pc.min_max(schemas).as_py()
    return bounds["min"] is None or bounds["min"] == bounds["max"] == spec.schema
