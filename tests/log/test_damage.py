"""Reading a truncated or altered object of any kind is an error that names the object."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DamagedObject, ErrorCategory
from holdfast.log import commits, documents, names
from holdfast.log.documents import UnknownFormat
from holdfast.log.log import Log
from holdfast.log.objects import Storage
from holdfast.log.segments import STATE, seal
from holdfast.words import Version
from tests.log import making
from tests.log.making import TASK, grow, load

Damage = Callable[[bytes], bytes]


def flipped(at: float) -> Damage:
    def damage(data: bytes) -> bytes:
        position = min(int(at * len(data)), len(data) - 1)
        return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]

    return damage


DAMAGES: dict[str, Damage] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "one short": lambda data: data[:-1],
    "first byte": flipped(0),
    "middle byte": flipped(0.5),
    "last byte": flipped(1),
    "zeroes": lambda data: bytes(len(data)),
}


def _read_segment(log: Log) -> object:
    commit = log.commit(Version(1))
    assert commit is not None
    return [list(log.state_parts(ref)) for ref in commit.of_task(TASK)]


def _read_file(log: Log) -> None:
    manifest = log.snapshots.newest(TASK)
    assert manifest is not None
    shutil.rmtree(manifest.commit, ignore_errors=True)
    load(log, manifest, Path(manifest.commit))


KINDS: dict[str, tuple[str, Callable[[Log], object]]] = {
    "identity": (names.LOG, lambda log: Log.open(log.storage)),
    "app": (names.APPS, lambda log: Log.open(log.storage)),
    "commit": (names.COMMITS, Log.newest),
    "segment": (names.SEGMENTS, _read_segment),
    "manifest": (names.manifest(TASK, Version(1)), lambda log: log.snapshots.manifest(TASK, Version(1))),
    "file": (names.snapshot_files(TASK), _read_file),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_object_is_an_error_with_its_name(log: Log, tmp_path: Path, kind: str, damage: str) -> None:
    grow(log, 1)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "000001.sst").write_bytes(b"data" * 1000)
    # The commit id is used as the folder that _read_file loads into.
    log.snapshots.write(TASK, checkpoint, version=Version(1), commit=str(tmp_path / "loaded"), stores={"counts": 0})

    prefix, read = KINDS[kind]
    [name] = [name for name in log.storage.list("") if name.startswith(prefix)]
    read(log)
    making.overwrite(log.storage, name, DAMAGES[damage](log.storage.get(name)))
    with pytest.raises(DamagedObject) as raised:
        read(log)
    assert name in str(raised.value)
    assert log.storage.place in str(raised.value)
    assert raised.value.category is ErrorCategory.DATA


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_positions_of_a_stop_cost_only_a_version_that_sinks_get_again(log: Log, damage: str) -> None:
    newest = grow(log, 2, sinks={"files": 1})
    log.sinks.mark(newest, {"files": Version(2)})
    assert log.sinks.at(newest) == {"files": 2}
    name = names.sink_positions(Version(2))
    making.overwrite(log.storage, name, DAMAGES[damage](log.storage.get(name)))
    assert log.sinks.at(newest) == {"files": 1}


def test_damage_in_one_part_leaves_the_others_readable(log: Log) -> None:
    table = making.changes({b"a": b"1" * 100})
    two = seal([(STATE, "x", table), (STATE, "y", table)])
    ref = log.write_segment(TASK, Version(1), two, inline_limit=0)
    assert ref.name is not None
    data = bytearray(log.storage.get(ref.name))
    data[ref.parts[1].offset + 40] ^= 1
    making.overwrite(log.storage, ref.name, bytes(data))
    assert log.read_part(ref, ref.parts[0]) == table
    with pytest.raises(DamagedObject, match=f"(?s){ref.name}.*state/y.*{ref.parts[1].checksum}"):
        log.read_part(ref, ref.parts[1])


def test_an_inline_segment_is_checked(log: Log) -> None:
    ref = log.write_segment(TASK, Version(1), making.sealed({b"a": b"1"}), inline_limit=1 << 20)
    assert ref.inline is not None
    altered = msgspec.structs.replace(ref, inline=ref.inline[:-8] + b"altered!")
    with pytest.raises(DamagedObject, match="inline segment"):
        list(log.state_parts(altered))


def test_a_commit_under_another_versions_name_is_damage(log: Log) -> None:
    grow(log, 2)
    storage = log.storage
    making.overwrite(storage, names.commit(Version(2)), storage.get(names.commit(Version(1))))
    with pytest.raises(DamagedObject, match="holds version 1"):
        log.commit(Version(2))


def test_a_commit_of_another_log_is_damage(log: Log) -> None:
    foreign = msgspec.structs.replace(making.next_commit(log, None), log="0" * 32)
    log.storage.create(names.commit(Version(1)), commits.encode(foreign))
    with pytest.raises(DamagedObject, match="belongs to the log 0000"):
        log.commit(Version(1))


def test_an_unknown_format_is_an_error(memory: Storage) -> None:
    log = Log.create_or_open(memory, making.app_spec())
    future = msgspec.structs.replace(making.next_commit(log, None), format=2)
    memory.create(names.commit(Version(1)), commits.encode(future))
    with pytest.raises(UnknownFormat, match="format 2.*reads up to 1") as raised:
        log.commit(Version(1))
    assert raised.value.category is ErrorCategory.INVALID


class Document(msgspec.Struct):
    format: int
    number: int
    text: str


WHOLE = documents.encode(Document(1, 1234, "some text"))


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_any_changed_byte_is_found(position: int, change: int) -> None:
    altered = WHOLE[:position] + bytes([WHOLE[position] ^ change]) + WHOLE[position + 1 :]
    with pytest.raises(DamagedObject, match="the-name"):
        documents.decode(altered, Document, name="the-name", place="here", known=1)


@given(st.integers(0, len(WHOLE) - 1))
def test_any_truncation_is_found(length: int) -> None:
    with pytest.raises(DamagedObject):
        documents.decode(WHOLE[:length], Document, name="the-name", place="here", known=1)
