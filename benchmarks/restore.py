"""Restoring a store: a snapshot and few segments against all segments; tasks in parallel against one by one.

2M keys with 10M updates in four tasks; each restore begins with an empty folder and ends when every store was read.
"""

import argparse
import shutil
import time
from pathlib import Path

import numpy as np

from benchmarks.common import finish, median, scratch, show
from benchmarks.histories import History, grown
from holdfast.instance.config import InstanceConfig, Role
from holdfast.instance.instance import Instance
from holdfast.settings.sections import LogSettings, RestoreSettings, RestSettings, SnapshotSettings

PARTITIONS = 4


def restore(history: History, folder: Path, *, parallel: int, snapshot: bool = False) -> float:
    """Seconds from an empty folder until every store was read; with `snapshot`, the instance then saves snapshots."""
    shutil.rmtree(folder, ignore_errors=True)
    config = InstanceConfig(
        app="bench",
        name="bench-0",
        log_url=history.url,
        app_file=history.log.app.number,
        state_dir=str(folder),
        tasks={str(task): Role.ACTIVE for task in history.log.app.tasks()},
        log=LogSettings(fsync=False),
        restore=RestoreSettings(parallel_tasks=parallel),
        snapshots=SnapshotSettings(enabled=False),
        rest=RestSettings(enabled=False),
    )
    instance = Instance(config)
    began = time.monotonic()
    instance.start()
    assert instance.wait_ready(600)
    taken = time.monotonic() - began
    assert all(task.readable_to == history.version for task in instance.status().tasks)
    if snapshot:
        for hosted in instance.hosted():
            hosted.snapshotter.save()
    instance.stop()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the keys, one repeat")
    quick = parser.parse_args().quick
    keys, updates, repeats = (200_000, 1_000_000, 1) if quick else (2_000_000, 10_000_000, 3)
    with scratch("restore") as folder:
        history = grown(folder / "log", partitions=PARTITIONS, keys=keys, updates=updates, versions=50)
        replay, one_by_one = [], []
        for _ in range(repeats):
            replay.append(restore(history, folder / "state", parallel=4))
            one_by_one.append(restore(history, folder / "state", parallel=1))
        restore(history, folder / "state", parallel=4, snapshot=True)
        for _ in range(2):  # the segments after the snapshot
            history.add(np.unique(np.random.default_rng(9).integers(0, keys, updates // 50)))
        snapshot = [restore(history, folder / "state", parallel=4) for _ in range(repeats)]
        snapshot_one_by_one = [restore(history, folder / "state", parallel=1) for _ in range(repeats)]
    rows = [
        ("all segments", replay, one_by_one),
        ("a snapshot and 2 segments", snapshot, snapshot_one_by_one),
    ]
    show(
        f"restore of {keys:,} keys, {updates:,} updates, {PARTITIONS} tasks",
        ["from", "4 in parallel, s", "one by one, s", "keys/s"],
        [[name, median(a), median(b), f"{keys / median(a):,.0f}"] for name, a, b in rows],
    )
    finish(
        snapshot_vs_replay=median(replay) / median(snapshot),
        keys_per_s=keys / median(snapshot),
        parallel_vs_serial=median(one_by_one) / median(replay),
        parallel_vs_serial_snapshot=median(snapshot_one_by_one) / median(snapshot),
        quick=quick,
    )


if __name__ == "__main__":
    main()
