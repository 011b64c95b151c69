"""Types that change from release to release: every release reads what every other one wrote."""

import datetime as dt
import uuid
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import DamagedObject
from holdfast.stores.access import DictBytes
from holdfast.stores.codecs.base import UnreadableValue
from holdfast.stores.codecs.values import UpcastFailed, codec_of
from holdfast.stores.formats.cells import Cell, pack, unpack
from holdfast.stores.schema.history import effective, merged, unreadable
from tests.stores.schemas import RELEASES, First, Gained, Named, Renamed, Tenths, spec_of, typed

CODECS = ("msgpack/1", "json/1")


def read(type_: Any, data: bytes, codec: str = "msgpack/1") -> Any:
    cell = unpack(data)
    return typed(type_, codec).decode(cell.payload, cell.schema)


def written(value: Any, codec: str = "msgpack/1") -> bytes:
    found = typed(type(value), codec)
    return pack(Cell(found.encode(value), schema=found.schema))


@pytest.mark.parametrize("codec", CODECS)
def test_a_later_release_reads_what_earlier_ones_wrote(codec: str) -> None:
    first = written(First("Ann", 30), codec)
    assert read(Gained, first, codec) == Gained("Ann", 30, [], None)
    assert read(Renamed, first, codec) == Renamed("Ann", 30)
    assert read(Tenths, first, codec) == Tenths("Ann", 3.0)
    assert read(Named, first, codec) == Named({"first": "Ann"}, 3.0)
    assert read(Named, written(Tenths("Bob", 2.5, ["x"]), codec), codec) == Named({"first": "Bob"}, 2.5)
    assert read(Tenths, written(Renamed("Cat", 20, ["y"]), codec), codec) == Tenths("Cat", 2.0, ["y"])


@pytest.mark.parametrize("codec", CODECS)
def test_an_earlier_release_reads_compatible_later_values(codec: str) -> None:
    assert read(First, written(Gained("Ann", 30, ["x"], 1.5), codec), codec) == First("Ann", 30)
    assert read(First, written(Renamed("Ann", 30), codec), codec) == First("Ann", 30)
    assert read(Gained, written(Renamed("Ann", 30, ["x"]), codec), codec) == Gained("Ann", 30, ["x"])
    with pytest.raises(UnreadableValue, match="has schema 2, but this code knows First up to 1.*Start the newer code"):
        read(First, written(Tenths("Ann", 3.5), codec), codec)


def test_a_field_is_stored_under_its_first_name_and_read_under_both() -> None:
    assert b"user" in written(Renamed("Ann", 1))
    renamed_without_a_word = msgspec.msgpack.encode({"player": "Ann", "score": 1})
    assert typed(Renamed).decode(renamed_without_a_word) == Renamed("Ann", 1)

    @hf.schema(aliases={"name": ("user", "player")})
    @dataclass
    class Again:
        name: str
        score: int

    for source in (First("Ann", 1), Renamed("Ann", 1)):
        assert read(Again, written(source)) == Again("Ann", 1)
    assert read(Renamed, written(Again("Bob", 2))) == Renamed("Bob", 2)
    assert read(First, written(Again("Bob", 2))) == First("Bob", 2)
    assert typed(Again).decode(renamed_without_a_word) == Again("Ann", 1)


@hf.schema(aliases={"when": "at"})
@dataclass
class Times:
    when: dt.datetime
    raw: bytes
    day: dt.date
    by: dict[int, Decimal]
    id: uuid.UUID


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("zone", [None, dt.UTC])
def test_all_types_survive_a_rename(codec: str, zone: dt.tzinfo | None) -> None:
    at = dt.datetime(2024, 5, 1, 12, 30, 1, 250_000, zone)
    value = Times(at, b"\x00\xff", dt.date(2024, 5, 1), {1: Decimal("1.50")}, uuid.UUID(int=7))
    assert read(Times, written(value, codec), codec) == value
    # Under its first name a field has the same bytes as before the rename.
    before = make_dataclass("Before", [("at", dt.datetime), ("raw", bytes), ("day", dt.date), ("by", Any), ("id", Any)])
    old = before(value.when, value.raw, value.day, value.by, value.id)
    assert typed(Times, codec).encode(value) == typed(before, codec).encode(old)


def test_an_upcaster_may_start_from_anything_and_make_the_object_itself() -> None:
    @hf.schema(number=2, upcasters={1: lambda n: Score(points=n)})
    @dataclass
    class Score:
        points: int

    assert read(Score, written(7)) == Score(7)


def test_an_upcasters_error_contains_the_value() -> None:
    @hf.schema(number=2, upcasters={1: lambda old: {"points": old["missing"]}})
    @dataclass
    class Raises:
        points: int

    @hf.schema(number=2, upcasters={1: lambda old: {"points": "many"}})
    @dataclass
    class Lies:
        points: int

    with pytest.raises(UpcastFailed, match="KeyError: 'missing'. It was given {'user': 'Ann'"):
        read(Raises, written(First("Ann", 1)))
    with pytest.raises(UpcastFailed, match="not a Lies.*Expected `int`, got `str`"):
        read(Lies, written(First("Ann", 1)))


@dataclass
class AvroFirst:
    user: str
    score: int


@hf.schema(number=2)
@dataclass
class AvroGained:
    user: str
    score: int
    tags: list[str] = field(default_factory=list)


@hf.schema(number=3, aliases={"player": "user"}, upcasters={2: lambda old: {**old, "score": old["score"] / 10}})
@dataclass
class AvroTenths:
    player: str
    score: float


def test_avro_reads_across_releases_with_the_schemas_of_the_app_file() -> None:
    log = spec_of(AvroFirst, "avro/1")
    for type_ in (AvroGained, AvroTenths):
        assert unreadable(log, spec_of(type_, "avro/1")) == []
        log = merged(log, spec_of(type_, "avro/1"))
    assert [version.number for version in log.schemas] == [1, 2, 3]

    def code(type_: Any) -> Any:
        return codec_of(effective(log, spec_of(type_, "avro/1")), type_)

    first, gained = code(AvroFirst).encode(AvroFirst("Ann", 30)), code(AvroGained).encode(AvroGained("Bob", 5, ["x"]))
    assert code(AvroGained).decode(first, 1) == AvroGained("Ann", 30, [])
    assert code(AvroTenths).decode(first, 1) == AvroTenths("Ann", 3.0)
    assert code(AvroTenths).decode(gained, 2) == AvroTenths("Bob", 0.5)
    assert code(AvroFirst).decode(gained, 2) == AvroFirst("Bob", 5)
    with pytest.raises(UnreadableValue, match="Start the newer code"):
        code(AvroFirst).decode(code(AvroTenths).encode(AvroTenths("Cat", 1.5)), 3)


def test_avro_needs_a_number_for_every_schema() -> None:
    @dataclass
    class Unnumbered:
        user: str
        score: int
        more: int = 0

    [line] = unreadable(spec_of(AvroFirst, "avro/1"), spec_of(Unnumbered, "avro/1"))
    assert "@hf.schema(number=2)" in line


# Any chain of upcasters, any order of writers

_STEPS = st.lists(st.sampled_from(["add", "double", "rename", "wrap", None]), min_size=1, max_size=6)


def _lift(step: str) -> Any:
    return {
        "add": lambda old: {"n": old["n"] + 1},
        "double": lambda old: {"n": old["n"] * 2},
        "rename": lambda old: {"n": -old["n"]},
        "wrap": lambda old: {**old, "seen": True},
    }[step]


def _release(steps: list[str | None], number: int) -> Any:
    made: Any = make_dataclass(f"Release{number}", [("n", int), ("seen", bool, field(default=False))])
    lifts = {n: _lift(step) for n, step in enumerate(steps[: number - 1], 1) if step is not None}
    return hf.schema(number=number, upcasters=lifts)(made)


@given(_STEPS, st.integers(-1000, 1000), st.data())
def test_a_chain_of_upcasters_is_its_steps_one_after_the_other(
    steps: list[str | None], n: int, data: st.DataObject
) -> None:
    newest = len(steps) + 1
    start = data.draw(st.integers(1, newest))
    plain: dict[str, Any] = {"n": n, "seen": False}
    expected = plain
    for step in steps[start - 1 :]:
        expected = _lift(step)(expected) if step else expected
    old, new = _release(steps, start), _release(steps, newest)
    found = read(new, written(old(**plain)))
    assert found == new(**{"seen": False, **expected})
    # A value that every release between reads and writes ends up the same.
    value, at = old(**plain), start
    while at < newest:
        at = data.draw(st.integers(at + 1, newest))
        value = read(_release(steps, at), written(value))
    assert (value.n, value.seen) == (found.n, found.seen)


_COMPATIBLE = [First, Gained, Renamed]


@given(
    st.lists(
        st.tuples(st.sampled_from(_COMPATIBLE), st.sampled_from("abc"), st.integers(0, 99), st.booleans()), max_size=20
    ),
    st.sampled_from(CODECS),
)
def test_old_and_new_writers_in_any_order_agree_on_what_they_all_know(
    writes: list[tuple[Any, str, int, bool]], codec: str
) -> None:
    store, model = DictBytes(), dict[str, tuple[str, int]]()
    for type_, key, score, is_update in writes:
        stored = store.get(key.encode())
        if is_update and stored is not None:
            value = read(type_, stored, codec)
            value.score += score
            model[key] = (model[key][0], model[key][1] + score)
        else:
            value = type_(key.upper(), score)
            model[key] = (key.upper(), score)
        store.put(key.encode(), written(value, codec))
        for reader in _COMPATIBLE:
            for each, (name, points) in model.items():
                data = store.get(each.encode())
                assert data is not None
                found = read(reader, data, codec)
                assert (getattr(found, "player", None) or found.user, found.score) == (name, points)


@given(st.sampled_from(RELEASES), st.sampled_from(RELEASES))
def test_a_schema_without_obstacles_is_readable(writer: Any, reader: Any) -> None:
    log, code = spec_of(writer), spec_of(reader)
    names = {"first": "Ann"} if writer is Named else "Ann"
    data = written(writer(names, 30 if writer in _COMPATIBLE else 3.5))
    if unreadable(log, code):
        with pytest.raises((DamagedObject, UnreadableValue, UpcastFailed)):
            read(reader, data)
    else:
        assert isinstance(read(reader, data), reader)
