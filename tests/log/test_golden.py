"""Every stored format, as it was first written. Files in golden/ are added to and never edited."""

from pathlib import Path

import msgspec
import pyarrow as pa

from holdfast.log import appfile, commits, documents
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import Clocks, Commit, SparkBatch, Writer
from holdfast.log.segments import STATE_SCHEMA, Part, SegmentRef, open_part
from holdfast.log.sinks import Position
from holdfast.log.snapshots import Manifest, SnapshotFile
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
                parts=(Part("state", "counts", 0, 900, "ab" * 16, 2),),
            ),
        ),
        "0_1": (
            SegmentRef(name=None, inline=b"\x00\xff", length=2, parts=(Part("dead", "late", 0, 2, "cd" * 16, 1),)),
        ),
    },
    counts={"records": 5, "dead": 1},
    writer=Writer("d1", "host", 42),
)
MANIFEST = Manifest(
    log="l0g",
    task="0_3",
    version=12,
    commit="c12",
    engine="rocksdb",
    files=(SnapshotFile("000001.sst", "ab" * 16, 100), SnapshotFile("sub/CURRENT", "cd" * 16, 16)),
    bytes=116,
    added_bytes=16,
)
POSITION = Position(log="l0g", sink="files", version=12)
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
)


def test_commit_format_1_reads_and_writes_as_it_always_did() -> None:
    data = (GOLDEN / "commit-1.json").read_bytes()
    assert commits.decode(data, Version(12), "l0g", place="here") == COMMIT
    assert commits.encode(COMMIT) == data


def test_commit_format_1_with_stores_that_are_not_durable() -> None:
    data = (GOLDEN / "commit-1-volatile.json").read_bytes()
    name = "volatile/0_0/00000000000000000012-u.arrow"
    ref = SegmentRef(name=name, inline=None, length=300, parts=(Part("state", "recent", 0, 300, "ef" * 16, 1),))
    commit = msgspec.structs.replace(COMMIT, volatile={"0_0": (ref,)})
    assert commits.decode(data, Version(12), "l0g", place="here") == commit
    assert commits.encode(commit) == data
    assert name not in commit.segment_names()


def test_manifest_format_1_reads_and_writes_as_it_always_did() -> None:
    data = (GOLDEN / "manifest-1.json").read_bytes()
    assert documents.decode(data, Manifest, name="x", place="here", known=1) == MANIFEST
    assert documents.encode(MANIFEST) == data


def test_position_format_1_reads_and_writes_as_it_always_did() -> None:
    data = (GOLDEN / "position-1.json").read_bytes()
    assert documents.decode(data, Position, name="x", place="here", known=1) == POSITION
    assert documents.encode(POSITION) == data


def test_app_format_1_reads_and_writes_as_it_always_did() -> None:
    data = (GOLDEN / "app-1.json").read_bytes()
    assert appfile.decode(data, 1, place="here") == APP
    assert appfile.encode(APP) == data


def test_segment_format_1_reads_as_it_always_did() -> None:
    data = (GOLDEN / "segment-1.arrow").read_bytes()
    state = Part("state", "counts", 0, 608, "676fc347d78866363358a5c9faa51398", 2)
    dead = Part("dead", "late", 608, 328, "02cb9538616ab65c4f1d1c59f8c03107", 1)
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
