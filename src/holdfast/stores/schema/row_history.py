"""The schema history of an aggregate's rows: the log numbers their schemas, and a column is found by its name."""

from functools import lru_cache

import msgspec

from holdfast.stores.formats.cells import FIRST_SCHEMA
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.schema.text import FieldSchema, Record, Scalar, fingerprint_of, parse, text_of
from holdfast.stores.spec import KEEP_AND_ADD, NumberedSchema, StoreSpec

UNSTABLE_INPUT = "..."
"""Stands for an input whose text can differ from start to start: then only the function is compared."""


def numbered_rows(number: int, schema: Schema) -> NumberedSchema:
    """The schema of rows as it is in the app's file.

    >>> numbered_rows(2, Schema.of(n="bigint", spent="decimal(10,2)")).fields
    '{n: bigint, spent: decimal(10,2)}'
    """
    record = Record(tuple(FieldSchema(field.name, Scalar(field.type)) for field in schema.fields))
    return NumberedSchema(number, fingerprint_of(record), text_of(record))


def row_schemas(spec: StoreSpec) -> dict[int, Schema]:
    """The schema of each number that rows of a store may have."""
    return {version.number: _row_schema(version.fields) for version in spec.schemas} | {spec.schema: spec.columns}


def surviving(spec: StoreSpec, number: int) -> frozenset[str]:
    """The columns of a schema number that still exist. A column that was removed and added again starts over."""
    return _surviving(tuple(sorted(row_schemas(spec).items())), number, spec.schema)


@lru_cache(maxsize=256)
def _surviving(schemas: tuple[tuple[int, Schema], ...], number: int, newest: int) -> frozenset[str]:
    between = [frozenset(schema.names) for n, schema in schemas if number <= n <= newest]
    return frozenset.intersection(*between)


@lru_cache(maxsize=256)
def _row_schema(text: str) -> Schema:
    record = parse(text)
    assert isinstance(record, Record)
    return Schema(tuple(Field(field.name, text_of(field.schema)) for field in record.fields))


def merged(log: StoreSpec, code: StoreSpec) -> StoreSpec:
    """The spec for the log when code starts. A table whose columns changed gets the next schema number."""
    if log.value == code.value:
        return msgspec.structs.replace(code, schema=log.schema, schemas=log.schemas)
    history = log.schemas or (numbered_rows(FIRST_SCHEMA, log.columns),)
    number = log.schema + 1
    return msgspec.structs.replace(code, schema=number, schemas=(*history, numbered_rows(number, code.columns)))


def effective(log: StoreSpec, code: StoreSpec) -> StoreSpec:
    """The spec that code uses: rows are written in the newest schema, which has a column for each of the code."""
    return merged(log, code)


def unreadable(log: StoreSpec, code: StoreSpec) -> list[str]:
    """Why the code can't read stored rows, one sentence each, with the next step."""
    before = {field.name: field.type for field in log.columns.fields}
    became = _became(log, code)
    lines = [
        f"store {code.name!r} has {label} as {was} in the log and as {now} in the code, and one can't become the "
        f"other. Give the changed aggregate another name with from_now=True, or {KEEP_AND_ADD}; if only the input "
        "was renamed, rename it back first: stream.with_column(...)"
        for label, (was, now) in became.items()
    ]
    for field in code.columns.fields:
        label = field.hidden_in or field.name
        if label in became:
            continue
        if field.name in before and before[field.name] != field.type:
            lines.append(
                f"store {code.name!r} has column {field.name} {before[field.name]} in the log and {field.type} in the "
                "code. Give the changed aggregate another name with from_now=True, or cast its column back"
            )
        elif field.name not in before and field.name == label and label not in code.from_now:
            lines.append(
                f"store {code.name!r} gained the aggregate {label}, and earlier records are not counted in it. Set "
                f"from_now=True on {label}, and it starts with new records; or give the app a new id, which "
                "aggregates all records the source still has"
            )
        elif field.name not in before and field.name != label and label in before and label not in code.from_now:
            lines.append(
                f"store {code.name!r} has {label} in the log without {field.name}, which the code's aggregate needs. "
                "Give the changed aggregate another name with from_now=True"
            )
    return lines


def _became(log: StoreSpec, code: StoreSpec) -> dict[str, tuple[str, str]]:
    """By name, the aggregates that compute something else now: what they computed, and what they compute."""
    before = dict(log.aggregates)
    return {label: (was, now) for label, now in code.aggregates if (was := before.get(label)) and not _same(was, now)}


def _same(one: str, other: str) -> bool:
    """Whether two aggregates are the same, by their texts.

    >>> _same("sum(a)", "sum(a)"), _same("sum(a)", "sum(...)"), _same("sum(a)", "max(...)")
    (True, True, False)
    """
    functions = {text.partition("(")[0] for text in (one, other)}
    unknown = any(text.endswith(f"({UNSTABLE_INPUT})") for text in (one, other))
    return one == other or (unknown and len(functions) == 1)
