"""The token of a client, checked before it is sent. No error shows it."""

import re
from typing import Final

from holdfast.client.errors import BadToken

_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


def token_of(text: str, place: str) -> str:
    """The token of a text, without spaces and line ends around it. `place` says in errors where the text is from.

    >>> token_of("0123456789abcdef\\n", "token=")
    '0123456789abcdef'
    """
    token = text.strip()
    if _TOKEN.fullmatch(token):
        return token
    if not token:
        raise BadToken(f"{place} is empty. Give the token that the client sends, or none.")
    if len(token.split()) > 1:
        raise BadToken(
            f"{place} has {len(token.split())} words, and a token is one word. If it is "
            "the file of the server (rest.tokens_file), give the second word of a line alone."
        )
    raise BadToken(f"{place} has characters that a token can't have. Give visible ASCII characters only.")
