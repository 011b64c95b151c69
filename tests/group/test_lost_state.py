"""Someone deletes the local state of a running server: it stays a member, and the state is restored from the log."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import httpx2
import msgspec
import pytest

from holdfast.group import members
from holdfast.instance.client import StateClient
from holdfast.log.appfile import AppSpec
from tests.group.servers import Server
from tests.instance.processes import until
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import NUMBERS
from tests.query.instances import Driver

STORE = msgspec.structs.replace(NUMBERS, engine="rocksdb")
GAME = AppSpec(id="game", partitions=4, stores=(STORE,), subtopologies=subtopologies_of({"numbers": 0}))
KEYS = range(12)


@dataclass
class Place:
    """A log without a driver, and the folder of the server's state."""

    folder: Path
    driver: Driver
    state: Path

    def server(self) -> Server:
        return Server(self.folder, "a")

    def commit(self, factor: int) -> None:
        self.driver.commit(STORE, {(n,): n * factor for n in KEYS})

    def beats(self) -> int:
        found = members.read(self.driver.log.storage, self.driver.log.id, "a")
        return 0 if found is None else found.beat

    def wait_for_beats(self, number: int = 3) -> None:
        before = self.beats()
        until(lambda: self.beats() >= before + number, f"{number} more heartbeats")

    def wait_for(self, server: Server, factor: int) -> None:
        """Waits until every key has its newest value."""
        version = self.driver.version
        url = f"{server.addresses['rest']}/v1/stores/numbers/keys"

        def values() -> list[object]:
            found = [httpx2.get(f"{url}/{n}?at_least={version}&wait=5s", timeout=20) for n in KEYS]
            return [answer.json().get("value") for answer in found]

        until(lambda: values() == [n * factor for n in KEYS], f"the values of version {version}")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path, Driver(str(tmp_path / "log"), GAME), tmp_path / "base" / "game" / "state" / "a")
    place.commit(1)
    return place


def locked_by(folder: Path) -> int:
    return int(msgspec.json.decode((folder / ".lock").read_bytes())["pid"])


@pytest.mark.parametrize("lost", ["0_2", "0_2/data", "."])
def test_deleted_state_costs_only_time(place: Place, lost: str) -> None:
    """One task's folder, what is in it, or all of the state."""
    with place.server() as server:
        place.wait_for(server, 1)
        shutil.rmtree(place.state / lost)
        place.wait_for_beats()
        place.commit(2)
        place.wait_for(server, 2)
        until((place.state / "0_2" / "data").is_dir, "the state is on disk again")
        assert locked_by(place.state / "0_2") == server.process.pid
        until(lambda: locked_by(place.state) == server.process.pid, "the state directory is locked again")
        place.wait_for_beats()
        with StateClient(server.address, 20.0) as client:
            until(lambda: client.status().ready, "all tasks are restored")
            assert {task.task for task in client.status().tasks} == {"0_0", "0_1", "0_2", "0_3"}
        assert "Traceback" not in server.errors()
        server.terminate()
        assert server.wait()[0] == 0
    assert sorted(each for each in os.listdir(place.state) if each != ".lock") == ["0_0", "0_1", "0_2", "0_3"]
    place.commit(3)
    with place.server() as server:
        place.wait_for(server, 3)
        assert not any(event.task == "0_2" and event.start_version == 0 for event in server.restores()), "it was kept"
