"""The two places a task's state is read from: a replica of this process, or the instance that hosts one.

Neither answers from a replica that is being restored. Such a one holds versions too, old or empty ones, and would say
of every key that it isn't there. And neither goes back: who was told something at version 7 isn't answered at 6 by the
same task a moment later, whatever happened to its replica between.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.instance.client import StateClient
from holdfast.instance.instance import HostedTask, Instance
from holdfast.instance.read_views import ReadView
from holdfast.instance.store_bytes import StoreBytes
from holdfast.instance.updater import Phase
from holdfast.query.reader import Entry, Got, NotReady, TaskReader, TaskStore
from holdfast.stores.access import Now
from holdfast.stores.engines.base import DamagedState
from holdfast.words import NOTHING, TaskId, Version

log = logging.getLogger(__name__)

_FIRST_PAGE, _LARGEST_PAGE = 128, 8_192

PEER_DEADLINE_SECONDS = 2.0
"""How long another instance may take. Stopping waits for nobody, but a client does."""


class Floor:
    """The newest version a task was read at. Reads that ask for no version in particular don't go below it."""

    def __init__(self, task: TaskId) -> None:
        self._task = task
        self._lock = threading.Lock()
        self._seen = NOTHING

    @property
    def seen(self) -> Version:
        """To be taken before a read: one that began earlier may well be answered at an earlier version."""
        return self._seen

    def rise(self, version: Version, seen: Version) -> None:
        """A read that began when `seen` had been seen was answered at `version`."""
        if version < seen:
            raise NotReady(
                f"task {self._task} was at version {seen} and is at {version} now: it is being restored. Ask again "
                "in a moment."
            )
        with self._lock:
            self._seen = max(self._seen, version)


class LocalTask:
    """A replica of this process. It is read at the versions it holds and never made to wait or to move."""

    local = True

    def __init__(self, instance: Instance, hosted: HostedTask, floor: Floor) -> None:
        self._instance = instance
        self.hosted = hosted
        self._replica = hosted.replica
        self.floor = floor
        self._rebuild = threading.Lock()

    def get(self, store: str, key: bytes, version: Version | None = None) -> Got:
        with self._view(version) as view:
            return Got(view.version, view.get(store, key), view.now)

    @contextmanager
    def at(self, store: str, version: Version | None = None) -> Iterator[TaskStore]:
        with self._view(version) as view:
            yield TaskStore(view.version, view.now, StoreBytes(view, store))

    @contextmanager
    def _view(self, version: Version | None) -> Iterator[ReadView]:
        self._check_caught_up()
        seen = self.floor.seen
        try:
            with self._replica.published.read_view(version) as view:
                if version is None:
                    self.floor.rise(view.version, seen)
                yield view
        except DamagedState as error:
            raise self._rebuilding(error) from error

    def _check_caught_up(self) -> None:
        if not self.hosted.caught_up:
            raise NotReady(
                f"task {self._replica.task} is being restored: version {self._replica.version} of "
                f"{self._instance.source.newest_known}. Ask again in a moment; /v1/state shows how far it is."
            )

    def _rebuilding(self, error: DamagedState) -> NotReady:
        """Has the replica rebuilt, on a thread: whoever is moving it may take long, and this may be the event loop."""
        if self._rebuild.acquire(blocking=False):
            threading.Thread(target=self._have_rebuilt, args=(error,), name="rebuild", daemon=True).start()
        return NotReady(f"{error} That has been begun here. Ask again in a moment.")

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
        """A page after the other, each larger: most readers want a few entries, and some want all."""
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
        task, store, _ = self._place
        return next(found.stores.get(store, 0) for found in self._client.status().tasks if found.task == str(task))


class PeerTask:
    """A task on another instance, which has `PEER_DEADLINE_SECONDS` to answer."""

    local = False

    def __init__(self, client: StateClient, task: TaskId, newest: Callable[[], Version]) -> None:
        self._client = client
        self._task = task
        self._newest = newest
        self._floor = Floor(task)

    def get(self, store: str, key: bytes, version: Version | None = None) -> Got:
        seen = self._floor.seen
        got = self._client.get_one(self._task, store, key, version)
        if version is None:
            self._check(Version(got.version), seen)
        return Got(Version(got.version), got.value, Now(got.wall, got.event))

    @contextmanager
    def at(self, store: str, version: Version | None = None) -> Iterator[TaskStore]:
        seen = self._floor.seen
        opening = self._client.scan(self._task, store, version, limit=0)  # which version there is, and its clocks
        if version is None:
            self._check(opening.version, seen)
        yield TaskStore(opening.version, opening.now, PeerBytes(self._client, self._task, store, opening.version))

    def _check(self, version: Version, seen: Version) -> None:
        # An answer at the newest version this instance knows of is no restoring replica's. Only for an older one the
        # other is asked how it is: mostly it is a version behind because it is just applying it.
        if version < self._newest():
            for task in self._client.status().tasks:
                if task.task == str(self._task) and task.phase != Phase.RUNNING.value:
                    raise NotReady(
                        f"task {self._task} is being restored at {self._client.address}: version {task.version}. Ask "
                        "again in a moment."
                    )
        self._floor.rise(version, seen)


class Tasks:
    """All tasks of the app as one instance reads them: its own directly, the others from its peers, as last told."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._local: dict[TaskId, LocalTask] = {}
        self._lock = threading.Lock()
        self._clients: dict[str, StateClient] = {}
        self._peers: dict[tuple[TaskId, str], PeerTask] = {}

    def __call__(self, task: TaskId) -> TaskReader | None:
        """Where the task is read; None while nobody is known to hold it."""
        if (hosted := self._instance.hosted_task(task)) is not None:
            return self._here(task, hosted)
        address = self._instance.peers.get(str(task))
        return None if address is None else self._peer(task, address)

    def _here(self, task: TaskId, hosted: HostedTask) -> LocalTask:
        local = self._local.get(task)
        if local is None or local.hosted is not hosted:  # it was dropped and hosted again
            floor = Floor(task) if local is None else local.floor
            local = self._local[task] = LocalTask(self._instance, hosted, floor)
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
