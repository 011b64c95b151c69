"""Segments: what one task changed in one version, and what it forwarded.

A segment is a sequence of parts, each a complete compressed Arrow IPC stream. The commit, not the segment, has the
offset, length and checksum of every part: one store's changes are read with one range request, and a segment that was
altered, truncated or swapped is detected before any of it is used.

A state part has two columns, `key` (binary, not null) and `value` (binary; null is a tombstone). Parts of the other
types have the columns of their rows.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec
import pyarrow as pa

from holdfast.errors import DamagedObject, ErrorCategory, HoldfastError
from holdfast.log.documents import checksum
from holdfast.stores.access import ENTRY_SCHEMA

Compression = Literal["lz4", "zstd"]

STATE: Final = "state"
OUTPUT: Final = "output"
DEAD: Final = "dead"
PART_TYPES: Final = (STATE, OUTPUT, DEAD)

STATE_SCHEMA: Final = ENTRY_SCHEMA


class BadSegment(HoldfastError):
    """A segment was built from parts that no reader could use."""

    category = ErrorCategory.BUG


class Part(msgspec.Struct, frozen=True):
    """One Arrow stream in a segment: a store's changes, an operator's output, or dead letters."""

    type: str
    name: str
    offset: int
    length: int
    checksum: str
    rows: int


class SegmentRef(msgspec.Struct, frozen=True):
    """A segment as a commit names it: an object, or the bytes themselves if they are few."""

    name: str | None
    inline: bytes | None
    length: int
    parts: tuple[Part, ...]

    def of_type(self, type_: str) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.type == type_)


@dataclass(frozen=True)
class Sealed:
    """A segment's bytes and the position of its parts."""

    data: bytes
    parts: tuple[Part, ...]


Rows: TypeAlias = "pa.Table | Sequence[pa.RecordBatch]"
Unsealed: TypeAlias = tuple[str, str, Rows]
"""A part before it is sealed: its type, its name, its rows."""


def split_volatile(parts: Iterable[Unsealed], volatile: Container[str]) -> tuple[list[Unsealed], list[Unsealed]]:
    """Durable parts, and the state of the stores named by `volatile`, which aren't durable.

    >>> split_volatile([("state", "scores", []), ("state", "recent", []), ("output", "recent", [])], {"recent"})
    ([('state', 'scores', []), ('output', 'recent', [])], [('state', 'recent', [])])
    """
    durable: list[Unsealed] = []
    others: list[Unsealed] = []
    for part in parts:
        (others if part[0] == STATE and part[1] in volatile else durable).append(part)
    return durable, others


def seal(parts: Sequence[Unsealed], *, compression: Compression | None = "lz4") -> Sealed:
    """Parts, each (type, name, rows), as one segment.

    lz4 was chosen by measurement (300,000 rows, 9-byte keys, 40-byte values; median CPU milliseconds to seal and to
    open, and bytes): none 7 and 1.3 for 17.1 MB; lz4 33 and 5 for 9.0 MB; zstd 58 and 20 for 6.4 MB. On object storage
    half the bytes are worth 26 ms; zstd's further third isn't, since every replica needs four times as long to open
    it. On a fast local disk no compression would be cheapest. Readers detect the compression from the stream.

    >>> sealed = seal([("state", "counts", pa.table({"key": [b"a"], "value": [None]}, schema=STATE_SCHEMA))])
    >>> [(part.type, part.name, part.offset, part.rows) for part in sealed.parts]
    [('state', 'counts', 0, 1)]
    """
    options = pa.ipc.IpcWriteOptions(compression=compression)
    sink = pa.BufferOutputStream()
    ends: list[tuple[str, str, int, int, int]] = []
    for type_, name, rows in parts:
        schema, batches = _batches(type_, name, rows)
        start = sink.tell()
        with pa.ipc.new_stream(sink, schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        ends.append((type_, name, start, sink.tell() - start, sum(batch.num_rows for batch in batches)))
    data: bytes = sink.getvalue().to_pybytes()
    view = memoryview(data)
    return Sealed(
        data,
        tuple(
            Part(type_, name, start, length, checksum(view[start : start + length]), count)
            for type_, name, start, length, count in ends
        ),
    )


def open_part(data: bytes | memoryview, part: Part, *, place: str) -> pa.Table:
    """A part's rows, from its own bytes. `place` names the segment in errors."""
    found = checksum(data)
    if len(data) != part.length or found != part.checksum:
        raise DamagedObject(
            f"{place} is damaged in its part {part.type}/{part.name} (bytes {part.offset} to "
            f"{part.offset + part.length}): expected {part.length} bytes with checksum {part.checksum}, found "
            f"{len(data)} with {found}. Restore the object from a backup. Snapshots, and replicas that have applied it "
            "already, aren't affected."
        )
    try:
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    except pa.ArrowInvalid as error:
        raise DamagedObject(
            f"{place} has a part {part.type}/{part.name} that is not an Arrow stream: {error}."
        ) from error


def _batches(type_: str, name: str, rows: Rows) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    if type_ not in PART_TYPES:
        raise BadSegment(f"A part has the type {', '.join(PART_TYPES)}, not {type_!r} (part {name!r}).")
    if isinstance(rows, pa.Table):
        schema, batches = rows.schema, rows.to_batches()
    else:
        batches = list(rows)
        if not batches and type_ != STATE:
            raise BadSegment(f"The part {type_}/{name} has no batch, so its columns are unknown. Pass an empty table.")
        schema = batches[0].schema if batches else STATE_SCHEMA
    if type_ == STATE and not schema.equals(STATE_SCHEMA):
        raise BadSegment(f"The state part {name!r} has the columns {schema}; it must have {STATE_SCHEMA}.")
    return schema, batches
