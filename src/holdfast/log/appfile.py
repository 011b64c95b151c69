"""The app's file: what the app consists of, compared with the code at every start.

A start whose code adds a store, or gives a value a new schema that can still be read, writes the next file,
`app/<n>.json`. The file takes effect with the first commit that names it; every start is compared with the file that
the newest commit names, and nothing else. The file has every schema a store has had. A changed key, kind or partition
count, a schema that can't be read, a removed store or another app id would change the meaning of stored state. Such a
start is rejected with a list of all differences and what to do about each. The log never forgets a schema: older code
that is started again, or runs at the same time as newer code, finds the newer schemas in the file and leaves them.
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
from holdfast.words import TaskId, Version

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
    """The spec as a file of a log without versions."""
    return _numbered(_in_use(msgspec.structs.replace(spec, log=log)), ())


def successor(old: AppSpec, new: AppSpec, newest: Version) -> AppSpec:
    """The file after `old`, once `check` accepted `new`; `old` itself if nothing was added. It has no number yet.

    Stores that are added begin after the newest version.
    """
    stores = [
        msgspec.structs.replace(store, after=newest)
        if (known := old.store(store.name)) is None
        else history.merged(known, store)
        for store in new.stores
    ]
    same = msgspec.structs.replace(
        new, log=old.log, follows=old.follows, stores=tuple(stores), used_numbers=old.used_numbers
    )
    # A log that has used a higher format keeps it, whichever release starts now.
    same = _numbered(_in_use(same, old.formats), old.subtopologies)
    return old if content(same) == content(old) else msgspec.structs.replace(same, follows=old.number)


def _numbered(spec: AppSpec, known: Sequence[SubTopologySpec]) -> AppSpec:
    found = numbered(known, spec.subtopologies, spec.used_numbers)
    used = max([spec.used_numbers, *(each.number + 1 for each in found)])
    return msgspec.structs.replace(spec, subtopologies=found, used_numbers=used)


def numbered(
    known: Sequence[SubTopologySpec], declared: Sequence[SubTopologySpec], used: int
) -> tuple[SubTopologySpec, ...]:
    """The code's sub-topologies with their numbers in the log, and those that the log alone knows.

    A number is that of the stores, which never move; else that of the name; else the next one after the `used` ones. So
    it doesn't matter in which order operators are declared, nor which come and go.

    >>> numbered([SubTopologySpec("a", 0, ("a",))], [SubTopologySpec("new", 0), SubTopologySpec("b", 1, ("a",))], 1)
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
    unused = itertools.count(used)
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


def check_id(app: str, new: AppSpec, *, place: str) -> None:
    """Raises AppChanged if the log belongs to another app."""
    if new.id != app:
        difference = (
            f"The log belongs to the app {app!r}; the code's app is {new.id!r}. Give {new.id!r} a log.url of its own, "
            f"or start it as {app!r}."
        )
        raise AppChanged(place, [difference])


def check(old: AppSpec, new: AppSpec, *, place: str) -> None:
    """Raises AppChanged with every difference that would make stored state unreadable."""
    found: list[str] = []
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


def decode(data: bytes, number: int, log: str, *, place: str) -> AppSpec:
    """An app file read back, checked against its name, the log it was found in, and itself."""
    name = names.app(number)
    spec = documents.decode(data, AppSpec, name=name, place=place, known=FORMAT)
    if spec.number != number:
        raise documents.damaged(name, place, f"it says that it is number {spec.number}")
    if spec.log != log:
        raise documents.damaged(name, place, f"it belongs to the log {spec.log}, and this is the log {log}")
    if (fault := _contradiction(spec)) is not None:
        raise documents.damaged(name, place, fault)
    return spec


def _contradiction(spec: AppSpec) -> str | None:
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
    return spec.id, spec.log, numbers, spec.partitions, spec.formats, stores, subtopologies
