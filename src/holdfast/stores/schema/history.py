"""Schema history: the schemas that a store's values have had, by number, and whether code can read them.

The type of a typed value declares its schema number. The rows of an aggregate have no such type, so the log numbers
their schemas (`row_history`). In both cases a cell has the number of its schema, and the app's file has the schema.
"""

import msgspec

from holdfast.stores.codecs.avro import AVRO
from holdfast.stores.schema import row_history
from holdfast.stores.schema.compatibility import obstacles
from holdfast.stores.schema.text import parse
from holdfast.stores.spec import NumberedSchema, RowValues, StoreSpec


def merged(log: StoreSpec, code: StoreSpec) -> StoreSpec:
    """The spec for the log when code starts: that of the code, with all that the log knows."""
    kept = msgspec.structs.replace(
        code,
        slice_ms=log.slice_ms or code.slice_ms,
        stream_key=code.stream_key or log.stream_key,
        after=log.after,
    )
    if isinstance(code.value, RowValues):
        return row_history.merged(log, kept)
    # A schema with a known fingerprint is added too: an alias changes no byte, but the present name of a field.
    history = (*log.schemas, *(version for version in code.schemas if version not in log.schemas))
    newest = max([log.schema, code.schema, *(version.number for version in history)])
    return msgspec.structs.replace(kept, schema=newest, schemas=history)


def effective(log: StoreSpec, code: StoreSpec) -> StoreSpec:
    """The spec that code uses: its own, with all that the log knows. Older code keeps writing its older schema."""
    both = merged(log, code)
    return both if isinstance(code.value, RowValues) else msgspec.structs.replace(both, schema=code.schema)


def unreadable(log: StoreSpec, code: StoreSpec) -> list[str]:
    """Why the code can't read stored values, one sentence each, with the next step."""
    if isinstance(code.value, RowValues):
        return row_history.unreadable(log, code)
    if not code.schemas:
        return []
    own = code.schemas[-1]
    lines = []
    for version in log.schemas:
        if version.fingerprint == own.fingerprint and version.number == own.number:
            continue
        if code.codec == AVRO and version.number == own.number:
            lines.append(
                f"store {code.name!r} has values of schema {own.number} that differ from the code's: "
                f"{version.fields} in the log and {own.fields} in the code. Avro needs a number for every schema: use "
                f"@hf.schema(number={_next(log, own)})"
            )
        elif found := _obstacles(version, own):
            lines.append(
                f"store {code.name!r} has values of schema {version.number} ({version.fields}) that can't be read: "
                f"{'; '.join(found)}. {_remedy(log, version, own)}"
            )
    return lines


def one_way(log: StoreSpec, code: StoreSpec) -> list[str]:
    """Which earlier code can't read the values of this code: it has to be stopped before this code starts."""
    if not code.schemas:
        return []
    own = code.schemas[-1]
    return [
        f"store {code.name!r}: code of schema {version.number} ({version.fields}) can't read what this code writes: "
        f"{'; '.join(found)}. Don't run both at once, and don't go back to it"
        for version in log.schemas
        if version.fingerprint != own.fingerprint and (found := obstacles(parse(own.fields), parse(version.fields)))
    ]


def _obstacles(version: NumberedSchema, own: NumberedSchema) -> list[str]:
    if any(number in own.upcast_from for number in range(version.number, own.number)):
        return []  # only the upcaster knows which value it makes
    return obstacles(parse(version.fields), parse(own.fields))


def _remedy(log: StoreSpec, version: NumberedSchema, own: NumberedSchema) -> str:
    if version.number > own.number:
        return "This code is older than the store; start the newer code, or give the fields defaults here"
    number = own.number if version.number < own.number else _next(log, own)
    return (
        f"Give new fields a default and renamed ones an alias, or declare an upcaster: "
        f"@hf.schema(number={number}, upcasters={{{version.number}: ...}})"
    )


def _next(log: StoreSpec, own: NumberedSchema) -> int:
    return max([own.number, *(version.number for version in log.schemas)]) + 1
