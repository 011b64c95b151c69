"""Raw bytes, stored unchanged."""

from holdfast.stores.codecs.base import wrong_type

BYTES = "bytes/1"


class Bytes:
    """Values that are bytes.

    >>> Bytes().encode(b"abc")
    b'abc'
    """

    id = BYTES

    def encode(self, value: bytes) -> bytes:
        if not isinstance(value, bytes):
            raise wrong_type(value, bytes)
        return value

    def decode(self, data: bytes) -> bytes:
        return data
