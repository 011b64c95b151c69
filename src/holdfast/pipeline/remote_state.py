"""A task's state, read from its replicas by one of Spark's Python workers.

A worker process keeps its connections from one task to the next, and knows which instances didn't answer: those are
asked last for a while.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import NoReturn, TypeVar

import pyarrow as pa

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import HoldfastError
from holdfast.instance.client import StateClient
from holdfast.instance.credentials import NO_CREDENTIALS, Credentials, NotAuthenticated
from holdfast.instance.messages import InstanceUnavailable, TaskNotHere
from holdfast.instance.unanswering import Unanswering
from holdfast.log.segments import STATE_SCHEMA, SegmentRef
from holdfast.pipeline.task_state import NO_ENTRIES, EmptyState, TaskState
from holdfast.retry import is_retryable, retrying
from holdfast.settings.sections import RetrySettings
from holdfast.stores.ranges import Ranges
from holdfast.words import NOTHING, TaskId, Version

T = TypeVar("T")


@dataclass(frozen=True)
class StateLocations:
    """Where a task finds the log and the replicas of its state."""

    log_url: str
    log_id: str
    app_file: int
    """The number of the app file that the driver uses."""
    log_options: Mapping[str, str] = field(repr=False)
    fsync: bool
    replicas: Mapping[str, tuple[str, ...]]
    """Task → addresses of the instances that host it, the active one first."""
    deadline: timedelta
    retry: RetrySettings
    sealed: Mapping[str, tuple[SegmentRef, ...]] = field(default_factory=dict, repr=False)
    """Task → the segments that it has written in this version, for tasks whose tables a later one looks up."""
    previous: str | None = None
    """The id of the commit whose state they read: another one of the same version is on an abandoned timeline."""
    credentials: Credentials = field(default=NO_CREDENTIALS, repr=False)
    """What a task shows to instances. Its host needs no files of them."""


_READ_RETRY = RetrySettings(first="50ms", longest="1s")
_FIRST_SECONDS = 2.0
"""How long a replica may take while another one may answer sooner: that one answers at once if this one is frozen."""
_SECONDS_PER_KEY = 5e-6
"""How much longer it may take for each key or range that it is asked for. A key takes 1 to 2 us."""
_TIMED_OUT = 0.8
"""The share of its time after which a replica that failed counts as one that didn't answer. Replicas that have to catch
up give up at 0.9."""
_CONNECTIONS = 64
"""How many instances a worker process stays connected with: those that it has read from last, since others may have
left the group. A connection is closed when it is dropped."""
_MOVED_SECONDS = 5.0
"""How long an instance may say that it doesn't host a task: one that was just started hosts it in a moment."""


def state_before(locations: StateLocations, task: TaskId, version: Version) -> TaskState:
    """The state at `v-1`, for a task of version `v`."""
    before = Version(version - 1)
    return EmptyState() if before == NOTHING else RemoteState(locations, task, before)


@dataclass(frozen=True)
class RemoteState(TaskState):
    """A task's stores at a version. A read has one deadline for all its attempts (see `_Turns`)."""

    locations: StateLocations
    task: TaskId
    version: Version
    first: int = 0
    """The replica that is asked first. Tasks that read one global table ask different ones, where it has several."""

    def of_task(self, task: TaskId) -> TaskState:
        return RemoteState(self.locations, task, self.version, self.task.partition)

    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        return self._ask(lambda client: client.get_many(self.task, store, self.version, keys), len(keys))

    def scan(self, store: str, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        found = self._ask(lambda client: client.scan(self.task, store, self.version, start, stop, reverse, limit))
        return pa.table([found.keys, found.values], schema=STATE_SCHEMA)

    def scan_many(self, store: str, ranges: Ranges) -> pa.Table:
        if not len(ranges):
            return NO_ENTRIES
        found = self._ask(lambda client: client.scan_many(self.task, store, self.version, ranges), len(ranges))
        return pa.table([found["key"], found["value"]], schema=STATE_SCHEMA)

    def approximate_count(self, store: str) -> int:
        return self._ask(lambda client: client.approximate_count(self.task, store, self.version))

    def _ask(self, call: Callable[[StateClient], T], keys: int = 0) -> T:
        locations = self.locations
        hosts = locations.replicas.get(str(self.task), ())
        if not hosts:
            self._wait_for_a_place()
        addresses = _unanswering.last([*hosts[self.first % len(hosts) :], *hosts[: self.first % len(hosts)]])
        begun = SYSTEM_CLOCK.monotonic()
        turns = _Turns(addresses, begun + locations.deadline.total_seconds(), _FIRST_SECONDS + keys * _SECONDS_PER_KEY)

        def ask() -> T:
            address, began = turns.next(), SYSTEM_CLOCK.monotonic()
            try:
                client = _client(address, log=locations.log_id, credentials=locations.credentials)
                if locations.previous is not None:
                    client = client.of_commit(locations.previous)
                return call(client.within(turns.seconds(address, began)))
            except InstanceUnavailable:
                _unanswering.add(address, waited=SYSTEM_CLOCK.monotonic() - began)
                raise
            except NotAuthenticated as error:
                if turns.all_were_asked:
                    raise
                raise InstanceUnavailable(str(error)) from error  # the next replica may accept this process
            finally:
                turns.took(address, SYSTEM_CLOCK.monotonic() - began)

        def may_pass(error: HoldfastError) -> bool:
            # The task has moved: another attempt of the batch gets its new place, which this one doesn't know.
            moved = isinstance(error, TaskNotHere) and SYSTEM_CLOCK.monotonic() - begun >= _MOVED_SECONDS
            return is_retryable(error) and not moved

        def pause(seconds: float) -> None:
            if turns.all_were_asked:  # those that were not asked yet are asked at once
                SYSTEM_CLOCK.sleep(seconds)
                turns.paused(seconds)

        return retrying(ask, _READ_RETRY, deadline=self.locations.deadline, sleep=pause, may_pass=may_pass)

    def _wait_for_a_place(self) -> NoReturn:
        """Another attempt of the batch gets the task's new place, which the driver needs a moment for."""
        locations = self.locations
        SYSTEM_CLOCK.sleep(min(_MOVED_SECONDS, locations.deadline.total_seconds()))
        known = "hosts it" if str(self.task) not in locations.replicas else "that hosts it has an address to call"
        raise InstanceUnavailable(
            f"task {self.task} has no replica to ask: no instance {known}, as the newest generation in "
            f"{locations.log_url} says. The next generation places it, so this is tried again. If it lasts, look at "
            "the instances with `holdfast group`."
        )


class _Turns:
    """Which replica a read asks next, and for how long.

    The one that has taken the least time so far is next: one that refuses is soon asked again, and one that is frozen
    is not. A replica has a limit while another one may answer sooner. The limit doubles each time it runs out, so that
    a slow replica answers in the end, if the others can't.
    """

    def __init__(self, addresses: Sequence[str], until: float, first: float) -> None:
        self._until = until
        self._first = first
        self._spent = dict.fromkeys(addresses, 0.0)
        self._limits = dict.fromkeys(addresses, first)
        self._asked: list[str] = []

    @property
    def all_were_asked(self) -> bool:
        return self._spent.keys() <= set(self._asked)

    def next(self) -> str:
        unasked = [address for address in self._spent if address not in self._asked]
        address = unasked[0] if unasked else min(self._spent, key=self._spent.__getitem__)
        self._asked.append(address)
        return address

    def seconds(self, address: str, now: float) -> float:
        left = self._until - now
        if all(limit > self._first for other, limit in self._limits.items() if other != address):
            return left  # none of the others has answered in time
        return min(self._limits[address], left / len(self._spent))

    def took(self, address: str, seconds: float) -> None:
        self._spent[address] += seconds
        if seconds >= _TIMED_OUT * self._limits[address]:
            self._limits[address] *= 2

    def paused(self, seconds: float) -> None:
        """A pause counts for the replica that was asked before."""
        self._spent[self._asked[-1]] += seconds


_client = lru_cache(_CONNECTIONS)(StateClient)
_unanswering = Unanswering()
