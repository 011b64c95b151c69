"""Keys and times are sorted as pairs, however far apart they are."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.session_merging import in_order

TIMES = st.integers(-3, 3) | st.integers(-(2**62), 2**62)


@given(st.lists(st.tuples(st.integers(0, 3) | st.integers(0, 2**31), TIMES), max_size=40))
def test_pairs_are_in_order_and_equal_ones_keep_theirs(pairs: list[tuple[int, int]]) -> None:
    keys = np.array([key for key, _ in pairs], dtype=np.int64)
    times = np.array([time for _, time in pairs], dtype=np.int64)
    assert in_order(keys, times).tolist() == sorted(range(len(pairs)), key=lambda n: pairs[n])
