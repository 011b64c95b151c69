"""The SQL by which Spark makes sketches. Only values that compare as equal may become equal inputs of a sketch."""

from holdfast.topology.aggregates import Function
from holdfast.topology.reducers import Reducer
from holdfast.topology.sketches import HLL_SIZE, KLL_SIZE, tracked


def sketch_of(reducer: Reducer, column: str) -> str:
    """The sketch of a column's values, as bytes.

    >>> from holdfast.topology.aggregates import approx_count_distinct
    >>> from holdfast.topology.reducers import bind
    >>> sketch_of(bind("n", approx_count_distinct("day"), "date"), "x0")
    'hll_sketch_agg(CAST(unix_date(x0) AS bigint), 12)'
    """
    match reducer.function:
        case Function.APPROX_COUNT_DISTINCT:
            return f"hll_sketch_agg({_hashed(reducer.input, column)}, {HLL_SIZE})"
        case Function.APPROX_QUANTILE:
            return f"kll_sketch_agg_double(CAST({column} AS double), {KLL_SIZE})"
        case _:
            (most,) = reducer.parameters
            return f"approx_top_k_accumulate(CAST({column} AS string), {tracked(int(most))}).sketch"


def _hashed(kind: str, column: str) -> str:
    """What a sketch of distinct values takes: whole numbers, texts or bytes. It ignores empty ones, hence a prefix."""
    match kind:
        case "binary":
            return f"concat(X'00', {column})"
        case "date":
            return f"CAST(unix_date({column}) AS bigint)"
        case "timestamp":  # not as text, which depends on the time zone of the session
            return f"unix_micros({column})"
        case "float" | "double":  # 0.0 and -0.0 are one value
            return f"CAST(CAST({column} AS double) + 0.0D AS string)"
        case "tinyint" | "smallint" | "int" | "bigint":
            return f"CAST({column} AS bigint)"
        case _:
            return f"concat('.', CAST({column} AS string))"
