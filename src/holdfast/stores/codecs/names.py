"""Names of codecs: the name a user writes, the id in the app's file, and the class of a user's own id."""

from collections.abc import Mapping
from typing import Any

from holdfast.errors import USER_ERRORS, TopologyError
from holdfast.stores.codecs.avro import AVRO
from holdfast.stores.codecs.base import Codec, name_of
from holdfast.stores.codecs.packed import JSON, MESSAGE_PACK
from holdfast.stores.codecs.protobuf import PROTOBUF
from holdfast.stores.codecs.raw import BYTES
from holdfast.stores.places import imported

NAMES: Mapping[str, str] = {"msgpack": MESSAGE_PACK, "json": JSON, "bytes": BYTES, "avro": AVRO, "protobuf": PROTOBUF}
"""The name a user writes, and the id in the app's file."""


def codec_id(codec: str | Codec[Any] | None) -> str:
    """The id of a user's `codec=`.

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
        f"codec={codec!r} has the id {found!r}. The `id` of your own codec is 'module:Class': other processes import "
        f"it from there. Or use {', '.join(NAMES)}."
    )


def _importable(codec: str) -> str:
    """The same id, unless it names a class that no other process could import."""
    if codec.startswith("__main__:"):
        raise TopologyError(
            f"codec {codec!r} is in the main program, which workers and instances can't import. Put the class into a "
            "module of its own, and use its name: 'module:Class'."
        )
    return codec


def users_own(place: str, type_: Any) -> Codec[Any]:
    """A user's own codec, `module:Class`, for values of one type."""
    class_ = imported(place, "a codec")
    try:
        codec: Codec[Any] = class_(type_)
    except USER_ERRORS as error:  # a user's class may raise anything
        raise TopologyError(
            f"codec {place!r} can't be made for {name_of(type_)}: {type(error).__name__}: {error}. It is called with "
            "the type of the store's values."
        ) from error
    if codec.id != place:
        raise TopologyError(f"codec {place!r} has the id {codec.id!r}. Set its id to {place!r}.")
    return codec
