"""Real instance processes for tests: they are started, queried and killed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from holdfast.instance.client import StateClient
from holdfast.instance.config import InstanceConfig, encode

COMMAND = (str(Path(__file__).with_name("run_instance.py")),)


class Process:
    """One instance. It is killed at the end of its `with` block, if it still runs then."""

    def __init__(self, config: InstanceConfig, command: Sequence[str] = COMMAND, **environment: str) -> None:
        self.config = config
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed where the process ends
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": "src", **environment},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(encode(config) + b"\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        self._errors.close()

    def addresses(self) -> dict[str, str]:
        """Waits for the line that says where the instance listens."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the instance ended: {self.wait()}")
        found: dict[str, str] = json.loads(line)
        return found

    def listening(self) -> StateClient:
        return StateClient(self.addresses()["flight"], 30.0)

    def terminate(self) -> float:
        """Sends SIGTERM and returns the seconds until the process ended."""
        start = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=30)
        return time.monotonic() - start

    def close_stdin(self, seconds: float = 30) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None
        return self._process.wait(timeout=seconds)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=30)

    def output(self) -> tuple[int, bytes]:
        """The exit code and the rest of standard output of a process that has ended."""
        assert self._process.stdout is not None
        return self._process.wait(timeout=60), self._process.stdout.read()

    def wait(self) -> tuple[int, str]:
        """Waits for the end of the process: its exit code and standard error."""
        code = self._process.wait(timeout=60)
        self._errors.seek(0)
        return code, self._errors.read().decode()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid


def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Waits for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} didn't come true in {seconds:g} s"
        time.sleep(0.01)
