"""What a codec is: it encodes values of a type as bytes, under a name that the app's file records.

A codec's name has a format number, `json/1`, or is a user's own class, `module:Class`. Its bytes are the payload of a
cell. Upcasters and aliases need a `PlainCodec`, which can also read and write dicts, lists and numbers without the
type.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, get_origin, runtime_checkable

from holdfast.errors import BadValue, DamagedObject, ErrorCategory, HoldfastError, TopologyError, shown

V = TypeVar("V")


class CodecMissing(TopologyError):
    """A codec's library isn't installed."""

    category = ErrorCategory.INVALID

    def __init__(self, codec: str, library: str) -> None:
        super().__init__(
            f"codec {codec!r} needs {library}, which isn't installed. Install it: pip install 'holdfast[{codec}]'."
        )


class UnreadableValue(HoldfastError):
    """This code can't read a stored value."""

    category = ErrorCategory.DATA


class Codec(Protocol[V]):
    """Values of a type as bytes."""

    @property
    def id(self) -> str: ...

    def encode(self, value: V) -> bytes: ...

    def decode(self, data: bytes) -> V: ...


@dataclass(frozen=True)
class Quick:
    """A codec's encoder and decoder without its checks, for the many values that need none.

    `encode` is correct only for values of exactly this class. After one of the `failures`, the caller repeats the call
    with the codec itself, which explains the error.
    """

    class_: type
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    failures: tuple[type[Exception], ...]


@runtime_checkable
class PlainCodec(Codec[V], Protocol[V]):
    """A codec whose bytes can be read and written without the type."""

    def read_plain(self, data: bytes, schema: int) -> Any:
        """Dicts, lists, texts and numbers, from bytes written in the schema of this number."""

    def write_plain(self, plain: Any) -> bytes: ...

    def to_plain(self, value: V) -> Any: ...

    def from_plain(self, plain: Any) -> V: ...


def wrong_type(value: object, type_: Any) -> BadValue:
    found = type(value).__name__
    return BadValue(f"{shown(value)} is a {found}, but the store's values are {name_of(type_)}. Give one of those.")


def damaged_value(type_: Any, fact: object) -> DamagedObject:
    return DamagedObject(
        f"a stored value can't be read as {name_of(type_)}: {fact}. Give the type it was written with; a field that "
        "was added needs a default."
    )


def name_of(type_: Any) -> str:
    return type_.__name__ if isinstance(type_, type) and get_origin(type_) is None else str(type_)
