"""Spark's checkpoint: lost entries, set back, another place, and its repair from the log."""

import contextlib
import shutil
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app as holdfast
from holdfast.log.commits import SparkBatch
from holdfast.log.objects import StorageFull
from holdfast.pipeline.checkpoint_repair import Found, Repair, plan_repair
from holdfast.pipeline.offsets import Checkpoint, CheckpointUnreadable
from holdfast.pipeline.protocol import DamagedCheckpoint, MissingVersions, NewCheckpoint, OtherOffsets
from holdfast.pipeline.spark import LOCAL_CHECKPOINT
from holdfast.states import AppState
from holdfast.topology.sink import OtherTimeline
from tests.apps import finish, game, points_app, write

ENTRY = 'v1\n{"batchWatermarkMs":3,"batchTimestampMs":7}\n{"topic":{"0":5}}'
OTHER = 'v1\n{"batchWatermarkMs":3,"batchTimestampMs":8}\n{"topic":{"0":6}}'
DONE = 'v1\n{"nextBatchWatermarkMs":3}'


@pytest.mark.parametrize(
    ("found", "planned"),
    [
        (Found("q", ENTRY, [3, 4], [3, 4]), Repair()),
        (Found("q", ENTRY, [3, 4, 5], [3, 4]), Repair()),
        (Found("q", ENTRY.replace("7", "9"), [3, 4], [3]), Repair()),
        (Found("q", None, [2, 3], [2, 3]), Repair((), (("offsets/4", ENTRY), ("commits/4", DONE)))),
        (Found("q", OTHER, [3, 4], [3]), Repair((), (("offsets/4", ENTRY), ("commits/4", DONE)))),
        (Found("q", OTHER, [3, 4, 5], [3, 4]), Repair(("offsets/5",), (("offsets/4", ENTRY),))),
        (Found("q", ENTRY, [3, 4, 5, 6], [3, 4, 5]), Repair(("commits/5", "offsets/5", "offsets/6"))),
        (Found("q", ENTRY, [3, 4, 5, 6], [3, 4]), Repair(("offsets/5", "offsets/6"))),  # of a repair that was killed
        (Found("q", ENTRY, [3, 4], [3, 4], ["offsets/5"]), Repair(("offsets/5",))),
        (Found("q", ENTRY, [3, 4], [3], ["commits/4"]), Repair(("commits/4",), (("commits/4", DONE),))),
        (
            Found(None, None, [], []),
            Repair(
                (), (("metadata", '{"id": "q"}'), ("offsets/3", ENTRY), ("offsets/4", ENTRY), ("commits/4", DONE))
            ),
        ),
    ],
)  # fmt: skip
def test_a_repair_sets_the_checkpoint_to_the_recorded_batch(found: Found, planned: Repair) -> None:
    assert plan_repair(SparkBatch("q", 4, ENTRY), found) == planned


def repaired(folder: Path, *options: str) -> str:
    (folder / "holdfast.toml").write_text(f'base_dir = "{folder / "base"}"\n')
    outcome = CliRunner().invoke(
        holdfast, ["checkpoint", "repair", "points", "--file", str(folder / "holdfast.toml"), *options]
    )
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    return outcome.output


def lose(checkpoint: Path, *names: str) -> None:
    for name in names:
        (checkpoint / name).unlink()
        (checkpoint / name).with_name(f".{Path(name).name}.crc").unlink()


@pytest.mark.spark
def test_a_checkpoint_that_lost_its_last_entry_is_repaired_from_the_log(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    write(tmp_path / "input", 2, [game("alice", 1)])
    finish(points_app(spark, tmp_path))
    checkpoint = tmp_path / "base" / "points" / "checkpoint"
    assert "Nothing to do" in repaired(tmp_path)
    lose(checkpoint, "commits/1", "offsets/1")
    write(tmp_path / "input", 3, [game("bob", 1)])
    app = points_app(spark, tmp_path).start()
    assert app._states.wait_for(AppState.ERROR, timeout=60), app.state
    assert isinstance(app.cause, OtherOffsets), app.cause
    assert "holdfast checkpoint repair" in str(app.cause)
    app.stop()
    planned = "write offsets/1\nwrite commits/1"
    assert planned in repaired(tmp_path, "--dry-run") and planned in repaired(tmp_path)
    assert finish(points_app(spark, tmp_path)) == {
        "alice": {"games": 2, "points": 2},
        "bob": {"games": 1, "points": 1},
    }


def damage(checkpoint: Path, name: str, data: bytes, *, checksum: bool) -> None:
    """Writes other bytes. Without the file of its checksum, Hadoop believes them."""
    (checkpoint / name).write_bytes(data)
    if not checksum:
        (checkpoint / name).with_name(f".{Path(name).name}.crc").unlink()


@pytest.mark.spark
def test_damaged_entries_are_named_and_repaired_from_the_log(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    write(tmp_path / "input", 2, [game("alice", 1)])
    finish(points_app(spark, tmp_path))
    checkpoint = tmp_path / "base" / "points" / "checkpoint"
    damage(checkpoint, "offsets/0", b"", checksum=False)
    damage(checkpoint, "offsets/1", (checkpoint / "offsets/1").read_bytes().replace(b":1}", b":7}"), checksum=True)
    damage(checkpoint, "commits/1", b'v1\n{"nextBatch\xff":0}', checksum=False)
    app = points_app(spark, tmp_path)
    with pytest.raises(DamagedCheckpoint, match="offsets/0, offsets/1, commits/1 .*`holdfast checkpoint repair"):
        app.start()
    assert "offsets/0, offsets/1, commits/1" in str(app.plan())
    damage(checkpoint, "metadata", b"\xff", checksum=False)
    with pytest.raises(CheckpointUnreadable, match="metadata holds .*`holdfast checkpoint repair"):
        points_app(spark, tmp_path).start()
    [refusal] = points_app(spark, tmp_path).plan().refusals
    assert "metadata holds" in refusal
    assert "write metadata\nwrite offsets/0\nwrite offsets/1\nwrite commits/1" in repaired(tmp_path)
    write(tmp_path / "input", 3, [game("bob", 1)])
    assert finish(points_app(spark, tmp_path)) == {
        "alice": {"games": 2, "points": 2},
        "bob": {"games": 1, "points": 1},
    }


@pytest.mark.spark
def test_the_files_of_a_log_that_was_set_back_as_the_guide_says_are_those_of_its_versions(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The log goes back to a backup, the checkpoint is repaired, and another file comes between the lost ones."""
    out, log = tmp_path / "out", tmp_path / "base" / "points" / "log"

    def app() -> hf.App:
        return points_app(spark, tmp_path, sink=hf.files(out))

    write(tmp_path / "input", 1, [game("alice", 1)])
    finish(app())
    shutil.copytree(log, tmp_path / "backup")
    write(tmp_path / "input", 3, [game("alice", 40)])
    write(tmp_path / "input", 4, [game("bob", 40)])
    finish(app())
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "backup", log)
    with pytest.raises(MissingVersions, match="checkpoint repair.*file sinks refuse the start and name the files"):
        app().start()
    repaired(tmp_path)
    write(tmp_path / "input", 2, [game("carol", 5)])
    refused = app()
    with pytest.raises(
        OtherTimeline, match="has files of versions 2 to 3 .* at version 1 .* Delete these files"
    ) as error:
        refused.start()
    assert refused.state is AppState.ERROR
    for path in [path for path in out.rglob("*") if path.is_file() and str(path.relative_to(out)) in str(error.value)]:
        path.unlink()
    truth = finish(app())
    assert truth == {
        "alice": {"games": 2, "points": 41},
        "bob": {"games": 1, "points": 40},
        "carol": {"games": 1, "points": 5},
    }
    rows = [row for path in sorted(out.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert {row["player"]: {"games": row["games"], "points": row["points"]} for row in rows} == truth
    assert sorted(row["player"] for row in rows) == ["alice", "alice", "bob", "carol"], "each version once"


@pytest.mark.spark
def test_a_replanned_batch_with_equal_files_is_skipped_and_one_with_others_stops_the_app(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "input", 2, [game("alice", 1)])
    write(tmp_path / "input", 3, [game("alice", 1)])
    finish(points_app(spark, tmp_path))
    lost = ("commits/1", "offsets/1", "sources/0/1")
    lose(tmp_path / "base" / "points" / "checkpoint", *lost)
    assert finish(points_app(spark, tmp_path)) == {"alice": {"games": 2, "points": 2}}
    lose(tmp_path / "base" / "points" / "checkpoint", *lost)
    write(tmp_path / "input", 1, [game("bob", 1)])  # older than the file that the batch had: Spark reads it first
    app = points_app(spark, tmp_path).start()
    assert app._states.wait_for(AppState.ERROR, timeout=60), app.state
    assert isinstance(app.cause, OtherOffsets), app.cause
    app.stop()
    with pytest.raises(hf.HoldfastError, match="sources/0 no longer has the files of batch 1.*on_new_checkpoint"):
        repaired(tmp_path)


@pytest.mark.spark
def test_a_checkpoint_is_found_by_scheme_and_on_another_default_file_system(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").write_text(DONE)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text(ENTRY)
    (tmp_path / "metadata").write_text('{"id":"q"}')
    other = spark.newSession()  # a file system of another kind over the same folder, as HDFS or DBFS would be
    mount = f"m{uuid.uuid4().hex}"
    other.conf.set(f"fs.viewfs.mounttable.{mount}.link./spark", f"file://{tmp_path}")
    locations = [(spark, str(tmp_path)), (spark, f"file:{tmp_path}"), (spark, f"file://{tmp_path}")]
    locations.append((other, f"viewfs://{mount}/spark"))
    for session, location in locations:
        found = Checkpoint(session, location)
        assert found.query_id() == "q", location
        assert found.last_done() == found.numbers("commits")[-1]
        assert found.batch(0) == SparkBatch("q", 0, ENTRY, files=("",))
        found.write("offsets/1", OTHER)
        assert found.read("offsets/1") == OTHER and found.numbers("offsets") == [0, 1]
        found.delete("offsets/1")
        assert found.read("offsets/1") is None
    other.conf.set("fs.defaultFS", f"viewfs://{mount}")
    assert Checkpoint(other, "/spark").query_id() == "q"


@pytest.mark.spark
def test_a_lost_checkpoint_of_a_file_source_is_not_repaired(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    finish(points_app(spark, tmp_path))
    shutil.rmtree(tmp_path / "base" / "points" / "checkpoint")
    with pytest.raises(NewCheckpoint, match="holdfast checkpoint repair"):
        points_app(spark, tmp_path).start()
    with pytest.raises(hf.HoldfastError, match="which only Spark's checkpoint knows"):
        repaired(tmp_path)


@pytest.mark.spark
def test_spark_continues_from_a_checkpoint_that_was_written_from_the_log_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
    seen: dict[int, list[int]] = {}

    def run(until: int) -> None:
        def keep(frame: DataFrame, number: int) -> None:
            seen[number] = sorted(row["value"] for row in frame.collect())

        query = source.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "spark")).start()
        while query.isActive and max(seen, default=-1) < until:
            query.awaitTermination(1)
        query.stop()

    run(until=2)
    checkpoint = Checkpoint(spark, str(tmp_path / "spark"))
    recorded = checkpoint.batch(2)
    shutil.rmtree(tmp_path / "spark")
    seen.clear()
    for name, text in plan_repair(recorded, Found.at(checkpoint, 2)).written:
        checkpoint.write(name, text)
    run(until=3)
    assert min(seen) == 3 and seen[3] == [6, 7]
    assert checkpoint.query_id() == recorded.query


@pytest.mark.spark
def test_a_checkpoint_in_a_local_folder_is_written_by_few_programs(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("alice", 1)])
    with points_app(spark, tmp_path) as app:
        app.process_all_available()
        query = app.query._jsq.streamingQuery()
        source = query.sources().apply(0)
        files = source.getClass().getDeclaredField("metadataLog")
        files.setAccessible(True)
        logs = [query.offsetLog(), query.commitLog(), files.get(source)]
        managers = {str(each.fileManager().getClass().getName()) for each in logs}
        assert managers == {LOCAL_CHECKPOINT["spark.sql.streaming.checkpointFileManagerClass"]}
        assert all(spark.conf.get(option, None) is None for option in LOCAL_CHECKPOINT)


@pytest.mark.spark
@pytest.mark.parametrize("small_disk", ["2m"], indirect=True)
def test_a_full_disk_under_the_checkpoint_is_said_with_what_to_do(
    spark: SparkSession, tmp_path: Path, small_disk: Path
) -> None:
    place = str(small_disk / "checkpoint")

    def app() -> hf.App:
        return points_app(spark, tmp_path, spark=hf.SparkSettings(checkpoint=place))

    write(tmp_path / "input", 1, [game("alice", 1)])
    (tmp_path / "new" / "input").mkdir(parents=True)
    alerts: list[BaseException] = []
    first = app()
    first.on_alert(alerts.append)
    first.start()
    first.process_all_available()
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    write(tmp_path / "input", 2, [game("alice", 1)])
    assert first._states.wait_for(AppState.ERROR, timeout=60)
    first.stop()
    assert alerts == [first.cause]
    assert isinstance(first.cause, StorageFull)
    assert f"its checkpoint {place}" in str(first.cause) and "Free space" in str(first.cause)
    assert "Logical Plan" not in str(first.cause) and len(str(first.cause)) < 800
    with pytest.raises(StorageFull, match=f"its checkpoint {small_disk}/new, .* Free space"):
        points_app(spark, tmp_path / "new", spark=hf.SparkSettings(checkpoint=f"{small_disk}/new")).start()
    ballast.unlink()
    assert finish(app()) == {"alice": {"games": 2, "points": 2}}
