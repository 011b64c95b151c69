"""The readers of all tasks of an app, as one instance has them: its own replicas, then those of other instances.

No replica is read that hasn't caught up since it was opened. Such a replica has versions too, old or empty ones, and
would answer that no key exists. One that has caught up once is read however far behind it is: what a request says about
freshness decides whether its answer will do. Reads are monotonic: a task that has answered at version 7 doesn't answer
at version 6 later, whatever happened to its replica in between, and whichever replica answers.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import HoldfastError
from holdfast.instance.client import StateClient
from holdfast.instance.config import Role
from holdfast.instance.held_versions import Hold, HoldTerms
from holdfast.instance.instance import HostedTask, Instance
from holdfast.instance.read_views import PublishedVersions, ReadView, StoreBytes
from holdfast.instance.unanswering import Unanswering
from holdfast.log.commits import Point
from holdfast.query.peer_tasks import PEER_DEADLINE_SECONDS, PeerTask
from holdfast.query.task_reader import (
    ANY_REPLICA,
    KeyRead,
    MonotonicReads,
    NotFresh,
    NotReady,
    ReadNeeds,
    Restoring,
    Served,
    TaskReader,
    TaskStore,
    too_old,
)
from holdfast.retry import is_retryable
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
        self._served = {role: Served(role, instance.config.name) for role in Role}

    @property
    def newest(self) -> Version:
        return self._replica.published.version or NOTHING

    def is_behind(self, version: Version, needs: ReadNeeds) -> bool:
        waits = self.hosted.readable and (not needs.active or self.hosted.role is Role.ACTIVE)
        return waits and self.newest < version

    def get(self, store: str, key: bytes, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA) -> KeyRead:
        # As in `_view`, without the 1 us of a context manager: a lookup of one key is the most frequent request.
        self._check_readable(store)
        self.hosted.count_lookup(store, key)
        if needs is not ANY_REPLICA:
            self._wait(version, needs)
        seen = self.reads.seen
        if version is None and (newest := self._replica.published.newest) is not None:
            value, known = newest.overlay.get(store, key)
            if known:  # so no pinned view is needed, which would take 2 us
                self.reads.record(newest.version, seen)
                return KeyRead(newest.version, value, newest.now, self._served[self.hosted.role])
        with self._replica.published.read_view(version) as view:
            if version is None:
                self.reads.record(view.version, seen)
            try:
                return KeyRead(view.version, view.get(store, key), view.now, self._served[self.hosted.role])
            except DamagedState as error:
                raise self._rebuilding(error) from error

    @contextmanager
    def at(self, store: str, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA) -> Iterator[TaskStore]:
        with self._view(store, version, needs) as view:
            served = self._served[self.hosted.role]
            yield TaskStore(
                view.version, view.now, StoreBytes(view, store), served, partial(self._hold, view), view.commit
            )

    def _hold(self, view: ReadView, terms: HoldTerms) -> "LocalHold":
        published = self._replica.published
        return LocalHold(self, published, published.hold(view, terms))

    @contextmanager
    def _view(self, store: str, version: Version | None, needs: ReadNeeds) -> Iterator[ReadView]:
        self._check_readable(store)
        if needs is not ANY_REPLICA:
            self._wait(version, needs)
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
        if not self.hosted.readable:
            raise Restoring(self._replica.task, "", self._replica.version, self._instance.source.newest_known)

    def _wait(self, version: Version | None, needs: ReadNeeds) -> None:
        """Waits until the replica is as fresh as the request needs it."""
        task = self._replica.task
        if needs.active and self.hosted.role is not Role.ACTIVE:
            raise NotFresh(
                f"The replica of task {task} here is a standby, and its active one doesn't answer. Ask again in a "
                "moment, or without require=active."
            )
        wanted = needs.at_least if version is None else version
        if not self._replica.published.wait_for(wanted, needs.until - SYSTEM_CLOCK.monotonic()):
            raise too_old(task, self.newest, wanted)

    def _rebuilding(self, error: DamagedState) -> NotReady:
        """Starts to rebuild the replica, on a thread: its updater may be busy, and this may be the event loop."""
        if self._rebuild.acquire(blocking=False):
            threading.Thread(target=self._have_rebuilt, args=(error,), name="rebuild", daemon=True).start()
        return NotReady(
            f"the state of task {self._replica.task} is damaged and is being rebuilt. Ask again in a moment."
        )

    def _have_rebuilt(self, error: DamagedState) -> None:
        try:
            self._instance.damaged(self._replica.task, error)
        except HoldfastError as failure:
            log.warning("task %s can't be rebuilt yet: %s", self._replica.task, failure)
        finally:
            self._rebuild.release()


@dataclass(frozen=True)
class LocalHold:
    """A version that a replica of this process holds."""

    task: LocalTask
    published: PublishedVersions
    hold: Hold

    @property
    def version(self) -> Version:
        return self.hold.version

    def at(self, store: str) -> AbstractContextManager[TaskStore]:
        return self.task.at(store, self.version)

    def release(self) -> None:
        self.published.held.release(self.hold)


class OthersFirst:
    """A task whose replica here is behind, or past the version: others answer, and if none of them can, it does."""

    local = False

    def __init__(self, others: PeerTask, here: LocalTask) -> None:
        self._others = others
        self._here = here

    @property
    def newest(self) -> Version:
        return self._others.newest

    def is_behind(self, version: Version, needs: ReadNeeds) -> bool:
        return False  # the others are asked first

    def get(self, store: str, key: bytes, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA) -> KeyRead:
        try:
            return self._others.get(store, key, version, needs)
        except HoldfastError as error:
            return self._instead(error).get(store, key, version, self._waiting(needs))

    @contextmanager
    def at(self, store: str, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA) -> Iterator[TaskStore]:
        with ExitStack() as opened:
            try:
                found = opened.enter_context(self._others.at(store, version, needs))
            except HoldfastError as error:
                found = opened.enter_context(self._instead(error).at(store, version, self._waiting(needs)))
            yield found

    def _instead(self, error: HoldfastError) -> LocalTask:
        if not (is_retryable(error) and self._here.hosted.readable):
            raise error
        return self._here

    def _waiting(self, needs: ReadNeeds) -> ReadNeeds:
        until = max(needs.until, SYSTEM_CLOCK.monotonic() + PEER_DEADLINE_SECONDS)
        return replace(needs, at_least=max(needs.at_least, self._here.reads.seen), until=until)


class TaskReaders:
    """The readers of all tasks of the app: this instance's own replicas, and those of its peers."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._timeline = instance.source.timeline
        self._reads: dict[TaskId, MonotonicReads] = {}
        self._local: dict[TaskId, LocalTask] = {}
        self._lock = threading.Lock()
        self._clients: dict[str, StateClient] = {}
        self._peers: dict[TaskId, PeerTask] = {}
        self._known: Mapping[str, tuple[str, ...]] = {}
        """The places of all tasks at the last look."""
        self._unanswering = Unanswering()

    def __call__(self, task: TaskId, needs: ReadNeeds = ANY_REPLICA, /) -> TaskReader | None:
        """The reader of a task; None while no instance is known to host it."""
        if self._timeline != self._instance.source.timeline:
            self._look_back()
        hosted = self._instance.hosted_task(task)
        reads = self._reads.get(task) or self._reads.setdefault(task, MonotonicReads(task))
        if (
            hosted is not None
            and hosted.readable
            and (hosted.replica.published.version or NOTHING) >= max(reads.seen, needs.at_least)
            and (not needs.active or hosted.role is Role.ACTIVE)
            and (needs.exact is None or hosted.replica.published.has(needs.exact))
        ):
            return self._here(task, hosted, reads)
        others = tuple(each for each in self._instance.peers.get(str(task), ()) if each != self._instance.address)
        if hosted is None:
            self._local.pop(task, None)  # it was dropped, and so is its state
        if not others:
            return None if hosted is None else self._here(task, hosted, reads)
        elsewhere = self._elsewhere(task, others, reads)
        return elsewhere if hosted is None else OthersFirst(elsewhere, self._here(task, hosted, reads))

    def _look_back(self) -> None:
        """The log was set back: a version that was read doesn't count if the log doesn't have it any more."""
        with self._lock:
            self._timeline = self._instance.source.timeline
            for known in (self._reads, self._local, self._peers):
                known.clear()

    def _can_be(self, point: Point) -> bool:
        """Whether the log has a version that another instance has read. If it can't say, that instance is believed."""
        source = self._instance.source
        if not point.commit:
            return True  # its stores begin there, empty
        with suppress(HoldfastError):
            was_cleaned = point.version <= source.newest_known and source.id_at(point.version) is None
            return was_cleaned or source.has(point)
        return True

    def _here(self, task: TaskId, hosted: HostedTask, reads: MonotonicReads) -> LocalTask:
        local = self._local.get(task)
        if local is None or local.hosted is not hosted:  # it was dropped and hosted again
            local = self._local[task] = LocalTask(self._instance, hosted, reads)
        return local

    def _elsewhere(self, task: TaskId, addresses: tuple[str, ...], reads: MonotonicReads) -> PeerTask:
        with self._lock:
            self._forget_former()
            peer = self._peers.get(task)
            if peer is None or peer.addresses != addresses:
                peer = PeerTask(addresses, self._client, task, reads, self._unanswering, self._can_be)
                self._peers[task] = peer
            return peer

    def _forget_former(self) -> None:
        """Drops connections to instances that have no task any more. Each is closed when its last reader is done."""
        peers = self._instance.peers
        if peers is self._known:
            return
        self._known = peers
        named = {address for addresses in peers.values() for address in addresses}
        self._clients = {address: client for address, client in self._clients.items() if address in named}
        self._peers = {task: peer for task, peer in self._peers.items() if named.issuperset(peer.addresses)}

    def _client(self, address: str) -> StateClient:
        with self._lock:
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
