"""The app's file: what the app consists of, compared with the code at every start.

A start whose code differs from the file in a way that stored state allows writes the next one, `app/<n>.json`. It takes
effect with the first commit that names it; every start is compared with the file that the newest commit names, and with
no other. `changing` compares them. The file has every schema a store has had: older code that is started again, or runs
at the same time as newer code, finds the newer schemas in the file and leaves them. It also has stores that the code no
longer has, for as long as they are kept.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log import commits, documents, names
from holdfast.stores.formats import cells
from holdfast.stores.schema import history
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId

FORMAT = 1
FORMATS: Final[dict[str, int]] = {
    "app": FORMAT,
    "cell": cells.NUMBERED_FORMAT,
    "commit": commits.FORMAT,
    "key": 1,
    "segment": 1,
    "snapshot": 1,
}
"""The formats this release knows. A log with a higher number was written by a newer release."""


class AppChanged(HoldfastError):
    """The code describes a different app from the one that wrote the log."""

    category = ErrorCategory.INVALID

    def __init__(self, place: str, found: Sequence[str]) -> None:
        listed = "\n".join(f"  - {difference}" for difference in found)
        super().__init__(
            f"The log at {place} was written by an app that differs from the code:\n{listed}\n"
            "Do what each line says, or go back to the code that wrote the log. Or start over with a new app id; if "
            "log.url or spark.checkpoint is set, change both as well. This log is kept."
        )
        self.differences = tuple(found)


class SubTopologySpec(msgspec.Struct, frozen=True):
    """A sub-topology as the log knows it: by its name, or by the stores it has."""

    name: str
    number: int
    """Its tasks are `<number>_<partition>`."""
    stores: tuple[str, ...] = ()


class EndpointSpec(msgspec.Struct, frozen=True):
    """An endpoint of the user's own: its path, the place of its function, and the stores that it reads."""

    path: str
    place: str
    stores: tuple[str, ...]


class AppSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An app as its log describes it. The log sets `log`, `number`, `follows` and `used_numbers`."""

    format: int = FORMAT
    id: str
    log: str = ""
    number: int = 0
    follows: int = 0
    """The number of the file that was in effect when this one was written; 0 in a log without versions."""
    partitions: int
    formats: dict[str, int] = msgspec.field(default_factory=lambda: dict(FORMATS))
    stores: tuple[StoreSpec, ...]
    subtopologies: tuple[SubTopologySpec, ...]
    used_numbers: int = 0
    """How many numbers sub-topologies have had. None is used again: their segments may still be in the log."""
    endpoints: tuple[EndpointSpec, ...] | msgspec.UnsetType = msgspec.UNSET
    """Endpoints of the user's own; not written where there are none."""

    @property
    def own_endpoints(self) -> tuple[EndpointSpec, ...]:
        return () if isinstance(self.endpoints, msgspec.UnsetType) else self.endpoints

    def tasks(self) -> tuple[TaskId, ...]:
        """Every task that has state, also if all its stores are removed and kept."""
        sizes: dict[int, int] = {}
        for store in self.stores:
            number = self.number_of(store.name)
            sizes[number] = max(sizes.get(number, 0), store.partitions(self.partitions))
        return tuple(TaskId(number, partition) for number in sorted(sizes) for partition in range(sizes[number]))

    def store(self, name: str) -> StoreSpec | None:
        """The store of that name, also if it is removed and kept."""
        return next((store for store in self.stores if store.name == name), None)

    @property
    def current_stores(self) -> tuple[StoreSpec, ...]:
        """The stores that the app has now, without those that are removed and kept."""
        return tuple(store for store in self.stores if store.removed is None)

    def stores_of(self, task: TaskId) -> tuple[StoreSpec, ...]:
        """The stores a task has a partition of, also those that are removed and kept."""
        return tuple(store for store in self.stores if self.number_of(store.name) == task.subtopology)

    def number_of(self, store: str) -> int:
        """The number of the sub-topology that a store belongs to."""
        return next(each.number for each in self.subtopologies if store in each.stores)


def effective(log: AppSpec, store: StoreSpec) -> StoreSpec:
    """The spec a store is used with: the code's, plus the schemas and slices recorded in the log."""
    known = log.store(store.name)
    return store if known is None else history.effective(known, store)


def in_use(spec: AppSpec, before: Mapping[str, int] = {}) -> AppSpec:
    """The spec with the formats that are really written: cells need the later one only after a schema change.

    A release that knows only the first one can continue a log that needs no more.
    """
    numbered = any(store.schema > cells.FIRST_SCHEMA for store in spec.stores)
    used = spec.formats if numbered else {**spec.formats, "cell": min(cells.FORMAT, spec.formats.get("cell", 1))}
    highest = {name: max(number, before.get(name, 0)) for name, number in used.items()}
    return msgspec.structs.replace(spec, formats=highest)


def encode(spec: AppSpec) -> bytes:
    return documents.encode(spec)


def decode(data: bytes, number: int, log: str, *, place: str) -> AppSpec:
    """An app file read back, checked against its name, the log it was found in, and itself."""
    name = names.app(number)
    spec = documents.decode(data, AppSpec, name=name, place=place, known=FORMAT)
    if spec.number != number:
        raise documents.damaged(name, place, f"it says that it is number {spec.number}")
    if spec.log != log:
        raise documents.damaged(name, place, f"it belongs to the log {spec.log}, and this is the log {log}")
    if (fault := contradiction(spec)) is not None:
        raise documents.damaged(name, place, fault)
    return spec


def contradiction(spec: AppSpec) -> str | None:
    """What can't be true of an app in its file."""
    stores = [store.name for store in spec.stores]
    homes = [store for each in spec.subtopologies for store in each.stores]
    numbers = [each.number for each in spec.subtopologies]
    subtopologies = [each.name for each in spec.subtopologies]
    if spec.partitions < 1:
        return f"it has {spec.partitions} partitions"
    for what, found in (("stores", stores), ("sub-topologies", subtopologies), ("numbers of sub-topologies", numbers)):
        if len(set(found)) < len(found):
            return f"it has {what} twice: {', '.join(map(str, found))}"
    if sorted(homes) != sorted(stores):
        return f"its stores are {', '.join(sorted(stores))}, and those of its sub-topologies {', '.join(sorted(homes))}"
    if any(not 0 <= number < spec.used_numbers for number in numbers):
        return f"its sub-topologies have the numbers {sorted(numbers)}, of which {spec.used_numbers} are used"
    if not 0 <= spec.follows < spec.number:
        return f"it is number {spec.number} and follows {spec.follows}"
    return None


def content(spec: AppSpec) -> tuple[object, ...]:
    """Everything but the file's number, in any order of declaration."""
    stores = sorted(spec.stores, key=lambda store: store.name)
    subtopologies = sorted(spec.subtopologies, key=lambda each: each.number)
    numbers = spec.follows, spec.used_numbers
    endpoints = sorted(spec.own_endpoints, key=lambda each: each.path)
    return spec.id, spec.log, numbers, spec.partitions, spec.formats, stores, subtopologies, endpoints
