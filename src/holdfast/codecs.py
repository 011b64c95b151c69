"""For authors of codecs: the methods a codec needs.

A user's own codec is named `codec="module:Class"`, and is called with the store's value type. It has the methods of
`Codec`; with those of `PlainCodec` it supports aliases and upcasters too. `decode` raises `UnreadableValue` for bytes
that it can't read.
"""

from holdfast.stores.codecs.base import Codec, PlainCodec, UnreadableValue

__all__ = ["Codec", "PlainCodec", "UnreadableValue"]
