"""Routes: what `GET /v1/routing` answers. With it a client finds the instances that have a key, without asking.

It has everything that the partition of a key depends on, and where the replicas of each task are. Instances and clients
share these types, so this module imports neither's.
"""

from typing import Final

import msgspec

from holdfast.stores.formats.types import Schema
from holdfast.words import TaskId

LOG_HEADER: Final = "holdfast-log"
"""Of a request: the id of the log that it is for. An instance of another log refuses it."""


class StoreRoute(msgspec.Struct, frozen=True, kw_only=True):
    """What the partition of a key of one store depends on."""

    store: str
    kind: str
    key: Schema
    subtopology: int
    partitions: int
    everywhere: bool = False
    """A global store: every instance has the whole of it."""

    def task(self, partition: int) -> str:
        return str(TaskId(self.subtopology, partition))


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where replicas are, as the newest generation says that an instance knows."""

    generation: int = 0
    """Its number; 0 where there is no group."""
    instances: dict[str, str] = {}
    """The address of REST by the name of the instance, without instances that have none."""
    tasks: dict[str, tuple[str, ...]] = {}
    """Per task the names of the instances that have a replica, the active one first."""


class Routing(Places, frozen=True, kw_only=True):
    """The answer: the stores, and where their tasks are."""

    app: str
    log: str = ""
    """The id of the app's log. Numbers of generations of two logs can't be compared."""
    version: int
    stores: tuple[StoreRoute, ...]

    def store(self, name: str) -> StoreRoute | None:
        return next((route for route in self.stores if route.store == name), None)

    def addresses(self, task: str) -> tuple[str, ...]:
        """The addresses of a task's replicas, the active one first."""
        return tuple(self.instances[name] for name in self.tasks.get(task, ()) if name in self.instances)
