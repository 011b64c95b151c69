"""Lookups while the log can't be read, or is far ahead: a replica that has caught up once serves what it has."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from holdfast.errors import DamagedObject
from holdfast.instance.client import StateClient
from holdfast.instance.config import Phase
from holdfast.instance.events import ProblemEvent, RestoreEvent, RestorePhase
from holdfast.instance.instance import Instance
from holdfast.log.appfile import AppSpec
from holdfast.query.service import RestService
from holdfast.settings.sections import RetrySettings
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.words import TaskId, Version
from tests.instance.processes import until
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import NUMBERS
from tests.query.instances import Driver, config, replicas_of

STORE = msgspec.structs.replace(NUMBERS, engine="rocksdb")
GAME = AppSpec(id="game", partitions=2, stores=(STORE,), subtopologies=subtopologies_of({"numbers": 0}))
KEYS = range(12)
FAR = 15
"""More versions than `restore.acceptable_lag`."""


@dataclass
class Game:
    """An instance with REST that has caught up with version 1, and a driver whose segments can be taken away."""

    driver: Driver
    instance: Instance
    rest: RestService
    segments: Path
    whole: dict[Path, bytes] = field(default_factory=dict)

    def commit(self, value: int) -> Version:
        return self.driver.commit(STORE, {(n,): value for n in KEYS})

    def commit_unreadable(self, number: int) -> None:
        before = set(self.segments.rglob("*.arrow"))
        newest = [self.commit(2) for _ in range(number)][-1]
        for path in set(self.segments.rglob("*.arrow")) - before:
            self.whole[path] = path.read_bytes()
            path.write_bytes(self.whole[path][:-20])
        self.instance.committed(newest)

    def mend(self) -> None:
        for path, data in self.whole.items():
            path.write_bytes(data)

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(self.rest.url + path, timeout=20)

    def answers(self) -> set[tuple[int, Any, Any]]:
        """The status, version and value of a lookup of each key."""
        found = [self.get(f"/v1/stores/numbers/keys/{n}") for n in KEYS]
        return {(each.status_code, each.json().get("version"), each.json().get("value")) for each in found}

    def from_another_instance(self, n: int) -> tuple[int, bytes | None]:
        """A lookup at the newest version, as another instance asks this one."""
        task = TaskId(0, partition_of(STORE.key, (n,), GAME.partitions))
        with StateClient(self.instance.address, 20.0) as client:
            got = client.get_one(task, "numbers", encode_key(STORE.key, (n,)), None)
            return got.version, got.value

    def events(self) -> list[object]:
        return [numbered.event for numbered in self.instance.events.since(0).events]


@contextmanager
def running(folder: Path) -> Iterator[Game]:
    """The instance hears of versions from the test alone: otherwise it reads one while the test makes the next."""
    driver = Driver(str(folder / "log"), GAME, inline_limit=0)
    chosen = msgspec.structs.replace(
        config(folder, "game-0", GAME.tasks()),
        retry=RetrySettings(first="10ms", longest="20ms"),
        poll_seconds=600,
    )
    instance = Instance(chosen)
    rest = RestService(instance)
    game = Game(driver, instance, rest, folder / "log" / "segments")
    game.commit(1)
    instance.start()
    rest.start()
    try:
        assert instance.wait_ready(30)
        until(lambda: game.answers() == {(200, 1, 1)}, "version 1")
        yield game
    finally:
        rest.stop()
        instance.stop()


@pytest.mark.parametrize("versions", [1, FAR])
def test_a_log_that_cannot_be_read_ends_no_lookup(tmp_path: Path, versions: int) -> None:
    with running(tmp_path) as game:
        seen = len(game.events())
        game.commit_unreadable(versions)
        until(lambda: all(each.progress.failures > 3 for each in game.instance.hosted()), "several failures")
        assert game.answers() == {(200, 1, 1)}
        assert game.from_another_instance(3)[0] == 1
        assert {replica.openings for replica in replicas_of(game.instance)} == {1}
        assert game.get("/health/ready").status_code == 200
        state = game.get("/v1/state").json()
        assert (state["version"], state["committed"], state["ready"]) == (1, versions + 1, False)
        assert {task["phase"] for task in state["tasks"]} <= {"restoring", "suspended"}
        late = game.get("/v1/stores/numbers/keys/1?at_least=2")
        assert (late.status_code, late.json()["error"]) == (503, "not_fresh_enough")
        problems = [event for event in game.events()[seen:] if isinstance(event, ProblemEvent)]
        assert sorted(problem.task or "" for problem in problems) == ["0_0", "0_1"], "each is reported once"
        game.mend()
        until(lambda: game.answers() == {(200, versions + 1, 2)}, "the newest version")


def test_a_replica_that_falls_far_behind_is_read_and_reported(tmp_path: Path) -> None:
    with running(tmp_path) as game:
        replicas = replicas_of(game.instance)
        for replica in replicas:
            replica._advancing.acquire()
        try:
            seen = len(game.events())
            newest = [game.commit(2) for _ in range(FAR)][-1]
            game.instance.committed(newest)
            hosted = game.instance.hosted()
            until(lambda: {each.progress.phase for each in hosted} == {Phase.RESTORING}, "both tasks are restoring")
            assert game.answers() == {(200, 1, 1)}
            assert game.from_another_instance(3)[0] == 1
            assert not game.instance.ready
        finally:
            for replica in replicas:
                replica._advancing.release()
        until(lambda: game.answers() == {(200, FAR + 1, 2)}, "the newest version")
        assert game.instance.wait_ready(30)
        restores = [event for event in game.events()[seen:] if isinstance(event, RestoreEvent)]
        assert [event.task for event in restores if event.phase is RestorePhase.START] == ["0_0", "0_1"]
        assert sorted(event.task for event in restores if event.phase is RestorePhase.END) == ["0_0", "0_1"]


def test_a_replica_that_starts_over_is_not_read_before_it_has_caught_up(tmp_path: Path) -> None:
    with running(tmp_path) as game:
        game.commit_unreadable(1)
        until(lambda: all(each.progress.failures > 1 for each in game.instance.hosted()), "failures")
        for hosted in game.instance.hosted():
            game.instance.damaged(hosted.replica.task, DamagedObject("a test"))
        until(lambda: {replica.version for replica in replicas_of(game.instance)} == {1}, "version 1 again")
        assert {status for status, _, _ in game.answers()} == {503}
        game.mend()
        until(lambda: game.answers() == {(200, 2, 2)}, "the newest version")
