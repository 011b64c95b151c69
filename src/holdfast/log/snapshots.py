"""Snapshots: a task's whole state at one version, from which restore starts.

A snapshot is a manifest that names files by the hash of their content. Files are written first and the manifest last,
so every manifest is complete. A snapshot is incremental: it reuses the files of the newest manifest, which cleaning
always keeps. After writing its manifest it checks that every file exists and uploads those again that a cleaning has
deleted in the meantime.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec

from holdfast import faults
from holdfast.errors import DamagedObject, StorageUnavailable
from holdfast.log import documents, names
from holdfast.log.objects import ObjectMissing, Put, Storage
from holdfast.log.snapshot_files import FileFetcher, OnBytes, SnapshotFile, SnapshotLoad, described, ignore_bytes
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId, Version

FORMAT = 1
_logger = logging.getLogger(__name__)


class SampledRange(msgspec.Struct, frozen=True):
    """What a store had in start <= key < stop, without a stop up to its end: how many entries, and their checksum."""

    start: bytes
    stop: bytes | None
    entries: int
    checksum: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a snapshot, and the commit whose state it has."""

    format: int = FORMAT
    log: str
    task: str
    version: int
    commit: str
    stores: dict[str, int]
    """The stores it has, each with the version after which it began. Stores that aren't durable are in no snapshot."""
    files: tuple[SnapshotFile, ...]
    bytes: int
    """All files together."""
    added_bytes: int
    """Bytes of the files that the previous snapshot didn't have and that were uploaded."""
    wall: int
    """The wall clock of its version."""
    applied_bytes: int
    """The bytes of the segments that led to it."""
    app: int = 0
    """The number of the app file that its version was committed with; 0 if that wasn't known."""
    samples: dict[str, tuple[SampledRange, ...]] = {}
    """By store, a few ranges of its entries: other replicas are compared with them."""

    def fits(self, stores: Iterable[StoreSpec]) -> bool:
        """Whether a replica with these stores can start here: each is in it, or begins no earlier.

        A store that was started over begins after another version than the one in the snapshot, and is another store.
        """
        return all(
            self.stores.get(store.name) == store.after or store.after >= self.version
            for store in stores
            if store.durable
        )


class Snapshots:
    """The snapshots in one log."""

    def __init__(self, storage: Storage, log: str) -> None:
        self._storage = storage
        self._log = log

    def versions(self, task: TaskId) -> list[Version]:
        """The versions that have a snapshot, oldest first."""
        found = self._storage.list_flat(names.snapshots(task))
        return [version for name in found if (version := names.version_of(name)) is not None]

    def manifest(self, task: TaskId, version: Version) -> Manifest | None:
        """The snapshot of exactly this version."""
        name = names.manifest(task, version)
        try:
            data = self._storage.get(name)
        except ObjectMissing:
            return None
        manifest = documents.decode(data, Manifest, name=name, place=self._storage.place, known=FORMAT)
        found = (manifest.log, manifest.task, manifest.version)
        if found != (self._log, str(task), version):
            raise documents.damaged(name, self._storage.place, f"it holds (log, task, version) {found}")
        return manifest

    def readable(self, task: TaskId, version: Version) -> Manifest | None:
        """The snapshot of exactly this version; None also if its manifest is damaged: no replica can start there."""
        try:
            return self.manifest(task, version)
        except DamagedObject as error:
            _logger.warning("%s The task goes on without this snapshot.", error)
            return None

    def newest(self, task: TaskId, at_most: Version | None = None) -> Manifest | None:
        """The newest snapshot, or the newest at or below a version."""
        for version in reversed(self.versions(task)):
            # A listed snapshot may be cleaned before it is read. Cleaning keeps the newer ones.
            if (at_most is None or version <= at_most) and (found := self.readable(task, version)) is not None:
                return found
        return None

    def write(
        self,
        task: TaskId,
        folder: Path,
        *,
        version: Version,
        commit: str,
        stores: Mapping[str, int],
        wall: int = 0,
        applied_bytes: int = 0,
        app: int = 0,
        samples: Mapping[str, tuple[SampledRange, ...]] = MappingProxyType({}),
        before_file: Callable[[], None] = lambda: None,
        before_manifest: Callable[[], None] = lambda: None,
    ) -> Manifest:
        """Stores a folder with the task's stores at `version` as a snapshot.

        `before_file` and `before_manifest` may raise to give up: the files stored so far belong to no snapshot.
        """
        faults.point("snapshot.before")
        kept = self._reusable(task)
        files = tuple(described(folder))
        added = 0
        for number, file in enumerate(files):
            before_file()
            if file.hash not in kept:
                self._storage.create_file(names.snapshot_file(task, file.hash), folder / file.name)
                kept.add(file.hash)
                added += file.bytes
            if number == len(files) // 2:
                faults.point("snapshot.middle")
        before_manifest()
        manifest = Manifest(
            log=self._log,
            task=str(task),
            version=version,
            commit=commit,
            stores=dict(stores),
            files=files,
            bytes=sum(file.bytes for file in files),
            added_bytes=added,
            wall=wall,
            applied_bytes=applied_bytes,
            app=app,
            samples=dict(samples),
        )
        written = self._create(task, manifest)
        self._check_files(task, written, folder if written == manifest else None)
        faults.point("snapshot.after")
        return written

    def loading(
        self,
        manifest: Manifest,
        into: Path,
        fetcher: FileFetcher,
        on_bytes: OnBytes = ignore_bytes,
        check: Callable[[], None] = lambda: None,
    ) -> SnapshotLoad:
        """A load of a snapshot into a folder, which may have what an interrupted load has left."""
        task = TaskId.parse(manifest.task)
        return SnapshotLoad(
            self._storage, manifest.files, partial(names.snapshot_file, task), into, fetcher, on_bytes, check
        )

    def _reusable(self, task: TaskId) -> set[str]:
        newest = self.newest(task)
        return {file.hash for file in newest.files} if newest is not None else set()

    def _create(self, task: TaskId, manifest: Manifest) -> Manifest:
        name = names.manifest(task, Version(manifest.version))
        if self._storage.create(name, documents.encode(manifest)) is Put.CREATED:
            return manifest
        # This put, stored but answered by an error; or another replica's snapshot of the same state; or one of an
        # abandoned timeline, which nobody can use.
        found = self.manifest(task, Version(manifest.version))
        if found is not None and found.commit != manifest.commit:
            self._storage.delete([name])
            self._storage.create(name, documents.encode(manifest))
            return manifest
        return found or manifest

    def _check_files(self, task: TaskId, manifest: Manifest, folder: Path | None) -> None:
        there = set(self._storage.list_flat(names.snapshot_files(task)))
        for file in manifest.files:
            name = names.snapshot_file(task, file.hash)
            if name in there:
                continue
            if folder is not None:
                self._storage.create_file(name, folder / file.name)
            if folder is None or not self._storage.exists(name):
                self._storage.delete([names.manifest(task, Version(manifest.version))])
                raise StorageUnavailable(
                    f"{name} of the snapshot of task {task} at version {manifest.version} isn't in "
                    f"{self._storage.place}: a cleaning deleted it while the snapshot was written. The "
                    "snapshot was withdrawn; take it again."
                )
