"""Arithmetic on nullable Arrow columns by Spark's rules.

Null combined with a value is the value. NaN is larger than every number. Whole numbers and decimals that don't fit
raise `pa.ArrowInvalid`; the caller, which has the keys, names the key.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def add(left: pa.Array, right: pa.Array, kind: pa.DataType) -> pa.Array:
    """The sum, checked for overflow; null only where both are.

    >>> add(pa.array([1, None, None]), pa.array([2, 3, None]), pa.int64()).to_pylist()
    [3, 3, None]
    """
    if pa.types.is_decimal(kind):
        wide = pa.decimal256(40, kind.scale)
        total = pc.add(left.cast(wide), right.cast(wide)).cast(kind)
    else:
        total = pc.add_checked(left, right)
    return pc.coalesce(total, left, right)


def larger(left: pa.Array, right: pa.Array) -> pa.Array:
    """The larger of two, null only where both are.

    >>> larger(pa.array([1.0, None]), pa.array([float("nan"), 2.0])).to_pylist()
    [nan, 2.0]
    """
    if pa.types.is_boolean(left.type):
        return pc.coalesce(pc.or_(left, right), left, right)
    if pa.types.is_temporal(left.type):
        return larger(_ticks(left), _ticks(right)).view(left.type)
    found = pc.max_element_wise(left, right)
    if pa.types.is_floating(left.type):
        is_nan = pc.or_(pc.fill_null(pc.is_nan(left), False), pc.fill_null(pc.is_nan(right), False))
        return pc.if_else(is_nan, pa.scalar(float("nan"), left.type), found)
    return found


def smaller(left: pa.Array, right: pa.Array) -> pa.Array:
    """The smaller of two, null only where both are; NaN only where neither is a number.

    >>> smaller(pa.array([1.0, None]), pa.array([float("nan"), 2.0])).to_pylist()
    [1.0, 2.0]
    """
    if pa.types.is_boolean(left.type):
        return pc.coalesce(pc.and_(left, right), left, right)
    if pa.types.is_temporal(left.type):
        return smaller(_ticks(left), _ticks(right)).view(left.type)
    found = pc.min_element_wise(left, right)
    if pa.types.is_floating(left.type):
        with_left = pc.if_else(pc.fill_null(pc.is_nan(right), False), left, found)
        return pc.coalesce(pc.if_else(pc.fill_null(pc.is_nan(left), False), right, with_left), left, right)
    return found


def _ticks(moments: pa.Array) -> pa.Array:
    """Moments as whole numbers: Arrow can't compare moments with a time zone element by element."""
    return moments.view(pa.int32() if moments.type.bit_width == 32 else pa.int64())


def quotient(total: pa.Array, number: pa.Array, kind: pa.DataType) -> pa.Array:
    """`total / number`, null where the number is 0. Decimals are rounded half up, like Spark's average.

    >>> from decimal import Decimal
    >>> quotient(pa.array([Decimal("2.0")], pa.decimal128(20, 1)), pa.array([3]), pa.decimal128(14, 5)).to_pylist()
    [Decimal('0.66667')]
    """
    counted = pc.if_else(pc.greater(number, 0), number, pa.scalar(None, pa.int64()))
    if not pa.types.is_decimal(kind):
        return pc.divide(total, counted.cast(pa.float64()))
    # Arrow cuts off the quotient some 20 digits later, so rounding half up still sees the digit it needs.
    exact = pc.divide(total.cast(pa.decimal256(38, total.type.scale)), counted.cast(pa.decimal256(19, 0)))
    return pc.round(exact, ndigits=kind.scale, round_mode="half_towards_infinity").cast(kind)


def beats(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> pa.Array:
    """Where the tuple on the left is larger: column by column, null smallest and NaN largest.

    >>> beats([pa.array([1, 1]), pa.array(["a", None])], [pa.array([1, 1]), pa.array([None, "a"])]).to_pylist()
    [True, False]
    """
    larger_so_far, tied = (pa.array(np.full(len(left[0]), each)) for each in (False, True))
    for a, b in zip(left, right, strict=True):
        above, same = compared(a, b)
        larger_so_far, tied = pc.or_(larger_so_far, pc.and_(tied, above)), pc.and_(tied, same)
        if not pc.any(tied).as_py():
            break
    return larger_so_far


def compared(a: pa.Array, b: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Where a > b and where a = b, in the order null < numbers < NaN."""
    if pa.types.is_boolean(a.type):
        a, b = a.cast(pa.uint8()), b.cast(pa.uint8())
    above, same = pc.greater(a, b), pc.equal(a, b)
    if pa.types.is_floating(a.type):
        a_nan, b_nan = pc.is_nan(a), pc.is_nan(b)
        above = pc.or_(above, pc.and_(a_nan, pc.invert(b_nan)))
        same = pc.or_(same, pc.and_(a_nan, b_nan))
    a_null, b_null = pc.is_null(a), pc.is_null(b)
    above = pc.if_else(pc.or_(a_null, b_null), pc.and_(b_null, pc.invert(a_null)), above)
    same = pc.if_else(pc.or_(a_null, b_null), pc.and_(a_null, b_null), same)
    return above, same
