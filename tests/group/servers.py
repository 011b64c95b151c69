"""Real `holdfast instance` processes: servers of one app, which tests start, kill, freeze and ask."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Self

import httpx2

from holdfast.instance.client import StateClient
from holdfast.instance.config import Phase
from holdfast.instance.events import RestoreEvent
from tests.freezing import frozen


class Server:
    """One instance as a server. It is killed at the end of its `with` block, if it still runs then."""

    def __init__(
        self,
        folder: Path,
        id: str,
        settings: Mapping[str, str] = MappingProxyType({}),
        *,
        app: str = "game",
        log: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.id = id
        chosen = {
            "BASE_DIR": str(folder / "base"),
            "REST__PORT": "0",
            "MEMORY__LIMIT": "256MiB",
            "GROUP__HEARTBEAT_INTERVAL": "200ms",
            "LOG__FSYNC": "false",
            **settings,
        }
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed where the process ends
        place = ("--app", app, "--log", str(log or folder / "log"), "--id", id)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "instance", *place, *options],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **{f"HOLDFAST_{name}": value for name, value in chosen.items()}},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._errors.close()

    @cached_property
    def addresses(self) -> dict[str, str]:
        """Waits for the line that says where the instance listens: it has joined the group then."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the instance ended: {self.wait()}"
        found: dict[str, str] = json.loads(line)
        return found

    @property
    def address(self) -> str:
        return self.addresses["flight"]

    def values(self, store: str, keys: Iterable[object]) -> list[object]:
        """The values of keys, each by a lookup of its own over REST."""
        answers = [httpx2.get(f"{self.addresses['rest']}/v1/stores/{store}/keys/{key}", timeout=20) for key in keys]
        assert [answer.status_code for answer in answers] == [200] * len(answers), [answer.text for answer in answers]
        return [answer.json()["value"] for answer in answers]

    def hosted(self) -> dict[str, str]:
        """The role of each task that it hosts."""
        with StateClient(self.address, 30.0) as client:
            return {task.task: str(task.role) for task in client.status().tasks}

    def caught_up(self) -> int:
        """How many of its tasks have restored."""
        with StateClient(self.address, 30.0) as client:
            return sum(task.phase is Phase.RUNNING for task in client.status().tasks)

    def restores(self) -> list[RestoreEvent]:
        with StateClient(self.address, 30.0) as client:
            found = [numbered.event for numbered in client.events(0).events]
        return [event for event in found if isinstance(event, RestoreEvent)]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=60)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        with frozen(self.process.pid):
            yield

    def wait(self) -> tuple[int, str]:
        """Waits for the end of the process: its exit code and standard error."""
        code = self.process.wait(timeout=120)
        return code, self.errors()

    def errors(self) -> str:
        return os.pread(self._errors.fileno(), 1 << 20, 0).decode()  # the process writes at the position of the file
