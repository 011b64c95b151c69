"""Cursors: what was written is read, and what wasn't is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.query.cursor import BadCursor, Cursor, decode_cursor, encode_cursor

GOLDEN = "AZWmc2NvcmVzxAIBYcQDAW0AxAQBYm9iKtseKxY"

cursors = st.builds(
    Cursor,
    store=st.text(),
    start=st.binary(),
    stop=st.none() | st.binary(),
    after=st.binary(),
    version=st.integers(0, 2**63 - 1),
)


def test_format_1_reads_as_it_always_did() -> None:
    cursor = Cursor("scores", b"\x01a", b"\x01m\x00", b"\x01bob", 42)
    assert encode_cursor(cursor) == GOLDEN
    assert decode_cursor(GOLDEN) == cursor


@given(cursors)
def test_a_cursor_comes_back_as_it_went(cursor: Cursor) -> None:
    text = encode_cursor(cursor)
    assert decode_cursor(text) == cursor
    assert text.replace("-", "").replace("_", "").isalnum()  # stands in a URL as it is


@given(cursors, st.data())
def test_a_changed_letter_is_noticed(cursor: Cursor, data: st.DataObject) -> None:
    text = encode_cursor(cursor)
    at = data.draw(st.integers(0, len(text) - 2))  # the last letter may hold bits that count for nothing
    letter = data.draw(st.sampled_from([c for c in "Aaz09-_" if c != text[at]]))
    with pytest.raises(BadCursor):
        decode_cursor(text[:at] + letter + text[at + 1 :])


@given(st.text())
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(BadCursor):
        decode_cursor(text)


def test_it_goes_on_right_after_the_last_key() -> None:
    cursor = Cursor("s", b"", None, b"\x01b", 1)
    assert b"\x01b" < cursor.next_start <= b"\x01b\x00"
