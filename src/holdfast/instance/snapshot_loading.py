"""Loading a snapshot: the state of a task as another replica had it at some version, in place of the state here.

Its files are gathered beside the data, in the folder that takes its place when it is complete: what is on disk already
is kept or linked, the rest is fetched. Then it is opened and checked against the manifest. A load that is interrupted
is continued by the next one. Snapshots don't include stores that aren't durable: those start empty, at the snapshot's
version.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice

from holdfast.errors import DamagedObject
from holdfast.instance.log_reader import LogReader
from holdfast.instance.read_views import ReadView
from holdfast.instance.restore_reporter import RestoreReporter
from holdfast.instance.state_dir import TaskDirectory, usable
from holdfast.instance.task_engines import TaskEngines
from holdfast.log.snapshot_files import Origin, SnapshotLoad
from holdfast.log.snapshots import Manifest
from holdfast.stores.engines.base import Mark, Resources
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version

_FEW = 10_000
"""Up to this many entries are counted one by one, which takes some milliseconds."""


class _Progress:
    """Counts the bytes of a snapshot that are here, and reports each percent."""

    def __init__(self, manifest: Manifest, report: RestoreReporter) -> None:
        self._manifest = manifest
        self._report = report
        self._here = dict.fromkeys(Origin, 0)
        self._percent = -1
        self._lock = threading.Lock()

    def add(self, count: int, origin: Origin) -> None:
        with self._lock:
            self._here[origin] += count
            done, total = sum(self._here.values()), self._manifest.bytes
            percent = 100 * done // max(1, total)
            if percent != self._percent and self._report.under_way:
                self._percent = percent
                self._report.loading(Version(self._manifest.version), done, total, self._here[Origin.LOCAL])


def download(
    source: LogReader, manifest: Manifest, home: TaskDirectory, report: RestoreReporter, check: Callable[[], None]
) -> SnapshotLoad:
    """Gathers the files of a snapshot beside the data, which may be in use. `check` may raise to end it."""
    progress = _Progress(manifest, report)
    load = source.log.snapshots.loading(manifest, home.loading, source.fetcher, progress.add, check)
    with usable(home.path):
        load.take_local([home.data, home.former])
        home.drop_former()
        load.fetch()
    return load


def adopt(
    log: str,
    manifest: Manifest,
    load: SnapshotLoad,
    home: TaskDirectory,
    specs: Sequence[StoreSpec],
    resources: Resources,
) -> TaskEngines:
    """Replaces the data, which must be closed, by the loaded snapshot, and opens it. `log` is the log's id."""
    with usable(home.path):
        load.renew_changed()
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
