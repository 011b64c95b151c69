"""Stored formats against recorded bytes. Files are added to golden/ and never edited."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from holdfast.log import appfile, commits, documents
from holdfast.log.appfile import AppSpec, EndpointSpec
from holdfast.log.commits import Clocks, Commit, SparkBatch, Writer
from holdfast.log.identity import LogIdentity
from holdfast.log.leadership import Leader
from holdfast.log.segments import STATE_SCHEMA, Part, SegmentRef, open_part
from holdfast.log.sinks import Positions
from holdfast.log.snapshot_files import SnapshotFile
from holdfast.log.snapshots import Manifest, SampledRange
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.words import Version
from tests.log.making import subtopologies_of

GOLDEN = Path(__file__).parent / "golden"

COMMIT = Commit(
    version=12,
    id="c12",
    previous="c11",
    log="l0g",
    app=1,
    clocks=Clocks(wall=1700000000123, event=1700000000000, sources={"pulse": 1700000000001}),
    spark=SparkBatch(query="q1", batch=11, offsets='v1\n{"batchWatermarkMs":0}\n{"logOffset":3}'),
    segments={
        "0_0": (
            SegmentRef(
                name="segments/0_0/00000000000000000012-u.arrow",
                inline=None,
                length=900,
                parts=(Part("state", "counts", 0, 900, "ab" * 16, 2, 1_800),),
            ),
        ),
        "0_1": (
            SegmentRef(name=None, inline=b"\x00\xff", length=2, parts=(Part("dead", "late", 0, 2, "cd" * 16, 1, 4),)),
        ),
    },
    counts={"records": 5, "dead": 1},
    writer=Writer("d1", "host", 42, 3),
)
VOLATILE_SEGMENT = "volatile/0_0/00000000000000000012-u.arrow"
_PART = Part("state", "recent", 0, 300, "ef" * 16, 1, 600)
_REF = SegmentRef(name=VOLATILE_SEGMENT, inline=None, length=300, parts=(_PART,))
VOLATILE_COMMIT = msgspec.structs.replace(COMMIT, volatile={"0_0": (_REF,)})
MANIFEST = Manifest(
    log="l0g",
    task="0_3",
    version=12,
    commit="c12",
    stores={"counts": 0},
    files=(SnapshotFile("000001.sst", "ab" * 16, 100), SnapshotFile("sub/CURRENT", "cd" * 16, 16)),
    bytes=116,
    added_bytes=16,
    wall=1_700_000_000_000,
    applied_bytes=512,
    app=2,
    samples={"counts": (SampledRange(b"", b"k2", 64, "ef" * 16), SampledRange(b"k2", None, 3, "01" * 16))},
)
SINKS_COMMIT = msgspec.structs.replace(COMMIT, sinks={"files": 11, "former": 3})
POSITIONS = Positions(log="l0g", version=12, commit="c0ffee", sinks={"files": 12, "former": 3})
APP = AppSpec(
    id="scores",
    log="l0g",
    number=1,
    partitions=4,
    formats={"app": 1, "cell": 1, "commit": 1, "key": 1, "segment": 1, "snapshot": 1},
    stores=(
        StoreSpec(
            name="counts",
            key=Schema.of(player="string"),
            value=RowValues(Schema.of(n="bigint", peak="double")),
            codec="rows/1",
            engine="rocksdb",
        ),
    ),
    subtopologies=subtopologies_of({"counts": 0}),
    used_numbers=1,
)
ENDPOINTS_APP = msgspec.structs.replace(
    APP, endpoints=(EndpointSpec("/api/state/players/{name}", "game.endpoints:player", ("counts",)),)
)
IDENTITY = LogIdentity(id="l0g", app="scores")


LEADER = Leader(log="l0g", driver=Writer("d1", "host", 42, 3), started=1_700_000_000_123)

Codec = tuple[Callable[[bytes], object], Callable[[Any], bytes]]
COMMITS: Codec = (lambda data: commits.decode(data, Version(12), "l0g", place="here"), commits.encode)
APPS: Codec = (lambda data: appfile.decode(data, 1, "l0g", place="here"), appfile.encode)


def documents_of(type_: Any) -> Codec:
    return lambda data: documents.decode(data, type_, name="x", place="here", known=1), documents.encode


@pytest.mark.parametrize(
    ("name", "value", "codec"),
    [
        ("commit-1", COMMIT, COMMITS),
        ("commit-1-volatile", VOLATILE_COMMIT, COMMITS),
        ("commit-1-sinks", SINKS_COMMIT, COMMITS),
        ("manifest-1", MANIFEST, documents_of(Manifest)),
        ("positions-1", POSITIONS, documents_of(Positions)),
        ("leader-1", LEADER, documents_of(Leader)),
        ("app-1", APP, APPS),
        ("app-1-endpoints", ENDPOINTS_APP, APPS),
        ("log-1", IDENTITY, documents_of(LogIdentity)),
    ],
)
def test_golden_documents_are_read_and_written_unchanged(name: str, value: object, codec: Codec) -> None:
    decode, encode = codec
    data = (GOLDEN / f"{name}.json").read_bytes()
    assert decode(data) == value
    assert encode(value) == data


def test_volatile_segments_are_not_among_a_commits_segments() -> None:
    assert VOLATILE_SEGMENT not in VOLATILE_COMMIT.segment_names()


def test_the_golden_segment_is_read() -> None:
    data = (GOLDEN / "segment-1.arrow").read_bytes()
    state = Part("state", "counts", 0, 608, "676fc347d78866363358a5c9faa51398", 2, 60)
    dead = Part("dead", "late", 608, 328, "02cb9538616ab65c4f1d1c59f8c03107", 1, 8)
    values = [b"\x01" + bytes(16) + b"7", None]
    assert open_part(data[:608], state, place="here") == pa.table(
        {"key": [b"\x01alice", b"\x01bob"], "value": values}, schema=STATE_SCHEMA
    )
    assert open_part(data[608:], dead, place="here") == pa.table({"n": [5]})


def test_documents_are_plain_json_for_any_reader() -> None:
    for file in GOLDEN.glob("*.json"):
        found = msgspec.json.decode(file.read_bytes())
        assert found["format"] == 1
        assert len(found["checksum"]) == 32
