"""Instances as processes of their own, for benchmarks that kill them, and lookups that say when a task serves."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from benchmarks.histories import History
from holdfast.errors import HoldfastError
from holdfast.instance.client import StateClient
from holdfast.instance.config import InstanceConfig, Role, encode
from holdfast.instance.events import RestoreEvent
from holdfast.settings.rest import RestSettings
from holdfast.settings.sections import LogSettings
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.partition import partitions_of
from holdfast.words import TaskId

_TICKS = os.sysconf("SC_CLK_TCK")


def config_of(history: History, state: Path, role: Role = Role.ACTIVE, **changed: Any) -> InstanceConfig:
    """An instance that hosts all tasks."""
    return InstanceConfig(
        app="bench",
        name=f"bench-{state.name}",
        log_url=history.url,
        app_file=history.log.app.number,
        state_dir=str(state),
        tasks={str(task): role for task in history.log.app.tasks()},
        log=LogSettings(fsync=False),
        rest=RestSettings(enabled=False),
        **changed,
    )


class InstanceProcess:
    """An instance in a process. It is killed at the end of its `with` block."""

    def __init__(self, config: InstanceConfig) -> None:
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "instance"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(encode(config) + b"\n")
        self._process.stdin.flush()
        self.client = StateClient(json.loads(self._process.stdout.readline())["flight"], 30)
        self.listens = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> float:
        """Kills the process, as `kill -9` does, and returns when."""
        self._process.kill()
        self._process.wait()
        return time.monotonic()

    def wait_ready(self) -> None:
        while not self.client.status().ready:
            time.sleep(0.01)

    def cpu_seconds(self) -> float:
        """The processor time of the process so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def restores(self) -> list[tuple[float, RestoreEvent]]:
        """The events of its restores, each with its time by this process's clock."""
        shift = time.monotonic() - time.time()
        found: list[tuple[float, RestoreEvent]] = []
        page = self.client.events(0, wait=0)
        while page.events:
            found += [
                (each.at / 1000 + shift, each.event) for each in page.events if isinstance(each.event, RestoreEvent)
            ]
            page = self.client.events(page.next, wait=0)
        return found


class FirstAnswers:
    """Asks for one key of each task at the newest version, again and again, until each was answered."""

    def __init__(self, history: History) -> None:
        self._version = history.version
        keys = np.arange(10_000)
        where = partitions_of(history.spec.key, [pa.array(keys)], history.partitions)
        encoded = encode_keys(history.spec.key, [pa.array(keys)])
        self._store = history.spec.name
        self._keys: Mapping[TaskId, bytes] = {
            task: encoded[int(np.flatnonzero(where == task.partition)[0])].as_py() for task in history.log.app.tasks()
        }
        self.answered: dict[TaskId, float] = {}
        """When each task was first answered."""
        self.lookups: list[tuple[float, float]] = []
        """When a lookup was answered, and how many ms it took."""

    def ask(self, replicas: Iterable[StateClient]) -> float:
        """Returns when the last task was answered, by one of these replicas, which are asked in order."""
        clients = list(replicas)
        with ThreadPoolExecutor(len(self._keys)) as pool:
            list(pool.map(lambda task: self._ask(clients, task), self._keys))
        return max(self.answered.values())

    def _ask(self, clients: Sequence[StateClient], task: TaskId) -> None:
        began = time.monotonic()
        while not any(self._found(client, task, self._keys[task]) for client in clients):
            time.sleep(0.002)
            began = time.monotonic()
        now = self.answered[task] = time.monotonic()
        self.lookups.append((now, 1_000 * (now - began)))

    def _found(self, client: StateClient, task: TaskId, key: bytes) -> bool:
        try:
            found = client.get_one(task, self._store, key, self._version)
        except HoldfastError:
            return False  # it isn't there yet, or no longer
        assert found.version == self._version and found.value is not None
        return True
