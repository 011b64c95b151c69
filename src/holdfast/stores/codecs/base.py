"""What a codec is: a value type as bytes, under a name the log remembers.

A codec's name has a format number, `json/1`, or is the place of a user's own class, `module:Class`. What it makes is
the payload of a cell; the envelope is not its business. A codec that can also be read without the type, as dicts, lists
and numbers, carries values whose schema changes: upcasters and aliases work on those.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, get_origin, runtime_checkable

from holdfast.errors import ErrorCategory, HoldfastError, TopologyError

V = TypeVar("V")


class CodecMissing(TopologyError):
    """A codec's library isn't installed."""

    category = ErrorCategory.INVALID

    def __init__(self, codec: str, library: str) -> None:
        super().__init__(
            f"codec {codec!r} needs {library}, which isn't installed. Install it: pip install 'holdfast[{codec}]'."
        )


class UnreadableValue(HoldfastError):
    """A stored value that this code can't read."""

    category = ErrorCategory.DATA


class Codec(Protocol[V]):
    """A value type as bytes."""

    @property
    def id(self) -> str: ...

    def encode(self, value: V) -> bytes: ...

    def decode(self, data: bytes) -> V: ...


@dataclass(frozen=True)
class Quick:
    """A codec's encoder and decoder as they are, without its checks: for the many values that need none.

    `encode` is right for values of just this class. What makes `decode` fail, the codec itself will put into words.
    """

    class_: type
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    failures: tuple[type[Exception], ...]


@runtime_checkable
class PlainCodec(Protocol[V]):
    """A codec whose bytes can be read and written without the type."""

    @property
    def id(self) -> str: ...

    def encode(self, value: V) -> bytes: ...

    def decode(self, data: bytes) -> V: ...

    def read_plain(self, data: bytes, schema: int) -> Any:
        """Dicts, lists, texts and numbers, from bytes that were written in a schema of this number."""

    def write_plain(self, plain: Any) -> bytes: ...

    def to_plain(self, value: V) -> Any: ...

    def from_plain(self, plain: Any) -> V: ...


def name_of(type_: Any) -> str:
    return type_.__name__ if isinstance(type_, type) and get_origin(type_) is None else str(type_)
