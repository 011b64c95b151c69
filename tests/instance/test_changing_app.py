"""An app that changes all the time: stores come, go, come back, starts fail, replicas die, the log is cleaned.

After every step, each task's replica has what the versions have written since each store began, as a dictionary does.
"""

import random
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.instance.replica import Replica
from holdfast.instance.snapshotter import Snapshotter
from holdfast.log.changing import CONTINUE, START_OVER, ChangeRules
from holdfast.log.cleaning import Cleaner
from holdfast.settings.sections import SnapshotSettings
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId
from tests.instance.app_log import AppLog, Place, abandon, new_url, shown, spec
from tests.log.making import alone

STEPS = 60
NAMES = ("a", "b", "c", "d")
APART = ("c", "d")
"""They have sub-topologies of their own; the others share one."""


class Life:
    """One app, its replicas, and what happens to them."""

    def __init__(self, folder: Path, engine: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.engine = engine
        self.place = Place(folder / "state")
        self.folders = 0
        self.story: list[str] = []
        self.app = AppLog(new_url(), specs=self.specs(("a",)))
        self.commit()

    def specs(self, names: tuple[str, ...]) -> tuple[StoreSpec, ...]:
        return tuple(spec(name, self.engine) for name in names)

    def started(self) -> AppLog:
        """The app with other stores, after a start."""
        chance = self.chance
        names = tuple(name for name in NAMES if name == "a" or chance.random() < 0.5)
        returned = {name: chance.choice([CONTINUE, START_OVER]) for name in names}
        keep = timedelta(0) if chance.random() < 0.1 else timedelta(days=7)
        self.story.append(f"start with {names}, {returned}, keep {keep}")
        rules = ChangeRules(keep_removed=keep, returned=returned)
        return self.app.changed(*self.specs(names), apart=APART, rules=rules)

    def release(self) -> None:
        self.app = self.started()
        self.commit()

    def fail_to_start(self) -> None:
        """A start that makes no version. The code before it goes on."""
        before = self.app
        self.started()
        self.story.append("it fails")
        self.app = before.changed(*before.specs, apart=APART)
        assert self.app.log.app == before.log.app

    def commit(self) -> None:
        self.story.append(f"version {self.app.random_commit(self.chance, rows=6, keys=20)}")

    def save(self) -> None:
        for task in self.chance.choices(self.app.log.app.tasks(), k=2):
            replica = self.replica(task)
            self.story.append(f"snapshot of {task} at {Snapshotter(replica, self.app.log, SnapshotSettings()).save()}")
            replica.close()

    def clean(self) -> None:
        cleaner = Cleaner(self.app.log, retention=timedelta(0), sinks=lambda: (), clock=SYSTEM_CLOCK, check_leads=alone)
        self.story.append(f"cleaned to {cleaner.clean().floor}")

    def lose_state(self) -> None:
        self.folders += 1
        self.story.append("another disk")
        self.place = Place(self.place.folder.parent / str(self.folders))

    def replica(self, task: TaskId) -> Replica:
        replica = self.place.replica(self.app, task=task)
        replica.catch_up(self.app.version)
        return replica

    def check(self) -> None:
        for task in self.app.log.app.tasks():
            replica = self.replica(task)
            found = shown(replica)
            (abandon if self.chance.random() < 0.5 else Replica.close)(replica)
            assert found == self.app.state(task=task), (str(task), *self.story)

    def step(self) -> None:
        often = [self.commit, self.release, self.lose_state]
        self.chance.choice([*often, *often, self.fail_to_start, self.save, self.clean])()
        self.check()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("engine", ["rocksdb", "memory"])
def test_an_app_that_changes_all_the_time(tmp_path: Path, engine: str, seed: int) -> None:
    life = Life(tmp_path, engine, seed)
    for _ in range(STEPS):
        life.step()
