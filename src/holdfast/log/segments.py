"""Segments: what one task changed in one version, and what it forwarded.

A segment is a sequence of parts, each a complete compressed Arrow IPC stream. The commit, not the segment, has the
offset, length and checksum of every part: one store's changes are read with one range request, and a segment that was
altered, truncated or swapped is detected before any of it is used.

A task returns a small segment to the driver, which puts those of all tasks into the commit or, if the commit has no
room, into one object: the offsets of their parts then count from its beginning.

A state part has two columns, `key` (binary, not null) and `value` (binary; null is a tombstone). Parts of the other
types have the columns of their rows.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec
import pyarrow as pa

from holdfast.errors import DamagedObject, ErrorCategory, HoldfastError
from holdfast.log.documents import checksum
from holdfast.stores.access import ENTRY_SCHEMA
from holdfast.stores.formats.byte_columns import LARGEST, whole

Compression = Literal["lz4", "zstd"]

STATE: Final = "state"
OUTPUT: Final = "output"
DEAD: Final = "dead"
PART_TYPES: Final = (STATE, OUTPUT, DEAD)

STATE_SCHEMA: Final = ENTRY_SCHEMA

_LARGE = 1 << 20
_ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end of an Arrow stream."""
_HEAD: bytes = STATE_SCHEMA.serialize().to_pybytes()
"""The beginning of the stream of a state part."""
SEGMENT_BYTES: Final = 256 << 20
"""About how much one segment holds at most, before compression: readers have a part in memory as a whole."""


class BadSegment(HoldfastError):
    """A segment was built from parts that no reader could use."""

    category = ErrorCategory.BUG


class PartTooLarge(HoldfastError):
    """A column has more bytes than Arrow's 32-bit offsets can address. Nothing could read it back."""

    category = ErrorCategory.INVALID


class Part(msgspec.Struct, frozen=True):
    """One Arrow stream in a segment: a store's changes, an operator's output, or dead letters."""

    type: str
    name: str
    offset: int
    length: int
    checksum: str
    rows: int
    bytes: int
    """The size of the rows in memory, before compression."""


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


Unsealed: TypeAlias = tuple[str, str, pa.Table]
"""A part before it is sealed: its type, its name, its rows."""


def split_volatile(parts: Iterable[Unsealed], volatile: Container[str]) -> tuple[list[Unsealed], list[Unsealed]]:
    """Durable parts, and the state of the stores named by `volatile`, which aren't durable.

    >>> none = pa.table({})
    >>> parts = [("state", "scores", none), ("state", "recent", none), ("output", "recent", none)]
    >>> [[name for _, name, _ in some] for some in split_volatile(parts, {"recent"})]
    [['scores', 'recent'], ['recent']]
    """
    durable: list[Unsealed] = []
    others: list[Unsealed] = []
    for part in parts:
        (others if part[0] == STATE and part[1] in volatile else durable).append(part)
    return durable, others


def in_segments(parts: Iterable[Unsealed], most_bytes: int = SEGMENT_BYTES) -> Iterator[list[Unsealed]]:
    """The parts of each segment, in order, of about `most_bytes` each.

    Output and dead letters are cut into several parts. A store's changes stay one part, since sinks read them together
    (a key that moves to another slice is one change, and a rewrite step none): tasks keep them small enough.

    >>> rows = pa.table({"n": [1, 2, 3, 4]})                              # 8 bytes per row
    >>> [[table.num_rows for _, _, table in some] for some in in_segments([("output", "rows", rows)], 16)]
    [[2], [2]]
    """
    gathered: list[Unsealed] = []
    size = 0
    for type_, name, table in parts:
        for piece in [table] if type_ == STATE else _pieces(table, most_bytes):
            if gathered and size + piece.nbytes > most_bytes:
                yield gathered
                gathered, size = [], 0
            gathered.append((type_, name, piece))
            size += piece.nbytes
    if gathered:
        yield gathered


def _pieces(table: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    if table.nbytes <= most_bytes or table.num_rows < 2:
        yield table
    else:
        half = table.num_rows // 2
        yield from _pieces(table.slice(0, half), most_bytes)
        yield from _pieces(table.slice(half), most_bytes)


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
    ends: list[tuple[str, str, int, int, pa.Table]] = []
    for type_, name, table in parts:
        _check(type_, name, table)
        start = sink.tell()
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        ends.append((type_, name, start, sink.tell() - start, table))
    data: bytes = sink.getvalue().to_pybytes()
    view = memoryview(data)
    return Sealed(
        data,
        tuple(
            Part(type_, name, start, length, checksum(view[start : start + length]), table.num_rows, table.nbytes)
            for type_, name, start, length, table in ends
        ),
    )


def put_together(
    segments: Mapping[str, Sequence[SegmentRef]], name: str
) -> tuple[bytes, dict[str, tuple[SegmentRef, ...]]]:
    """The inline segments of several tasks as the bytes of one object of this name, and all segments by task.

    >>> inline = SegmentRef(None, b"abc", 3, (Part("state", "counts", 0, 3, "", 1, 9),))
    >>> data, moved = put_together({"0_0": [inline], "0_1": [inline]}, "segments/all/1")
    >>> data, [(ref.name, part.offset) for (ref,) in moved.values() for part in ref.parts]
    (b'abcabc', [('segments/all/1', 0), ('segments/all/1', 3)])
    """
    pieces: list[bytes] = []
    end = 0

    def moved(ref: SegmentRef) -> SegmentRef:
        nonlocal end
        if ref.inline is None:
            return ref
        start, end = end, end + len(ref.inline)
        pieces.append(ref.inline)
        parts = tuple(msgspec.structs.replace(part, offset=part.offset + start) for part in ref.parts)
        return SegmentRef(name, None, ref.length, parts)

    refs = {task: tuple(map(moved, own)) for task, own in segments.items()}
    return b"".join(pieces), refs


def _check_whole(data: bytes | memoryview, part: Part, place: str) -> None:
    found = checksum(data)
    if len(data) != part.length or found != part.checksum:
        raise DamagedObject(
            f"{place} is damaged in its part {part.type}/{part.name} (bytes {part.offset} to "
            f"{part.offset + part.length}): expected {part.length} bytes with checksum {part.checksum}, found "
            f"{len(data)} with {found}. Restore the object from a backup. Snapshots, and replicas that have applied it "
            "already, aren't affected."
        )


def open_part(data: bytes | memoryview, part: Part, *, place: str) -> pa.Table:
    """A part's rows, from its own bytes. `place` names the segment in errors."""
    _check_whole(data, part, place)
    try:
        # Handing a small part to Arrow's threads costs more than reading it (80 rows: 25 instead of 10 us).
        options = None if part.bytes > _LARGE else _ONE_THREAD
        return pa.ipc.open_stream(pa.py_buffer(data), options=options).read_all()
    except pa.ArrowInvalid as error:
        raise DamagedObject(
            f"{place} has a part {part.type}/{part.name} that is not an Arrow stream: {error}."
        ) from error


def open_state_parts(parts: Sequence[tuple[memoryview, Part, str]]) -> list[tuple[pa.Array, pa.Array]]:
    """The keys and values of many state parts, each given with its bytes and its place.

    All of them have one schema, so the record batches of small parts are read as one stream: of 128 parts of 800 rows,
    each takes 33 us instead of 56. Compressed buffers are copied on reading, so no array keeps the stream in memory.
    """
    for data, part, place in parts:
        _check_whole(data, part, place)
    if all(
        part.bytes <= _LARGE and data[: len(_HEAD)] == _HEAD and data[-len(_END) :] == _END for data, part, _ in parts
    ):
        stream = b"".join([_HEAD, *(data[len(_HEAD) : -len(_END)] for data, _, _ in parts), _END])
        try:
            batches = list(pa.ipc.open_stream(pa.py_buffer(stream), options=_ONE_THREAD))
        except pa.ArrowInvalid:
            batches = []  # read one by one, the part is found that isn't a stream
        if [batch.num_rows for batch in batches] == [part.rows for _, part, _ in parts]:
            return [(batch.column(0), batch.column(1)) for batch in batches]
    tables = (open_part(data, part, place=place) for data, part, place in parts)
    return [(whole(table.column("key")), whole(table.column("value"))) for table in tables]


def _check(type_: str, name: str, table: pa.Table) -> None:
    if type_ not in PART_TYPES:
        raise BadSegment(f"A part has the type {', '.join(PART_TYPES)}, not {type_!r} (part {name!r}).")
    if type_ == STATE and not table.schema.equals(STATE_SCHEMA):
        raise BadSegment(f"The state part {name!r} has the columns {table.schema}; it must have {STATE_SCHEMA}.")
    for column in table.itercolumns():
        if column.nbytes > LARGEST:
            raise too_large(type_, name, column.nbytes)


def too_large(type_: str, name: str, found: int) -> PartTooLarge:
    of = "changes of the store" if type_ == STATE else "rows of"
    return PartTooLarge(
        f"The {of} {name!r} in one task and version take {found:,} bytes, and {LARGEST:,} is the limit. Nothing of the "
        "batch was committed. Store smaller values, or use smaller batches (batch.max_records, batch.max_files) or "
        "more partitions."
    )
