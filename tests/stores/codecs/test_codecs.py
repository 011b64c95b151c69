"""Codecs: each decodes the value it encoded, its bytes never change, and other types are an error."""

import datetime as dt
import enum
import math
import re
import sys
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadValue, DamagedObject, HoldfastError, TopologyError
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.codecs.base import CodecMissing, UnreadableValue
from holdfast.stores.codecs.names import codec_id
from holdfast.stores.codecs.values import codec_for, codec_of, schema_of
from holdfast.stores.schema.declared import describe_type
from tests.stores.schemas import Opaque, Reversed, spec_of, typed


class Rank(enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclass
class Place:
    city: str
    near: list["Place"] = field(default_factory=list)


class Player(msgspec.Struct):
    name: str
    n: int
    x: float
    on: bool
    raw: bytes
    tags: list[str] = []
    stock: dict[str, int] = {}
    rank: Rank = Rank.LOW
    home: Place | None = None
    at: dt.datetime | None = None
    id: uuid.UUID | None = None
    spent: Decimal | None = None


_I64 = st.integers(-(2**63), 2**63 - 1)
_PLACES = st.recursive(
    st.builds(Place, st.text(max_size=5)),
    lambda inner: st.builds(Place, st.text(max_size=5), st.lists(inner, max_size=2)),
    max_leaves=4,
)
PLAYERS = st.builds(
    Player,
    name=st.text(max_size=10),
    n=_I64,
    x=st.floats(allow_nan=False, allow_infinity=False),
    on=st.booleans(),
    raw=st.binary(max_size=10),
    tags=st.lists(st.text(max_size=5), max_size=3),
    stock=st.dictionaries(st.text(max_size=5), _I64, max_size=3),
    rank=st.sampled_from(Rank),
    home=st.none() | _PLACES,
    at=st.none() | st.datetimes(timezones=st.just(dt.UTC)),
    id=st.none() | st.uuids(),
    spent=st.none() | st.decimals(allow_nan=False, allow_infinity=False, places=2),
)
CODECS = ("msgpack/1", "json/1", "avro/1", "tests.stores.schemas:Reversed")
ANN = Player("Ann", 3, 1.5, True, b"\x00\xff", ["a"], {"k": 1}, Rank.HIGH)


def message(name: str, *fields: tuple[int, str, int]) -> Any:
    """A message class like those that protoc generates."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="tests", syntax="proto3")
    made = file.message_type.add(name=name)
    for number, label, type_ in fields:
        made.field.add(name=label, number=number, type=type_, label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tests.{name}"))


_STRING, _INT64, _DOUBLE = 9, 3, 1


@pytest.mark.parametrize("codec", CODECS)
@given(value=PLAYERS)
def test_a_value_is_decoded_as_it_was_encoded(codec: str, value: Player) -> None:
    found = typed(Player, codec)
    assert found.id == codec
    assert found.decode(found.encode(value)) == value


GOLDEN = {
    "msgpack/1": "82a475736572a3416e6ea573636f726503",
    "json/1": b'{"user":"Ann","score":3}'.hex(),
    "avro/1": "06416e6e06",
}


@pytest.mark.parametrize("codec", GOLDEN)
def test_the_bytes_of_a_codec_never_change(codec: str) -> None:
    @dataclass
    class Score:
        user: str
        score: int

    found = typed(Score, codec)
    assert found.encode(Score("Ann", 3)).hex() == GOLDEN[codec]
    assert found.decode(bytes.fromhex(GOLDEN[codec])) == Score("Ann", 3)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.data())
def test_truncated_or_extra_bytes_are_an_error(codec: str, data: st.DataObject) -> None:
    found = typed(Player, codec)
    whole = found.encode(ANN)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DamagedObject):
        found.decode(whole[:cut] if codec != "tests.stores.schemas:Reversed" else whole[len(whole) - cut :])
    with pytest.raises(DamagedObject):
        found.decode(whole + b"\x00" if codec != "tests.stores.schemas:Reversed" else b"\x00" + whole)


@pytest.mark.parametrize("codec", CODECS[:3])
def test_a_value_of_another_type_is_rejected(codec: str) -> None:
    with pytest.raises(BadValue, match="Player"):
        typed(Player, codec).encode(7)


@dataclass
class Scored:
    n: int = 0
    on: bool = False
    x: float = 0.0
    rank: Rank = Rank.HIGH


SIMILAR: list[tuple[Any, Any]] = [(int, True), (bool, 1), (int, 3.7), (float, True), (int | str, True), (bool, "x")]


@pytest.mark.parametrize("codec", CODECS[:3])
@pytest.mark.parametrize(("type_", "value"), SIMILAR)
def test_a_value_of_a_similar_type_is_rejected_at_the_put(codec: str, type_: Any, value: Any) -> None:
    with pytest.raises(BadValue, match=re.escape(repr(value))):
        typed(type_, codec).encode(value)
    store = hf.KeyValueStore("scores", value=type_, codec=codec).bind(DictBytes(), Now(wall=0))
    with pytest.raises(BadValue):
        store.update({"ann": value, "bob": value})
    assert typed(float, codec).decode(typed(float, codec).encode(3)) == 3.0


@pytest.mark.parametrize("fields", [{"n": True}, {"n": 3.7}, {"on": 1}, {"x": True}, {"rank": "no"}])
def test_a_field_of_a_similar_type_is_rejected(fields: dict[str, Any]) -> None:
    """Avro rejects it at the put, the others at the end of the version, when the store decodes new values."""
    for codec in ("msgpack", "json"):
        bytes_ = DictBytes()
        store = hf.KeyValueStore("scores", value=Scored, codec=codec).bind(bytes_, Now(wall=0))
        store["ann"] = Scored(**fields)
        with pytest.raises(BadValue, match="key 'ann' can't be read again as Scored"):
            store.check_written(bytes_.entries)
    with pytest.raises(BadValue, match="Give a Scored"):
        hf.KeyValueStore("scores", value=Scored, codec="avro").bind(DictBytes(), Now(wall=0))["ann"] = Scored(**fields)


def test_json_rejects_values_that_json_does_not_have() -> None:
    codec = typed(dict[str, float | None], "json/1")
    assert codec.encode({"a": 1.5, "b": None}) == b'{"a":1.5,"b":null}'
    for lost in (math.nan, math.inf, -math.inf):
        with pytest.raises(BadValue, match="JSON has no"):
            codec.encode({"a": None, "b": lost})
    assert typed(dict[int, str], "json/1").decode(b'{"1":"x"}') == {1: "x"}


class Visit(TypedDict):
    city: str
    n: int


@pytest.mark.parametrize("codec", CODECS[:3])
def test_a_typed_dict_can_be_a_value_type(codec: str) -> None:
    found = typed(Visit, codec)
    assert found.decode(found.encode(Visit(city="Rome", n=3))) == {"city": "Rome", "n": 3}
    with pytest.raises(BadValue, match="Visit|string|city"):
        found.encode({"city": 3, "n": 3})


def test_bytes_are_stored_unchanged() -> None:
    codec = typed(bytes, "bytes/1")
    assert codec.encode(b"\x00abc") == b"\x00abc"
    assert codec.decode(b"") == b""
    with pytest.raises(BadValue, match="the store's values are bytes"):
        codec.encode("text")
    with pytest.raises(TopologyError, match="value=bytes"):
        codec_for("bytes/1", str)


def test_protobuf_messages_change_by_number() -> None:
    old = message("Score", (1, "user", _STRING), (2, "score", _INT64))
    new = message("Score", (1, "player", _STRING), (3, "best", _DOUBLE), (2, "score", _INT64))
    written = typed(old, "protobuf/1").encode(old(user="Ann", score=3))
    assert written.hex() == "0a03416e6e1003"
    read = typed(new, "protobuf/1").decode(written)
    assert (read.player, read.score, read.best) == ("Ann", 3, 0.0)
    again = typed(old, "protobuf/1").decode(typed(new, "protobuf/1").encode(new(player="Bob", score=1, best=2.5)))
    assert (again.user, again.score) == ("Bob", 1)
    assert describe_type(old, "protobuf/1").fields == "{1?: string, 2?: int64}"
    with pytest.raises(DamagedObject, match="Score"):
        typed(old, "protobuf/1").decode(written[:3])
    with pytest.raises(BadValue, match="Score"):
        typed(old, "protobuf/1").encode("Ann")
    with pytest.raises(TopologyError, match="protoc"):
        codec_for("protobuf/1", int)


@pytest.mark.parametrize("type_", [Any, tuple[int, str], dict[int, str], list[Any]])
def test_avro_rejects_types_that_it_does_not_have(type_: Any) -> None:
    with pytest.raises(TopologyError, match="Avro has no type"):
        codec_for("avro/1", type_)


def test_avro_reads_only_values_whose_schema_it_knows() -> None:
    spec = spec_of(Player, "avro/1")
    plain = codec_of(spec).decode(typed(Player, "avro/1").encode(ANN), 1)
    assert (plain["name"], plain["rank"], plain["home"]) == ("Ann", "high", None)
    with pytest.raises(UnreadableValue, match="schema 9"):
        codec_of(spec).decode(b"", 9)


@pytest.mark.parametrize(("codec", "module"), [("avro/1", "fastavro"), ("protobuf/1", "google.protobuf.message")])
def test_a_missing_extra_is_reported_with_its_installation(
    codec: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CodecMissing, match=r"pip install 'holdfast\["):
        codec_for(codec, Player)


def test_a_users_own_codec_is_found_by_module_and_class() -> None:
    own = codec_for("tests.stores.schemas:Reversed", str)
    assert isinstance(own, Reversed)
    assert codec_id(own) == codec_id("tests.stores.schemas:Reversed") == "tests.stores.schemas:Reversed"
    assert schema_of(str, own.id) is None
    given_ = codec_of(spec_of(str, Opaque.id), str, Opaque())
    assert given_.decode(given_.encode("añ")) == "añ"


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        ("yaml", "there is no codec 'yaml'. Use msgpack, json"),
        ("nowhere.at.all:Codec", "can't be imported"),
        ("tests.stores.schemas:Nothing", "can't be imported"),
        ("tests.stores.codecs.test_codecs:Misnamed", "has the id"),
        ("msgpack/9", "Use the release that wrote it"),
    ],
)
def test_an_unknown_codec_is_an_error(codec: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        codec_for(codec_id(codec) if codec != "msgpack/9" else codec, str)


class Misnamed(Opaque):
    """Its id isn't its own module and class."""


def test_a_codec_object_without_module_and_class_is_rejected() -> None:
    class Unnamed(Opaque):
        id = "zipped"

    with pytest.raises(TopologyError, match="module:Class"):
        codec_id(Unnamed())


@pytest.mark.parametrize("codec", ["protobuf/1", "tests.stores.schemas:Opaque"])
def test_without_the_type_some_codecs_cannot_be_read(codec: str) -> None:
    with pytest.raises(HoldfastError, match="without its type"):
        codec_of(msgspec.structs.replace(spec_of(str), codec=codec))
