"""Values of Arrow columns as Python has them or, where Python has none, as text.

SQL has dates before the year 1 and after 9999, and infinite ones; `datetime` has not. Such a value is its ISO text with
all digits of the year, where the year before 0001 is 0000, or `infinity` and `-infinity`, as DuckDB prints these.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

_INFINITE: Final = (2**31 - 1, 2**63 - 1)
"""The days and the times that are infinite in DuckDB; with a minus sign too."""
_SMALLEST: Final = -(2**63)


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column.

    >>> python_values(pa.array([0, -756_000, 4_000_000], pa.int32()).cast(pa.date32()))
    [datetime.date(1970, 1, 1), '-0100-02-22', '12921-08-18']
    """
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        return [_value(each) for each in column]
    return found


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table with these values."""
    try:
        found: list[dict[str, Any]] = table.to_pylist()
    except (OverflowError, ValueError):
        columns = [python_values(column) for column in table.columns]
        return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
    return found


def _value(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    match scalar:
        case pa.MapScalar():
            return [(_value(entry["key"]), _value(entry["value"])) for entry in scalar.values]
        case pa.ListScalar() | pa.LargeListScalar() | pa.FixedSizeListScalar():
            return [_value(each) for each in scalar.values]
        case pa.StructScalar():
            return {name: _value(scalar[name]) for name in scalar}
        case pa.UnionScalar():
            return _value(scalar.value)
        case pa.Date32Scalar() | pa.TimestampScalar():
            try:
                return scalar.as_py()
            except (OverflowError, ValueError):
                return _moment_text(scalar)
    return scalar.as_py()


def _moment_text(scalar: pa.Date32Scalar | pa.TimestampScalar) -> str:
    if abs(scalar.value) in _INFINITE:
        return "infinity" if scalar.value > 0 else "-infinity"
    is_date = isinstance(scalar, pa.Date32Scalar)
    text = str(np.datetime64(max(scalar.value, _SMALLEST + 1), "D" if is_date else scalar.type.unit))
    if scalar.value == _SMALLEST:  # which numpy takes for a missing time: that of the next one ends in 3
        text = f"{text[:-1]}2"
    sign, text = ("-", text[1:]) if text.startswith("-") else ("", text)
    year, _, rest = text.partition("-")
    if "." in rest:
        rest = rest.rstrip("0").removesuffix(".")
    zone = "" if is_date or scalar.type.tz is None else "Z"
    return f"{sign}{year:0>4}-{rest}{zone}"
