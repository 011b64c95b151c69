"""A store of a real app as a batch DataFrame of Spark, and `holdfast sql` on it."""

import json
import os
import pickle
import re
import subprocess
import sys
import venv
from pathlib import Path
from socket import gethostname

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.client.errors import BadToken
from holdfast.client.frames import ARROW_END
from holdfast.group import members
from holdfast.query.rest import create_app
from holdfast.query.server import serve
from holdfast.rest_calls import NoInstanceAnswers, NoInstances, RestRefused
from holdfast.settings.rest import RestSettings
from holdfast.spark_source import _OPTIONS, BadOption, HeldVersionGone, StoreSparkReader, TaskPartition, _Ended, _Target
from holdfast.tls_files import BadTlsFile
from tests.apps import game, get, points_app, write
from tests.certificates import Authority
from tests.client.conftest import GAME
from tests.query.fake_tasks import NUMBERS, STATE, World
from tests.query.instances import Driver
from tests.test_docs import ROOT

pytestmark = pytest.mark.spark

PLAYERS = 40


def rows_of(app: hf.App, spark: SparkSession, **options: str) -> dict[str, int]:
    frame = spark.read.format("holdfast").options(address=str(app.address), **options).load("points")
    assert frame.schema.simpleString() == "struct<player:string,games:bigint,points:bigint,timestamp:timestamp>"
    assert frame.rdd.getNumPartitions() == 2
    return {row["player"]: row["points"] for row in frame.collect()}


def command(*given: str) -> str:
    made = [sys.executable, "-m", "holdfast", "sql", *given]
    done = subprocess.run(made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_running_store_is_read_at_a_version(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, [game(f"p{n}", n) for n in range(PLAYERS)])
    log = str(tmp_path / "base" / "points" / "log")
    with points_app(spark, tmp_path) as app:
        app.process_all_available()
        first = {f"p{n}": n for n in range(PLAYERS)}
        assert rows_of(app, spark) == first
        by_log = spark.read.format("holdfast").option("app", "points").option("log", log).load("points")
        assert by_log.selectExpr("sum(points)", "count(*)").collect()[0][:] == (sum(range(PLAYERS)), PLAYERS)
        before = app.version
        for number in range(1, 3):
            write(tmp_path / "input", number, [game(f"p{n}", 100) for n in range(PLAYERS)])
        app.process_all_available()
        until_version = get(app, "/v1/stores/points/range?limit=1")[1]["version"]
        assert until_version > before
        assert rows_of(app, spark, versionAsOf=str(before)) == first
        assert rows_of(app, spark) == {player: points + 200 for player, points in first.items()}
        assert by_log.selectExpr("sum(points)").first() == (sum(range(PLAYERS)),), "a DataFrame keeps its version"
        loaded = spark.read.format("holdfast").option("app", "points").option("log", log).load("points")
        assert loaded.selectExpr("sum(points)").first() == (sum(range(PLAYERS)) + 200 * PLAYERS,)
        for options, message in (
            ({"versionAsOf": "99999"}, "99999"),
            ({"versionAsOf": "x"}, "is not a number"),
            ({"nope": "1"}, "There is no option 'nope'"),
        ):
            with pytest.raises(PySparkException, match=message):
                rows_of(app, spark, **options)
        with pytest.raises(PySparkException, match="has no store 'nope'. It has points"):
            spark.read.format("holdfast").option("app", "points").option("log", log).load("nope")

        top = "SELECT player, points FROM points ORDER BY points DESC, player LIMIT 2"
        words = command(top, "--app", "points", "--log", log).split()
        assert words[:6] == ["player", "points", "p39", "239", "p38", "238"]
        lines = command(top, "--address", str(app.address), "--json").splitlines()
        assert json.loads(lines[0]) == {"player": "p39", "points": 239}
        csv = command(top, "--address", str(app.address), "--csv")
        assert csv.startswith("player,points\np39,239\n")
        failed = subprocess.run(
            [sys.executable, "-m", "holdfast", "sql", "COPY points TO 'x'", "--address", str(app.address)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert failed.returncode == 1 and failed.stderr.startswith("holdfast: COPY is not possible here")


def test_a_store_is_read_with_a_token() -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(9)})
    tokens = "spark spark-0123456789abcdef read:numbers"
    with serve(create_app(world.reader, lambda: STATE, settings=RestSettings(tokens=tokens)), port=0) as server:
        options = {"address": server.url, "path": "numbers"}
        reader = StoreSparkReader(_Target.of({**options, "token": "spark-0123456789abcdef"}))
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert sum(batch.num_rows for batch in batches) == 9
        with pytest.raises(RestRefused, match="This path needs a token"):
            StoreSparkReader(_Target.of(options)).partitions()


def test_a_worker_on_another_machine_sends_its_token_to_no_loopback_address(tmp_path: Path) -> None:
    log = Driver(str(tmp_path / "log"), GAME).log
    said = {"incarnation": 1, "process": "p", "beat": 1, "address": "grpc://127.0.0.1:7070", "host": gethostname()}
    members.write(log.storage, members.Member(log=log.id, id="a", rest="http://127.0.0.1:1", **said))  # type: ignore[arg-type]
    options = {"app": "game", "log": str(tmp_path / "log"), "path": "numbers"}
    reader = pickle.loads(pickle.dumps(StoreSparkReader(_Target.of(options))))
    with pytest.raises(NoInstanceAnswers):  # nobody listens there
        list(reader.read(TaskPartition(0, 1)))
    reader._host = "elsewhere"
    with pytest.raises(NoInstances, match="are loopback addresses of elsewhere"):
        list(reader.read(TaskPartition(0, 1)))


def test_a_text_that_is_no_token_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"address": "http://localhost:1", "path": "numbers"}
    with pytest.raises(BadToken, match="The option 'token' has 3 words") as refused:
        _Target.of({**options, "token": "spark spark-0123456789abcdef read:numbers"})
    assert "spark-0123456789abcdef" not in str(refused.value)
    monkeypatch.setenv("HOLDFAST_CLIENT_TOKEN", "spark-0123456789abcdef\n")
    assert _Target.of(options).token == "spark-0123456789abcdef"


def test_a_store_is_read_with_a_certificate(tmp_path: Path) -> None:
    world, ca = World(), Authority(tmp_path)
    world.commit(1, NUMBERS, {(n,): n for n in range(9)})
    server_files, own = ca.issue(), ca.issue()
    files = {"tls_cert_file": server_files.tls_cert_file, "tls_key_file": server_files.tls_key_file}
    settings = RestSettings(port=0, **files, tls_ca_file=ca.file)  # type: ignore[arg-type]
    with serve(create_app(world.reader, lambda: STATE, settings=settings), settings) as server:
        options = {"address": server.url, "path": "numbers", "caFile": ca.file}
        shown = {"certFile": str(own.tls_cert_file), "keyFile": str(own.tls_key_file)}
        reader = pickle.loads(pickle.dumps(StoreSparkReader(_Target.of({**options, **shown}))))  # as Spark sends it
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert sum(batch.num_rows for batch in batches) == 9
        with pytest.raises(NoInstanceAnswers):
            StoreSparkReader(_Target.of(options)).partitions()
        with pytest.raises(BadTlsFile, match="certFile is given without keyFile"):
            StoreSparkReader(_Target.of({**options, "certFile": shown["certFile"]})).partitions()


def test_a_version_that_is_no_longer_held_says_what_to_do() -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(9)})
    with serve(create_app(world.reader, lambda: STATE), port=0) as server:
        reader = StoreSparkReader(_Target.of({"address": server.url, "path": "numbers", "holdSeconds": "60"}))
        parts = reader.partitions()
        for version in range(2, 9):
            world.commit(version, NUMBERS, {})  # fakes hold in name alone
        with pytest.raises(HeldVersionGone, match="Version 1 of store 'numbers' is gone: it was held for 60 s"):
            list(reader.read(parts[0]))


def test_every_option_is_in_the_documents() -> None:
    table = (ROOT / "docs" / "sql.md").read_text()
    assert [name for name in _OPTIONS if not re.search(rf"^\|[^|]*`{name}`[^|]*\|", table, re.MULTILINE)] == []


def test_the_next_step_for_a_version_is_one_of_the_source() -> None:
    world = World()
    for version in range(1, 9):
        world.commit(version, NUMBERS, {})
    with serve(create_app(world.reader, lambda: STATE), port=0) as server:
        options = {"address": server.url, "store": "numbers"}
        gone = r"Version 1 is gone: replicas hold .* option versionAsOf, or leave it out for the newest version\.$"
        with pytest.raises(BadOption, match=gone):
            StoreSparkReader(_Target.of({**options, "versionAsOf": "1"})).partitions()


def test_a_session_whose_python_lacks_holdfast_runs_an_app_and_has_the_source(tmp_path: Path) -> None:
    """The session is older than the app, whose `reader` is called before its first stream."""
    write(tmp_path / "input", 1, [game("alice", 7)])
    venv.create(tmp_path / "plain", symlinks=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment["PATH"] = f"{tmp_path / 'plain' / 'bin'}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.other_python", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"found": [{"alice": 7}] * 2, "one session": True}


def test_a_stream_that_was_cut_is_told_from_a_whole_one() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("n", pa.int64())])) as writer:
        writer.write_batch(pa.record_batch([[1]], names=["n"]))
    data: bytes = sink.getvalue().to_pybytes()
    for given, whole in ((data, True), (data[:-8], False)):
        file = _Ended(pa.BufferReader(given))
        assert pa.ipc.open_stream(file).read_all().num_rows == 1
        assert (file.last == ARROW_END) is whole
