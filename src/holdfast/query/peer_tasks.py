"""The reader of a task whose replicas are on other instances.

The active replica is asked first, then the standbys. An instance that didn't answer is asked last for a while, so that
only the first reader waits for it. Replicas are updated independently, so a standby may be a version behind one that
has answered before; it is then asked for that version, and catches up first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import HoldfastError
from holdfast.instance.client import StateClient
from holdfast.instance.config import Phase
from holdfast.instance.credentials import NotAuthenticated
from holdfast.instance.messages import InstanceUnavailable
from holdfast.instance.unanswering import Unanswering
from holdfast.query.reader import Entry
from holdfast.query.task_reader import KeyRead, MonotonicReads, NotReady, ReadInterrupted, TaskStore
from holdfast.retry import is_retryable
from holdfast.stores.access import Now
from holdfast.words import TaskId, Version

T = TypeVar("T")

_FIRST_PAGE, _LARGEST_PAGE = 128, 8_192

PEER_DEADLINE_SECONDS = 2.0
"""How long all replicas of a task together may take to answer: a client is waiting."""


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
    """A task on other instances, which have `PEER_DEADLINE_SECONDS` to answer."""

    local = False

    def __init__(
        self,
        clients: Mapping[str, StateClient],
        task: TaskId,
        newest: Callable[[], Version],
        reads: MonotonicReads,
        unanswering: Unanswering,
    ) -> None:
        self._clients = clients
        self._task = task
        self._newest = newest
        self._reads = reads
        self._unanswering = unanswering

    def get(self, store: str, key: bytes, version: Version | None = None) -> KeyRead:
        def read(client: StateClient, at: Version | None) -> KeyRead:
            got = client.get_one(self._task, store, key, at)
            return KeyRead(Version(got.version), got.value, Now(got.wall, got.event))

        return self._first_answer(lambda client: self._read(client, version, read, lambda found: found.version))

    @contextmanager
    def at(self, store: str, version: Version | None = None) -> Iterator[TaskStore]:
        def open_(client: StateClient, at: Version | None) -> TaskStore:
            opening = client.scan(self._task, store, at, limit=0)  # which version there is, and its clocks
            own = self._clients[client.address]  # each later call has the whole time
            return TaskStore(opening.version, opening.now, PeerBytes(own, self._task, store, opening.version))

        def opened(client: StateClient) -> tuple[StateClient, TaskStore]:
            return client, self._read(client, version, open_, lambda found: found.version)

        client, found = self._first_answer(opened)
        try:
            yield found
        except InstanceUnavailable as error:
            self._unanswering.add(client.address, waited=0.0)
            if len(self._clients) == 1:
                raise
            raise ReadInterrupted(str(error)) from error

    def _first_answer(self, read: Callable[[StateClient], T]) -> T:
        """What the first replica answers that can. If none can, the error of one that was reached comes first."""
        until = SYSTEM_CLOCK.monotonic() + PEER_DEADLINE_SECONDS
        failed: list[HoldfastError] = []
        for place, address in enumerate(self._unanswering.last([*self._clients])):
            began = SYSTEM_CLOCK.monotonic()
            # A replica that hangs leaves time for those that were not asked yet.
            seconds = (until - began) / (len(self._clients) - place)
            try:
                return read(self._clients[address].within(seconds))
            except HoldfastError as error:
                # One that refuses this process is no reason not to ask the others.
                if not is_retryable(error) and not isinstance(error, NotAuthenticated):
                    raise
                if isinstance(error, InstanceUnavailable):
                    self._unanswering.add(address, waited=SYSTEM_CLOCK.monotonic() - began)
                failed.append(error)
        raise min(failed, key=lambda error: isinstance(error, InstanceUnavailable))

    def _read(
        self,
        client: StateClient,
        version: Version | None,
        read: Callable[[StateClient, Version | None], T],
        version_of: Callable[[T], Version],
    ) -> T:
        """One read of one replica: at the version, or at its newest one, which is none that is older than one seen."""
        if version is not None:
            return read(client, version)
        seen = self._reads.seen
        found = read(client, None)
        if version_of(found) < seen:
            found = read(client, seen)  # another replica has answered with it: this one catches up
        self._check_running(client, version_of(found))
        self._reads.record(version_of(found), seen)
        return found

    def _check_running(self, client: StateClient, version: Version) -> None:
        # An answer at the newest version that is known here isn't from a restoring replica. Only after an older answer
        # the other instance is asked for its phase: mostly it is one version behind because it is just applying it.
        if version < self._newest():
            for task in client.status().tasks:
                if task.task == str(self._task) and task.phase is not Phase.RUNNING:
                    raise NotReady(
                        f"task {self._task} is being restored at {client.address}: version {task.version}. Ask again "
                        "in a moment."
                    )
