"""The engines of one task, opened and closed together, and the pinned views that readers use.

A store names its engine, so a task may have several; here they are one, with one mark. Stores that begin after
different versions have engines of their own too: one without a mark is empty at the version after which its stores
begin, and a store that starts over never finds its former entries. Stores that aren't durable have engines of their
own, in another folder, which no checkpoint includes: beside a folder that was restored they start empty, at the version
of the others. Many threads read while one writer moves the engines forward. Every access takes a short lease, so that
closing waits for accesses under way and rejects later ones, and no reader can keep the folder. A pinned view is an
engine's immutable view with the version it was taken at; it is closed when its last user is done.
"""

import contextlib
import logging
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa

from holdfast.errors import Closed, HoldfastError
from holdfast.instance.keys_below import KeysBelow
from holdfast.instance.state_dir import remove
from holdfast.stores.engines.base import Changes, DamagedState, Engine, EngineView, Mark, Resources, applying
from holdfast.stores.engines.open_views import OPEN_VIEWS
from holdfast.stores.engines.registry import open_engine
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, Version

_LOG = logging.getLogger(__name__)
_SCAN_BLOCK = 256
_LARGE_BLOCK = 1_024
_BLOCK_BYTES = 1 << 20
_WEIGHED = 16
"""After how many entries of a block, at most, their bytes are looked at. After the first one, first."""
"""Entries of a block for reads of whole stores. It takes 0.7 ms, in which no other thread of Python runs."""


@dataclass(frozen=True)
class Opened:
    """An engine, its stores, the version after which they begin, and its folder."""

    engine: Engine
    stores: tuple[str, ...]
    after: Version
    folder: Path


class TaskEngines:
    """One task's engines at a version. One writer calls `apply`, `drop`, `flush`, `checkpoint` and `close`."""

    def __init__(self, engines: Mapping[str, Opened], volatile: Mapping[str, Opened]) -> None:
        self._durable = dict(engines)
        self._all = [*engines.values(), *volatile.values()]
        self._of = {store: opened.engine for opened in self._all for store in opened.stores}
        self._free = threading.Condition()
        self._leases = 0
        self._closed = False
        self._pinned: set[PinnedView] = set()
        mark = self.mark()
        self._target = NOTHING if mark is None else max(mark.version, mark.applying or NOTHING)

    @classmethod
    def open(cls, folder: Path, volatile: Path, specs: Sequence[StoreSpec], resources: Resources) -> "TaskEngines":
        """Opens every engine under a folder of its own name: durable stores in `folder`, the others in `volatile`."""
        with contextlib.ExitStack() as undo:
            durable = _opened(folder, [spec for spec in specs if spec.durable], resources, undo)
            losing = [spec for spec in specs if not spec.durable]
            lost = _opened_or_emptied(volatile, losing, resources, undo)
            if (mark := _mark_of(durable.values())) is not None:
                _stamp(lost.values(), mark)
            engines = cls(durable, lost)
            undo.pop_all()
            return engines

    @property
    def target(self) -> Version:
        """The newest version of which the engines may have changes."""
        return self._target

    def mark(self) -> Mark | None:
        with self.lease():
            return _mark_of(self._all)

    def stamp(self, mark: Mark) -> None:
        """Gives engines that are empty the mark."""
        with self.lease():
            _stamp(self._all, mark)

    @contextlib.contextmanager
    def lease(self) -> Iterator[None]:
        """Keeps the engines open for the length of a short block."""
        self.take_lease()
        try:
            yield
        finally:
            self.end_lease()

    def take_lease(self) -> None:
        """Keeps the engines open until `end_lease`."""
        with self._free:
            if self._closed:
                raise Closed("this replica's engine was closed under the reader. Ask again.")
            self._leases += 1

    def end_lease(self) -> None:
        with self._free:
            self._leases -= 1
            self._free.notify_all()

    def get_many(self, store: str, keys: pa.Array) -> pa.Array:
        with self.lease():
            return self._of[store].get_many(store, keys)

    def apply(self, changes: Iterable[tuple[str, Changes]], mark: Mark) -> None:
        """Brings every engine to the mark. With several, each gets all its changes before the next one does."""
        self._target = max(self._target, mark.version)
        with self.lease():
            if len(self._all) == 1:
                self._all[0].engine.apply(changes, mark)
                return
            parted: dict[int, list[tuple[str, Changes]]] = {id(opened.engine): [] for opened in self._all}
            for store, part in changes:
                parted[id(self._of[store])].append((store, part))
            for opened in self._all:
                opened.engine.apply(parted[id(opened.engine)], mark)

    def drop(self, store: str, start: bytes, stop: bytes) -> None:
        """Removes a range of a store, between two applies. Views that were pinned before still have it."""
        with self.lease():
            self._of[store].drop(store, start, stop)

    def pin(self, version: Version) -> "PinnedView":
        """A view of `version`, which the engines must be at. Belongs to the caller."""
        with self.lease():
            views = {id(opened.engine): opened.engine.view() for opened in self._all}
            pinned = PinnedView(self, version, {store: views[id(engine)] for store, engine in self._of.items()})
        with self._free:
            self._pinned.add(pinned)
        return pinned

    def flush(self) -> None:
        with self.lease():
            for opened in self._all:
                opened.engine.flush()

    def checkpoint(self, folder: Path) -> None:
        """Writes the durable stores to a folder."""
        with self.lease():
            folder.mkdir(parents=True)
            for name, opened in self._durable.items():
                opened.engine.checkpoint(folder / name)

    def approximate_count(self, store: str) -> int:
        with self.lease():
            return self._of[store].approximate_count(store)

    @property
    def folders_are_there(self) -> bool:
        """False once someone has deleted a folder: RocksDB reads on from files that have no name any more."""
        return all(opened.folder.is_dir() for opened in self._all)

    def disk_bytes(self) -> int:
        with self.lease():
            return sum(opened.engine.disk_bytes() for opened in self._all)

    def close(self) -> None:
        """Rejects new readers, waits for accesses under way, then closes views and engines."""
        with self._free:
            if self._closed:
                return
            self._closed = True
            self._free.wait_for(lambda: self._leases == 0)
            open_views = list(self._pinned)
        for pinned in open_views:
            pinned.close()
        for opened in self._all:
            try:
                opened.engine.close()
            except HoldfastError as error:
                _LOG.warning("an engine closed without its last flush: %s The log has what it lacks.", error)

    def forget(self, pinned: "PinnedView") -> None:
        with self._free:
            self._pinned.discard(pinned)


class PinnedView:
    """An immutable view of a task's engines at one version. It counts its users and is closed with the last one."""

    def __init__(self, engines: TaskEngines, version: Version, views: Mapping[str, EngineView]) -> None:
        self.engines = engines
        self.version = version
        self._views = dict(views)
        self._scans: set[Iterator[tuple[bytes, bytes]]] = set()
        self._holders = 1
        self._lock = threading.Lock()
        self._closed = False

    def hold(self) -> "PinnedView":
        with self._lock:
            self._holders += 1
        return self

    def keep_for(self, seconds: float) -> None:
        """Says that it is kept on purpose for so long at most, so that nobody reports it as forgotten meanwhile."""
        for view in self._views.values():
            OPEN_VIEWS.hold(view, seconds)

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
        try:
            with self.engines.lease():
                self.close()
        except Closed:
            pass  # the engines were closed, and every pinned view with them

    def get(self, store: str, key: bytes) -> bytes | None:
        self.engines.take_lease()  # not `lease`: as a context manager it takes 1.8 us instead of 0.8
        try:
            return self._views[store].get(store, key)
        finally:
            self.engines.end_lease()

    def get_many(self, store: str, keys: pa.Array) -> pa.Array:
        """Key by key, for the rare reader of a version that the engines have moved past."""
        values: list[bytes | None] = []
        for start in range(0, len(keys), _SCAN_BLOCK):
            with self.engines.lease():
                view = self._views[store]
                values.extend(view.get(store, key) for key in keys.slice(start, _SCAN_BLOCK).to_pylist())
        return pa.array(values, pa.binary())

    def keys(self, store: str) -> KeysBelow:
        """Which keys a store has, for an overlay over this view."""

        def last_before(stop: bytes | None) -> bytes | None:
            with self.engines.lease():
                source = self._views[store].scan(store, b"", stop, reverse=True)
                found = next(source, None)
                _close(source)
            return None if found is None else found[0]

        return KeysBelow.of(last_before)

    def entries(self, store: str, start: bytes, stop: bytes | None) -> list[tuple[bytes, bytes]]:
        """A whole range in order. A short one, which most are, is read under one lease and with little around it."""
        with self.engines.lease():
            source = self._views[store].scan(store, start, stop)
            block = list(islice(source, _SCAN_BLOCK))
            _close(source)
        if len(block) < _SCAN_BLOCK:
            return block
        return block + list(self.scan(store, block[-1][0] + b"\x00", stop, reverse=False))

    def scan(
        self, store: str, start: bytes, stop: bytes | None, *, reverse: bool
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """A range in order. Each block is read under a lease of its own."""
        blocks = self.blocks(store, start, stop, reverse=reverse, rows=_SCAN_BLOCK)
        try:
            for block in blocks:
                yield from block
        finally:
            blocks.close()

    def blocks(
        self, store: str, start: bytes, stop: bytes | None, *, reverse: bool = False, rows: int = _LARGE_BLOCK
    ) -> Generator[list[tuple[bytes, bytes]], None, None]:
        """The same in lists of up to so many entries, and of about `_BLOCK_BYTES`."""
        with self.engines.lease():
            source = self._views[store].scan(store, start, stop, reverse=reverse)
            self._scans.add(source)
        try:
            while True:
                block: list[tuple[bytes, bytes]] = []
                size, ended, weighed = 0, False, 1
                with self.engines.lease():
                    while len(block) < rows and size < _BLOCK_BYTES and not ended:
                        more = list(islice(source, weighed))
                        ended = len(more) < weighed
                        size += sum([len(value) for _, value in more])
                        block += more
                        weighed = min(2 * weighed, _WEIGHED)
                yield block
                if ended:
                    return
        finally:
            self._end_scan(source)

    def _end_scan(self, source: Iterator[tuple[bytes, bytes]]) -> None:
        self._scans.discard(source)
        try:
            with self.engines.lease():
                _close(source)
        except Closed:
            pass  # the engines were closed, and the scan with them

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for source in list(self._scans):
            _close(source)
        for view in {id(view): view for view in self._views.values()}.values():
            view.close()
        self.engines.forget(self)


def _opened(
    folder: Path, specs: Sequence[StoreSpec], resources: Resources, undo: contextlib.ExitStack
) -> dict[str, Opened]:
    """The engines by the names of their folders. Folders of stores that the task no longer has are removed."""
    opened: dict[str, Opened] = {}
    wanted = sorted({(spec.engine, spec.after) for spec in specs})
    for name, after in wanted:
        mine = [spec for spec in specs if (spec.engine, spec.after) == (name, after)]
        place = folder / engine_folder(name, after)
        place.mkdir(parents=True, exist_ok=True)
        engine = open_engine(name, place, mine, resources)
        undo.callback(engine.close)
        opened[place.name] = Opened(engine, tuple(spec.name for spec in mine), Version(after), place)
    for other in folder.iterdir() if folder.exists() else ():
        if other.name not in opened:
            remove(other)
    return opened


def _opened_or_emptied(
    folder: Path, specs: Sequence[StoreSpec], resources: Resources, undo: contextlib.ExitStack
) -> dict[str, Opened]:
    try:
        with contextlib.ExitStack() as attempt:
            opened = _opened(folder, specs, resources, attempt)
            undo.push(attempt.pop_all())
            return opened
    except DamagedState as error:
        _LOG.warning("%s It holds no durable store, so it is emptied and starts over.", error)
        remove(folder)
        return _opened(folder, specs, resources, undo)


def _stamp(engines: Iterable[Opened], mark: Mark) -> None:
    for opened in engines:
        if opened.engine.mark() is None:
            opened.engine.apply((), mark)


def _close(source: Iterator[tuple[bytes, bytes]]) -> None:
    close = getattr(source, "close", None)  # generators have it, plain iterators don't
    if close is not None:
        close()


def engine_folder(name: str, after: int = 0) -> str:
    """The folder of an engine. A user's own engine has a colon in its name, which not every storage accepts.

    >>> engine_folder("rocksdb"), engine_folder("rocksdb", 50), engine_folder("my.engines:Fast")
    ('rocksdb', 'rocksdb@50', 'my.engines.Fast')
    """
    folder = name.replace(":", ".")
    return f"{folder}@{after}" if after else folder


def _mark_of(engines: Iterable[Opened]) -> Mark | None:
    return task_mark([(opened.engine.mark(), opened.after) for opened in engines])


def task_mark(marks: Sequence[tuple[Mark | None, Version]]) -> Mark | None:
    """The mark of engines, each given with the version after which its stores begin: an engine is at least there.

    >>> seven = Mark(Version(7), "c7", "log-1")
    >>> task_mark([(seven, NOTHING), (None, Version(7))]) == seven
    True
    >>> task_mark([(seven, NOTHING), (None, Version(5))])
    Mark(version=5, commit='', log='log-1', applying=7)

    A first version after 50 that a kill interrupted:

    >>> task_mark([(Mark(NOTHING, "", "log-1", applying=Version(51)), Version(50))])
    Mark(version=50, commit='', log='log-1', applying=51)
    """
    known = [mark for mark, _ in marks if mark is not None]
    if not known:
        return None
    reached = [Mark(after, "", known[0].log) if mark is None or mark.version < after else mark for mark, after in marks]
    smallest = min(reached, key=lambda mark: (mark.version, not mark.commit))
    return applying(smallest, known)
