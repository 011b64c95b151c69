"""The readers of tasks: one for a replica of this process, one for a replica of another instance.

Neither reads a replica that is being restored. Such a replica has versions too, old or empty ones, and would answer
that no key exists. Reads are monotonic: a task that has answered at version 7 doesn't answer at version 6 later,
whatever happened to its replica in between.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.instance.client import StateClient
from holdfast.instance.config import Phase
from holdfast.instance.instance import HostedTask, Instance
from holdfast.instance.read_views import ReadView, StoreBytes
from holdfast.query.reader import Entry
from holdfast.query.task_reader import KeyRead, NotReady, TaskReader, TaskStore
from holdfast.stores.access import Now
from holdfast.stores.engines.base import DamagedState
from holdfast.words import NOTHING, TaskId, Version

log = logging.getLogger(__name__)

_FIRST_PAGE, _LARGEST_PAGE = 128, 8_192

PEER_DEADLINE_SECONDS = 2.0
"""How long another instance may take to answer: a client is waiting."""


class MonotonicReads:
    """The newest version a task was read at. A read that asks for no version is never answered at an older one."""

    def __init__(self, task: TaskId) -> None:
        self._task = task
        self._lock = threading.Lock()
        self._seen = NOTHING

    @property
    def seen(self) -> Version:
        """To be taken before a read: a read that started earlier may be answered at an older version."""
        return self._seen

    def record(self, version: Version, seen: Version) -> None:
        """Records that a read was answered at `version`; `seen` is what `seen` was when the read started."""
        if version < seen:
            raise NotReady(
                f"task {self._task} was at version {seen} and is at {version} now: it is being restored. Ask again "
                "in a moment."
            )
        with self._lock:
            self._seen = max(self._seen, version)


class LocalTask:
    """A replica of this process. A read takes one of the versions it can serve, and never waits for another."""

    local = True

    def __init__(self, instance: Instance, hosted: HostedTask, reads: MonotonicReads) -> None:
        self._instance = instance
        self.hosted = hosted
        self._replica = hosted.replica
        self.reads = reads
        self._rebuild = threading.Lock()

    def get(self, store: str, key: bytes, version: Version | None = None) -> KeyRead:
        with self._view(store, version) as view:
            return KeyRead(view.version, view.get(store, key), view.now)

    @contextmanager
    def at(self, store: str, version: Version | None = None) -> Iterator[TaskStore]:
        with self._view(store, version) as view:
            yield TaskStore(view.version, view.now, StoreBytes(view, store))

    @contextmanager
    def _view(self, store: str, version: Version | None) -> Iterator[ReadView]:
        self._check_readable(store)
        seen = self.reads.seen
        try:
            with self._replica.published.read_view(version) as view:
                if version is None:
                    self.reads.record(view.version, seen)
                yield view
        except DamagedState as error:
            raise self._rebuilding(error) from error

    def _check_readable(self, store: str) -> None:
        if store not in self._replica.stores:
            raise NotReady(
                f"task {self._replica.task} has no store {store!r} here: it was added after this instance opened the "
                "task. Restart the app."
            )
        if not self.hosted.caught_up:
            raise NotReady(
                f"task {self._replica.task} is being restored: version {self._replica.version} of "
                f"{self._instance.source.newest_known}. Ask again in a moment; /v1/state shows how far it is."
            )

    def _rebuilding(self, error: DamagedState) -> NotReady:
        """Starts to rebuild the replica, on a thread: its updater may be busy, and this may be the event loop."""
        if self._rebuild.acquire(blocking=False):
            threading.Thread(target=self._have_rebuilt, args=(error,), name="rebuild", daemon=True).start()
        return NotReady(f"{error} The instance has started to do so. Ask again in a moment.")

    def _have_rebuilt(self, error: DamagedState) -> None:
        try:
            self._instance.damaged(self._replica.task, error)
        except HoldfastError as failure:
            log.warning("task %s can't be rebuilt yet: %s", self._replica.task, failure)
        finally:
            self._rebuild.release()


class PeerBytes:
    """A store of a task on another instance, at one version."""

    def __init__(self, client: StateClient, task: TaskId, store: str, version: Version) -> None:
        self._client = client
        self._place = task, store, version

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._client.get_many(*self._place, pa.array(keys, pa.binary())).to_pylist()
        return found

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[Entry]:
        """Reads page by page, each larger than the last: most readers want a few entries, and some want all."""
        rows = _FIRST_PAGE
        while True:
            page = self._client.scan(*self._place, start, stop, reverse, rows)
            yield from zip(page.keys.to_pylist(), page.values.to_pylist(), strict=True)
            if len(page.keys) < rows:
                return
            last: bytes = page.keys[-1].as_py()
            start, stop = (start, last) if reverse else (last + b"\x00", stop)
            rows = min(_LARGEST_PAGE, 4 * rows)

    def approximate_count(self) -> int:
        return self._client.approximate_count(*self._place)


class PeerTask:
    """A task on another instance, which has `PEER_DEADLINE_SECONDS` to answer."""

    local = False

    def __init__(self, client: StateClient, task: TaskId, newest: Callable[[], Version]) -> None:
        self._client = client
        self._task = task
        self._newest = newest
        self._reads = MonotonicReads(task)

    def get(self, store: str, key: bytes, version: Version | None = None) -> KeyRead:
        seen = self._reads.seen
        got = self._client.get_one(self._task, store, key, version)
        if version is None:
            self._check(Version(got.version), seen)
        return KeyRead(Version(got.version), got.value, Now(got.wall, got.event))

    @contextmanager
    def at(self, store: str, version: Version | None = None) -> Iterator[TaskStore]:
        seen = self._reads.seen
        opening = self._client.scan(self._task, store, version, limit=0)  # which version there is, and its clocks
        if version is None:
            self._check(opening.version, seen)
        yield TaskStore(opening.version, opening.now, PeerBytes(self._client, self._task, store, opening.version))

    def _check(self, version: Version, seen: Version) -> None:
        # An answer at the newest version that is known here isn't from a restoring replica. Only after an older answer
        # the other instance is asked for its phase: mostly it is one version behind because it is just applying it.
        if version < self._newest():
            for task in self._client.status().tasks:
                if task.task == str(self._task) and task.phase is not Phase.RUNNING:
                    raise NotReady(
                        f"task {self._task} is being restored at {self._client.address}: version {task.version}. Ask "
                        "again in a moment."
                    )
        self._reads.record(version, seen)


class TaskReaders:
    """The readers of all tasks of the app: this instance's own tasks, and those of its peers."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._local: dict[TaskId, LocalTask] = {}
        self._lock = threading.Lock()
        self._clients: dict[str, StateClient] = {}
        self._peers: dict[tuple[TaskId, str], PeerTask] = {}

    def __call__(self, task: TaskId) -> TaskReader | None:
        """The reader of a task; None while no instance is known to host it."""
        if (hosted := self._instance.hosted_task(task)) is not None:
            return self._here(task, hosted)
        address = self._instance.peers.get(str(task))
        return None if address is None else self._peer(task, address)

    def _here(self, task: TaskId, hosted: HostedTask) -> LocalTask:
        local = self._local.get(task)
        if local is None or local.hosted is not hosted:  # it was dropped and hosted again
            reads = MonotonicReads(task) if local is None else local.reads
            local = self._local[task] = LocalTask(self._instance, hosted, reads)
        return local

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()
            self._peers.clear()

    def _peer(self, task: TaskId, address: str) -> PeerTask:
        with self._lock:
            if (task, address) not in self._peers:
                if address not in self._clients:
                    self._clients[address] = StateClient(address, PEER_DEADLINE_SECONDS, self._instance.log.id)
                newest = self._instance.source
                self._peers[task, address] = PeerTask(self._clients[address], task, lambda: newest.newest_known)
            return self._peers[task, address]
