"""Options of processors' stores on real Spark with two instances."""

import json
import re
import shutil
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.group_instances import GroupInstances
from holdfast.instance.client import StateClient
from holdfast.states import AppState
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.formats.types import Schema
from holdfast.words import TaskId, Version
from tests.apps import NOON, entries_of, game, get, read, settings, write
from tests.hooks import LEVEL_BYTES

pytestmark = pytest.mark.spark

BOUND = 5


class Scores(hf.Processor):
    """Four stores with different options."""

    games = hf.KeyValueStore("games", value=int)
    recent = hf.KeyValueStore("recent", value=int, max_entries=BOUND, engine="rocksdb")
    tuned = hf.KeyValueStore("tuned", value=int, engine="rocksdb", rocksdb_options="tests.hooks:smaller")
    online = hf.KeyValueStore("online", value=int, engine="rocksdb", durable=False)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        for store in (self.games, self.recent, self.tuned, self.online):
            store[key] = store.get(key, 0) + 1
        ctx.forward(key, {"games": self.games[key], "online": self.online[key]})


class Names(hf.Processor):
    """A global store."""

    names = hf.KeyValueStore("names", value=int, everywhere=True)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.names[key] = event.points


def build(spark: SparkSession, folder: Path, sink: hf.Sink, changes: hf.Sink) -> hf.App:
    chosen = settings(folder, instances=2, state=hf.StateSettings(engine="memory"))
    app = hf.App("options", settings=chosen, spark=spark)
    stream = app.stream(read(spark, folder / "input"), key="player", timestamp="at")
    scores = stream.process(Scores, output="player string, games bigint, online bigint")
    scores.sink(sink, name="rows").sink_changes("recent", changes, name="recent")
    stream.process(Names)
    return app


def games(batch: int) -> list[dict[str, Any]]:
    """Forty games; some players come back in the next batch."""
    return [game(f"player-{n % 50:02d}", n, NOON + timedelta(seconds=n)) for n in range(30 * batch, 30 * batch + 40)]


class Model:
    """The expected contents of the stores."""

    def __init__(self) -> None:
        self.games: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self.recent: list[dict[str, int]] = [{}, {}]
        self.evicted = 0

    def batch(self, number: int) -> None:
        for record in games(number):
            player = record["player"]
            self.games[player] = self.games.get(player, 0) + 1
            self.names[player] = record["points"]
            own = self.recent[partition_of(Schema.of(player="string"), [player], 2)]
            own[player] = own.pop(player, 0) + 1
        for own in self.recent:
            for player in list(own)[:-BOUND]:
                del own[player]
                self.evicted += 1

    def check(self, app: hf.App) -> None:
        assert entries_of(app, "games") == entries_of(app, "tuned") == self.games
        assert entries_of(app, "recent") == {player: n for own in self.recent for player, n in own.items()}
        assert entries_of(app, "names") == self.names


def test_every_option_of_a_processors_store_does_what_it_says(spark: SparkSession, tmp_path: Path) -> None:
    model, sink, changes = Model(), hf.memory(), hf.memory()
    for number in range(3):
        write(tmp_path / "input", number, games(number))
        model.batch(number)
    app = build(spark, tmp_path, sink, changes)
    text = app.describe()
    for line in (
        "store games (key-value on memory)",
        "store recent (key-value on rocksdb)",
        f"at most {BOUND} entries per partition, the least recently used go, reads don't refresh",
        "options by tests.hooks:smaller",
        "not durable: in no snapshot, never restored",
        "everywhere: every instance has the whole of it",
        "sink recent (memory) of the changes in recent",
    ):
        assert line in text
    with app:
        evicted = sample(metrics_of(app), "store_entries", "recent")
        app.process_all_available()
        assert app.state is AppState.RUNNING, app.cause
        model.check(app)
        assert entries_of(app, "online") == model.games
        listed = {each["store"]: each for each in get(app, "/v1/stores")[1]["stores"]}
        assert (listed["games"]["engine"], listed["tuned"]["engine"]) == ("memory", "rocksdb")
        assert (listed["online"]["durable"], listed["names"]["everywhere"]) == (False, True)
        assert listed["recent"]["max_entries"] == BOUND
        assert sample(metrics_of(app), "store_entries", "recent") - evicted == model.evicted
        options = rocksdb_options(tmp_path / "base" / "options" / "state" / "options-0" / "0_0" / "data")
    assert options["tuned", "max_bytes_for_level_base"] == str(LEVEL_BYTES)
    assert options["recent", "max_bytes_for_level_base"] != str(LEVEL_BYTES)
    assert options["", "max_background_jobs"] == "3"
    assert {store for store, _ in options} >= {"recent", "tuned"}
    assert "games" not in {store for store, _ in options}, "its engine is memory"

    shutil.rmtree(tmp_path / "base" / "options" / "state")  # all replicas are lost
    with build(spark, tmp_path, sink, changes) as app:
        model.check(app)
        assert entries_of(app, "online") == {}, "never restored"
        write(tmp_path / "input", 3, games(3))
        model.batch(3)
        app.process_all_available()
        assert app.state is AppState.RUNNING, app.cause
        model.check(app)
        assert entries_of(app, "online") == dict.fromkeys({record["player"] for record in games(3)}, 1)
        check_everywhere(app, model)
        for _, rest in instances(app):
            assert sample(page(f"{rest}/metrics"), "volatile_stores_emptied", "online") == 1
    kept: dict[str, str] = {}
    for row in changes.rows():
        kept.pop(str(row["key"]), None)
        if not row["_deleted"]:
            kept[str(row["key"])] = str(row["value"])
    assert kept == {player: str(n) for own in model.recent for player, n in own.items()}, "evictions reach a sink"
    last = {str(row["player"]): row for row in sink.versions[Version(4)]}
    assert {player: row["online"] for player, row in last.items()} == dict.fromkeys(last, 1)
    assert {player: row["games"] for player, row in last.items()} == {player: model.games[player] for player in last}


def check_everywhere(app: hf.App, model: Model) -> None:
    """Each instance has the whole global store, and its own half of the other stores."""
    for address, rest in instances(app):
        with StateClient(address) as client:
            hosted = {TaskId.parse(task.task) for task in client.status().tasks}
            assert {task for task in hosted if task.subtopology == 1} == {TaskId(1, 0), TaskId(1, 1)}
            assert len({task for task in hosted if task.subtopology == 0}) == 1
            parts = [client.scan(TaskId(1, n), "names", Version(app.version)) for n in range(2)]
            assert sum(len(part.keys) for part in parts) == len(model.names)
            assert all(len(part.keys) for part in parts)
        found = json.loads(page(f"{rest}/v1/stores/names/range?limit=1000"))
        assert {entry["key"]: entry["value"] for entry in found["entries"]} == model.names


def instances(app: hf.App) -> list[tuple[str, str]]:
    """The addresses of each instance, for tasks and for queries."""
    found = app._started().instances
    assert isinstance(found, GroupInstances) and found._generation is not None
    return [(member.flight, member.rest or "") for _, member in sorted(found._generation.members.items())]


def page(address: str) -> str:
    with urllib.request.urlopen(address) as answer:
        text: bytes = answer.read()
    return text.decode()


def metrics_of(app: hf.App) -> str:
    assert app.metrics_address is not None
    return page(app.metrics_address)


def sample(text: str, name: str, store: str) -> float:
    found = re.search(rf'^holdfast_{name}_total{{[^}}]*store="{store}"[^}}]*}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def rocksdb_options(folder: Path) -> dict[tuple[str, str], str]:
    """(store, option) → value, from RocksDB's newest options file; the store "" is the database."""
    newest = max(folder.rglob("OPTIONS-*"), key=lambda path: path.name)
    found, family = {}, None
    for line in newest.read_text().splitlines():
        if line.startswith("["):
            match = re.match(r'\[(?:(DBOptions)|CFOptions "(.*)")\]', line)
            family = None if match is None else match[2] or ""
        elif family is not None and "=" in line:
            name, _, value = line.strip().partition("=")
            found[family, name] = value
    return found
