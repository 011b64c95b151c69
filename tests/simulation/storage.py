"""Object storage in memory, seen by one process, with the faults that the scheduler chooses per call.

A put may fail before it is stored, be stored and answered by an error, be repeated by the client after a lost answer
(so that it says *exists* about itself), or arrive after the caller has given up. Any call may be slow or fail.
"""

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import StorageUnavailable
from holdfast.log.objects import Names, ObjectMissing, Put

if TYPE_CHECKING:
    from tests.simulation.processes import Process

PLACE = "simulated storage"


class Fault(Enum):
    """What happens to one call."""

    NONE = "none"
    BEFORE = "fails"
    """Nothing is stored, and the caller gets an error."""
    AFTER = "is done, and fails"
    """A put that is stored, and answered by an error."""
    REPEATED = "is repeated"
    """The answer is lost, and the client's own second attempt finds what the first one stored."""
    LATE = "is late"
    """The caller gets an error, and the put arrives at some later time."""


def unavailable(name: str) -> StorageUnavailable:
    return StorageUnavailable(f"{name} in {PLACE} can't be reached: simulated. Try again.")


@dataclass
class Objects:
    """All objects there are. `created` and `deleted` are told about every change."""

    stored: dict[str, bytes] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    created: Callable[[str, bytes], None] = lambda name, data: None
    deleted: Callable[[str, bytes], None] = lambda name, data: None

    def create(self, name: str, data: bytes) -> Put:
        if name in self.stored:
            return Put.EXISTS
        self.put(name, data)
        return Put.CREATED

    def put(self, name: str, data: bytes) -> None:
        self.forge(name, bytes(data))
        self.created(name, data)

    def forge(self, name: str, data: bytes) -> None:
        """Someone else stores an object, in place of another one or not."""
        if name not in self.stored:
            bisect.insort(self.names, name)
        self.stored[name] = data

    def get(self, name: str) -> bytes:
        try:
            return self.stored[name]
        except KeyError:
            raise ObjectMissing(PLACE, name) from None

    def listed(self, prefix: str) -> list[str]:
        first = bisect.bisect_left(self.names, prefix)
        last = bisect.bisect_left(self.names, prefix + "\U0010ffff")
        return self.names[first:last]

    def delete(self, name: str) -> None:
        if (data := self.lose(name)) is not None:
            self.deleted(name, data)

    def lose(self, name: str) -> bytes | None:
        """Someone else deletes an object."""
        if (data := self.stored.pop(name, None)) is not None:
            del self.names[bisect.bisect_left(self.names, name)]
        return data


class ProcessStorage:
    """The storage as one process sees it. Every method is a step in which the scheduler may interfere."""

    def __init__(self, objects: Objects, process: "Process") -> None:
        self._objects = objects
        self._process = process

    @property
    def place(self) -> str:
        return PLACE

    def _read(self, call: str, name: str) -> None:
        if self._process.world.before_call(self._process, call, name) is not Fault.NONE:
            raise unavailable(name)

    def _write(self, call: str, name: str, write: Callable[[], Put]) -> Put:
        world = self._process.world
        fault = world.before_call(self._process, call, name)
        if fault is Fault.BEFORE:
            raise unavailable(name)
        if fault is Fault.LATE:
            world.arrives_later(f"{self._process}: {call} {name}", write)
            raise unavailable(name)
        put = write()
        world.after_call(self._process)
        if fault is Fault.AFTER:
            raise unavailable(name)
        return Put.EXISTS if fault is Fault.REPEATED else put

    def create(self, name: str, data: bytes) -> Put:
        return self._write("create", name, lambda: self._objects.create(name, data))

    def create_file(self, name: str, path: Path) -> None:
        data = path.read_bytes()
        self._write("create", name, lambda: self._objects.create(name, data))

    def replace(self, name: str, data: bytes) -> None:
        def write() -> Put:
            self._objects.put(name, data)
            return Put.CREATED

        self._write("replace", name, write)

    def get(self, name: str) -> bytes:
        self._read("get", name)
        return self._objects.get(name)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        self._read("get", name)
        return self._objects.get(name)[start : start + length]

    def exists(self, name: str) -> bool:
        self._read("exists", name)
        return name in self._objects.stored

    def list(self, prefix: str, after: str | None = None, before: str | None = None) -> Names:
        self._read("list", prefix)
        names = self._objects.listed(prefix)
        return [name for name in names if (after is None or name > after) and (before is None or name < before)]

    def list_flat(self, prefix: str) -> Names:
        self._read("list", prefix)
        return [name for name in self._objects.listed(prefix) if "/" not in name[len(prefix) :]]

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            fault = self._process.world.before_call(self._process, "delete", name)
            if fault is not Fault.BEFORE:
                self._objects.delete(name)
            if fault is not Fault.NONE:
                raise unavailable(name)
