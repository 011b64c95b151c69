"""Cursors: a cursor is read back unchanged, and any other text is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.query.cursor import BadCursor, Cursor, decode_cursor, encode_cursor

GOLDEN = "Apemc2NvcmVzxAIBYcQDAW0AxAQBYm9iKsLANYuUpg"

cursors = st.builds(
    Cursor,
    store=st.text(),
    start=st.binary(),
    stop=st.none() | st.binary(),
    after=st.binary(),
    version=st.integers(0, 2**63 - 1),
    reverse=st.booleans(),
)


def test_the_golden_cursor_is_unchanged() -> None:
    cursor = Cursor("scores", b"\x01a", b"\x01m\x00", b"\x01bob", 42)
    assert encode_cursor(cursor) == GOLDEN
    assert decode_cursor(GOLDEN) == cursor


@given(cursors)
def test_a_cursor_is_decoded_as_it_was_encoded(cursor: Cursor) -> None:
    text = encode_cursor(cursor)
    assert decode_cursor(text) == cursor
    assert text.replace("-", "").replace("_", "").isalnum()  # needs no escaping in a URL


@given(cursors, st.data())
def test_a_changed_character_is_found(cursor: Cursor, data: st.DataObject) -> None:
    text = encode_cursor(cursor)
    at = data.draw(st.integers(0, len(text) - 2))  # the last character may have unused bits
    letter = data.draw(st.sampled_from([c for c in "Aaz09-_" if c != text[at]]))
    with pytest.raises(BadCursor):
        decode_cursor(text[:at] + letter + text[at + 1 :])


@given(st.text())
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(BadCursor):
        decode_cursor(text)


def test_the_next_page_continues_right_after_the_last_key() -> None:
    assert Cursor("s", b"\x01", b"\x01z", b"\x01b", 1).rest == (b"\x01b\x00", b"\x01z")
    assert Cursor("s", b"\x01", b"\x01z", b"\x01b", 1, reverse=True).rest == (b"\x01", b"\x01b")
