"""Loading the files of a snapshot: in parallel, within a bandwidth, and only those that aren't on disk already."""

import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import Closed, StorageUnavailable
from holdfast.log import names
from holdfast.log.bandwidth import Bandwidth
from holdfast.log.log import Log
from holdfast.log.objects import ObjectMissing, Storage
from holdfast.log.snapshot_files import CHUNK, FileFetcher, Origin
from holdfast.log.snapshots import Manifest
from tests.log.making import TASK, Watched, app_spec, load, overwrite
from tests.log.test_snapshots import contents, folder_of, write

FILES = {f"rocksdb/{number:06d}.sst": os.urandom(1_000 + number) for number in range(8)}


class Saved:
    """A snapshot in a storage whose calls are watched."""

    def __init__(self, storage: Storage, tmp_path: Path, files: dict[str, bytes] = FILES) -> None:
        self.storage = Watched(storage)
        self.log = Log.create_or_open(self.storage, app_spec())
        self.manifest = write(self.log, folder_of(tmp_path, files), 1)
        self.into = tmp_path / "loading"
        self.bytes: Counter[Origin] = Counter()

    def load(self, *beside: Path, fetcher: FileFetcher | None = None) -> list[str]:
        """Loads the snapshot. Returns the names of the files that were fetched, with one entry per request."""
        self.storage.calls.clear()
        self.bytes.clear()
        loading = self.log.snapshots.loading(self.manifest, self.into, fetcher or FileFetcher(), self.count)
        loading.take_local(beside)
        loading.fetch()
        loading.renew_changed()
        return self.fetched()

    def count(self, count: int, origin: Origin) -> None:
        self.bytes[origin] += count

    def fetched(self) -> list[str]:
        by_object = {self.object_of(file.name): file.name for file in self.manifest.files}
        return sorted(by_object[name] for call, name in self.storage.calls if call == "get_range")

    def object_of(self, name: str) -> str:
        [found] = [file.hash for file in self.manifest.files if file.name == name]
        return names.snapshot_file(TASK, found)


@pytest.fixture
def saved(memory: Storage, tmp_path: Path) -> Saved:
    return Saved(memory, tmp_path)


def test_files_are_fetched_in_parallel(storage: Storage, tmp_path: Path) -> None:
    saved = Saved(storage, tmp_path)
    together = threading.Barrier(4, timeout=60)

    def wait_for_others(call: str, name: str) -> None:
        if call == "get_range":
            together.wait()

    saved.storage.before = wait_for_others
    fetcher = FileFetcher(4)
    assert saved.load(fetcher=fetcher) == sorted(FILES)
    assert contents(saved.into) == FILES
    fetcher.close()


def test_one_pool_serves_many_loads(memory: Storage, tmp_path: Path) -> None:
    log = Log.create_or_open(memory, app_spec())
    manifest = write(log, folder_of(tmp_path, FILES), 1)
    fetcher = FileFetcher(3)
    started = threading.active_count()
    most: list[int] = []

    def load_into(folder: Path) -> None:
        loading = log.snapshots.loading(manifest, folder, fetcher, lambda count, origin: most.append(alive()))
        loading.take_local([])
        loading.fetch()

    def alive() -> int:
        return sum(thread.name.startswith("fetch") for thread in threading.enumerate())

    loads = [threading.Thread(target=load_into, args=(tmp_path / f"load-{number}",)) for number in range(12)]
    for each in loads:
        each.start()
    for each in loads:
        each.join()
    assert all(contents(tmp_path / f"load-{number}") == FILES for number in range(12))
    assert max(most) <= 3
    fetcher.close()
    assert threading.active_count() <= started


def test_files_of_an_interrupted_load_are_kept(saved: Saved) -> None:
    def unavailable_after_three(call: str, name: str) -> None:
        if len(saved.fetched()) > 3:
            raise StorageUnavailable("it is away")

    saved.storage.before = unavailable_after_three
    with pytest.raises(StorageUnavailable):
        saved.load()
    saved.storage.before = lambda call, name: None
    assert saved.load() == sorted(FILES)[3:]
    assert contents(saved.into) == FILES
    assert saved.bytes[Origin.LOCAL] == sum(len(FILES[name]) for name in sorted(FILES)[:3])
    assert saved.bytes.total() == saved.manifest.bytes
    assert saved.load() == []


def test_a_part_of_a_file_is_continued(memory: Storage, tmp_path: Path) -> None:
    large = {"large": os.urandom(3 * CHUNK + 7)}
    saved = Saved(memory, tmp_path, large)

    def unavailable_in_the_middle(call: str, name: str) -> None:
        if len(saved.fetched()) > 2:
            raise StorageUnavailable("it is away")

    saved.storage.before = unavailable_in_the_middle
    with pytest.raises(StorageUnavailable):
        saved.load()
    saved.storage.before = lambda call, name: None
    assert saved.load() == ["large"] * 2
    assert contents(saved.into) == large
    assert saved.bytes == {Origin.LOCAL: 2 * CHUNK, Origin.LOG: CHUNK + 7}


@pytest.mark.parametrize("garbage", [b"", b"garbage", os.urandom(1_003), os.urandom(9_000)])
def test_garbage_of_an_interrupted_load_is_found(saved: Saved, garbage: bytes) -> None:
    saved.load()
    damaged, begun = sorted(FILES)[3:5]
    (saved.into / damaged).write_bytes(garbage)
    (saved.into / begun).unlink()
    [hash_] = [file.hash for file in saved.manifest.files if file.name == begun]
    part = (saved.into / begun).with_name(f".{Path(begun).name}.{hash_}.part")
    part.write_bytes(garbage)
    assert set(saved.load()) == {damaged, begun}
    assert contents(saved.into) == FILES
    assert saved.bytes.total() == saved.manifest.bytes, "bytes of a bad file are taken back"


def test_files_of_another_snapshot_are_removed(saved: Saved) -> None:
    for name in ("rocksdb/000099.sst", "rocksdb/.000001.sst.other.part", "other/CURRENT"):
        path = saved.into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"of another snapshot")
    saved.load()
    assert contents(saved.into) == FILES
    assert not (saved.into / "other").exists()


def test_files_are_linked_by_content_whatever_their_name(saved: Saved, tmp_path: Path) -> None:
    same, renamed, garbled = sorted(FILES)[:3]
    former = {same: FILES[same], "old/000700.sst": FILES[renamed], garbled: os.urandom(len(FILES[garbled]))}
    folder = folder_of(tmp_path, former)
    assert saved.load(folder, tmp_path / "missing") == sorted(FILES)[2:]
    assert contents(saved.into) == FILES
    assert (saved.into / renamed).samefile(folder / "old/000700.sst")
    assert saved.bytes[Origin.LOCAL] == len(FILES[same]) + len(FILES[renamed])


def test_a_linked_file_that_is_written_to_is_fetched(saved: Saved, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, FILES)
    written = sorted(FILES)[2]
    loading = saved.log.snapshots.loading(saved.manifest, saved.into, FileFetcher())
    loading.take_local([folder])
    with (folder / written).open("ab") as file:
        file.write(b"an engine that is open appends")
    saved.storage.calls.clear()
    loading.fetch()
    loading.renew_changed()
    assert saved.fetched() == [written]
    assert contents(saved.into) == FILES


@pytest.mark.parametrize("parallel", [1, 4])
def test_a_file_that_vanishes_ends_the_load_and_the_rest_is_kept(saved: Saved, parallel: int) -> None:
    gone = sorted(FILES)[5]

    def cleaning(call: str, name: str) -> None:
        if call == "get_range" and name == saved.object_of(gone):
            saved.storage.inner.delete([name])

    saved.storage.before = cleaning
    fetcher = FileFetcher(parallel)
    with pytest.raises(ObjectMissing, match=saved.object_of(gone)):
        saved.load(fetcher=fetcher)
    fetcher.close()
    saved.storage.before = lambda call, name: None
    overwrite(saved.storage.inner, saved.object_of(gone), FILES[gone])
    assert gone in saved.load()
    assert saved.bytes[Origin.LOCAL] > 0
    assert contents(saved.into) == FILES


def test_a_load_ends_when_it_is_asked_to(saved: Saved) -> None:
    def stopping() -> None:
        if len(saved.fetched()) == 4:
            raise Closed("stopping")

    saved.storage.calls.clear()
    loading = saved.log.snapshots.loading(saved.manifest, saved.into, FileFetcher(), check=stopping)
    loading.take_local([])
    with pytest.raises(Closed):
        loading.fetch()
    assert len(saved.fetched()) == 4


def test_the_bandwidth_is_kept(memory: Storage, tmp_path: Path) -> None:
    clock = ManualClock()
    saved = Saved(memory, tmp_path, {"one": os.urandom(1_000_000), "two": os.urandom(500_000)})
    saved.load(fetcher=FileFetcher(1, Bandwidth(100_000, clock)))
    assert clock.monotonic() == pytest.approx(15)


def test_an_unused_budget_is_kept_for_a_second_only() -> None:
    clock = ManualClock()
    budget = Bandwidth(1_000, clock)
    clock.advance(60)
    budget.take(3_000)
    assert clock.monotonic() == pytest.approx(62)


def test_a_wait_for_bandwidth_can_be_ended() -> None:
    clock = ManualClock()

    def stop_after_a_second() -> None:
        if clock.monotonic() >= 1:
            raise Closed("stopping")

    with pytest.raises(Closed):
        Bandwidth(1, clock).take(1_000_000, stop_after_a_second)
    assert clock.monotonic() < 2


def test_two_files_with_the_same_content_are_both_loaded(memory: Storage, tmp_path: Path) -> None:
    files = {"a/CURRENT": b"same", "b/CURRENT": b"same", "a/empty": b"", "b/empty": b""}
    log = Log.create_or_open(memory, app_spec())
    manifest: Manifest = write(log, folder_of(tmp_path, files), 1)
    load(log, manifest, tmp_path / "loaded")
    assert contents(tmp_path / "loaded") == files
