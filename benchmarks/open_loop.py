"""Lookups at a given rate, as a process of its own: each is timed from when it was due, not from when it was sent.

    python -m benchmarks.open_loop <addresses file> <store> <rate> <keys>     one line of JSON per lookup, until SIGTERM

A generator that waits for an answer before it sends the next request hides the requests that a hung server would have
kept waiting. Here they count with all the time since they were due. The addresses are read again before each lookup
from a file with one per line, so that clients can be told which instances are alive. Each lookup asks one of them once.
"""

import http.client
import json
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

SENDERS = 32
TIMEOUT = 30.0


@dataclass(frozen=True)
class Lookup:
    """One lookup: when it was due, by the wall clock, how long it took from then on, and its status (0: no answer)."""

    due: float
    seconds: float
    status: int
    address: str


class Sender(threading.Thread):
    """Sends the lookups that it gets, over connections that it keeps."""

    def __init__(self, due: "queue.SimpleQueue[float]", place: Path, store: str, keys: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._due, self._place, self._store, self._keys = due, place, store, keys
        self._dice = random.Random(seed)
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def run(self) -> None:
        while True:
            due = self._due.get()
            address = self._dice.choice(self._place.read_text().split())
            status = self._ask(address, f"/v1/stores/{self._store}/keys/{self._dice.randrange(self._keys)}")
            lookup = {"due": due, "seconds": time.time() - due, "status": status, "address": address}
            sys.stdout.write(json.dumps(lookup) + "\n")

    def _ask(self, address: str, path: str) -> int:
        try:
            connection = self._connections.get(address) or self._connect(address)
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            self._connections.pop(address, None)
            return 0
        return answer.status

    def _connect(self, address: str) -> http.client.HTTPConnection:
        parts = urlsplit(address)
        assert parts.hostname is not None
        found = self._connections[address] = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT)
        return found


def main() -> None:
    place, store, rate, keys = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    due: queue.SimpleQueue[float] = queue.SimpleQueue()
    for seed in range(SENDERS):
        Sender(due, place, store, keys, seed).start()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    began, sent = time.time(), 0
    while not stop.is_set():
        for number in range(sent, int((time.time() - began) * rate)):
            due.put(began + number / rate)
            sent += 1
        time.sleep(0.001)
    time.sleep(0.5)  # for answers under way
    sys.stdout.flush()


@dataclass
class Lookups:
    """A generator that runs, and what it has found when it has ended."""

    place: Path
    process: "subprocess.Popen[str]"
    found: list[Lookup] = field(default_factory=list)

    def ask_only(self, addresses: Sequence[str]) -> None:
        """From now on these instances are asked."""
        hidden = self.place.with_suffix(".new")
        hidden.write_text("\n".join(addresses))
        hidden.rename(self.place)


@contextmanager
def lookups(folder: Path, addresses: Sequence[str], store: str, *, rate: float, keys: int) -> Iterator[Lookups]:
    """Looks up integer keys below `keys` at this rate while the block runs."""
    place, output = folder / "addresses.txt", folder / "lookups.jsonl"
    place.write_text("\n".join(addresses))
    with output.open("w") as out:
        command = [sys.executable, "-m", "benchmarks.open_loop", str(place), store, str(rate), str(keys)]
        process = subprocess.Popen(command, stdout=out, text=True)
    running = Lookups(place, process)
    try:
        yield running
    finally:
        process.terminate()
        process.wait()
        lines = output.read_text().splitlines()
        running.found = sorted((Lookup(**json.loads(line)) for line in lines), key=lambda each: each.due)


def percentile(values: Sequence[float], percent: float) -> float:
    """
    >>> percentile([3.0, 1.0, 2.0], 50), percentile([1.0], 99)
    (2.0, 1.0)
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


if __name__ == "__main__":
    main()
