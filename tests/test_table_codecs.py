"""Tables under other codecs on real Spark: each says what a plain one beside it says, through restarts and changes."""

import json
import shutil
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.clock import ManualClock
from holdfast.errors import TopologyError
from holdfast.instance.client import StateClient
from holdfast.log.appfile import AppChanged
from holdfast.pipeline.sinks.builtin import Memory
from holdfast.stores.formats.cells import unpack
from holdfast.topology.aggregates import Aggregate
from holdfast.words import Millis, TaskId, Version
from tests.apps import get, held, read, settings, write
from tests.codecs import Zipped

pytestmark = pytest.mark.spark

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
COLUMNS = {
    "spent": "CAST(points / 4 AS DECIMAL(12,10))",
    "ratio": "CASE WHEN points = 0 THEN double('NaN') WHEN points = 9 THEN double('-Infinity') ELSE points / 3 END",
    "raw": "CAST(player AS BINARY)",
    "day": "CASE WHEN points > 3 THEN date_add(DATE'1969-12-30', CAST(points AS INT)) END",
    "local": "CAST(at AS TIMESTAMP_NTZ)",
    "even": "points % 2 = 0",
}
STORES: dict[str, dict[str, Any]] = {
    "plain-ttl": {"ttl": "1h"},
    "plain-bounded": {"max_entries": 3},
    "json-ttl": {"ttl": "1h", "codec": "json"},
    "msgpack-bounded": {"max_entries": 3, "codec": "msgpack"},
    "own-ttl": {"ttl": "1h", "codec": Zipped.id},
}
TWINS = {"json-ttl": "plain-ttl", "msgpack-bounded": "plain-bounded", "own-ttl": "plain-ttl"}


def before() -> dict[str, Aggregate]:
    return {
        "games": hf.count(),
        "spent": hf.sum("spent"),
        "worst": hf.min("ratio"),
        "mean": hf.mean("spent"),
        "first": hf.first("raw"),
        "day": hf.max("day"),
        "even": hf.min("even"),
    }


def after() -> dict[str, Aggregate]:
    """One lost, with its hidden columns, and two gained."""
    kept = {name: aggregate for name, aggregate in before().items() if name != "first"}
    return kept | {"last": hf.last("local", from_now=True), "seen": hf.max("at", from_now=True)}


def build(
    spark: SparkSession, folder: Path, clock: ManualClock, aggregates: dict[str, Aggregate], **changed: Any
) -> tuple[hf.App, dict[str, Memory]]:
    chosen = settings(folder, batch=hf.BatchSettings(rewrite_entries=2))
    app = hf.App("codecs", settings=chosen, spark=spark, clock=clock)
    stream = app.stream(read(spark, folder / "input"), key="player", timestamp="at")
    for name, column in COLUMNS.items():
        stream = stream.with_column(name, column)
    sinks = {}
    for name, options in STORES.items():
        table = stream.group_by().aggregate(**aggregates).store(name, **options | changed.get(name, {}))
        sinks[name] = hf.memory()
        table.sink(sinks[name], name=name)
    return app, sinks


def games(number: int) -> list[dict[str, Any]]:
    """Players come and go, so that the bounded ones evict; each has records of several kinds."""
    return [
        {"player": f"p{(number + n) % 7}", "points": (4 * number + n) % 10, "at": NOON + timedelta(seconds=n)}
        for n in range(12)
    ]


def payloads(app: hf.App, store: str) -> list[bytes]:
    """The values of a store's entries, as they are stored."""
    topology = list(STORES).index(store)
    found = []
    for task, addresses in sorted(app._started().instances.replicas().items()):
        if TaskId.parse(task).topology == topology:
            with StateClient(addresses[0]) as client:
                scanned = client.scan(TaskId.parse(task), store, Version(app.version))
            pairs = zip(scanned.keys.to_pylist(), scanned.values.to_pylist(), strict=True)
            found += [unpack(value).payload for key, value in pairs if key[0] in (1, 2)]
    return found


def check_twins(app: hf.App, sinks: dict[str, Memory]) -> None:
    """That each table and the plain one beside it give the same answers, and have sent the same rows."""
    for store, twin in TWINS.items():
        wanted = held(app, twin)
        assert held(app, store) == wanted, store
        for player, row in wanted.items():
            assert get(app, f"/v1/stores/{store}/keys/{player}")[1]["value"] == row
        sent, told = sinks[store].versions, sinks[twin].versions
        assert sent.keys() == told.keys()
        assert all(repr(sent[version]) == repr(told[version]) for version in told), store  # no NaN equals another


def test_tables_under_other_codecs_say_what_plain_ones_say(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock(Millis(round(NOON.timestamp() * 1000)))
    write(tmp_path / "input", 1, games(1))
    app, sinks = build(spark, tmp_path, clock, before())
    for codec in ("rows/1", "json/1", "msgpack/1", Zipped.id):
        assert f"durable, profile balanced, codec {codec}\n" in app.describe()
    with app:
        app.process_all_available()
        check_twins(app, sinks)
        rows = held(app, "json-ttl").values()
        assert {"NaN", "-Infinity"} <= {row["worst"] for row in rows}, "the values try the codecs"
        assert {None, "1970-01-03"} <= {row["day"] for row in rows}
        stored = [json.loads(payload) for payload in payloads(app, "json-ttl")]
        assert {"games", "mean", "mean#sum", "mean#count", "first", "first#time"} <= stored[0].keys()
        assert [zlib.decompress(payload)[0] >> 4 for payload in payloads(app, "own-ttl")] == [8] * len(rows), "a map"
        listed = {each["store"]: each for each in get(app, "/v1/stores")[1]["stores"]}
        assert listed["json-ttl"]["codec"] == "json/1"
        assert listed["json-ttl"]["value"] == listed["plain-ttl"]["value"]

    changed, _ = build(spark, tmp_path, clock, before(), **{"json-ttl": {"codec": "msgpack"}})
    with pytest.raises(AppChanged, match="store 'json-ttl' has codec json/1 in the log and msgpack/1 in the code"):
        changed.start()
    shutil.rmtree(tmp_path / "base" / "codecs" / "state")
    clock.advance(50 * 60)
    write(tmp_path / "input", 2, games(2)[:2])
    again, sinks = build(spark, tmp_path, clock, after())
    with again:
        again.process_all_available()
        check_twins(again, sinks)
        assert {row["seen"] is None for row in held(again, "json-ttl").values()} == {True, False}
        clock.advance(20 * 60)  # what came with the first batch alone is over now
        write(tmp_path / "input", 3, games(3)[3:5])
        again.process_all_available()
        check_twins(again, sinks)
        assert len(held(again, "json-ttl")) == 4
        told = get(again, "/v1/stores/msgpack-bounded/rewriting")[1]
        assert (told["schema"], told["unreadable"]) == (2, 0)
        assert told["rewritten"] == get(again, "/v1/stores/plain-bounded/rewriting")[1]["rewritten"] > 0


def test_a_codec_that_cannot_carry_rows_is_refused_when_the_app_is_built(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    clock = ManualClock(Millis(0))
    for codec, says in (
        ("bytes", r"store\('json-ttl'\): codec='bytes' is for values of a type of yours"),
        ("protobuf", "codec='protobuf' is for values of a type of yours"),
        ("tests.codecs:Unmade", r"store\('json-ttl'\): codec 'tests.codecs:Unmade' can't be made"),
        ("tests.stores.shaping:Opaque", "can't write the row {'games': None"),
    ):
        with pytest.raises(TopologyError, match=says):
            build(spark, tmp_path, clock, before(), **{"json-ttl": {"codec": codec}})
