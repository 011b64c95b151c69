"""The schema history of typed values: their type declares the number of its schema."""

import msgspec

from holdfast.stores.codecs.avro import AVRO
from holdfast.stores.schema.compatibility import obstacles
from holdfast.stores.schema.text import parse
from holdfast.stores.spec import NumberedSchema, StoreSpec


def merged(log: StoreSpec, code: StoreSpec) -> StoreSpec:
    """The spec for the log when code starts, with all schemas that either of them knows."""
    # A schema with a known fingerprint is added too: an alias changes no byte, but the present name of a field.
    history = (*log.schemas, *(version for version in code.schemas if version not in log.schemas))
    newest = max([log.schema, code.schema, *(version.number for version in history)])
    return msgspec.structs.replace(code, schema=newest, schemas=history)


def effective(log: StoreSpec, code: StoreSpec) -> StoreSpec:
    """The spec that code uses. Older code keeps writing its older schema."""
    return msgspec.structs.replace(merged(log, code), schema=code.schema)


def unreadable(log: StoreSpec, code: StoreSpec) -> list[str]:
    """Why the code can't read stored values, one sentence each, with the next step."""
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
