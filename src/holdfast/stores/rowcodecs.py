"""A table's rows as payloads, in the codec of its store: `rows_of(spec)` is what merges, sinks and single reads go by.

`rows/1` is the table's own codec, and works on whole columns. Any other has one value a row (`codecs.rowforms`), so its
rows pass through Python one by one. That is what a user asks for who names such a codec; nobody else pays for it.

Either way columns give what single rows give, equal rows of the codecs that come with Holdfast have equal bytes, and
what can't be read is an error and never a wrong answer.
"""

import datetime as dt
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa

from holdfast.errors import BadValue, DamagedObject, HoldfastError, TopologyError, shown
from holdfast.stores.codecs.avro import AVRO, NotAvro
from holdfast.stores.codecs.base import Codec
from holdfast.stores.codecs.names import codec_id, importable
from holdfast.stores.codecs.packed import JSON, MESSAGE_PACK
from holdfast.stores.codecs.protobuf import PROTOBUF
from holdfast.stores.codecs.raw import BYTES
from holdfast.stores.codecs.rowforms import Row, form_of
from holdfast.stores.formats import scalars
from holdfast.stores.formats.byte_columns import LARGEST, TooManyBytes, as_type
from holdfast.stores.formats.rows import ROWS, as_field, decode_row, decode_rows, encode_row, encode_rows
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.spec import StoreSpec

ROW_NAMES: Final = {"rows": ROWS, "msgpack": MESSAGE_PACK, "json": JSON, "avro": AVRO}
"""What a user may write as the codec of an aggregate, and the id that stands in the app's file."""

_SOME: Final[dict[str, object]] = {
    "string": "ü",
    "binary": b"\x00\xff",
    "tinyint": -1,
    "smallint": -1,
    "int": -1,
    "bigint": 2**53 + 1,
    "float": 0.5,
    "double": 0.1,
    "boolean": True,
    "date": dt.date(2026, 1, 31),
    "timestamp": dt.datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=dt.UTC),
    "timestamp_ntz": dt.datetime.fromisoformat("2026-01-31T12:00:00.000001"),
}
"""A value of every type but decimals, to try a codec on."""

_MISFITS: Final = (ValueError, TypeError, OverflowError)


class RefusedRow(BadValue):
    """A row that its codec can't write, or wouldn't read as it was."""

    def __init__(self, row: int, fact: str, of: str = "") -> None:
        self.row, self.fact = row, fact
        super().__init__(f"{of}{fact}")


class DamagedRow(DamagedObject):
    """A row that its codec can't read."""

    def __init__(self, row: int, fact: str, of: str = "") -> None:
        self.row, self.fact = row, fact
        super().__init__(f"{of}{fact}")


class RowCodec(Protocol):
    """Rows of one layout as payloads."""

    def encode(self, columns: Sequence[pa.Array]) -> pa.BinaryArray: ...

    def decode(self, payloads: pa.Array) -> list[pa.Array]:
        """The columns. A null payload is null in all of them."""

    def encode_one(self, values: Sequence[object]) -> bytes: ...

    def decode_one(self, data: bytes) -> tuple[object, ...]: ...


def rows_of(spec: StoreSpec, layout: Schema | None = None) -> RowCodec:
    """How a table's store writes rows of its newest layout, or of another that it has had."""
    schema = layout or spec.value
    assert schema is not None
    return _rows_of(spec.name, spec.codec, schema)


@lru_cache(maxsize=256)
def _rows_of(store: str, codec: str, schema: Schema) -> RowCodec:
    return Columns(schema) if codec == ROWS else OneByOne(store, codec, schema)


def row_codec_id(codec: str | Codec[Any] | None, where: str) -> str:
    """The id of what a user gave as `codec=` of an aggregate.

    >>> row_codec_id(None, "store('points')"), row_codec_id("json", "store('points')")
    ('rows/1', 'json/1')
    """
    if codec is None:
        return ROWS
    if codec in ("bytes", BYTES, "protobuf", PROTOBUF):
        raise TopologyError(
            f"{where}: codec={codec!r} is for values of a type of yours, and an aggregate's value is a row of its "
            "columns. Leave codec out, or take msgpack, json, avro or your own as 'module:Class'; or keep the values "
            "in a processor's store."
        )
    try:
        return importable(codec_id(codec, ROW_NAMES))  # workers make it from the class, also where an object was given
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from error


def check_rows(spec: StoreSpec, where: str) -> None:
    """Raises, while the app is built, where a table's codec isn't there or can't carry its rows.

    A user's own is tried: on a row of nulls, and on one with a value in every column.
    """
    assert spec.value is not None
    try:
        rows = rows_of(spec)
        for row in ([None for _ in spec.value.fields], [_some(field) for field in spec.value.fields]):
            rows.encode_one(row)
    except (TopologyError, RefusedRow) as error:
        raise TopologyError(f"{where}: {error}") from error


def _some(field: Field) -> object:
    kind = field.field_type
    digits = int("1234567890" * 4)
    return scalars.from_unscaled(field, digits % 10**kind.precision) if kind.name == "decimal" else _SOME[kind.name]


class Columns:
    """Rows of format rows/1, as whole columns."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def encode(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        return encode_rows(self._schema, columns)

    def decode(self, payloads: pa.Array) -> list[pa.Array]:
        return decode_rows(self._schema, payloads)

    def encode_one(self, values: Sequence[object]) -> bytes:
        return encode_row(self._schema, values)

    def decode_one(self, data: bytes) -> tuple[object, ...]:
        return decode_row(self._schema, data)


class OneByOne:
    """Rows in a codec that has one value a row."""

    def __init__(self, store: str, codec: str, schema: Schema) -> None:
        self._store = store
        self._codec = codec
        self._schema = schema
        self._names = schema.names
        self._nulls: Row = dict.fromkeys(schema.names)
        self._form = form_of(codec, schema)

    def encode(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        if len(columns) != len(self._names):
            raise BadValue(f"{len(columns)} columns were given, and a row has {len(self._names)}: {self._schema}.")
        lists = [self._values(field, as_field(field, c)) for field, c in zip(self._schema.fields, columns, strict=True)]
        payloads = [self._written(n, values) for n, values in enumerate(zip(*lists, strict=True))]
        total = sum(map(len, payloads))
        if total > LARGEST:
            raise TooManyBytes(total)
        return pa.array(payloads, pa.binary())

    def decode(self, payloads: pa.Array) -> list[pa.Array]:
        lists: list[list[object]] = [[] for _ in self._names]
        for n, data in enumerate(as_type(payloads, pa.binary()).to_pylist()):
            row = self._nulls if data is None else self._read(n, data)
            for name, values in zip(self._names, lists, strict=True):
                values.append(row[name])
        return [self._column(field, values) for field, values in zip(self._schema.fields, lists, strict=True)]

    def encode_one(self, values: Sequence[object]) -> bytes:
        # By way of rows/1, which refuses what doesn't fit and leaves one form of each value.
        return self._written(0, decode_row(self._schema, encode_row(self._schema, values)))

    def decode_one(self, data: bytes) -> tuple[object, ...]:
        row = self._read(0, data)
        try:
            return decode_row(self._schema, encode_row(self._schema, [row[name] for name in self._names]))
        except (BadValue, OverflowError) as error:
            raise self._damaged(0, data, error) from error

    def _written(self, n: int, values: Sequence[object]) -> bytes:
        row = dict(zip(self._names, values, strict=True))
        try:
            return self._form.write(row)
        except Exception as error:  # a user's codec may raise anything
            raise RefusedRow(
                n,
                f"codec {self._codec!r} of store {self._store!r} can't write the row {shown(row)}: {_why(error)}. Mend "
                "the codec, or keep the aggregate in a store of another.",
            ) from error

    def _read(self, n: int, data: bytes) -> Row:
        try:
            return self._form.read(data)
        except Exception as error:  # a user's codec may raise anything
            raise self._damaged(n, data, error) from error

    def _values(self, field: Field, column: pa.Array) -> list[object]:
        """A column as Python's values."""
        try:
            return _python_values(field, column)
        except OverflowError:
            n = _first_bad(len(column), lambda n: _python_values(field, column.slice(n, 1)))
            raise RefusedRow(
                n,
                f"{field.name} is a {field.type} outside the years 1 to 9999 ({column[n].value:,} as a number), which "
                f"Python has no form for, and codec {self._codec!r} of store {self._store!r} goes by Python's. Filter "
                "the record out; a store without codec= keeps such values.",
            ) from None

    def _column(self, field: Field, values: list[object]) -> pa.Array:
        try:
            return pa.array(values, field.field_type.arrow)
        except _MISFITS as error:
            n = _first_bad(len(values), lambda n: pa.array(values[n : n + 1], field.field_type.arrow))
            raise DamagedRow(n, self._unread(f"its {field.name} is {shown(values[n])}")) from error

    def _damaged(self, n: int, data: bytes, error: Exception) -> DamagedRow:
        return DamagedRow(n, self._unread(f"{_why(error)}. It begins with {data[:60]!r}"))

    def _unread(self, why: str) -> str:
        return (
            f"a stored row of store {self._store!r} can't be read by codec {self._codec!r} as ({self._schema}): {why}. "
            "If the codec is yours and has changed, bring back what wrote the row; if not, run verify."
        )


def _python_values(field: Field, column: pa.Array) -> list[object]:
    if field.type != "timestamp":
        values: list[object] = column.to_pylist()
        return values
    # Arrow's own zone for UTC is another object than Python's, and may be of another library.
    moments: list[dt.datetime | None] = column.cast(pa.timestamp("us")).to_pylist()
    return [None if moment is None else moment.replace(tzinfo=dt.UTC) for moment in moments]


def _first_bad(count: int, convert: Callable[[int], object]) -> int:
    for n in range(count):
        try:
            convert(n)
        except _MISFITS:
            return n
    return 0


def _why(error: Exception) -> str:
    told = isinstance(error, HoldfastError | NotAvro | msgspec.MsgspecError)
    return (str(error) if told else f"{type(error).__name__}: {error}").removesuffix(".")
