"""Queries while the log is set back: no answer is of a version that this instance knows to be abandoned."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx2
import msgspec
import pytest

from holdfast.log.appfile import AppSpec
from tests.instance.processes import until
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import NUMBERS
from tests.query.instances import Driver, Group, started
from tests.query.watched import first, watching

STORE = msgspec.structs.replace(NUMBERS, engine="rocksdb")
GAME = AppSpec(id="game", partitions=2, stores=(STORE,), subtopologies=subtopologies_of({"numbers": 0}))
KEYS = range(10)


class Backups:
    """A group whose log is saved at every version. The value of a key is its version, below zero where abandoned."""

    def __init__(self, group: Group, folder: Path) -> None:
        self.group, self._folder = group, folder

    def make(self, versions: int, sign: int = 1, *, known_to: int = 2) -> None:
        for _ in range(versions):
            driver = self.group.driver
            driver.commit(STORE, {(n,): sign * (driver.version + 1) for n in KEYS})
            shutil.copytree(self._folder / "log", self._folder / f"copy-{driver.version}", dirs_exist_ok=True)
            for instance in self.group.instances[:known_to]:
                instance.committed(*driver.point)

    def set_back(self, version: int) -> None:
        shutil.rmtree(self._folder / "log")
        shutil.copytree(self._folder / f"copy-{version}", self._folder / "log")
        self.group.driver = Driver(str(self._folder / "log"), GAME)

    def values(self, at: int, /, **demands: str) -> set[int] | int:
        """The values of all keys, or the status of a refusal."""
        found = set()
        for n in KEYS:
            answer = self.group.get(f"/v1/stores/numbers/keys/{n}", at, **demands)
            if answer.status_code != 200:
                return int(answer.status_code)
            found.add(answer.json()["value"])
        return found


@pytest.fixture
def backups(tmp_path: Path) -> Iterator[Backups]:
    with started(tmp_path, GAME) as group:
        made = Backups(group, tmp_path)
        made.make(6, -1)
        group.settle()
        made.make(0)
        yield made


def test_an_instance_that_does_not_know_is_not_believed_by_another_one(
    backups: Backups, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows, cut_off = backups.group.instances
    assert backups.values(0) == backups.values(1) == {-6}
    with monkeypatch.context() as patch:
        patch.setattr(cut_off.updater, "_newest", lambda: cut_off.source.newest_known)
        backups.set_back(3)
        for newer in 0, 1, 2:
            knows.committed(*backups.group.driver.point)
            until(lambda: knows.source.newest_known == backups.group.driver.version, "it knows")
            until(lambda: knows.updater.ready, "its own tasks are ready")
            found = {
                answer.json()["value"] if answer.status_code == 200 else answer.json()["error"]
                for answer in (backups.group.get(f"/v1/stores/numbers/keys/{n}") for n in KEYS)
            }
            assert found == {-3 if newer == 0 else 3 + newer, "not_ready"}
            page = backups.group.get("/v1/stores/numbers/range")
            assert page.status_code == 503 or {each["value"] for each in page.json()["entries"]} == {3 + newer}
            backups.make(1, known_to=1)
    until(lambda: backups.values(0) == {6}, "it looks again")
    assert backups.values(1) == {6}


def test_what_a_client_has_seen_of_an_abandoned_version_is_not_there_until_a_new_one_is(backups: Backups) -> None:
    for at in 0, 1:
        assert backups.values(at, at_least="6") == {-6}
    backups.set_back(3)
    for instance in backups.group.instances:
        instance.committed(*backups.group.driver.point)
    until(lambda: all(each.source.newest_known == 3 for each in backups.group.instances), "both know")
    for at in 0, 1:
        until(lambda: backups.values(at) == {-3}, "they answer at version 3")  # noqa: B023
        assert backups.values(at, at_least="6", wait="0s") == 503
        assert backups.values(at, at="6", wait="0s") == 503
        assert backups.values(at, max_lag="0") == {-3}
    backups.make(3)
    for at in 0, 1:
        assert backups.values(at, at_least="6", wait="20s") == {6}


def test_a_page_does_not_go_on_from_an_abandoned_version(backups: Backups) -> None:
    shared = backups.group.get("/v1/stores/numbers/range", limit="3", at="3").json()
    page = backups.group.get("/v1/stores/numbers/range", limit="3").json()
    assert (page["version"], shared["version"]) == (6, 3)
    backups.set_back(3)
    backups.make(4)
    backups.group.settle()
    gone = backups.group.get("/v1/stores/numbers/range", limit="3", cursor=page["cursor"])
    assert (gone.status_code, gone.json()["error"]) == (410, "version_gone")
    scan = backups.group.get("/v1/stores/numbers/scan", limit="3", cursor=page["cursor"])
    assert scan.status_code == 410
    after = backups.group.get("/v1/stores/numbers/range", cursor=shared["cursor"]).json()
    assert (after["version"], after["moved_on"], len(after["entries"])) == (7, True, len(KEYS) - 3)


@pytest.mark.parametrize("newer", [0, 1, 3, 4, 6])
def test_a_watcher_that_saw_abandoned_versions_is_told(backups: Backups, newer: int) -> None:
    url = backups.group.rests[0].url
    with watching(url, "numbers", from_version="1") as stream:
        next(stream)
        events = first(stream, 6 * len(KEYS))
        backups.set_back(3)
        backups.make(newer)
        for instance in backups.group.instances:
            instance.committed(*backups.group.driver.point)
        end = next(event for event in stream if event.data is not None)
        assert (end.name, end.data["error"]) == ("end", "version_gone")
    ids = {event.data["version"]: event.id for event in events}
    path = f"{url}/v1/stores/numbers/watch"
    for version in range(4, 7):
        gone = httpx2.get(path, headers={"Last-Event-ID": ids[version] or ""}, timeout=20)
        assert (gone.status_code, gone.json()["error"]) == (410, "version_gone")
    backups.make(1)
    for version in 2, 3:
        with watching(url, "numbers", ids[version]) as stream:
            next(stream)
            seen = {event.data["version"] for event in first(stream, (3 - version + newer + 1) * len(KEYS))}
            assert seen == set(range(version + 1, 3 + newer + 2))
