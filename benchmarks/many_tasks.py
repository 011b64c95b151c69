"""Many tasks in one instance: from a commit until queries see it, with 128 tasks compared with 8.

Every task has ten stores, of which one changes. Each version changes as many entries with 128 tasks as with 8: in all
tasks ("spread"), or in one of them ("one task"). The time is from the report of the commit until a lookup in every task
that changed is answered at that version; both contenders run in turn, so that other load hits them alike. A version
comes every 100 ms, as micro-batches do, so that flushes run in the background.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec import structs

from benchmarks.common import finish, median, scratch, show
from benchmarks.histories import SPEC
from holdfast.chance import new_id
from holdfast.instance.config import InstanceConfig, Role
from holdfast.instance.instance import Instance
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import FORMAT, Clocks, Commit, Writer
from holdfast.log.log import Log, WrittenSegments
from holdfast.log.segments import STATE, STATE_SCHEMA
from holdfast.log.storage import open_storage
from holdfast.pipeline.starting import limits_of
from holdfast.settings.model import Settings
from holdfast.settings.rest import RestSettings
from holdfast.settings.sections import LogSettings, SnapshotSettings
from holdfast.stores.formats.cells import pack_many
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.rows import encode_rows
from holdfast.words import TaskId, Version
from tests.log.making import subtopologies_of

STORES, PAUSE = 10, 0.1
MANY, FEW = 128, 8
ONE = "1,000 entries of one task"
KINDS = {"102,400 entries of all tasks": 102_400, "10,240 entries of all tasks": 10_240, ONE: 1_000}
INLINE_BYTES = LogSettings().inline_bytes


@dataclass
class Contender:
    """An instance with this many tasks, and its log."""

    folder: Path
    tasks: int
    newest: Commit | None = None
    taken: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stores = [structs.replace(SPEC, name=f"store-{number}") for number in range(STORES)]
        spec = AppSpec(
            id="bench",
            partitions=self.tasks,
            stores=tuple(stores),
            subtopologies=subtopologies_of({store.name: 0 for store in stores}),
        )
        url = str(self.folder / "log")
        self.log = Log.create_or_open(open_storage(url, {}, fsync=False), spec)
        config = InstanceConfig(
            app="bench",
            name=f"bench-{self.tasks}",
            log_url=url,
            app_file=self.log.app.number,
            state_dir=str(self.folder / "state"),
            tasks={str(task): Role.ACTIVE for task in self.log.app.tasks()},
            log=LogSettings(fsync=False),
            snapshots=SnapshotSettings(enabled=False),
            rest=RestSettings(enabled=False),
        )
        self.inline_limit = limits_of(Settings(partitions=self.tasks), 1).inline_limit
        self.instance = Instance(config)
        self.instance.start()
        assert self.instance.wait_ready(600)

    def add(self, entries: int, tasks: Sequence[TaskId]) -> Version:
        """Commits a version that changes this many entries of one store, in equal parts in these tasks."""
        version = Version(self.newest.version + 1 if self.newest else 1)
        written: dict[str, WrittenSegments] = {}
        for task in tasks:
            keys = np.random.default_rng((version, task.partition)).integers(0, 1 << 40, entries // len(tasks))
            rows = encode_rows(SPEC.columns, [pa.array(np.full(len(keys), version))])
            table = pa.table([encode_keys(SPEC.key, [pa.array(np.unique(keys))]), pack_many(rows)], schema=STATE_SCHEMA)
            parts = [(STATE, "store-0", table)]
            written[str(task)] = self.log.write_parts(task, version, parts, inline_limit=self.inline_limit)
        written = self.log.write_together(version, written, inline_bytes=INLINE_BYTES)
        self.newest = Commit(
            format=FORMAT,
            version=version,
            id=new_id(),
            previous=self.newest.id if self.newest else None,
            log=self.log.id,
            app=self.log.app.number,
            clocks=Clocks(wall=version, event=None, sources={}),
            spark=None,
            segments={task: each.segments for task, each in written.items()},
            counts={},
            writer=Writer.here("bench", 1),
        )
        self.log.create_commit(self.newest)
        return version

    def measure(self, kind: str) -> None:
        """Commits a version, and looks up a key at that version in every task that it changed."""
        time.sleep(PAUSE)
        tasks = self.log.app.tasks()[:1] if kind == ONE else self.log.app.tasks()
        version = self.add(KINDS[kind], tasks)
        replicas = [hosted.replica for hosted in self.instance.hosted() if hosted.replica.task in tasks]
        key = encode_keys(SPEC.key, [pa.array([1])])[0].as_py()
        began = time.monotonic()
        self.instance.committed(version)
        for replica in reversed(replicas):  # the last one first, so that this thread is woken once
            assert replica.published.wait_for(version, 60)
        for replica in replicas:
            with replica.read_view(version) as view:
                view.get("store-0", key)
        self.taken.setdefault(kind, []).append(time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer versions")
    quick = parser.parse_args().quick
    versions = 40 if quick else 200
    with scratch("many-tasks") as folder:
        few, many = Contender(folder / "few", FEW), Contender(folder / "many", MANY)
        for kind in KINDS:
            for number in range(versions):
                for contender in (few, many) if number % 2 else (many, few):
                    contender.measure(kind)
        for contender in (few, many):
            contender.instance.stop()
    rows = [(kind, median(few.taken[kind]) * 1000, median(many.taken[kind]) * 1000) for kind in KINDS]
    show(
        f"from commit to readable, {STORES} stores of which one changes",
        ["changes per version", f"{FEW} tasks, ms", f"{MANY} tasks, ms", "ratio"],
        [[kind, a, b, b / a] for kind, a, b in rows],
    )
    ratios = [many_ms / few_ms for _, few_ms, many_ms in rows]
    finish(ratio=ratios[0], ratio_small=ratios[1], ratio_one_task=ratios[2], many_ms=rows[0][2], quick=quick)


if __name__ == "__main__":
    main()
