"""The readers of all tasks of an app, as one instance has them: its own replicas, then those of other instances.

No replica is read that is being restored. Such a replica has versions too, old or empty ones, and would answer that no
key exists. Reads are monotonic: a task that has answered at version 7 doesn't answer at version 6 later, whatever
happened to its replica in between, and whichever replica answers.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import HoldfastError
from holdfast.instance.client import StateClient
from holdfast.instance.instance import HostedTask, Instance
from holdfast.instance.read_views import ReadView, StoreBytes
from holdfast.instance.unanswering import Unanswering
from holdfast.query.peer_tasks import PEER_DEADLINE_SECONDS, PeerTask
from holdfast.query.task_reader import KeyRead, MonotonicReads, NotReady, TaskReader, TaskStore
from holdfast.stores.engines.base import DamagedState
from holdfast.words import NOTHING, TaskId, Version

log = logging.getLogger(__name__)


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


class TaskReaders:
    """The readers of all tasks of the app: this instance's own replicas, and those of its peers."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._reads: dict[TaskId, MonotonicReads] = {}
        self._local: dict[TaskId, LocalTask] = {}
        self._lock = threading.Lock()
        self._clients: dict[str, StateClient] = {}
        self._peers: dict[tuple[TaskId, tuple[str, ...]], PeerTask] = {}
        self._unanswering = Unanswering()

    def __call__(self, task: TaskId) -> TaskReader | None:
        """The reader of a task; None while no instance is known to host it."""
        hosted = self._instance.hosted_task(task)
        reads = self._reads.get(task) or self._reads.setdefault(task, MonotonicReads(task))
        if hosted is not None and hosted.caught_up and (hosted.replica.published.version or NOTHING) >= reads.seen:
            return self._here(task, hosted, reads)
        others = tuple(each for each in self._instance.peers.get(str(task), ()) if each != self._instance.address)
        if others:
            return self._elsewhere(task, others, reads)
        return None if hosted is None else self._here(task, hosted, reads)

    def _here(self, task: TaskId, hosted: HostedTask, reads: MonotonicReads) -> LocalTask:
        local = self._local.get(task)
        if local is None or local.hosted is not hosted:  # it was dropped and hosted again
            local = self._local[task] = LocalTask(self._instance, hosted, reads)
        return local

    def _elsewhere(self, task: TaskId, addresses: tuple[str, ...], reads: MonotonicReads) -> PeerTask:
        with self._lock:
            if (task, addresses) not in self._peers:
                clients = {address: self._client(address) for address in addresses}
                source = self._instance.source
                self._peers[task, addresses] = PeerTask(
                    clients, task, lambda: source.newest_known, reads, self._unanswering
                )
            return self._peers[task, addresses]

    def _client(self, address: str) -> StateClient:
        if address not in self._clients:
            self._clients[address] = StateClient(
                address, PEER_DEADLINE_SECONDS, self._instance.log.id, self._instance.credentials
            )
        return self._clients[address]

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()
            self._peers.clear()
