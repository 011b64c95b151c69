"""Spark expressions that find unusable records, and make dead letters from them.

A text column can have bytes that aren't UTF-8, since `CAST(bytes AS string)` doesn't check them. Nothing could read
such a text back from a store or write it to a sink. So a record with one is a dead letter, with the bytes in Base64.
The check takes about 30 ns per text in the JVM: up to 8 % of a batch of 1M records with texts of 13 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from holdfast.stores.formats.keys import LONGEST_KEY
from holdfast.stores.formats.types import Field

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEEP_NULLS = "map('ignoreNullFields', 'false')"
YEAR_1: Final = -62_135_596_800_000
"""The earliest event time in milliseconds: Python and many others have none before, and it stands for a missing one."""
BYTES = "_bytes"
"""The field of a dead letter's record with the bytes that aren't UTF-8."""

Check: TypeAlias = Callable[[pa.Table], pa.BooleanArray]
"""For which records, of a table of them, a condition is true; null counts as false."""

Expression: TypeAlias = "str | Column"
"""SQL, or a Column where a user gave one. SQL is preferred: a Column takes several calls into the JVM."""


class Case(NamedTuple):
    """What makes a record unusable: a condition that is never null, and the reason."""

    condition: Expression
    reason: str
    not_text: Expression | None = None
    """The value that isn't UTF-8, whose bytes the dead letter keeps."""
    check: Check | None = None
    """The same condition on Arrow columns, for a test driver. Without one, it asks Spark."""


def cases_of(fields: Sequence[Field], timestamp: str | None, wall: int, max_ahead_millis: int) -> list[Case]:
    """The cases of a record without a key, or without an event time that is not too far ahead of the wall clock."""
    missing = " OR ".join(f"{quoted(field.name)} IS NULL" for field in fields)
    names = ", ".join(field.name for field in fields)
    columns = [field.name for field in fields]
    reason = f"no key: {'one of ' if len(fields) > 1 else ''}{names} is null"
    cases = [Case(missing, reason, check=partial(_has_null, columns))]
    if long := [field.name for field in fields if field.field_type.is_variable]:
        sizes = " + ".join(f"octet_length({quoted(name)})" for name in long)
        reason = f"the key is longer than {LONGEST_KEY} bytes"
        cases.append(Case(f"{sizes} > {LONGEST_KEY}", reason, check=partial(_is_long, long)))
    cases += not_utf8({field.name: quoted(field.name) for field in fields if field.field_type.name == "string"})
    if timestamp is not None:
        cases.append(is_null(timestamp, f"no event time: {timestamp} is null"))
        ahead = f"event time is more than batch.max_ahead ({max_ahead_millis} ms) ahead of the clock"
        millis = f"unix_millis(CAST({quoted(timestamp)} AS timestamp))"
        early = f"no event time: {timestamp} is before the year 1"
        cases.append(Case(f"coalesce({millis} < {YEAR_1}, false)", early, check=partial(_is_early, timestamp)))
        latest = wall + max_ahead_millis
        cases.append(Case(above(millis, latest), ahead, check=partial(_is_after, timestamp, latest)))
    return cases


def is_null(column: str, reason: str) -> Case:
    """The case of a column that is null."""
    return Case(f"{quoted(column)} IS NULL", reason, check=partial(_has_null, [column]))


def _has_null(columns: Sequence[str], records: pa.Table) -> pa.BooleanArray:
    return reduce(pc.or_, (records[name].is_null().combine_chunks() for name in columns))


def _is_long(columns: Sequence[str], records: pa.Table) -> pa.BooleanArray:
    sizes = (pc.binary_length(records[name]).combine_chunks().cast(pa.int64()) for name in columns)
    return pc.greater(reduce(pc.add, sizes), LONGEST_KEY)


def _is_after(timestamp: str, latest: int, records: pa.Table) -> pa.BooleanArray:
    micros = records[timestamp].cast(pa.timestamp("us")).cast(pa.int64()).combine_chunks()
    return pc.greater_equal(micros, (latest + 1) * 1000)


def _is_early(timestamp: str, records: pa.Table) -> pa.BooleanArray:
    micros = records[timestamp].cast(pa.timestamp("us")).cast(pa.int64()).combine_chunks()
    return pc.less(micros, YEAR_1 * 1000)


def _never(records: pa.Table) -> pa.BooleanArray:
    return pa.repeat(pa.scalar(False), records.num_rows)


def above(sql: str, number: int) -> str:
    """The condition that a number is above one that changes from batch to batch; false for null.

    Spark writes a number into the code that it generates, and compiles it again for another number. A struct is handed
    to the code as an object. To compare structs takes about 30 ns more per record.

    >>> above("x", 5)
    'struct(x) > struct(5L)'
    """
    return f"struct({sql}) > struct({number}L)"


def not_utf8(texts: Mapping[str, Expression]) -> list[Case]:
    """The cases of texts that aren't UTF-8, by their names in the reason.

    >>> not_utf8({"city": "`city`"})[0].condition
    'coalesce(NOT is_valid_utf8(`city`), false)'
    """
    cases = []
    for name, text in texts.items():
        if isinstance(text, str):
            condition: Expression = f"coalesce(NOT is_valid_utf8({text}), false)"
        else:
            condition = F.coalesce(~F.is_valid_utf8(text), F.lit(False))
        cases.append(Case(condition, f"not UTF-8: {name}", text, check=_never))  # Python's texts are UTF-8
    return cases


def not_utf8_inside(columns: Mapping[str, DataType]) -> list[Case]:
    """The same for columns of any type: also for texts inside arrays, maps and structs.

    >>> not_utf8_inside({"tags": ArrayType(StringType())})[0].condition
    'coalesce(exists(`tags`, x0 -> NOT is_valid_utf8(x0)), false)'
    """
    found = ((name, " OR ".join(_invalid(quoted(name), kind))) for name, kind in columns.items())
    return [Case(f"coalesce({sql}, false)", f"not UTF-8: {name}", quoted(name), _never) for name, sql in found if sql]


def _invalid(sql: str, kind: DataType, depth: int = 0) -> Iterator[str]:
    """Conditions that are true where a text inside a value isn't UTF-8."""
    item = f"x{depth}"
    match kind:
        case StringType():
            yield f"NOT is_valid_utf8({sql})"
        case ArrayType(elementType=of):
            for condition in _invalid(item, of, depth + 1):
                yield f"exists({sql}, {item} -> {condition})"
        case MapType(keyType=key, valueType=value):
            for part, of in (("map_keys", key), ("map_values", value)):
                for condition in _invalid(item, of, depth + 1):
                    yield f"exists({part}({sql}), {item} -> {condition})"
        case StructType(fields=fields):
            for field in fields:
                yield from _invalid(f"{sql}.{quoted(field.name)}", field.dataType, depth)


def is_unusable(cases: Sequence[Case]) -> Column:
    """True for an unusable record."""
    sql = " OR ".join(case.condition for case in cases if isinstance(case.condition, str))
    others = [case.condition for case in cases if not isinstance(case.condition, str)]
    return reduce(or_, others, F.expr(f"({sql})"))


ALL_COLUMNS: Final = ("*",)


def shown_of(records: DataFrame, hidden: Collection[str]) -> Sequence[str]:
    """The columns that late records and dead letters show."""
    return [quoted(name) for name in records.columns if name not in hidden] if hidden else ALL_COLUMNS


def dead_letter(cases: Sequence[Case], shown: Sequence[str] = ALL_COLUMNS) -> Column:
    """Null for a usable record, else JSON with the reason and the record."""
    whens = [f"WHEN {case.condition} THEN {_letter(case, shown)}" for case in cases if isinstance(case.condition, str)]
    letters = [F.expr(f"CASE {' '.join(whens)} END")]
    letters += [
        F.when(case.condition, _letter_of(case, shown)) for case in cases if not isinstance(case.condition, str)
    ]
    return F.coalesce(*letters)


def _letter(case: Case, shown: Sequence[str]) -> str:
    record = ", ".join(shown)
    if case.not_text is not None:
        record += f", base64(CAST(CAST({case.not_text} AS string) AS binary)) AS {BYTES}"
    return f"to_json(struct({_text(case.reason)} AS reason, struct({record}) AS record), {_KEEP_NULLS})"


def _letter_of(case: Case, shown: Sequence[str]) -> Column:
    """`_letter` for a text that a user gave as a Column."""
    assert case.not_text is not None and not isinstance(case.not_text, str)
    data = F.base64(case.not_text.cast("string").cast("binary")).alias(BYTES)
    letter = F.struct(F.lit(case.reason).alias("reason"), F.struct(*map(F.col, shown), data).alias("record"))
    return F.to_json(letter, {"ignoreNullFields": "false"})


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
