"""Compatibility: whether code can read what other code wrote, by their two schemas alone.

A reader may have fields with defaults that the writer didn't have, and ignores fields that it doesn't know. An int
can be read as a float. Every other difference is reported in one sentence, with its place in the value. A schema
without obstacles is readable; one with obstacles sometimes is too, and then an upcaster says so.
"""

from holdfast.stores.schema.text import ANY, Choices, Fixed, Many, Mapped, OneOf, Record, Scalar, ValueSchema, text_of

_WIDER = {("int", "float")}
_CHOICE_TYPES = {str: "str", int: "int", type(None): "null"}


def obstacles(written: ValueSchema, reader: ValueSchema, at: str = "the value") -> list[str]:
    """Why `reader` can't read values of the schema `written`; empty if it can.

    >>> from holdfast.stores.schema.text import parse
    >>> obstacles(parse("{a: int, old: str}"), parse("{a: float, more?: str}"))
    []
    >>> obstacles(parse("{a: str}"), parse("{a: int, b: int}"))
    ['a was written as str and is read as int', 'b has no default, and was not written']
    """
    if reader == ANY or written == reader:
        return []
    match written, reader:
        case OneOf(members), _:
            return [line for member in members for line in obstacles(member, reader, at)]
        case _, OneOf(members):
            return (
                [] if any(not obstacles(written, member, at) for member in members) else [_differs(written, reader, at)]
            )
        case Choices(values), Choices(known):
            gone = [value for value in values if value not in known]
            return [f"{at} may hold {', '.join(map(repr, gone))}, which the code doesn't know"] if gone else []
        case Choices(values), Scalar(name):
            fits = all(_CHOICE_TYPES[type(value)] in (name, *_from(name)) for value in values)
            return [] if fits else [_differs(written, reader, at)]
        case Scalar(one), Scalar(other):
            return [] if (one, other) in _WIDER else [_differs(written, reader, at)]
        case Many(one), Many(other):
            return obstacles(one, other, f"an item of {at}")
        case Fixed(items), Many(item):
            return [line for one in items for line in obstacles(one, item, f"an item of {at}")]
        case Fixed(items), Fixed(others) if len(items) == len(others):
            pairs = zip(items, others, strict=True)
            return [line for n, (one, other) in enumerate(pairs) for line in obstacles(one, other, f"{at}[{n}]")]
        case Mapped(key, value), Mapped(other_key, other_value):
            return obstacles(key, other_key, f"a key of {at}") + obstacles(value, other_value, f"a value of {at}")
        case Record(), Record() if written.by_position != reader.by_position:
            return [_differs(written, reader, at)]
        case Record(), Record() if reader.by_position:
            return _by_position(written, reader, at)
        case Record(), Record():
            return _by_name(written, reader, at)
    return [_differs(written, reader, at)]


def _by_name(written: Record, reader: Record, at: str) -> list[str]:
    there = {field.name: field for field in written.fields}
    lines: list[str] = []
    read: set[str] = set()
    for field in reader.fields:
        place = field.name if at == "the value" else f"{at}.{field.name}"
        sources = [there[name] for name in field.names if name in there]
        read.update(source.name for source in sources)
        for source in sources:
            lines += obstacles(source.schema, field.schema, place)
        if not field.optional and not sources:
            lines.append(f"{place} has no default, and was not written")
        elif not field.optional and all(source.optional for source in sources):
            lines.append(f"{place} has no default, and may not have been written")
    unknown = sorted(there.keys() - read)
    if reader.closed and unknown:
        lines.append(f"{at} was written with {', '.join(unknown)}, and the code forbids fields it doesn't know")
    return lines


def _by_position(written: Record, reader: Record, at: str) -> list[str]:
    lines: list[str] = []
    for n, field in enumerate(reader.fields):
        if n < len(written.fields):
            lines += obstacles(written.fields[n].schema, field.schema, f"{at}[{n}]")
        elif not field.optional:
            lines.append(f"{at}[{n}] ({field.name}) has no default, and was not written")
    if reader.closed and len(written.fields) > len(reader.fields):
        lines.append(f"{at} was written with {len(written.fields)} fields, and the code forbids more than it has")
    return lines


def _from(name: str) -> list[str]:
    return [narrow for narrow, wide in _WIDER if wide == name]


def _differs(written: ValueSchema, reader: ValueSchema, at: str) -> str:
    return f"{at} was written as {text_of(written)} and is read as {text_of(reader)}"
