"""Codecs: each gives back what it was given, has bytes that stay, and never answers with another type's."""

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
from holdfast.stores.codecs.values import codec_for, codec_id, codec_of, schema_of
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
    """A generated message class, as protoc would make it."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="shapes", syntax="proto3")
    made = file.message_type.add(name=name)
    for number, label, type_ in fields:
        made.field.add(name=label, number=number, type=type_, label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shapes.{name}"))


_STRING, _INT64, _DOUBLE = 9, 3, 1


@pytest.mark.parametrize("codec", CODECS)
@given(value=PLAYERS)
def test_a_value_comes_back_as_it_was(codec: str, value: Player) -> None:
    found = typed(Player, codec)
    assert found.id == codec
    assert found.decode(found.encode(value)) == value


GOLDEN = {
    "msgpack/1": "82a475736572a3416e6ea573636f726503",
    "json/1": b'{"user":"Ann","score":3}'.hex(),
    "avro/1": "06416e6e06",
}


@pytest.mark.parametrize("codec", GOLDEN)
def test_bytes_are_what_they_always_were(codec: str) -> None:
    @dataclass
    class Score:
        user: str
        score: int

    found = typed(Score, codec)
    assert found.encode(Score("Ann", 3)).hex() == GOLDEN[codec]
    assert found.decode(bytes.fromhex(GOLDEN[codec])) == Score("Ann", 3)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.data())
def test_cut_or_foreign_bytes_are_an_error_and_never_a_value(codec: str, data: st.DataObject) -> None:
    found = typed(Player, codec)
    whole = found.encode(ANN)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DamagedObject):
        found.decode(whole[:cut] if codec != "tests.stores.schemas:Reversed" else whole[len(whole) - cut :])
    with pytest.raises(DamagedObject):
        found.decode(whole + b"\x00" if codec != "tests.stores.schemas:Reversed" else b"\x00" + whole)


@pytest.mark.parametrize("codec", CODECS[:3])
def test_a_value_of_another_type_is_refused(codec: str) -> None:
    with pytest.raises(BadValue, match="Player"):
        typed(Player, codec).encode(7)


@dataclass
class Scored:
    n: int = 0
    on: bool = False
    x: float = 0.0
    rank: Rank = Rank.HIGH


ALIKE: list[tuple[Any, Any]] = [(int, True), (bool, 1), (int, 3.7), (float, True), (int | str, True), (bool, "x")]


@pytest.mark.parametrize("codec", CODECS[:3])
@pytest.mark.parametrize(("type_", "value"), ALIKE)
def test_a_value_that_is_only_alike_is_refused_at_the_put(codec: str, type_: Any, value: Any) -> None:
    with pytest.raises(BadValue, match=re.escape(repr(value))):
        typed(type_, codec).encode(value)
    store = hf.KeyValueStore("scores", value=type_, codec=codec).bind(DictBytes(), Now(wall=0))
    with pytest.raises(BadValue):
        store.update({"ann": value, "bob": value})
    assert typed(float, codec).decode(typed(float, codec).encode(3)) == 3.0


@pytest.mark.parametrize("fields", [{"n": True}, {"n": 3.7}, {"on": 1}, {"x": True}, {"rank": "no"}])
def test_a_field_that_is_only_alike_is_refused(fields: dict[str, Any]) -> None:
    """By Avro at the put, and by the others at the end of the version, when they read back what was written."""
    for codec in ("msgpack", "json"):
        bytes_ = DictBytes()
        store = hf.KeyValueStore("scores", value=Scored, codec=codec).bind(bytes_, Now(wall=0))
        store["ann"] = Scored(**fields)
        with pytest.raises(BadValue, match="key 'ann' can't be read again as Scored"):
            store.check_written(bytes_.entries)
    with pytest.raises(BadValue, match="Give a Scored"):
        hf.KeyValueStore("scores", value=Scored, codec="avro").bind(DictBytes(), Now(wall=0))["ann"] = Scored(**fields)


def test_json_is_json_and_refuses_what_it_cannot_hold() -> None:
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
def test_a_typed_dict_is_a_value_type_too(codec: str) -> None:
    found = typed(Visit, codec)
    assert found.decode(found.encode(Visit(city="Rome", n=3))) == {"city": "Rome", "n": 3}
    with pytest.raises(BadValue, match="Visit|string|city"):
        found.encode({"city": 3, "n": 3})


def test_bytes_are_stored_as_they_are() -> None:
    codec = typed(bytes, "bytes/1")
    assert codec.encode(b"\x00abc") == b"\x00abc"
    assert codec.decode(b"") == b""
    with pytest.raises(BadValue, match="Give bytes"):
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
def test_avro_says_what_it_has_no_form_for(type_: Any) -> None:
    with pytest.raises(TopologyError, match="Avro has no form"):
        codec_for("avro/1", type_)


def test_avro_reads_what_it_has_the_writer_schema_of_and_nothing_else() -> None:
    spec = spec_of(Player, "avro/1")
    plain = codec_of(spec).decode(typed(Player, "avro/1").encode(ANN), 1)
    assert (plain["name"], plain["rank"], plain["home"]) == ("Ann", "high", None)
    with pytest.raises(UnreadableValue, match="schema 9"):
        codec_of(spec).decode(b"", 9)


@pytest.mark.parametrize(("codec", "module"), [("avro/1", "fastavro"), ("protobuf/1", "google.protobuf.message")])
def test_a_missing_extra_is_named_with_how_to_get_it(codec: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CodecMissing, match=r"pip install 'holdfast\["):
        codec_for(codec, Player)


def test_a_codec_of_ones_own_is_found_by_its_place() -> None:
    own = codec_for("tests.stores.schemas:Reversed", str)
    assert isinstance(own, Reversed)
    assert codec_id(own) == codec_id("tests.stores.schemas:Reversed") == "tests.stores.schemas:Reversed"
    assert schema_of(str, own.id) is None
    given_ = codec_of(spec_of(str, Opaque.id), str, Opaque())
    assert given_.decode(given_.encode("añ")) == "añ"


@pytest.mark.parametrize(
    ("codec", "told"),
    [
        ("yaml", "there is no codec 'yaml'. Use msgpack, json"),
        ("nowhere.at.all:Codec", "can't be loaded"),
        ("tests.stores.schemas:Nothing", "can't be loaded"),
        ("tests.stores.codecs.test_codecs:Misnamed", "says that its id is"),
        ("msgpack/9", "Use the release that wrote it"),
    ],
)
def test_a_codec_that_is_not_there_is_told(codec: str, told: str) -> None:
    with pytest.raises(TopologyError, match=told):
        codec_for(codec_id(codec) if codec != "msgpack/9" else codec, str)


class Misnamed(Opaque):
    """Says another place than it is at."""


def test_a_codec_object_without_a_place_is_refused() -> None:
    class Homeless(Opaque):
        id = "zipped"

    with pytest.raises(TopologyError, match="module:Class"):
        codec_id(Homeless())


@pytest.mark.parametrize("codec", ["protobuf/1", "tests.stores.schemas:Opaque"])
def test_without_the_type_some_codecs_cannot_be_read(codec: str) -> None:
    with pytest.raises(HoldfastError, match="without its type"):
        codec_of(msgspec.structs.replace(spec_of(str), codec=codec))
