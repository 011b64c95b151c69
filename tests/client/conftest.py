"""A group of two real processes with REST; each is active for some tasks, and a standby of the others."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.group_instances import GroupInstances
from holdfast.instance.client import StateClient
from holdfast.instance.messages import InstanceStatus
from holdfast.log.appfile import AppSpec
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.keyvalue import KeyValueStore
from holdfast.stores.kinds.scores import ScoreStore
from holdfast.stores.kinds.session import SessionStore
from holdfast.stores.kinds.timestamped import TimestampedKeyValueStore
from holdfast.stores.kinds.versioned import VersionedKeyValueStore
from holdfast.stores.kinds.window import WindowStore
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId
from tests.apps import settings
from tests.log.making import subtopologies_of
from tests.query.instances import Driver

NUMBERS = StoreSpec(name="numbers", key=Schema.of(n="bigint"), codec="msgpack/1")
LEVELS = StoreSpec(name="levels", key=Schema.of(player="string", level="int"), codec="msgpack/1")
DAYS = StoreSpec(name="days", key=Schema.of(day="date"), codec="msgpack/1")
NAMES = StoreSpec(name="names", key=Schema.of(name="string"), codec="msgpack/1")
PLAYS = WindowStore("plays", value=int, size="10s", retention="1h")
VISITS = SessionStore("visits", value=int, gap="5s", retention="1h")
PRICES = VersionedKeyValueStore("prices", value=int, retention="1h")
BEST = TimestampedKeyValueStore("best", key=str, value=list[dict[str, Any]])
RANKING_KEY: Any = Schema.of(game="string", points="bigint", player="string")
RANKING: KeyValueStore[Any, Any] = KeyValueStore("best-ranking", key=RANKING_KEY, value=dict[str, Any])
SCORES: ScoreStore[Any, int] = ScoreStore("best-scores", key=(str, str), value=int, group=1)
PUT: tuple[Any, ...] = (PLAYS, VISITS, PRICES, BEST, RANKING, SCORES)
"""Stores whose entries tests put as a task does."""
SPECS = (NUMBERS, LEVELS, DAYS, NAMES, *(store.spec(default_engine="rocksdb") for store in PUT))
GAME = AppSpec(
    id="game",
    partitions=4,
    stores=SPECS,
    subtopologies=subtopologies_of({spec.name: int(spec is not NUMBERS) for spec in SPECS}),
)
KEYS = range(200)
START = 1_000_000


@dataclass
class RunningGroup:
    """The group, and the driver that commits entries of a test."""

    driver: Driver
    instances: GroupInstances
    failures: list[BaseException] = field(default_factory=list)

    @property
    def addresses(self) -> list[str]:
        return list(self.instances.rest_addresses)

    def commit(self, store: StoreSpec, entries: dict[tuple[object, ...], object | None]) -> None:
        self.driver.commit(store, entries)
        self.instances.wait_until_visible(self.driver.version)

    def put(self, store: Any, key: tuple[object, ...], *puts: tuple[Any, ...]) -> None:
        """Puts entries of one key, as the task of the key does."""
        bytes_ = DictBytes()
        bound = store.bind(bytes_, Now(START, START))
        for put in puts:
            bound.put(*put)
        bound.end_of_version()
        spec = store.spec(default_engine="rocksdb")
        task = TaskId(GAME.number_of(spec.name), partition_of(spec.key, key, GAME.partitions))
        self.driver.commit_cells(spec, {task: dict(bytes_.entries)})
        self.instances.wait_until_visible(self.driver.version)

    def kill(self, replica: int) -> int:
        """Ends an instance with SIGKILL: the active one of the first task, or its standby. Returns its pid."""
        pid = self.pid(self.instances.replicas()["0_0"][replica])
        os.kill(pid, signal.SIGKILL)
        return pid

    def started_again(self, killed: int) -> bool:
        """Whether both instances run again and are caught up, none of them as the process that was killed."""
        try:
            statuses = [self._status(flight) for flight in self.instances.replicas()["0_0"]]
        except HoldfastError:
            return False
        return len(statuses) == 2 and all(each.ready and each.pid != killed for each in statuses)

    def pid(self, flight: str) -> int:
        return self._status(flight).pid

    def _status(self, flight: str) -> InstanceStatus:
        with StateClient(flight, 30.0) as client:
            return client.status()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    folder: Path = tmp_path_factory.mktemp("group")
    chosen = settings(folder, partitions=4, instances=2, standbys=1)
    driver = Driver(chosen.log_url("game"), GAME)
    driver.commit(NUMBERS, {(n,): n for n in KEYS})
    failures: list[BaseException] = []
    instances = GroupInstances("game", chosen, app_file=1, on_event=lambda event: None, on_failure=failures.append)
    try:
        instances.assign(GAME.tasks())
        instances.wait_until_ready(driver.point)
        yield RunningGroup(driver, instances, failures)
    finally:
        instances.stop(30.0)
    assert failures == []
