"""A log that is set back to a backup while servers run on, as the guide says: the folder, then the app is started."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import httpx2
import pyarrow as pa
import pytest

from holdfast.pipeline.remote_state import RemoteState, StateLocations
from holdfast.settings.sections import RetrySettings
from holdfast.settings.units import parse_duration
from holdfast.stores.formats.cells import Cell, pack
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.words import TaskId, Version
from tests.group.servers import Server
from tests.group.test_servers import GAME, KEYS, STORE, Game, game
from tests.instance.processes import until
from tests.query.fake_tasks import payload
from tests.query.watched import watching

SETTINGS = {"STATE__FLUSH_VERSIONS": "2", "STATE__FLUSH_INTERVAL": "100ms"}
FEW = KEYS[:2]


class Log:
    """The folder of the log, and a copy of it per version."""

    def __init__(self, folder: Path) -> None:
        self.place, self._copies = folder / "log", folder / "copies"

    def save(self, version: Version) -> None:
        """Without heartbeats, which are written while they would be copied."""
        if not (copy := self._copies / str(version)).exists():
            shutil.copytree(self.place, copy, ignore=shutil.ignore_patterns("members"))

    def set_back(self, version: int) -> None:
        self.place.rename(self._copies / "abandoned")
        shutil.copytree(self._copies / str(version), self.place, dirs_exist_ok=True)
        shutil.rmtree(self._copies / "abandoned")


class Adding:
    """An app that adds numbers to what its tasks read of the version before."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.totals: dict[int, dict[int, int]] = {0: {}}
        self.version = 0

    def set_back(self, version: int) -> None:
        self._log.set_back(version)
        self.version = version
        self.totals = {each: totals for each, totals in self.totals.items() if each <= version}

    @property
    def true(self) -> list[int]:
        return list(self.totals[self.version].values())

    def add(self, app: Game, number: int, *, first: str | None = None) -> None:
        """The next version. Its tasks ask the replica at `first` before all others, if there is one."""
        before = self.totals[self.version]
        assert read(app, first) == {key: cell(total) for key, total in before.items()}
        self.version += 1
        self.totals[self.version] = {key: before.get(key, 0) + number * (key + 1) for key in KEYS}
        app.driver.commit(STORE, {(key,): total for key, total in self.totals[self.version].items()})
        app.instances.committed(app.driver.point)
        self._log.save(Version(self.version))


def cell(value: int) -> bytes:
    return pack(Cell(payload(STORE, value), schema=1))


def read(app: Game, first: str | None = None) -> Mapping[int, bytes]:
    """What a task of the next version reads."""
    found: dict[int, bytes] = {}
    if app.driver.version == 0:
        return found
    replicas = app.instances.replicas()
    locations = StateLocations(
        log_url="",
        log_id=app.driver.log.id,
        app_file=1,
        log_options={},
        fsync=False,
        replicas={task: tuple(sorted(each, key=lambda place: place != first)) for task, each in replicas.items()},
        deadline=parse_duration("30s"),
        retry=RetrySettings(),
        previous=app.driver.point.commit,
    )
    for key in KEYS:
        task = TaskId(0, partition_of(STORE.key, (key,), GAME.partitions))
        state = RemoteState(locations, task, app.driver.version)
        [value] = state.get(STORE.name, pa.array([encode_key(STORE.key, (key,))], pa.binary())).to_pylist()
        if value is not None:
            found[key] = value
    return found


@contextmanager
def servers(folder: Path) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Server(folder, each, SETTINGS)) for each in "abc"]


def answers(server: Server, **demands: str) -> list[tuple[int, int]]:
    """The version and the value of each key, as a server answers."""
    found = []
    for key in FEW:
        answer = httpx2.get(f"{server.addresses['rest']}/v1/stores/numbers/keys/{key}", params=demands, timeout=20)
        if answer.status_code != 200:
            return []
        found.append((answer.json()["version"], answer.json()["value"]))
    return found


@pytest.mark.parametrize("frozen", [False, True], ids=["all run on", "one is frozen meanwhile"])
def test_nothing_is_computed_or_answered_on_an_abandoned_timeline(tmp_path: Path, frozen: bool) -> None:
    adding = Adding(Log(tmp_path))
    with ExitStack() as stack:
        a, b, c = every = stack.enter_context(servers(tmp_path))
        with game(tmp_path, standbys=1) as app:
            assert all(each.address for each in every)
            app.start()
            for number in range(1, 7):
                adding.add(app, number)
            app.instances.wait_until_visible(app.driver.version)
            until(lambda: all(len(each.hosted()) >= 2 for each in every), "all have replicas")
            abandoned = adding.true
        assert [each.values("numbers", KEYS) for each in every] == [abandoned] * 3
        watch = stack.enter_context(watching(a.addresses["rest"], "numbers"))
        begun = next(watch).id
        with c.frozen() if frozen else nullcontext():
            adding.set_back(3)
            with game(tmp_path, standbys=1) as app:
                app.start()
                adding.add(app, 100, first=c.address if not frozen else None)
                app.instances.wait_until_visible(app.driver.version)
                for each in (a, b):
                    assert each.values("numbers", KEYS) == adding.true
                    assert not answers(each, at_least="6", wait="0s"), "version 6 isn't committed any more"
        end = next(event for event in watch if event.data is not None)
        assert (end.name, end.data["error"]) == ("end", "version_gone")
        with game(tmp_path, standbys=1) as app:
            app.start()
            adding.add(app, 1_000, first=c.address)
            adding.add(app, 1_000, first=c.address)
            assert adding.version == 6
            app.instances.wait_until_visible(app.driver.version)
            until(lambda: all(each.values("numbers", KEYS) == adding.true for each in every), "all are at version 6")
            before = [len(each.restores()) for each in every]
            for _ in range(4):
                adding.add(app, 10_000, first=c.address)
            app.instances.wait_until_visible(app.driver.version)
            until(lambda: all(each.values("numbers", KEYS) == adding.true for each in every), "all follow")
            assert [len(each.restores()) for each in every] == before, "nothing is restored again"
            gone = httpx2.get(
                f"{a.addresses['rest']}/v1/stores/numbers/watch", headers={"Last-Event-ID": begun or ""}, timeout=20
            )
            assert (gone.status_code, gone.json()["error"]) == (410, "version_gone")
        for each in every:
            assert "Traceback" not in each.errors(), each.errors()
