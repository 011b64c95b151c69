"""Money moves between accounts in different partitions while REST and SQL read sums: at one version no cent is missing.

The accounts are in three tasks: one in the instance that is asked, two on other instances, with a standby each. Those
are killed while the sums are read. Without `at=`, sums of replicas that have no version in common differ: so the test
would notice a mixture.
"""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

import httpx2
import msgspec
import pytest

from holdfast.instance.client import StateClient
from holdfast.instance.instance import Instance
from holdfast.instance.messages import InstanceUnavailable
from holdfast.log.appfile import AppSpec
from holdfast.query.service import RestService
from holdfast.words import Version
from tests.instance.processes import Process, until
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import NUMBERS
from tests.query.instances import Driver, config, process

ACCOUNTS = msgspec.structs.replace(NUMBERS, name="accounts", engine="rocksdb")
BANK = AppSpec(id="game", partitions=3, stores=(ACCOUNTS,), subtopologies=subtopologies_of({"accounts": 0}))
HERE, *THERE = BANK.tasks()
NUMBER, EACH = 300, 1_000
TOTAL = NUMBER * EACH


class Bank:
    """A driver that moves money, an instance that is asked, and two others with replicas of the other tasks."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.driver = Driver(str(folder / "log"), BANK)
        self._balances = dict.fromkeys(range(NUMBER), EACH)
        self._random = Random(7)
        self.driver.commit(ACCOUNTS, {(n,): EACH for n in range(NUMBER)})
        self.others = [self._started(n) for n in range(2)]
        self._addresses = [other.addresses()["flight"] for other in self.others]
        self.asked = Instance(config(folder, "game-2", [HERE]))
        self.asked.start()
        stack.callback(self.asked.stop)
        assert self.asked.wait_ready(30)
        self.introduce()
        rest = RestService(self.asked)
        rest.start()
        stack.callback(rest.stop)
        self._sql = f"{rest.url}/v1/sql"
        self.client = stack.enter_context(httpx2.Client(base_url=f"{rest.url}/v1/stores/accounts", timeout=60))
        self._stopping = threading.Event()
        self._moving = threading.Thread(target=self._move)

    def _started(self, n: int) -> Process:
        """One of the others: active for one task and a standby of the other. It keeps its folder."""
        settings = config(self.folder, f"game-{n}", [THERE[n]], standbys=[THERE[1 - n]])
        return self._stack.enter_context(process(settings))

    def introduce(self) -> None:
        """Tells the instance that is asked where the others are."""
        addresses = tuple(self._addresses)
        for address in addresses:
            with StateClient(address, 30.0) as client:
                until(lambda client=client: client.status().ready, "it is restored")  # type: ignore[misc]
        own = {str(HERE): (self.asked.address,)}
        self.asked.peers = own | {str(task): (addresses[n], addresses[1 - n]) for n, task in enumerate(THERE)}

    def kill(self, n: int) -> None:
        """Kills one of the others, and starts it again; meanwhile its standbys answer."""
        self.others[n].kill()
        self.others[n] = self._started(n)
        self._addresses[n] = self.others[n].addresses()["flight"]
        self.introduce()

    def _move(self) -> None:
        replica = self.asked.replica(HERE)
        while not self._stopping.is_set():
            replica.published.wait_for(self.move(), 30)

    def move(self) -> Version:
        """Moves money between accounts, mostly of different tasks, in one version, and tells all instances of it."""
        changed: dict[tuple[object, ...], object] = {}
        for _ in range(20):
            source, target = self._random.sample(range(NUMBER), 2)
            amount = self._random.randint(1, 50)
            self._balances[source] -= amount
            self._balances[target] += amount
            changed |= {(n,): self._balances[n] for n in (source, target)}
        version = self.driver.commit(ACCOUNTS, changed)
        self.asked.committed(version)
        for address in self._addresses:  # as the driver of an app does
            with suppress(InstanceUnavailable), StateClient(address, 30.0) as client:
                client.committed(version)
        return version

    def others_are_at(self, version: Version) -> bool:
        for address in self._addresses:
            with StateClient(address, 30.0) as client:
                if {task.version for task in client.status().tasks} != {version}:
                    return False
        return True

    def __enter__(self) -> "Bank":
        self._moving.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._moving.join()

    def range(self, **params: str) -> tuple[int, int]:
        """The sum of a page with all accounts, and its version."""
        answer = self.client.get("/range", params={"limit": str(NUMBER), **params})
        assert answer.status_code == 200, answer.text
        entries = answer.json()["entries"]
        assert len(entries) == NUMBER
        return sum(entry["value"] for entry in entries), answer.json()["version"]

    def scan(self, **params: str) -> tuple[int, int]:
        """The same of a scan."""
        answer = self.client.get("/scan", params=params)
        *entries, end = map(json.loads, answer.text.splitlines())
        assert (len(entries), end.get("end")) == (NUMBER, True), end
        return sum(entry["value"] for entry in entries), end["version"]

    def keys(self, **params: str) -> tuple[int, int]:
        """The same of one request for all keys."""
        answer = self.client.post("/keys", json=[*range(NUMBER)], params=params)
        assert answer.status_code == 200, answer.text
        return sum(entry["value"] for entry in answer.json()["entries"]), answer.json()["version"]

    def sql(self, **params: str) -> tuple[int, int]:
        """The same of a statement."""
        answer = self.statement(**params)
        assert answer.status_code == 200, answer.text
        ((number, total),) = answer.json()["rows"]
        assert number == NUMBER
        return total, answer.json()["version"]

    def statement(self, **params: str) -> httpx2.Response:
        sql = "SELECT count(*)::int, sum(value::int)::int FROM accounts"
        return self.client.post(self._sql, json={"sql": sql}, params=params)

    def one_by_one(self) -> int:
        """The sum of lookups, each of which is right for itself."""
        answers = [self.client.get(f"/keys/{n}") for n in range(NUMBER)]
        assert {answer.status_code for answer in answers} == {200}, [each.text for each in answers if each.is_error][:1]
        return sum(answer.json()["value"] for answer in answers)


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    with ExitStack() as stack:
        yield Bank(tmp_path, stack)


def test_sums_at_one_version_never_differ_by_a_cent(bank: Bank) -> None:
    def sums() -> set[int]:
        """The versions of four sums, which are right."""
        found = [read(at="latest", wait="30s") for read in (bank.range, bank.scan, bank.keys, bank.sql)]
        assert {total for total, _ in found} == {TOTAL}, found
        return {version for _, version in found}

    seen: set[int] = set()
    with ThreadPoolExecutor(1) as kills, bank:
        for _ in range(10):
            seen |= sums()
        until(lambda: bank.one_by_one() != TOTAL, "sums that are not of one version differ")
        assert bank.sql()[0] == TOTAL, "a statement has one version without at="
        for n in (0, 1, 0):
            killing = kills.submit(bank.kill, n)
            while not killing.done():
                seen |= sums()
            killing.result()
            seen |= sums()
    assert len(seen) > 20, "versions came while sums were read"


def test_a_reader_that_mixes_versions_is_noticed(bank: Bank) -> None:
    """One replica is so far behind that no version is common to all: whoever reads all the same has a wrong sum."""
    hosted = bank.asked.hosted_task(HERE)
    assert hosted is not None
    hosted.progress.busy = True  # so that nothing is applied to it
    for _ in range(10):  # more than replicas keep
        version = bank.move()
    until(lambda: bank.others_are_at(version), "the others have moved on")
    for read in (bank.range, bank.scan, bank.keys):
        assert read()[0] != TOTAL, read.__name__
    for path in ("/range", "/scan"):
        refused = bank.client.get(path, params={"at": "latest", "wait": "0s"})
        assert (refused.status_code, refused.json()["error"]) == (503, "not_fresh_enough"), path
    refused = bank.statement(wait="0s")
    assert (refused.status_code, refused.json()["error"]) == (503, "not_fresh_enough"), "SQL never mixes versions"
    hosted.progress.busy = False
    version = bank.move()
    # So far behind, it is restored, and doesn't answer meanwhile.
    until(lambda: hosted.caught_up and hosted.replica.published.version == version, "it has caught up")
    for read in (bank.range, bank.scan, bank.keys, bank.sql):
        assert read(at="latest", wait="30s")[0] == TOTAL, read.__name__


def test_two_reads_at_one_version_are_the_same(bank: Bank) -> None:
    """A second store, or the same one again, can be read at the version of the first answer."""
    compared = 0
    with bank:
        for _ in range(20):
            total, version = bank.range(at="latest", wait="30s")
            answer = bank.client.get("/scan", params={"at": str(version)})
            if answer.status_code != 410:
                assert sum(json.loads(line)["value"] for line in answer.text.splitlines()[:-1]) == total == TOTAL
                compared += 1
    assert compared > 0, "every version was gone before it was read again"
