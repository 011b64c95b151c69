"""The app's file: what the app consists of, written with a new log and checked against the code at every start.

A new store, or a value with a new schema that can still be read, adds the next file, `app/<n+1>.json`; every commit
names the file that was current. The file has every schema a store has had. A changed key, kind or partition count, a
schema that can't be read, a removed store or another app id would change the meaning of stored state. Such a start is
rejected with a list of all differences and what to do about each. The log never forgets a schema: older code that is
started again, or runs at the same time as newer code, finds the newer schemas in the file and leaves them there.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log import commits, documents, names
from holdfast.stores.formats import cells
from holdfast.stores.schema import history
from holdfast.stores.spec import StoreSpec, differences
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
            "Undo the change in the code. Or start over with a new app id; if log.url or spark.checkpoint is set, "
            "change both as well. This log is kept."
        )
        self.differences = tuple(found)


class SubTopologySpec(msgspec.Struct, frozen=True):
    """A sub-topology as the log knows it: by its name, or by the stores it has."""

    name: str
    number: int
    """Its tasks are `<number>_<partition>`."""
    stores: tuple[str, ...] = ()


class AppSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An app as its log describes it. `log` and `number` are set when the file is written."""

    format: int = FORMAT
    id: str
    log: str = ""
    number: int = 0
    partitions: int
    formats: dict[str, int] = msgspec.field(default_factory=lambda: dict(FORMATS))
    stores: tuple[StoreSpec, ...]
    subtopologies: tuple[SubTopologySpec, ...]

    def tasks(self) -> tuple[TaskId, ...]:
        """Every task that has state."""
        return tuple(
            TaskId(topology, partition)
            for topology in sorted({each.number for each in self.subtopologies if each.stores})
            for partition in range(self.partitions)
        )

    def store(self, name: str) -> StoreSpec | None:
        return next((store for store in self.stores if store.name == name), None)

    def stores_of(self, task: TaskId) -> tuple[StoreSpec, ...]:
        """The stores a task has a partition of."""
        return tuple(store for store in self.stores if self.number_of(store.name) == task.topology)

    def number_of(self, store: str) -> int:
        """The number of the sub-topology that a store belongs to."""
        return next(each.number for each in self.subtopologies if store in each.stores)


def first(spec: AppSpec, log: str) -> AppSpec:
    """The spec as the first file of a new log with this id."""
    return _in_use(msgspec.structs.replace(spec, log=log, number=1))


def successor(old: AppSpec, new: AppSpec, *, empty: bool = False) -> AppSpec:
    """The app's next file, after `check` accepted `new`; `old` itself if nothing was added.

    A log that is `empty` has no stored values, so the file only describes the code.
    """
    stores = [
        store if empty or (known := old.store(store.name)) is None else history.merged(known, store)
        for store in new.stores
    ]
    # A log that has used a higher format keeps it, whichever release starts now.
    before = {} if empty else old.formats
    same = msgspec.structs.replace(
        new,
        log=old.log,
        number=old.number,
        stores=tuple(stores),
        subtopologies=numbered((), new.subtopologies) if empty else numbered(old.subtopologies, new.subtopologies),
    )
    same = _in_use(same, before)
    return old if _content(same) == _content(old) else msgspec.structs.replace(same, number=old.number + 1)


def numbered(known: Sequence[SubTopologySpec], declared: Sequence[SubTopologySpec]) -> tuple[SubTopologySpec, ...]:
    """The code's sub-topologies with their numbers in the log, and those that the log alone knows.

    A number is that of the stores, which never move; else that of the name; else the next one that was never used. So
    it doesn't matter in which order operators are declared, nor which come and go.

    >>> numbered([SubTopologySpec("a", 0, ("a",))], [SubTopologySpec("new", 0), SubTopologySpec("b", 1, ("a",))])
    (SubTopologySpec(name='new', number=1, stores=()), SubTopologySpec(name='b', number=0, stores=('a',)))
    """
    of_store = {store: each.number for each in known for store in each.stores}
    of_name = {each.name: each.number for each in known}
    numbers = {
        each.name: next(of_store[store] for store in each.stores if store in of_store)
        for each in declared
        if any(store in of_store for store in each.stores)
    }
    for each in declared:
        if each.name not in numbers and of_name.get(each.name) not in (None, *numbers.values()):
            numbers[each.name] = of_name[each.name]
    unused = itertools.count(max(of_name.values(), default=-1) + 1)
    found = [
        msgspec.structs.replace(each, number=numbers[each.name] if each.name in numbers else next(unused))
        for each in declared
    ]
    taken = {each.number for each in found} | {each.name for each in found}
    return (*found, *(each for each in known if not {each.number, each.name} & taken))


def _moved(old: AppSpec, new: AppSpec) -> list[str]:
    """Stores that the code has together and the log apart, or the other way round."""
    of_store = {store: each.number for each in old.subtopologies for store in each.stores}
    found, homes = [], dict[int, str]()
    for each in new.subtopologies:
        stores = {of_store[store]: store for store in each.stores if store in of_store}
        if len(stores) > 1:
            listed = ", ".join(f"{store!r} to {number}" for number, store in sorted(stores.items()))
            found.append(
                f"{each.name!r} has stores that belong to different sub-topologies in the log: {listed}. Entries don't "
                "move between tasks. Keep each store where it was, or give those that are to move another name."
            )
        for number, store in stores.items():
            if (other := homes.setdefault(number, each.name)) != each.name:
                found.append(
                    f"The store {store!r} belongs to sub-topology {number} in the log, whose stores {other!r} and "
                    f"{each.name!r} have between them now. Entries don't move between tasks. Keep the stores together, "
                    f"or give those of one of them other names."
                )
    return found


def effective(log: AppSpec, store: StoreSpec) -> StoreSpec:
    """The spec a store is used with: the code's, plus the schemas and slices recorded in the log."""
    known = log.store(store.name)
    return store if known is None else history.effective(known, store)


def one_way(old: AppSpec, new: AppSpec) -> list[str]:
    """What the new code writes that older code can't read, one sentence each."""
    pairs = [(known, store) for store in new.stores if (known := old.store(store.name)) is not None]
    return [line for known, store in pairs for line in history.one_way(known, store)]


def _in_use(spec: AppSpec, before: Mapping[str, int] = {}) -> AppSpec:
    """The spec with the formats that are really written: cells need the later one only after a schema change.

    A release that knows only the first one can continue a log that needs no more.
    """
    numbered = any(store.schema > cells.FIRST_SCHEMA for store in spec.stores)
    used = spec.formats if numbered else {**spec.formats, "cell": min(cells.FORMAT, spec.formats.get("cell", 1))}
    highest = {name: max(number, before.get(name, 0)) for name, number in used.items()}
    return msgspec.structs.replace(spec, formats=highest)


def check(old: AppSpec, new: AppSpec, *, place: str) -> None:
    """Raises AppChanged with every difference that would make stored state unreadable."""
    found: list[str] = []
    if new.id != old.id:
        found.append(
            f"The log belongs to the app {old.id!r}; the code's app is {new.id!r}. Give {new.id!r} a log.url of its "
            f"own, or start it as {old.id!r}."
        )
    if new.partitions != old.partitions:
        found.append(
            f"The log has {old.partitions} partitions; the settings say {new.partitions}. "
            f"Set partitions={old.partitions}."
        )
    for name, number in sorted(old.formats.items()):
        if number > new.formats.get(name, 0):
            found.append(
                f"The log has {name} format {number}; this release knows {new.formats.get(name, 0)}. "
                "Use a newer Holdfast."
            )
    known = {store.name for store in old.stores}
    found += differences(old.stores, [store for store in new.stores if store.name in known])
    for store in old.stores:
        changed = new.store(store.name)
        if changed is not None and changed.codec == store.codec:
            found += history.unreadable(store, changed)
    found += _moved(old, new)
    if found:
        raise AppChanged(place, found)


def encode(spec: AppSpec) -> bytes:
    return documents.encode(spec)


def decode(data: bytes, number: int, *, place: str) -> AppSpec:
    name = names.app(number)
    spec = documents.decode(data, AppSpec, name=name, place=place, known=FORMAT)
    if spec.number != number:
        raise documents.damaged(name, place, f"it says that it is number {spec.number}")
    return spec


def _content(spec: AppSpec) -> tuple[object, ...]:
    stores = sorted(spec.stores, key=lambda store: store.name)
    subtopologies = sorted(spec.subtopologies, key=lambda each: each.number)
    return spec.id, spec.log, spec.partitions, spec.formats, stores, subtopologies
