"""Records inside a column: JSON texts with their key and event time, as each Kafka topic has.

    value                                   player  points  at
    {"player": "ann", "points": 7, ...}     ann     7       ...      a record of the stream
    {"player": "ann", "poi                                           a dead letter: the text and the cause

A text that can't be read has no columns that a step of the user's could keep or drop, so it never enters the stream: a
sub-topology without stores, `Unreadable`, makes its dead letter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa

from holdfast.errors import TopologyError
from holdfast.topology.frames import errors_in, type_of
from holdfast.topology.outputs import Output
from holdfast.topology.plain_frames import PlainFrame, spark_frame
from holdfast.topology.steps import PlainStep, quoted
from holdfast.topology.topology import Operator, SubTopology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

TEXT: Final = "_text"
"""The column of a source with the text that was read."""

UNREADABLE: Final = "_unreadable"
"""The column of a source that says why a text can't be read; null for a record."""

_PARSED: Final = "_parsed"
_BROKEN: Final = "_broken"
_OWN: Final = (TEXT, UNREADABLE, _PARSED, _BROKEN)
_SHOWN: Final = 100
"""The maximum length of a value in a cause."""

_MILLIS: Final = "BETWEEN -62135596800000 AND 253402300799999"
"""The years 1 to 9999."""


@dataclass(frozen=True)
class JsonTexts:
    """JSON objects in a column of texts or bytes."""

    column: str
    schema: str | StructType
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        schema = self.schema if isinstance(self.schema, str) else self.schema.simpleString()
        return f"json({self.column!r}, {schema!r})"


def json(column: str, schema: str | StructType, **options: str) -> JsonTexts:
    """Reads the JSON in a column as the columns of a stream: `app.stream(raw, ..., parse=hf.json("value", SCHEMA))`.

    The schema is SQL such as `"player string, points int, at timestamp"`, or a `StructType`. The stream has these
    columns beside the other ones of the DataFrame. A text that isn't JSON, that doesn't have these types, or that has
    no key or event time, is a dead letter with the text and the cause. `options` are those of Spark's `from_json`, such
    as `timestampFormat="dd/MM/yyyy HH:mm"`.
    """
    taken = {"mode", "columnnameofcorruptrecord"} & {name.lower() for name in options}
    if taken:
        raise TopologyError(f"json({column!r}): the option {min(taken)!r} is Holdfast's own: leave it out.")
    return JsonTexts(column, schema, options)


@dataclass(frozen=True)
class Parse:
    """How the records of a source are read, and which of their columns they can't do without."""

    json: JsonTexts
    key: tuple[str, ...]
    timestamp: str | None

    def parsed(self, frame: DataFrame) -> DataFrame:
        """The columns of a source beside `TEXT`, those of its texts, `TEXT` and `UNREADABLE`."""
        if isinstance(frame, PlainFrame):
            return cast("DataFrame", PlainFrame(self._on_spark(spark_frame(frame)).schema))
        return self._on_spark(frame)

    def rows(self, records: pa.Table, frame: DataFrame) -> pa.Table:
        """The same for the records of a test: runs on Spark, on this machine. `frame` has the columns of both."""
        given = spark_frame(frame)
        return self._on_spark(given.sparkSession.createDataFrame(records, given.schema)).toArrow()

    def _on_spark(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType, StructField, StructType

        column, fields = self.json.column, self._fields(frame)
        others = [quoted(name) for name in frame.columns if name != column]
        schema = StructType([*fields, StructField(_BROKEN, StringType())])
        options = {**self.json.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
        text = F.col(quoted(column)).cast("string")
        read = frame.select(*others, text.alias(TEXT)).withColumn(_PARSED, F.from_json(TEXT, schema, options))
        columns = [self._column(each) for each in fields]
        found = read.select(*others, *(F.expr(sql) for sql in columns), TEXT, _PARSED)
        shown = found.drop(TEXT, _PARSED)
        for name in (*self.key, *([self.timestamp] if self.timestamp else [])):
            type_of(shown, name)
        return found.withColumn(UNREADABLE, F.expr(self._cause(fields))).drop(_PARSED)

    def _fields(self, frame: DataFrame) -> Sequence[StructField]:
        """The columns that the texts have."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        column = self.json.column
        if (kind := type_of(frame, column)) not in ("string", "binary"):
            raise TopologyError(
                f"parse={self.json}: the column {column!r} is of type {kind}, and must be text or bytes."
            )
        with errors_in(frame, f"parse={self.json}"):
            found = frame.select(F.from_json(F.lit(""), self.json.schema).alias(_PARSED)).schema[_PARSED].dataType
        if not isinstance(found, StructType):
            raise TopologyError(f"parse={self.json}: a record is an object: write columns, such as 'player string'.")
        others = {name.lower(): name for name in frame.columns if name != column}
        own = [name for name in (*found.names, *others.values()) if name.lower() in _OWN]
        if own:
            raise TopologyError(
                f"parse={self.json}: {own[0]!r} is the name of a column that Holdfast adds while it reads texts. "
                "Rename it in the schema or in the DataFrame."
            )
        both = [each.name for each in found.fields if each.name.lower() in others]
        if both:
            raise TopologyError(
                f"parse={self.json}: the DataFrame has a column {both[0]!r} of its own. Drop or rename it: "
                f"app.stream(df.drop({both[0]!r}), ...)."
            )
        return found.fields

    def _column(self, each: StructField) -> str:
        """A column as SQL. An event time may be milliseconds since 1970."""
        value, name = f"{_PARSED}.{quoted(each.name)}", quoted(each.name)
        if self._is_millis(each):
            return f"CASE WHEN {value} {_MILLIS} THEN timestamp_millis({value}) END AS {name}"
        return f"{value} AS {name}"

    def _is_millis(self, each: StructField) -> bool:
        return each.name == self.timestamp and each.dataType.simpleString() == "bigint"

    def _cause(self, fields: Sequence[StructField]) -> str:
        """Why a text can't be read, as SQL; null for a record."""
        column = self.json.column
        cases = [
            (f"{TEXT} IS NULL", _literal(f"{column} is null")),
            (f"NOT is_valid_utf8({TEXT})", _literal(f"not UTF-8: {column}")),
            (f"{_PARSED} IS NULL OR {_PARSED}.{_BROKEN} IS NOT NULL", self._wrong(fields)),
        ]
        reason = f"no key: {'one of ' if len(self.key) > 1 else ''}{', '.join(self.key)} is null"
        cases.append((" OR ".join(f"{quoted(name)} IS NULL" for name in self.key), _literal(reason)))
        if self.timestamp is not None:
            cases.append((f"{quoted(self.timestamp)} IS NULL", self._no_time(fields)))
        return f"CASE {' '.join(f'WHEN {condition} THEN {reason}' for condition, reason in cases)} END"

    def _wrong(self, fields: Sequence[StructField]) -> str:
        """What is wrong with a text, as SQL: the first value that doesn't have its type."""
        cases = " ".join(self._misfits(fields, _PARSED, "$", self.json.column))
        no_json = f"WHEN get_json_object({TEXT}, '$') IS NULL THEN {_literal(f'{self.json.column} is not JSON')}"
        return f"CASE {no_json} {cases} ELSE {_literal(f'{self.json.column} is not an object with these columns')} END"

    def _misfits(self, fields: Sequence[StructField], sql: str, path: str, shown: str) -> Iterator[str]:
        from pyspark.sql.types import StructType

        for each in fields:
            if set(each.name) & set("'\"\\[]"):  # not in a path of get_json_object()
                continue
            value, name, inside = f"{sql}.{quoted(each.name)}", f"{shown}.{each.name}", f"{path}['{each.name}']"
            given = f"get_json_object({TEXT}, {_literal(inside)})"
            reason = f"concat({_literal(f'{name} is not {each.dataType.simpleString()}: ')}, left({given}, {_SHOWN}))"
            yield f"WHEN {value} IS NULL AND {given} IS NOT NULL THEN {reason}"
            if isinstance(each.dataType, StructType):
                yield from self._misfits(each.dataType.fields, value, inside, name)

    def _no_time(self, fields: Sequence[StructField]) -> str:
        assert self.timestamp is not None
        null = _literal(f"no event time: {self.timestamp} is null")
        if not any(map(self._is_millis, fields)):
            return null
        value = f"{_PARSED}.{quoted(self.timestamp)}"
        outside = f"concat({_literal(f'no event time: {self.timestamp} is outside of the years 1 to 9999: ')}, {value})"
        return f"coalesce({outside}, {null})"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, eq=False)
class Readable(PlainStep):
    """Keeps all records: what could be read, without the columns that say so."""

    def __call__(self, df: DataFrame) -> DataFrame:
        return df.where(f"{UNREADABLE} IS NULL").drop(TEXT, UNREADABLE)

    def plain(self, frame: PlainFrame) -> PlainFrame:
        from pyspark.sql.types import StructType

        return PlainFrame(StructType([each for each in frame.schema if each.name not in (TEXT, UNREADABLE)]))

    def arrow(self, records: pa.Table) -> pa.Table:
        return records.filter(records[UNREADABLE].is_null()).drop_columns([TEXT, UNREADABLE])

    def reads(self, names: Collection[str]) -> set[str]:
        return {*names, UNREADABLE}


@dataclass(frozen=True)
class Unreadable(Operator):
    """Makes a dead letter of each text of a source that can't be read."""

    column: str
    """The column of the texts."""
    shown: tuple[str, ...]
    """The columns beside the text that a dead letter has."""

    only_with_rows = True
    of_source = True

    def outputs(self, subtopology: SubTopology) -> tuple[Output, ...]:
        return ()

    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        yield f"dead letters of {self.column!r} that can't be read"
