"""Codecs of a user's own that tests name by their place; instances import them, so nothing here needs Spark."""

import json
import pickle
import zlib
from typing import Any

import msgspec


class Zipped:
    """As in docs/shapes.md: MessagePack, compressed, read by the type it was made with."""

    id = "tests.codecs:Zipped"

    def __init__(self, type_: Any) -> None:
        self._type = type_

    def encode(self, value: Any) -> bytes:
        return zlib.compress(msgspec.msgpack.encode(value))

    def decode(self, data: bytes) -> Any:
        return msgspec.msgpack.decode(zlib.decompress(data), type=self._type)


class Pickled:
    """Makes nothing of the type."""

    id = "tests.codecs:Pickled"

    def __init__(self, type_: Any = None) -> None: ...

    def encode(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def decode(self, data: bytes) -> Any:
        return pickle.loads(data)


class Afraid(Pickled):
    """Raises for some rows."""

    id = "tests.codecs:Afraid"

    def encode(self, value: Any) -> bytes:
        if 101 in value.values():
            raise ZeroDivisionError("of all numbers")
        return super().encode(value)


class Rounding(Pickled):
    """Gives back something else than it was given, for some, and has changed the dict it was given."""

    id = "tests.codecs:Rounding"

    def encode(self, value: Any) -> bytes:
        value.update({name: 100 for name, item in value.items() if item == 101})
        return super().encode(value)


class Plain(Pickled):
    """Python's JSON, which has dates and decimals as texts."""

    id = "tests.codecs:Plain"

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, default=str).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


class Empty(Pickled):
    """Has no bytes for a row of nulls."""

    id = "tests.codecs:Empty"

    def encode(self, value: Any) -> bytes:
        return super().encode(value) if any(item is not None for item in value.values()) else b""


class Unmade:
    """Can't be made."""

    id = "tests.codecs:Unmade"

    def __init__(self, type_: Any) -> None:
        raise RuntimeError("not today")
