"""Values as payloads: the bytes of MessagePack and rows never change, and other types are rejected."""

import dataclasses
import datetime as dt
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from holdfast.errors import BadValue, DamagedObject, TopologyError
from holdfast.stores.codecs.packed import MessagePack
from holdfast.stores.codecs.values import codec_of
from holdfast.stores.formats.keys import key_schema
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import RowValues, StoreSpec


class Player(msgspec.Struct):
    name: str
    best: int = 0


@dataclasses.dataclass
class Visit:
    at: dt.datetime
    spent: Decimal


@pytest.mark.parametrize(
    ("type_", "value", "data"),
    [
        (int, 300, "cd012c"),
        (str, "añ", "a361c3b1"),
        (Player, Player("Ann", 3), "82a46e616d65a3416e6ea46265737403"),
        (tuple[int, str], (1, "x"), "9201a178"),
        (dict[str, float], {"a": 0.5}, "81a161cb3fe0000000000000"),
        (Visit, Visit(dt.datetime(2024, 1, 1, tzinfo=dt.UTC), Decimal("1.50")), None),
        (int | None, 7, "07"),
    ],
)
def test_format_msgpack_1_never_changes(type_: Any, value: Any, data: str | None) -> None:
    codec = MessagePack[Any](type_)
    encoded = codec.encode(value)
    assert data is None or encoded.hex() == data
    assert codec.decode(encoded) == value


@pytest.mark.parametrize(
    ("type_", "value"),
    [(int, "1"), (Player, {"best": 1}), (int | str, 1.5), (list[int], 3), (str, object()), (int, 2**70)],
)
def test_values_of_another_type_are_rejected(type_: Any, value: Any) -> None:
    with pytest.raises(BadValue):
        MessagePack[Any](type_).encode(value)


def test_bytes_of_another_type_are_an_error() -> None:
    with pytest.raises(DamagedObject, match="Player"):
        MessagePack(Player).decode(b"\x05")
    with pytest.raises(TopologyError, match="value type"):
        codec_of(StoreSpec(name="a", key=key_schema(str), codec="msgpack/1"), dict[str, int] | dict[int, int])


def test_the_spec_decides_the_codec() -> None:
    key, value = key_schema(str), Schema.of(plays="bigint", who="string")
    rows = codec_of(StoreSpec(name="a", key=key, value=RowValues(value), codec="rows/1"))
    assert rows.id == "rows/1"
    assert rows.decode(rows.encode({"plays": 1})) == {"plays": 1, "who": None}
    with pytest.raises(BadValue, match="has score, but the store has plays bigint, who string"):
        rows.encode({"score": 1})
    plain = codec_of(StoreSpec(name="a", key=key, codec="msgpack/1"))
    assert plain.decode(MessagePack(Player).encode(Player("Ann", 3))) == {"name": "Ann", "best": 3}
    for spec in (StoreSpec(name="a", key=key, codec="rows/1"), StoreSpec(name="a", key=key, codec="avro/1")):
        with pytest.raises(TopologyError, match="store 'a'"):
            codec_of(spec)
