"""For authors of codecs: what a class of one's own has to have.

A codec is named by its place, `codec="module:Class"`, and made with the store's value type. `Codec` is the least it
needs; with the methods of `PlainCodec` it carries aliases and upcasters too. `UnreadableValue` is what `decode` raises
for bytes it can't read.
"""

from holdfast.stores.codecs.base import Codec, PlainCodec, UnreadableValue

__all__ = ["Codec", "PlainCodec", "UnreadableValue"]
