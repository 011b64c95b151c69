"""Restoring a store: a snapshot and few segments against all segments; tasks in parallel against one by one.

2M keys with 10M updates in four tasks; each restore begins with an empty folder and ends when every store was read.

Then more than 1 GiB of state, and the process that serves it is killed: how long until every task serves the newest
version again, with a standby that runs, and without one, in a new process with an empty folder.
"""

import argparse
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.progress import track

from benchmarks.common import console, finish, median, scratch, show
from benchmarks.histories import History, grown
from benchmarks.instances import FirstAnswers, InstanceProcess, config_of
from benchmarks.timeline import plot_timeline
from holdfast.instance.config import InstanceConfig, Role
from holdfast.instance.instance import Instance
from holdfast.settings.rest import RestSettings
from holdfast.settings.sections import LogSettings, RestoreSettings, SnapshotSettings

PARTITIONS = 4
BLOB_BYTES = 1_000


class Taken(NamedTuple):
    """What a restore took, in seconds. Processor time is comparable also when others use the cores."""

    wall: float
    cpu: float


def wall(taken: Sequence[Taken]) -> float:
    return median([each.wall for each in taken])


def cpu(taken: Sequence[Taken]) -> float:
    return median([each.cpu for each in taken])


def restore(history: History, folder: Path, *, parallel: int, snapshot: bool = False) -> Taken:
    """From an empty folder until every store was read; with `snapshot`, the instance then saves snapshots."""
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
    began, began_cpu = time.monotonic(), time.process_time()
    instance.start()
    assert instance.wait_ready(600)
    taken = Taken(time.monotonic() - began, time.process_time() - began_cpu)
    assert all(task.readable_to == history.version for task in instance.status().tasks)
    if snapshot:
        for hosted in instance.hosted():
            hosted.snapshotter.save()
    instance.stop()
    return taken


def without_the_active(folder: Path, keys: int) -> dict[str, float]:
    """Kills the active with and without a standby. Prints the timeline, and returns the figures."""
    history = History(folder / "log", PARTITIONS, blob_bytes=BLOB_BYTES)
    for part in track(
        np.array_split(np.arange(keys), 20), description="writing blobs", console=console, transient=True
    ):
        history.add(part)
    no_more = SnapshotSettings(enabled=False)
    active = config_of(history, folder / "active", snapshots=no_more)
    instance = Instance(active)
    instance.start()
    assert instance.wait_ready(1_200)
    for hosted in instance.hosted():
        hosted.snapshotter.save()
    instance.stop()
    size = sum(found.bytes for task in history.log.app.tasks() if (found := history.log.snapshots.newest(task)))
    with (
        InstanceProcess(active) as first,
        InstanceProcess(config_of(history, folder / "standby", Role.STANDBY, snapshots=no_more)) as standby,
    ):
        for process in (first, standby):
            process.wait_ready()
        for _ in range(2):
            version = history.add(np.arange(0, keys, 200))
            for process in (first, standby):
                process.client.committed(version)
        answers = FirstAnswers(history)
        lost = first.kill()
        standby_s = answers.ask([first.client, standby.client]) - lost
    killed = time.monotonic()
    with InstanceProcess(config_of(history, folder / "fresh", snapshots=no_more)) as fresh:
        answers = FirstAnswers(history)
        restore_s = answers.ask([fresh.client]) - killed
        cpu_s = fresh.cpu_seconds()
        fresh.wait_ready()
        events = fresh.restores()
    loaded = {
        f"MiB of task {task}": [
            (at - killed, event.bytes_done / (1 << 20))
            for at, event in events
            if event.task == str(task) and event.bytes_total
        ]
        for task in history.log.app.tasks()
    }
    marks = {
        "killed": [0.0],
        "a standby serves": [standby_s],
        "a new process listens": [fresh.listens - killed],
        "its tasks serve": [at - killed for at in answers.answered.values()],
    }
    plot = plot_timeline("restore", f"a killed active with {size / (1 << 30):.2f} GiB of state", loaded, marks)
    steps = sorted((at, name) for name, times in marks.items() for at in times)
    show(
        f"a killed active with {size / (1 << 30):.2f} GiB of state ({plot})",
        ["seconds", "what happened"],
        [[f"{at:.2f}", name] for at, name in steps],
    )
    return {
        "standby_s": standby_s,
        "restore_s": restore_s,
        "restore_cpu_s": cpu_s,
        "state_gib": size / (1 << 30),
        "mib_per_s": size / (1 << 20) / restore_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the keys, one repeat")
    quick = parser.parse_args().quick
    keys, updates, repeats = (200_000, 1_000_000, 1) if quick else (2_000_000, 10_000_000, 3)
    with scratch("restore") as folder:
        history = grown(folder / "log", partitions=PARTITIONS, keys=keys, updates=updates, versions=50)
        replay: list[Taken] = []
        one_by_one: list[Taken] = []
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
        ["from", "4 in parallel, s", "processor, s", "one by one, s", "keys/s"],
        [[name, wall(a), cpu(a), wall(b), f"{keys / wall(a):,.0f}"] for name, a, b in rows],
    )
    with scratch("standby") as folder:
        lost = without_the_active(folder, keys=120_000 if quick else 1_200_000)
    finish(
        snapshot_vs_replay=wall(replay) / wall(snapshot),
        snapshot_vs_replay_cpu=cpu(replay) / cpu(snapshot),
        keys_per_s=keys / wall(snapshot),
        parallel_vs_serial=wall(one_by_one) / wall(replay),
        parallel_vs_serial_snapshot=wall(snapshot_one_by_one) / wall(snapshot),
        **lost,
        quick=quick,
    )


if __name__ == "__main__":
    main()
