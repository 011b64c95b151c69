"""One memory limit: the resident memory of an instance with 512 MiB and four stores, under load.

One store has 5M counts by key; a window, a session and a versioned store get an entry for every fourth changed key,
and drop one slice per version. The load is versions of 150k changed keys, bulk reads of 150k keys by two readers, as
tasks make them, and lookups over REST, all at the same time. The instance is a separate process, as in an app.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.common import finish, plot_lines, scratch, show
from benchmarks.histories import OTHER_KINDS, SPEC, History, grown
from holdfast.errors import HoldfastError
from holdfast.instance.client import StateClient
from holdfast.instance.config import InstanceConfig, Role, encode
from holdfast.settings.rest import RestSettings
from holdfast.settings.sections import LogSettings, MemorySettings, RestoreSettings, SnapshotSettings
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.partition import partitions_of

LIMIT = 512 << 20
PARTITIONS = 4


def resident(pid: int) -> float:
    """The resident memory of a process, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


class Watch(threading.Thread):
    """Measures the memory of a process twenty times per second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.seen: list[float] = []
        self.stopped = threading.Event()
        self._pid = pid

    def run(self) -> None:
        while not self.stopped.wait(0.05):
            self.seen.append(resident(self._pid))


class Reader(threading.Thread):
    """Bulk reads at the newest version, one after the other."""

    def __init__(self, address: str, history: History, keys: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.read = 0
        self._client = StateClient(address, 120)
        self._history = history
        self._keys = keys
        self._dice = np.random.default_rng(seed)

    def run(self) -> None:
        tasks = self._history.log.app.tasks()
        while not self.stopped.is_set():
            task = tasks[int(self._dice.integers(0, len(tasks)))]
            drawn = np.unique(self._dice.integers(0, self._keys, 150_000 * PARTITIONS))
            mine = drawn[partitions_of(SPEC.key, [pa.array(drawn)], PARTITIONS) == task.partition]
            try:
                values = self._client.get_many(
                    task, "counts", self._history.version, encode_keys(SPEC.key, [pa.array(mine)])
                )
            except HoldfastError:
                continue  # a newer version replaced this one meanwhile
            assert values.null_count == 0
            self.read += len(mine)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer versions; the same keys and limit")
    quick = parser.parse_args().quick
    keys, versions = 5_000_000, 10 if quick else 40
    with scratch("memory") as folder:
        history = grown(folder / "log", partitions=PARTITIONS, keys=keys, updates=keys, versions=20, others=OTHER_KINDS)
        config = InstanceConfig(
            app="bench",
            name="bench-0",
            log_url=history.url,
            app_file=history.log.app.number,
            state_dir=str(folder / "state"),
            tasks={str(task): Role.ACTIVE for task in history.log.app.tasks()},
            log=LogSettings(fsync=False),
            memory=MemorySettings(limit=LIMIT),
            restore=RestoreSettings(batch_bytes="16MiB"),
            snapshots=SnapshotSettings(bytes="64MiB"),
            rest=RestSettings(port=0),
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "instance"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(encode(config) + b"\n")
        process.stdin.flush()
        addresses = json.loads(process.stdout.readline())
        watch = Watch(process.pid)
        watch.start()
        client = StateClient(addresses["flight"], 120)
        while not client.status().ready:
            time.sleep(0.05)
        restored = len(watch.seen)
        readers = [Reader(addresses["flight"], history, keys, seed) for seed in (1, 2)]
        for reader in readers:
            reader.start()
        dice = np.random.default_rng(5)
        lookups = 0
        began = time.monotonic()
        for _ in range(versions):
            version = history.add(np.unique(dice.integers(0, keys, 150_000)))
            client.committed(version)
            while min(task.readable_to or 0 for task in client.status().tasks) < version:
                key = int(dice.integers(0, keys))
                urllib.request.urlopen(f"{addresses['rest']}/v1/stores/counts/keys/{key}").read()
                lookups += 1
        seconds = time.monotonic() - began
        for reader in readers:
            reader.stopped.set()
            reader.join()
        watch.stopped.set()
        watch.join()
        process.terminate()
        process.wait()
    peak, in_restore = max(watch.seen), max(watch.seen[:restored] or [0.0])
    read = sum(reader.read for reader in readers)
    plot = plot_lines("memory", "resident, limit 512 MiB", {"instance": watch.seen}, "1/20 s", "MiB")
    show(
        f"{keys:,} keys and three other stores, limit {LIMIT >> 20} MiB, {versions} versions in {seconds:.0f} s",
        ["what", "figure"],
        [
            ["highest resident memory, MiB", peak],
            ["... while restoring, MiB", in_restore],
            ["keys read in bulk", f"{read:,}"],
            ["lookups over REST", f"{lookups:,}"],
            ["plot", str(plot)],
        ],
    )
    finish(
        rss_mib=peak, restore_rss_mib=in_restore, keys_read=read, lookups=lookups, limit_mib=LIMIT >> 20, quick=quick
    )


if __name__ == "__main__":
    main()
