"""An app is started, stopped, killed, changed, rolled back, overtaken and idle at random.

It always equals dictionaries. Two of its stores have one sub-topology, and each is in RocksDB or in memory.
"""

import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import faults
from holdfast.log.appfile import AppChanged
from holdfast.log.changing import CONTINUE, START_OVER
from holdfast.log.leadership import OutdatedDriver
from tests.crash.lifecycle import App, Code, Life, Record, Table
from tests.crash.machine import Crash, crash_at

PLAYERS = [f"player-{n}" for n in range(9)]
STORES = "abcd"


class RandomLife:
    """The app and what happens to it, drawn at random."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.engines = {name: self.dice.choice(["rocksdb", "memory"]) for name in STORES}
        self.app = App(folder)
        self.life: Life = self.app.start((Table("a", sink=True, engine=self.engines["a"]),))
        self.happened: list[str] = []

    def step(self) -> None:
        actions = [self.batch] * 4 + [
            self.idle,
            self.idle,
            self.stop,
            self.change,
            self.change,
            self.kill,
            self.kill,
            self.overtake,
            self.lose,
            self.refuse,
            self.fail,
        ]
        action = self.dice.choice(actions)
        self.happened.append(action.__name__)
        action()

    def batch(self) -> None:
        version = self.app.version
        while self.app.version == version:  # a repeated batch may be in the log already
            self.app.run(self.life, self._records())
        self.check()

    def idle(self) -> None:
        """Nothing arrives, and time passes. The version may be the first one of a release."""
        self.app.idle(self.life)
        if self.app.version:
            self.check()

    def stop(self) -> None:
        self.life.close()
        self._start(self.life.code)

    def change(self) -> None:
        """Another release, also an earlier one; its first batch may be a while away."""
        self.life.close()
        self._start(self._code())

    def lose(self) -> None:
        """The folder is lost."""
        self.life.close()
        self.app.lose_folder()
        self._start(self.life.code)

    def kill(self) -> None:
        """A kill at any point of a batch or of a version without one; then the same code or another one is started."""
        point, nth = self.dice.choice(faults.POINTS), self.dice.choice([1, 1, 2, 3, 5])
        self.happened[-1] = f"kill at {point}@{nth}"
        try:
            with faults.active(crash_at(point, nth)):
                self.app.idle(self.life) if self.dice.random() < 0.3 else self.app.run(self.life, self._records())
        except Crash:
            self.life.vanish()
        else:
            self.life.close()
        if self.dice.random() < 0.3:
            self.app.lose_folder()
        self._start(self._code() if self.dice.random() < 0.5 else self.life.code)

    def overtake(self) -> None:
        """Another process starts while this one runs. This one's next batch is refused."""
        old = self.life
        self.app.lose_folder()
        self._start(self._code() if self.dice.random() < 0.5 else old.code)
        with pytest.raises(OutdatedDriver):
            self.app.run(old, self._records())
        old.vanish()
        self.batch()

    def refuse(self) -> None:
        """A start with code that doesn't fit the log, while the app runs. It changes nothing."""
        if self.app.version:
            known = self.app.oracle.current[0]
            with pytest.raises(AppChanged):
                self.app.start((replace(known, engine="memory" if known.engine == "rocksdb" else "rocksdb"),))
            self.batch()

    def fail(self) -> None:
        """A process with other code takes over and dies before it makes a version."""
        code = self.life.code
        self.life.vanish()
        self._start(self._code())
        self.life.vanish()
        self._start(code)

    def check(self) -> None:
        story = f"after {'; '.join(self.happened[-30:])}"
        found, truth = self.life.state(), self.app.oracle
        assert found == {table.name: truth.rows[table.name] for table in self.life.code}, story
        assert self.app.delivered() == truth.delivered, story

    def _start(self, code: Code) -> None:
        returned, keep = self.dice.choice([CONTINUE, START_OVER]), self.dice.choice([7, 7, 7, 0])
        self.happened.append(f"start {_shown(code)}, {returned}, keep {keep}")
        self.life = self.app.start(code, returned, timedelta(days=keep))

    def _code(self) -> Code:
        names = [name for name in STORES if self.dice.random() < 0.5] or [self.dice.choice(STORES)]
        self.dice.shuffle(names)
        return tuple(
            Table(name, best=self.dice.random() < 0.4, sink=self.dice.random() < 0.6, engine=self.engines[name])
            for name in names
        )

    def _records(self) -> list[Record]:
        return [(self.dice.choice(PLAYERS), self.dice.randrange(100)) for _ in range(self.dice.randrange(6))]


def _shown(code: Code) -> str:
    return " ".join(f"{t.name}{'+best' if t.best else ''}{'+sink' if t.sink else ''}" for t in code)


def live(folder: Path, seed: int, steps: int) -> None:
    life = RandomLife(folder, seed)
    for _ in range(steps):
        life.step()
    life.batch()


@pytest.mark.parametrize("seed", range(2))
def test_a_random_life_equals_dictionaries(tmp_path: Path, seed: int) -> None:
    live(tmp_path, seed, steps=100)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 110))
def test_a_long_random_life_equals_dictionaries(tmp_path: Path, seed: int) -> None:
    live(tmp_path, seed, steps=400)
