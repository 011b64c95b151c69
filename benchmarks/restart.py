"""An instance that is killed with `kill -9` and started again: the time until every task serves the newest version.

2M keys in four tasks, then small versions, some of which are only in memory when the kill comes. A generation in the
log names its tasks, as in every group. The first restart finds the state directory, the second one an empty folder and
a snapshot in the log.
"""

import argparse
import shutil
import time
from pathlib import Path

import numpy as np
from msgspec import structs

from benchmarks.common import finish, scratch, show
from benchmarks.histories import History, grown
from benchmarks.instances import FirstAnswers, InstanceProcess, config_of
from benchmarks.timeline import plot_timeline
from holdfast.chance import new_id
from holdfast.group.generations import Address, Generation, Generations, Place
from holdfast.instance.config import InstanceConfig
from holdfast.instance.instance import Instance
from holdfast.settings.sections import SnapshotSettings

PARTITIONS = 4
SMALL_VERSIONS = 40
"""Fewer than `state.flush_versions`: all of them may be in memory only."""


class Restart:
    """One restart after a kill, and what was seen of it."""

    def __init__(self, history: History, config: InstanceConfig, *, delete: bool) -> None:
        with InstanceProcess(config) as process:
            process.wait_ready()
            self._add_small_versions(history, process)
            answers = FirstAnswers(history)
            self.killed = process.kill()
        if delete:
            shutil.rmtree(config.state_dir)
        with InstanceProcess(config) as process:
            self.start_cpu_s = process.cpu_seconds()
            serves = answers.ask([process.client])
            self.cpu_s = process.cpu_seconds()
            process.wait_ready()
            events = process.restores()
        self.serving_s = serves - self.killed
        self.started = [event for _, event in events if event.phase == "start"]
        self.replayed = max((history.version - event.start_version for event in self.started), default=0)
        self.loaded = [(at - self.killed, event.bytes_done / (1 << 20)) for at, event in events if event.bytes_total]
        self.lookups = [(at - self.killed, ms) for at, ms in answers.lookups]
        self.marks = {
            "killed": [0.0],
            "process started": [process.started - self.killed],
            "listens": [process.listens - self.killed],
            "task serves": [at - self.killed for at in answers.answered.values()],
        }

    @staticmethod
    def _add_small_versions(history: History, process: InstanceProcess) -> None:
        dice = np.random.default_rng(history.version)
        for _ in range(SMALL_VERSIONS):
            process.client.committed(history.add(np.unique(dice.integers(0, 100_000, 2_000))))
        while min(task.version for task in process.client.status().tasks) < history.version:
            time.sleep(0.01)

    def print(self, what: str) -> None:
        steps = sorted((at, name) for name, times in self.marks.items() for at in times)
        show(what, ["seconds", "what happened"], [[f"{at:.2f}", name] for at, name in steps])


def save_snapshots(config: InstanceConfig) -> None:
    instance = Instance(config)
    instance.start()
    assert instance.wait_ready(600)
    for hosted in instance.hosted():
        hosted.snapshotter.save()
    instance.stop()


def place(history: History, name: str) -> None:
    """Writes a generation in which this instance is active for all tasks."""
    first = Generation(
        log=history.log.id,
        number=1,
        id=new_id(),
        before="",
        proposer="bench",
        reason="",
        app_file=history.log.app.number,
        members={name: Address(incarnation=1, flight="grpc://127.0.0.1:1")},  # it is the only one, so nobody calls it
        tasks={str(task): Place(active=name) for task in history.log.app.tasks()},
    )
    assert Generations(history.log.storage, history.log.id).propose(first)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the keys")
    quick = parser.parse_args().quick
    keys = 200_000 if quick else 2_000_000
    with scratch("restart") as folder:
        history = grown(folder / "log", partitions=PARTITIONS, keys=keys, updates=keys, versions=20)
        config = config_of(history, Path(folder / "state"), snapshots=SnapshotSettings(enabled=False))
        save_snapshots(config)
        place(history, config.name)
        config = structs.replace(config, tasks={})
        kept = Restart(history, config, delete=False)
        deleted = Restart(history, config, delete=True)
    kept.print(f"kill -9 and restart with {keys:,} keys on disk")
    deleted.print(f"kill -9 and restart with {keys:,} keys and a deleted state directory")
    plots = [
        plot_timeline("restart", "restart after kill -9", {"ms of the first lookups": kept.lookups}, kept.marks),
        plot_timeline(
            "restart-deleted",
            "restart after kill -9 and a deleted state directory",
            {"MiB of a task's snapshot": deleted.loaded},
            deleted.marks,
        ),
    ]
    show(
        "restart",
        ["what", "state on disk", "state deleted"],
        [
            ["seconds from the kill until every task serves", kept.serving_s, deleted.serving_s],
            ["processor seconds of the new process until then", kept.cpu_s, deleted.cpu_s],
            ["... of which it took to start and to listen", kept.start_cpu_s, deleted.start_cpu_s],
            ["versions replayed at most", kept.replayed, deleted.replayed],
            ["plot", *map(str, plots)],
        ],
    )
    assert not kept.loaded, "a restart with its state on disk must not load a snapshot"
    finish(
        serving_s=kept.serving_s,
        serving_cpu_s=kept.cpu_s,
        replayed_versions=kept.replayed,
        deleted_serving_s=deleted.serving_s,
        deleted_serving_cpu_s=deleted.cpu_s,
        quick=quick,
    )


if __name__ == "__main__":
    main()
