"""What a codec is called: the word a user writes, the id the log remembers, and the class a user's own id leads to."""

import importlib
from collections.abc import Mapping
from typing import Any

from holdfast.errors import TopologyError
from holdfast.stores.codecs.avro import AVRO
from holdfast.stores.codecs.base import Codec, name_of
from holdfast.stores.codecs.packed import JSON, MESSAGE_PACK
from holdfast.stores.codecs.protobuf import PROTOBUF
from holdfast.stores.codecs.raw import BYTES

NAMES: Mapping[str, str] = {
    "msgpack": MESSAGE_PACK,
    "json": JSON,
    "bytes": BYTES,
    "avro": AVRO,
    "protobuf": PROTOBUF,
}
"""What a user writes, and the id that stands in the app's file."""


def codec_id(codec: str | Codec[Any] | None) -> str:
    """The id of what a user gave as `codec=`.

    >>> codec_id(None), codec_id("json"), codec_id("shop.codecs:Zipped")
    ('msgpack/1', 'json/1', 'shop.codecs:Zipped')
    """
    if codec is None:
        return MESSAGE_PACK
    if isinstance(codec, str):
        if codec in NAMES:
            return NAMES[codec]
        if codec in NAMES.values() or ":" in codec:
            return _importable(codec)
        raise TopologyError(f"there is no codec {codec!r}. Use {', '.join(NAMES)}, or your own as 'module:Class'.")
    found: object = getattr(codec, "id", None)
    if isinstance(found, str) and ":" in found:
        return found
    raise TopologyError(
        f"codec={codec!r} has the id {found!r}. A codec of your own has an `id`, 'module:Class', which is where it is "
        f"found again: the log remembers it. Or use {', '.join(NAMES)}."
    )


def _importable(codec: str) -> str:
    """The same id, unless it names a class that no other process could import."""
    if codec.startswith("__main__:"):
        raise TopologyError(
            f"codec {codec!r} is in the program itself, where workers and instances can't import it. Put the class "
            "into a module of its own, and name it by that: 'module:Class'."
        )
    return codec


def users_own(place: str, type_: Any) -> Codec[Any]:
    """The codec a user has at `module:Class`, for values of one type."""
    module, _, name = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise TopologyError(
            f"codec {place!r} can't be loaded: {error}. Give 'module:Class' as Python finds it."
        ) from error
    try:
        codec: Codec[Any] = found(type_)
    except Exception as error:  # a user's class may raise anything
        raise TopologyError(
            f"codec {place!r} can't be made for {name_of(type_)}: {type(error).__name__}: {error}. It is called with "
            "the type of the store's values."
        ) from error
    if codec.id != place:
        raise TopologyError(
            f"codec {place!r} says that its id is {codec.id!r}. Its id is where it is found: {place!r}."
        )
    return codec
