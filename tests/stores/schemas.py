"""Types for the tests of codecs and schemas: one value type as it changes from release to release."""

from dataclasses import dataclass, field
from typing import Any

import holdfast as hf
from holdfast.stores.codecs.packed import MessagePack
from holdfast.stores.codecs.values import StoreCodec, codec_of, schema_of
from holdfast.stores.formats.types import Schema
from holdfast.stores.schema.history import merged
from holdfast.stores.spec import StoreSpec


@dataclass
class First:
    """Release 1."""

    user: str
    score: int


@dataclass
class Gained:
    """Release 2: two more fields, with defaults. No declaration is needed."""

    user: str
    score: int
    tags: list[str] = field(default_factory=list)
    best: float | None = None


@hf.schema(aliases={"player": "user"})
@dataclass
class Renamed:
    """Release 3: `user` is called `player`."""

    player: str
    score: int
    tags: list[str] = field(default_factory=list)


@hf.schema(number=2, aliases={"player": "user"}, upcasters={1: lambda old: {**old, "score": old["score"] / 10}})
@dataclass
class Tenths:
    """Release 4: scores are divided by ten."""

    player: str
    score: float
    tags: list[str] = field(default_factory=list)


@hf.schema(number=3, aliases={"player": "user"})
@dataclass
class Named:
    """Release 5: the name is a record."""

    player: dict[str, str]
    score: float = 0.0

    @hf.upcast(from_=1)
    @staticmethod
    def to_tenths(old: dict[str, Any]) -> dict[str, Any]:
        return {**old, "score": old["score"] / 10}

    @hf.upcast(from_=2)
    @staticmethod
    def to_names(old: dict[str, Any]) -> dict[str, Any]:
        return {**old, "user": {"first": old["user"]}}


RELEASES: list[type] = [First, Gained, Renamed, Tenths, Named]


class Reversed(MessagePack[Any]):
    """A user's own codec: MessagePack, backwards."""

    id = "tests.stores.schemas:Reversed"

    def write_plain(self, plain: Any) -> bytes:
        return super().write_plain(plain)[::-1]

    def read_plain(self, data: bytes, schema: int) -> Any:
        return super().read_plain(data[::-1], schema)

    def encode(self, value: Any) -> bytes:
        return self.write_plain(value)

    def decode(self, data: bytes) -> Any:
        return super().decode(data[::-1])


class Opaque:
    """A user's own codec that can't be read without its type."""

    id = "tests.stores.schemas:Opaque"

    def __init__(self, type_: Any = None) -> None:
        self.type = type_

    def encode(self, value: str) -> bytes:
        return value.encode("utf-16")

    def decode(self, data: bytes) -> str:
        return data.decode("utf-16")


def spec_of(type_: Any, codec: str = "msgpack/1", **options: Any) -> StoreSpec:
    """The spec of a store with this value type."""
    schema = schema_of(type_, codec)
    shapes: dict[str, Any] = {} if schema is None else {"schema": schema.number, "schemas": (schema,)}
    return StoreSpec(name="scores", key=Schema.of(k="string"), codec=codec, **shapes, **options)


def typed(type_: Any, codec: str = "msgpack/1") -> StoreCodec[Any]:
    return codec_of(spec_of(type_, codec), type_)


def history(*types: Any, codec: str = "msgpack/1") -> StoreSpec:
    """The spec in the log after releases with these value types, one after the other."""
    log = spec_of(types[0], codec)
    for type_ in types[1:]:
        log = merged(log, spec_of(type_, codec))
    return log
