"""The reader of a task whose replicas are on other instances.

The active replica is asked first, then the standbys. An instance that didn't answer is asked last for a while, so that
only the first reader waits for it. Replicas are updated independently, so a standby may be a version behind one that
has answered before; it is then asked for that version, and catches up first.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import HoldfastError
from holdfast.instance.client import StateClient
from holdfast.instance.config import Role
from holdfast.instance.credentials import NotAuthenticated
from holdfast.instance.held_versions import HoldTerms
from holdfast.instance.messages import HeldVersion, InstanceUnavailable, InstanceUnreachable, ReplicaRestoring
from holdfast.instance.unanswering import Unanswering
from holdfast.log.commits import Point
from holdfast.query.task_reader import (
    ANY_REPLICA,
    KeyRead,
    MonotonicReads,
    NoReplicaAnswers,
    NotFresh,
    NotReady,
    ReadInterrupted,
    ReadNeeds,
    Restoring,
    Served,
    TaskStore,
)
from holdfast.retry import is_retryable
from holdfast.stores.access import ColumnBlock, Now
from holdfast.words import TaskId, Version

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", KeyRead, TaskStore)

PEER_DEADLINE_SECONDS = 2.0
"""How long all replicas of a task together may take to answer: a client is waiting."""

_BRIEF_SECONDS = 0.1
"""How long an instance that didn't answer a moment ago has for what nobody needs to wait for."""

Failed = Callable[[InstanceUnavailable], HoldfastError]
"""Notes that an instance has gone away in the middle of a read, and returns the error for its reader."""


def _as_it_is(error: InstanceUnavailable) -> HoldfastError:
    return error


class PeerBytes:
    """A store of a task on another instance, at one version."""

    def __init__(
        self, client: StateClient, task: TaskId, store: str, version: Version, failed: Failed = _as_it_is
    ) -> None:
        self._client = client
        self._place = task, store, version
        self._failed = failed

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._reading():
            found: list[bytes | None] = self._client.get_many(*self._place, pa.array(keys, pa.binary())).to_pylist()
            return found

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for keys, values in self._blocks(start, stop, reverse):
            yield from zip(keys.to_pylist(), values.to_pylist(), strict=True)

    def columns(self, start: bytes, stop: bytes | None) -> Generator[ColumnBlock, None, None]:
        return self._blocks(start, stop, False)

    def _blocks(self, start: bytes, stop: bytes | None, reverse: bool) -> Generator[ColumnBlock, None, None]:
        with closing(self._client.columns(*self._place, start, stop, reverse)) as blocks:
            while True:
                with self._reading():
                    block = next(blocks, None)
                if block is None:
                    return
                yield block

    def approximate_count(self) -> int:
        with self._reading():
            return self._client.approximate_count(*self._place)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except InstanceUnavailable as error:
            raise self._failed(error) from error


@dataclass(frozen=True)
class PeerHold:
    """A version that another instance holds."""

    task: "PeerTask"
    client: StateClient
    held: HeldVersion

    @property
    def version(self) -> Version:
        return Version(self.held.version)

    @contextmanager
    def at(self, store: str) -> Iterator[TaskStore]:
        yield self.task.opened_again(self.client, store, self.version)

    def release(self) -> None:
        try:
            self.task.briefly(self.client).release(self.held)
        except HoldfastError as error:  # it ends by itself later
            self.task.check_answered(self.client, error)
            log.info("a hold of task %s at %s was not released: %s", self.held.task, self.client.address, error)


class PeerTask:
    """A task on other instances, which have `PEER_DEADLINE_SECONDS` to answer."""

    local = False

    def __init__(
        self,
        addresses: Sequence[str],
        connect: Callable[[str], StateClient],
        task: TaskId,
        reads: MonotonicReads,
        unanswering: Unanswering,
        can_be: Callable[[Point], bool],
    ) -> None:
        """`can_be` says whether the log can have a version of this commit, as far as this process knows."""
        self.addresses = tuple(addresses)
        self._connect = connect
        self._clients: dict[str, StateClient] = {}
        self._task = task
        self._reads = reads
        self._unanswering = unanswering
        self._can_be = can_be

    @property
    def newest(self) -> Version:
        return self._reads.seen

    def is_behind(self, version: Version, needs: ReadNeeds) -> bool:
        return False

    def get(self, store: str, key: bytes, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA) -> KeyRead:
        def read(client: StateClient, at: Version | None) -> KeyRead:
            got = client.get_one(self._task, store, key, at)
            served = Served(got.role, got.instance)
            return KeyRead(Version(got.version), got.value, Now(got.wall, got.event), served, got.commit)

        return self._first_answer(needs, lambda client: self._read(client, version, needs, read))

    @contextmanager
    def at(self, store: str, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA) -> Iterator[TaskStore]:
        def open_(client: StateClient, at: Version | None) -> TaskStore:
            return self.opened(client, store, at)

        yield self._first_answer(needs, lambda client: self._read(client, version, needs, open_))

    def opened(self, client: StateClient, store: str, at: Version | None) -> TaskStore:
        """A store as one replica has it."""
        opening = client.scan(self._task, store, at, limit=0)  # which version there is, and its clocks
        own = self._client(client.address).of_commit(opening.commit)  # each later call has the whole time
        bytes_ = PeerBytes(own, self._task, store, opening.version, partial(self._interrupted, own))
        served = Served(opening.role, opening.instance)
        hold = partial(self._hold, own, store, opening.version)
        return TaskStore(opening.version, opening.now, bytes_, served, hold, opening.commit)

    def opened_again(self, client: StateClient, store: str, at: Version) -> TaskStore:
        """A store of a replica that holds a version: an error at once if another reader has just waited in vain.

        A reader of several tasks would wait for each of them. The error has it look for another replica.
        """
        if client.address in self._unanswering:
            raise InstanceUnavailable(f"the instance at {client.address} didn't answer a moment ago. Ask another one.")
        try:
            return self.opened(client, store, at)
        except InstanceUnavailable as error:
            self.check_answered(client, error)
            raise

    def briefly(self, client: StateClient) -> StateClient:
        """The same connection, which waits little if its instance didn't answer a moment ago."""
        return client.within(_BRIEF_SECONDS) if client.address in self._unanswering else client

    def check_answered(self, client: StateClient, error: HoldfastError) -> None:
        """Notes an instance that didn't answer."""
        if isinstance(error, InstanceUnavailable):
            self._unanswering.add(client.address, waited=0.0)

    def _interrupted(self, client: StateClient, error: InstanceUnavailable) -> HoldfastError:
        self._unanswering.add(client.address, waited=0.0)
        return error if len(self.addresses) == 1 else ReadInterrupted(str(error))

    def _hold(self, client: StateClient, store: str, version: Version, terms: HoldTerms) -> PeerHold:
        try:
            return PeerHold(self, client, client.hold(self._task, store, version, terms))
        except InstanceUnreachable as error:
            raise self._interrupted(client, error) from error

    def _first_answer(self, needs: ReadNeeds, read: Callable[[StateClient], T]) -> T:
        """What the first replica answers that can. If none can, the error of one that was reached comes first."""
        until = max(needs.until, SYSTEM_CLOCK.monotonic() + PEER_DEADLINE_SECONDS)
        failed: list[HoldfastError] = []
        for place, address in enumerate(self._unanswering.last(self.addresses)):
            began = SYSTEM_CLOCK.monotonic()
            # A replica that hangs leaves time for those that were not asked yet.
            seconds = (until - began) / (len(self.addresses) - place)
            try:
                return read(self._client(address).within(seconds))
            except HoldfastError as error:
                # If one refuses this process, the others are asked all the same.
                if not is_retryable(error) and not isinstance(error, NotAuthenticated):
                    raise
                if isinstance(error, InstanceUnavailable):
                    self._unanswering.add(address, waited=SYSTEM_CLOCK.monotonic() - began)
                failed.append(self._restoring(error) if isinstance(error, ReplicaRestoring) else error)
        told = min(failed, key=lambda error: isinstance(error, InstanceUnavailable))
        if isinstance(told, InstanceUnavailable):
            raise NoReplicaAnswers(self._task, str(told)) from told
        raise told

    def _restoring(self, error: ReplicaRestoring) -> Restoring:
        return Restoring(self._task, f" on instance {error.instance!r}", error.version, error.newest)

    def _client(self, address: str) -> StateClient:
        """Raises if a member says that it has an address by which this process can't call it."""
        return self._clients.get(address) or self._clients.setdefault(address, self._connect(address))

    def _read(
        self,
        client: StateClient,
        version: Version | None,
        needs: ReadNeeds,
        read: Callable[[StateClient, Version | None], R],
    ) -> R:
        """One read of one replica: at the version, or at its newest one, which is none that is older than one seen."""
        if version is not None:
            return self._checked(read(client, version), needs)
        seen = self._reads.seen
        found = self._checked(read(client, None), needs)
        if found.version < (wanted := max(seen, needs.at_least)):
            found = read(client, wanted)  # it is committed: the replica catches up
        self._reads.record(found.version, seen)
        return found

    def _checked(self, found: R, needs: ReadNeeds) -> R:
        if not self._can_be(Point(found.version, found.commit)):
            raise NotReady(
                f"Instance {found.served.instance!r} is at a version {found.version} of task {self._task} that isn't "
                "in the log any more: it doesn't know yet that the log was set back. Ask again in a moment."
            )
        if needs.active and found.served.role is not Role.ACTIVE:
            raise NotFresh(
                f"Instance {found.served.instance!r} has a standby of task {self._task}, and the active replica "
                "doesn't answer. Ask again in a moment, or without require=active."
            )
        return found
