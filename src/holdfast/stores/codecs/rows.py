"""Rows as a codec: what aggregates keep, so that the columnar path and a single lookup read the same bytes."""

from collections.abc import Mapping

from holdfast.stores.rows import decode_row, encode_row, row_of
from holdfast.stores.types import Schema

ROWS = "rows/1"


class Rows:
    """Values that are rows of a schema, as mappings from field to value.

    >>> codec = Rows(Schema.of(plays="bigint", best="double"))
    >>> codec.decode(codec.encode({"plays": 2, "best": 9.5}))
    {'plays': 2, 'best': 9.5}
    """

    id = ROWS

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def encode(self, value: Mapping[str, object]) -> bytes:
        return encode_row(self._schema, row_of(self._schema, value))

    def decode(self, data: bytes) -> dict[str, object]:
        return dict(zip(self._schema.names, decode_row(self._schema, data), strict=True))
