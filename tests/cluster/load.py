"""Steady load on a cluster: records in, lookups out, both counted.

Load that ended unnoticed would let any test pass. So whoever stops a part of it gets the error that ended it before.
"""

import collections
import http.client
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self

import pyarrow as pa

from tests.apps import write

ACCOUNTS = 200
RECORD = pa.schema([("account", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
START = datetime(2026, 1, 1, tzinfo=UTC)


def account(number: int) -> str:
    return f"account-{number:04d}"


class Loop:
    """Calls `step` every `pause` seconds on a thread. `stop` raises what ended it before."""

    def __init__(self, name: str, step: Callable[[], None], pause: float) -> None:
        self._step = step
        self._pause = pause
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._pause):
                self._step()
        except BaseException as error:  # noqa: BLE001  raised where the loop is stopped
            self._error = error


@dataclass
class Records:
    """Writes a file of records again and again, and knows what they add up to."""

    folder: Path
    rows: int = 400
    pause: float = 0.25
    n: collections.Counter[str] = field(default_factory=collections.Counter)
    total: collections.Counter[str] = field(default_factory=collections.Counter)
    files: int = 0

    def __post_init__(self) -> None:
        self._dice = random.Random(11)

    def write_one(self) -> None:
        rows = [
            {"account": account(self._dice.randrange(ACCOUNTS)), "amount": self._dice.randrange(100), "at": START}
            for _ in range(self.rows)
        ]
        write(self.folder, self.files, rows, RECORD)
        self.files += 1
        for row in rows:
            self.n[str(row["account"])] += 1
            self.total[str(row["account"])] += int(str(row["amount"]))

    def start(self) -> None:
        self._loop = Loop("records", self.write_one, self.pause)
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()


@dataclass
class Lookups:
    """Asks the living instances in turn for random accounts, and keeps every answer that isn't one.

    A client asks instances that it knows to be up: `addresses` leaves out those that the test has taken down.
    """

    addresses: Callable[[], Sequence[str]]
    pause: float = 0.05
    done: int = 0
    longest: float = 0.0
    failed: list[str] = field(default_factory=list)
    went_back: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(12)
        self._seen: dict[tuple[str, str], int] = {}

    def start(self) -> None:
        self._loop = Loop("lookups", self._ask_all, self.pause)
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def forget(self, address: str) -> None:
        """An instance that was started again doesn't know at which version it has answered before."""
        self._seen = {(of, key): found for (of, key), found in self._seen.items() if of != address}

    def _ask_all(self) -> None:
        for address in self.addresses():
            self._ask(address, account(self._dice.randrange(ACCOUNTS)))

    def _ask(self, address: str, key: str) -> None:
        began = time.monotonic()
        try:
            found = count_of(address, key)
        except (OSError, http.client.HTTPException) as error:
            if address in self.addresses():  # it wasn't taken down while it was asked
                said = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
                self.failed.append(f"{address} {key} after {time.monotonic() - began:.1f} s: {error} {said}")
            return
        self.done += 1
        if address in self.addresses():
            self.longest = max(self.longest, time.monotonic() - began)
        if found < self._seen.get((address, key), 0):
            self.went_back.append(f"{address} {key}: {found} after {self._seen[address, key]}")
        self._seen[address, key] = found


@dataclass
class Versions:
    """Looks at the newest version again and again, and knows for how long it has stayed the same."""

    newest: Callable[[], int]
    pause: float = 0.5
    longest: float = 0.0
    """The longest time between two versions."""
    longest_after: int = 0
    """The version after which it was."""

    def start(self) -> None:
        self._known, self._since = self.newest(), time.monotonic()
        self._loop = Loop("versions", self._look, self.pause)
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def _look(self) -> None:
        found, now = self.newest(), time.monotonic()
        if now - self._since > self.longest:
            self.longest, self.longest_after = now - self._since, self._known
        if found != self._known:
            self._known, self._since = found, now


@dataclass
class Clients:
    """Programs that know the REST addresses of all instances, and nothing about which of them are up.

    Each request goes to any of them, and to the next one only if the connection is refused. Every other error, such as
    a connection that breaks or an answer other than 200, is kept as a failed lookup.
    """

    addresses: Sequence[str]
    threads: int = 2
    pause: float = 0.01
    done: int = 0
    refused: int = 0
    longest: float = 0.0
    failed: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self._running = [
            Loop(f"client-{n}", partial(self._look_up, random.Random(n)), self.pause) for n in range(self.threads)
        ]
        for loop in self._running:
            loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        for loop in self._running:
            loop.stop()

    def _look_up(self, dice: random.Random) -> None:
        key, began = account(dice.randrange(ACCOUNTS)), time.monotonic()
        refused, problem = 0, "every connection was refused"
        for address in dice.sample(self.addresses, len(self.addresses)):
            try:
                count_of(address, key)
                problem = ""
            except (OSError, http.client.HTTPException) as error:
                if isinstance(getattr(error, "reason", error), ConnectionRefusedError):
                    refused += 1
                    continue
                said = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
                problem = f"{address} {key}: {error!r} {said}"
            break
        with self._lock:
            self.refused += refused
            self.longest = max(self.longest, time.monotonic() - began)
            if problem:
                self.failed.append(problem)
            else:
                self.done += 1


def count_of(address: str, key: str) -> int:
    """How often an account was counted. One that isn't in the store was never seen."""
    try:
        with urllib.request.urlopen(f"{address}/v1/stores/accounts/keys/{key}", timeout=30) as answer:
            return int(json.load(answer)["value"]["n"])
    except urllib.error.HTTPError as error:
        if error.code == 404:
            with error:
                said = error.read()
            if json.loads(said)["error"] == "key_not_found":
                return 0
        raise
