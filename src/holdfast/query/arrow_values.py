"""Values of Arrow columns as Python has them or, where Python has none, as text.

SQL has dates before the year 1 and after 9999, and infinite ones; `datetime` has not. Such a value is its ISO text with
all digits of the year, where the year before 0001 is 0000, or `infinity` and `-infinity`, as DuckDB prints these.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

_INFINITE: Final = (2**31 - 1, 2**63 - 1)
"""The days and the times that are infinite in DuckDB; with a minus sign too."""


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
    text = str(np.datetime64(scalar.value, "D" if is_date else scalar.type.unit))
    sign, text = ("-", text[1:]) if text.startswith("-") else ("", text)
    year, _, rest = text.partition("-")
    if "." in rest:
        rest = rest.rstrip("0").removesuffix(".")
    zone = "" if is_date or scalar.type.tz is None else "Z"
    return f"{sign}{year:0>4}-{rest}{zone}"
