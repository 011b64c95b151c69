"""How an app changes: the code of a start compared with the app file in effect, without any I/O.

`refusals` lists what would change the meaning of stored state. `successor` is the app file that the start needs. A
store that the code no longer has stays in the file, as removed, for a while: replicas keep it, so that going back to
the release that has it works. When it comes back it has missed versions, and the user chooses what that means.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import msgspec

from holdfast.log.appfile import AppSpec, SubTopologySpec, content, in_use
from holdfast.stores.schema import history
from holdfast.stores.spec import Removed, StoreSpec, differences
from holdfast.words import Version

CONTINUE: Final = "continue"
START_OVER: Final = "start_over"


@dataclass(frozen=True, kw_only=True)
class ChangeRules:
    """What the settings say about stores that come and go."""

    keep_removed: timedelta = timedelta(days=7)
    returned: Mapping[str, str] = field(default_factory=dict)
    """What a store does that comes back: CONTINUE or START_OVER, by its name."""


@dataclass(frozen=True)
class InEffect:
    """The app file that the newest commit names, and that commit's version and wall clock."""

    app: AppSpec
    version: Version
    wall: int

    def returned(self, store: str) -> Removed | None:
        """When a store of this name was removed; None if it wasn't."""
        known = self.app.store(store)
        return None if known is None else known.removed


def first(spec: AppSpec, log: str) -> AppSpec:
    """The spec as a file of a log without versions."""
    return _numbered(in_use(msgspec.structs.replace(spec, log=log)), ())


def successor(old: InEffect, new: AppSpec, rules: ChangeRules) -> AppSpec:
    """The file after the one in effect, which it equals if nothing changes. It has no number yet.

    Stores that are added or start over begin after the newest version.
    """
    over = starting_over(old, new, rules)
    stores = [*(_declared(old, store, over) for store in new.stores), *_removed(old, new, rules)]
    same = msgspec.structs.replace(
        new, log=old.app.log, follows=old.app.follows, stores=tuple(stores), used_numbers=old.app.used_numbers
    )
    staying = {store.name for store in stores} - over
    known = [
        msgspec.structs.replace(each, stores=tuple(store for store in each.stores if store in staying))
        for each in old.app.subtopologies
    ]
    # A log that has used a higher format keeps it, whichever release starts now.
    same = _numbered(in_use(same, old.app.formats), known)
    return old.app if content(same) == content(old.app) else msgspec.structs.replace(same, follows=old.app.number)


def _declared(old: InEffect, store: StoreSpec, over: Collection[str]) -> StoreSpec:
    known = old.app.store(store.name)
    if known is None or store.name in over:
        return msgspec.structs.replace(store, after=old.version)
    return history.merged(known, store)


def _removed(old: InEffect, new: AppSpec, rules: ChangeRules) -> list[StoreSpec]:
    """The stores that the code doesn't have and that are kept."""
    gone = [store for store in old.app.stores if new.store(store.name) is None]
    return [
        store if store.removed else msgspec.structs.replace(store, removed=Removed(old.version, old.wall))
        for store in gone
        if not was_kept_long_enough(old, store, rules)
    ]


def was_kept_long_enough(old: InEffect, store: StoreSpec, rules: ChangeRules) -> bool:
    """Whether a removed store was kept long enough."""
    return store.removed is not None and old.wall >= kept_until(store.removed, rules)


def kept_until(removed: Removed, rules: ChangeRules) -> int:
    """The wall clock from which on a removed store may be deleted."""
    return removed.wall + rules.keep_removed // timedelta(milliseconds=1)


def starting_over(old: InEffect, new: AppSpec, rules: ChangeRules) -> set[str]:
    """The stores that come back with this start, empty. A choice for a store that stays removed has no effect."""
    back = [store.name for store in new.stores if old.returned(store.name) is not None]
    return {store for store in back if rules.returned.get(store) == START_OVER}


# Numbers of sub-topologies


def _numbered(spec: AppSpec, known: Sequence[SubTopologySpec]) -> AppSpec:
    found = numbered(known, spec.subtopologies, spec.used_numbers)
    used = max([spec.used_numbers, *(each.number + 1 for each in found)])
    return msgspec.structs.replace(spec, subtopologies=found, used_numbers=used)


def numbered(
    known: Sequence[SubTopologySpec], declared: Sequence[SubTopologySpec], used: int
) -> tuple[SubTopologySpec, ...]:
    """The code's sub-topologies with their numbers in the log, and those that the log alone knows.

    A number is that of the stores, which never move; else that of the name; else the next one after the `used` ones. So
    it doesn't matter in which order operators are declared, nor which come and go. Stores that the code no longer has
    stay with their number.

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
    placed = {store for each in declared for store in each.stores}
    left = {each.number: [store for store in each.stores if store not in placed] for each in known}
    found = []
    for each in declared:
        number = numbers[each.name] if each.name in numbers else next(unused)
        stores = tuple(sorted({*each.stores, *left.get(number, ())}))
        found.append(msgspec.structs.replace(each, number=number, stores=stores))
    return (*found, *_others(known, found, left))


def _others(
    known: Sequence[SubTopologySpec], found: Sequence[SubTopologySpec], left: Mapping[int, Sequence[str]]
) -> list[SubTopologySpec]:
    """The sub-topologies that the code doesn't have: what they wrote may still be in the log, and is cleaned by number.

    If the code has another one of that name, the number tells them apart.
    """
    numbers, names = {each.number for each in found}, {each.name for each in found}
    return [
        SubTopologySpec(
            f"{each.name}@{each.number}" if each.name in names else each.name, each.number, tuple(left[each.number])
        )
        for each in known
        if each.number not in numbers
    ]


# What is refused


def other_app(app: str, new: AppSpec) -> list[str]:
    """Why the log of this app isn't the code's."""
    if new.id == app:
        return []
    line = (
        f"The log belongs to the app {app!r}; the code's app is {new.id!r}. Give {new.id!r} a log.url of its own, or "
        f"start it as {app!r}."
    )
    return [line]


def refusals(old: InEffect, new: AppSpec, rules: ChangeRules) -> list[str]:
    """Every difference that would make stored state unreadable or wrong, one sentence each, with what to do."""
    found: list[str] = []
    if new.partitions != old.app.partitions:
        found.append(
            f"The log has {old.app.partitions} partitions; the settings say {new.partitions}. "
            f"Set partitions={old.app.partitions}."
        )
    for name, number in sorted(old.app.formats.items()):
        if number > new.formats.get(name, 0):
            found.append(
                f"The log has {name} format {number}; this release knows {new.formats.get(name, 0)}. "
                "Use a newer Holdfast."
            )
    over = starting_over(old, new, rules)
    for store in sorted(new.stores, key=lambda store: store.name):
        known = old.app.store(store.name)
        if known is None or store.name in over:
            continue
        found += _not_chosen(old, store.name, rules) + differences(known, store)
        if store.codec == known.codec:
            found += history.unreadable(known, store)
    return found + _moved(old.app, new, over)


def _not_chosen(old: InEffect, store: str, rules: ChangeRules) -> list[str]:
    """A store that comes back has missed versions, which only the user can judge."""
    removed = old.returned(store)
    if removed is None or rules.returned.get(store) == CONTINUE:
        return []
    line = (
        f"store {store!r} was removed after version {removed.until} and has missed versions {removed.until + 1} to "
        f"{old.version}. Set returned_stores={{{store!r}: {CONTINUE!r}}} to go on without them, or "
        f"returned_stores={{{store!r}: {START_OVER!r}}} to start it over, empty"
    )
    return [line]


def _moved(old: AppSpec, new: AppSpec, started_over: Collection[str]) -> list[str]:
    """Stores that are in one sub-topology in the code and in several in the log, or the other way round."""
    of_store = {store: each.number for each in old.subtopologies for store in each.stores if store not in started_over}
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


def one_way(old: AppSpec, new: AppSpec) -> list[str]:
    """What the new code writes that older code can't read, one sentence each."""
    pairs = [(known, store) for store in new.stores if (known := old.store(store.name)) is not None]
    return [line for known, store in pairs for line in history.one_way(known, store)]
