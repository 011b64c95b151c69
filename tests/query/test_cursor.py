"""Cursors: a cursor is read back unchanged, and any other text is refused."""

import base64
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.query.cursor import FORMAT, BadCursor, Cursor, decode_cursor, encode_cursor

FORMER = "Apemc2NvcmVzxAIBYcQDAW0AxAQBYm9iKsLANYuUpg", "Apmmc2NvcmVzxAIBYcQDAW0AxAQBYm9iKsLAoIAFSrIp"
"""Without the last members."""
GOLDEN = "Apqmc2NvcmVzxAIBYcQDAW0AxAQBYm9iKsLAoICoOWJlMWE0ZjAedm5-"

keys = st.binary().map(lambda key: b"\x01" + key)


def between(a: bytes, b: bytes, c: bytes) -> dict[str, bytes]:
    start, after, last = sorted((a, b, c))
    return {"start": start, "after": after, "stop": last + b"\x00"}


cursors = st.builds(
    lambda range_, **others: Cursor(**range_, **others),
    range_=st.builds(between, keys, keys, keys),
    store=st.text(),
    version=st.integers(0, 2**63 - 1),
    reverse=st.booleans(),
    order=st.none() | st.integers(-(2**63), 2**63 - 1),
    query=st.text(),
    parameters=st.dictionaries(st.text(), st.text()),
)


def test_the_golden_cursors_are_read_as_they_always_were() -> None:
    former = Cursor("scores", b"\x01a", b"\x01m\x00", b"\x01bob", 42)
    assert [decode_cursor(each) for each in FORMER] == [former, former]
    cursor = msgspec.structs.replace(former, commit="9be1a4f0")
    assert encode_cursor(cursor) == GOLDEN
    assert decode_cursor(GOLDEN) == cursor


@pytest.mark.parametrize(
    "changed",
    [
        {"after": b""},
        {"after": b"\x00k"},
        {"after": b"\x02"},
        {"after": b"\xff\xff"},
        {"after": b"\x01z"},
        {"start": b""},
        {"start": b"\x01c"},
        {"stop": b"\x01b"},
        {"stop": b"\x03"},
        {"version": -1},
        {"version": 2**63},
        {"query": 1},
        {"parameters": {"from": 1}},
    ],
)
def test_a_cursor_that_no_page_has_is_refused(changed: dict[str, object]) -> None:
    cursor = Cursor("scores", b"\x01a", b"\x01m\x00", b"\x01bob", 42)
    with pytest.raises(BadCursor):
        decode_cursor(encode_cursor(msgspec.structs.replace(cursor, **changed)))


def test_a_cursor_that_is_nested_deeply_is_refused() -> None:
    body = bytes([FORMAT]) + b"\x91" * 100_000
    text = base64.urlsafe_b64encode(body + zlib.crc32(body).to_bytes(4, "big")).decode()
    with pytest.raises(BadCursor):
        decode_cursor(text)


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
