"""Loading a snapshot: the state of a task as another replica had it at some version, in place of the state here.

It is downloaded beside the data, moved into its place when it is complete, opened, and checked against the manifest.
Snapshots don't include stores that aren't durable: those start empty, at the snapshot's version.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice

from holdfast.errors import DamagedObject
from holdfast.instance.read_views import ReadView
from holdfast.instance.state_dir import TaskDirectory, remove, usable
from holdfast.instance.task_engines import TaskEngines
from holdfast.log.log import Log
from holdfast.log.snapshots import Manifest
from holdfast.stores.engines.base import Mark, Resources
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version

_FEW = 10_000
"""Up to this many entries are counted one by one, which takes some milliseconds."""


def download(log: Log, manifest: Manifest, home: TaskDirectory, on_bytes: Callable[[int], None]) -> None:
    """Downloads a snapshot beside the data; `on_bytes` is called for each piece."""
    with usable(home.path):
        remove(home.loading)
        log.snapshots.load(manifest, home.loading, on_bytes)


def adopt(
    log: str, manifest: Manifest, home: TaskDirectory, specs: Sequence[StoreSpec], resources: Resources
) -> TaskEngines:
    """Replaces the data, which must be closed, by the downloaded snapshot, and opens it. `log` is the log's id."""
    home.adopt_loaded()
    engines = TaskEngines.open(home.data, home.volatile, specs, resources)
    version = Version(manifest.version)
    try:
        if not any(spec.durable for spec in specs):
            # The snapshot of a task without durable stores is empty. It only says at which version to start.
            engines.stamp(Mark(version, manifest.commit, log))
        mark = engines.mark()
        found = None if mark is None else (mark.version, mark.commit, mark.log, mark.applying)
        if found != (version, manifest.commit, log, None):
            raise DamagedObject(f"the snapshot of task {home.task} at version {version} holds {mark}.")
    except BaseException:
        engines.close()
        raise
    return engines


def entries_in(view: ReadView, store: str) -> int:
    """How many entries a loaded store has: exactly if they are few, else RocksDB's estimate.

    The estimate subtracts every delete: for a store that deletes as much as it puts it is zero.
    """
    estimate = view.approximate_count(store)
    if estimate >= _FEW:
        return estimate
    with closing(view.scan(store, b"", None)) as entries:
        counted = sum(1 for _ in islice(entries, _FEW))
    return counted if counted < _FEW else max(counted, estimate)
