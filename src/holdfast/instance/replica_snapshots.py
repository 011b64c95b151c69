"""The snapshots of a replica: saved from it between two versions, and loaded instead of the versions before them."""

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from holdfast.errors import Closed, DamagedObject
from holdfast.instance import snapshot_loading
from holdfast.instance.replica_state import ReplicaState
from holdfast.instance.restore_reporter import RestoreReporter
from holdfast.instance.state_dir import TaskDirectory, remove, usable
from holdfast.instance.task_engines import PinnedView
from holdfast.log.objects import ObjectMissing
from holdfast.stores.engines.base import DamagedState, Mark
from holdfast.words import NOTHING, Version

_ASIDE_SECONDS = 60.0
"""A snapshot that could not be used is tried again by a catch-up that starts this much later: it may be back."""


class ReplicaSnapshots(ReplicaState):
    """What a replica does with snapshots. `Replica` adds how it advances."""

    _set_aside: Mapping[Version, float] = MappingProxyType({})
    """Snapshots that could not be used, and when."""

    def check_in_log(self) -> None:
        """Raises Closed once the log was set back: what is here may be of a timeline that is abandoned."""
        if self._log_reader.was_set_back() or self.must_look_back:
            raise Closed(f"task {self.task} may be at a version that the log doesn't have any more. Try again later.")

    @contextlib.contextmanager
    def saved(self) -> Iterator[tuple[Mark, int, TaskDirectory, PinnedView]]:
        """A checkpoint of the engines between two versions, in `home.saving`, for the length of the block.

        With the bytes of the segments that led to it, and a view of the same version.
        """
        self.check_in_log()
        with self._writing:
            self.flush_overlay()
            disk = self._disk
            mark = None if disk is None else disk.engines.mark()
            if disk is None or mark is None or mark.applying is not None or mark.version == NOTHING:
                raise Closed(f"task {self.task} has nothing complete to save yet. Try again when it is restored.")
            with usable(self._home.path):
                remove(self._home.saving)
                disk.engines.checkpoint(self._home.saving)
            applied_bytes, pinned = disk.applied_bytes, disk.engines.pin(mark.version)
        try:
            yield mark, applied_bytes, self._home, pinned
        finally:
            pinned.release()
            remove(self._home.saving)

    def _snapshots(self) -> list[Version]:
        found = self._log_reader.log.snapshots.versions(self.task)
        return [version for version in found if version not in self._set_aside]

    def _load(self, version: Version, report: RestoreReporter) -> None:
        """Replaces the state here by a snapshot. One that turns out damaged or incomplete is set aside for a while."""
        log = self._log_reader.log
        try:
            manifest = log.snapshots.manifest(self.task, version)
            # An instance that didn't know yet may have saved one after the log was set back.
            abandoned = manifest is not None and self._log_reader.id_at(version) not in (None, manifest.commit)
            if manifest is None or abandoned or not manifest.fits(self._specs):
                self._put_aside(version)
                return
            load = snapshot_loading.download(self._log_reader, manifest, self._home, report, self.check_open)
            with self._writing:
                self._shut()
                engines = snapshot_loading.adopt(log.id, manifest, load, self._home, self._specs, self._resources)
                self._use(engines, applied_bytes=manifest.applied_bytes, fresh=True)
        except (DamagedObject, DamagedState, ObjectMissing) as error:
            self._put_aside(version)
            self._warn(error, f"the snapshot of version {version} is not used")
            if self._disk is None:
                self._start_over(None)
            return
        if report.under_way:
            with self.published.read_view(version) as view:
                report.batch(version, {store: snapshot_loading.entries_in(view, store) for store in self.stores})

    def _try_again_later(self) -> None:
        recently = self._clock.monotonic() - _ASIDE_SECONDS
        self._set_aside = {version: at for version, at in self._set_aside.items() if at > recently}

    def _put_aside(self, version: Version) -> None:
        self._set_aside = {**self._set_aside, version: self._clock.monotonic()}
