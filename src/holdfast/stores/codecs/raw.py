"""Raw bytes: the user's own, stored as they are."""

from holdfast.errors import BadValue

BYTES = "bytes/1"


class Bytes:
    """Values that are bytes already.

    >>> Bytes().encode(b"abc")
    b'abc'
    """

    id = BYTES

    def encode(self, value: bytes) -> bytes:
        if not isinstance(value, bytes):
            raise BadValue(f"{value!r} is a {type(value).__name__}, and the store's values are bytes. Give bytes.")
        return value

    def decode(self, data: bytes) -> bytes:
        return data
