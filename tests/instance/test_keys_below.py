"""An engine is asked for every key that it may have and the runs don't, and for few others."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.instance.keys_below import KeysBelow
from holdfast.stores.ranges import Ranges

KEYS = st.lists(st.sampled_from([b"\x01", b"\x02", b"\x03", b"\xff"]), max_size=3).map(b"".join)


def model_of(lost: list[bytes], key: bytes) -> bool:
    return any(each[:1] == key[:1] and key <= each for each in lost)


@given(st.lists(KEYS), st.lists(KEYS), st.lists(KEYS), st.lists(st.tuples(KEYS, st.none() | KEYS)))
def test_it_says_what_a_model_says(
    stored: list[bytes], lost: list[bytes], keys: list[bytes], ranges: list[tuple[bytes, bytes | None]]
) -> None:
    def last_before(stop: bytes | None) -> bytes | None:
        return max((key for key in stored if stop is None or key < stop), default=None)

    below = KeysBelow.of(last_before).adding(pa.array(lost, pa.binary()))
    both = [*stored, *lost]
    assert bool(below) == bool(both)
    assert below.may_have(pa.array(keys, pa.binary())).tolist() == [model_of(both, key) for key in keys]
    assert [below.may_have_key(key) for key in keys] == [model_of(both, key) for key in keys]
    for (start, stop), found in zip(ranges, below.may_have_in(Ranges.of(ranges)).tolist(), strict=True):
        within = [key for key in both if start <= key and (stop is None or key < stop)]
        assert found or not within
        is_after_all = all(key < start for key in both)
        assert not (found and (is_after_all or (stop is not None and start >= stop)))
