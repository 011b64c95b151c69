"""What a start would change in the log, found without changing anything. A start does exactly this, and logs it."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.log import changing, identity
from holdfast.log.appfile import AppChanged, AppSpec
from holdfast.log.appfiles import AppFiles
from holdfast.log.chain import CommitChain
from holdfast.log.changing import CONTINUE, ChangeRules, InEffect
from holdfast.log.objects import Storage
from holdfast.settings.units import format_duration
from holdfast.stores.spec import StoreSpec, shown
from holdfast.words import Version


@dataclass(frozen=True, kw_only=True, repr=False)
class StartPlan:
    """What a start would change. Its text is for people, also as the last line of a cell in a notebook."""

    place: str
    before: InEffect | None
    """The app file in effect; None in a log without versions."""
    after: AppSpec
    """The app file of the start."""
    changes: tuple[str, ...] = ()
    """What changes, one sentence each."""
    warnings: tuple[str, ...] = ()
    """What to know before it is too late, one sentence each."""
    kept: tuple[str, ...] = ()
    """Stores that were removed and are kept, one sentence each."""
    refusals: tuple[str, ...] = ()
    """Why the start is refused, one sentence each."""

    def check(self) -> None:
        """Raises AppChanged if the start is refused."""
        if self.refusals:
            raise AppChanged(self.place, self.refusals)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        at = "has no version yet" if self.before is None else f"is at version {self.before.version}"
        yield f"The log of {self.after.id} at {self.place} {at}."
        if self.before is not None:
            yield f"It fixes the app's id {self.after.id!r} and partitions={self.before.app.partitions}."
        for title, lines in (
            ("A start is refused:", self.refusals),
            ("A start changes:", self.changes),
            ("Note:", self.warnings),
            ("Kept, though the code doesn't have them:", self.kept),
        ):
            if lines:
                yield title
                yield from (f"  - {line}" for line in lines)
        if not self.refusals and not self.changes:
            yield "A start changes nothing."


def plan_start(storage: Storage, spec: AppSpec, rules: ChangeRules) -> StartPlan:
    """What a start of this code would change in this log."""
    log = identity.read(storage)
    if log is None:
        changes = ("a log is created", *_added(spec, Version(0)))
        return StartPlan(place=storage.place, before=None, after=changing.first(spec, ""), changes=changes)
    newest = CommitChain(storage, log.id).newest()
    other = tuple(changing.other_app(log.app, spec))
    if newest is None:
        added = tuple(_added(spec, Version(0)))
        after = changing.first(spec, log.id)
        return StartPlan(place=storage.place, before=None, after=after, changes=added, refusals=other)
    before = InEffect(AppFiles(storage, log.id).read(newest.app), Version(newest.version), newest.clocks.wall)
    after = changing.successor(before, spec, rules)
    return StartPlan(
        place=storage.place,
        before=before,
        after=after,
        changes=tuple(_changes(before, after, rules)),
        warnings=(*_useless_choices(before, spec, rules), *changing.one_way(before.app, spec)),
        kept=tuple(_kept(before, after, rules)),
        refusals=other + tuple(changing.refusals(before, spec, rules)),
    )


def _added(spec: AppSpec, after: Version) -> Iterator[str]:
    for store in sorted(spec.stores, key=lambda store: store.name):
        yield f"store {store.name!r} ({store.kind}, key {store.key}) is added and begins, empty, after version {after}"


def _changes(before: InEffect, after: AppSpec, rules: ChangeRules) -> Iterator[str]:
    for store in sorted(after.current_stores, key=lambda store: store.name):
        known, back = before.app.store(store.name), before.returned(store.name)
        if known is None:
            yield from _added(_only(after, store), before.version)
        elif back is not None and store.after != known.after:
            yield (
                f"store {store.name!r} is back and starts over, empty, after version {before.version}; the entries it "
                f"had at version {back.until} are deleted"
            )
        else:
            if back is not None and rules.returned.get(store.name) == CONTINUE:
                yield (
                    f"store {store.name!r} is back and goes on as of version {back.until}, without the changes of "
                    f"versions {back.until + 1} to {before.version}"
                )
            yield from _reshaped(known, store)
    yield from _renamed(before.app, after)
    was, now = ({each.path: each for each in app.own_endpoints} for app in (before.app, after))
    yield from (f"endpoint {path} is added" for path in sorted(now.keys() - was.keys()))
    yield from (f"endpoint {path} is removed" for path in sorted(was.keys() - now.keys()))
    yield from (f"endpoint {path} is changed" for path in sorted(now.keys() & was.keys()) if now[path] != was[path])
    for store in sorted(before.app.stores, key=lambda store: store.name):
        left = after.store(store.name)
        if left is None and store.removed is not None:
            yield f"store {store.name!r}, removed after version {store.removed.until}, is deleted with its entries"
        elif left is not None and left.removed is not None and store.removed is None:
            yield (
                f"store {store.name!r} is not in the code any more and is kept for "
                f"{format_duration(rules.keep_removed)}, until {_date(changing.kept_until(left.removed, rules))}; a "
                "start after that deletes it"
            )


def _only(app: AppSpec, store: StoreSpec) -> AppSpec:
    return AppSpec(id=app.id, partitions=app.partitions, stores=(store,), subtopologies=())


def _renamed(before: AppSpec, after: AppSpec) -> Iterator[str]:
    """Sub-topologies that have another name: processors whose class, or `name=`, is another one."""
    kept = {store.name for store in after.current_stores}
    names = {each.number: each.name for each in before.subtopologies}
    for each in after.subtopologies:
        if names.get(each.number, each.name) != each.name and not kept.isdisjoint(each.stores):
            yield (
                f"{names[each.number]!r} is now called {each.name!r} and keeps its stores. Its outputs have the new "
                "name too, and so have its sinks without a name= of their own: those are new sinks"
            )


_SHAPE = ("schema", "ttl_ms", "retention_ms", "max_entries", "clock", "profile", "options_hook", "from_now", "options")
"""The fields of a store that may change in place."""


def _reshaped(known: StoreSpec, store: StoreSpec) -> Iterator[str]:
    for name in _SHAPE:
        was, now = shown(known, name), shown(store, name)
        if was != now:
            yield f"store {store.name!r}: {name.removesuffix('_ms')} {was} becomes {now}"
    if known.aggregates != store.aggregates:
        was, now = (", ".join(" ".join(each) for each in spec.aggregates) for spec in (known, store))
        yield f"store {store.name!r}: aggregates {was or 'none'} become {now or 'none'}"


def _kept(before: InEffect, after: AppSpec, rules: ChangeRules) -> Iterator[str]:
    for store in after.stores:
        if store.removed is not None and before.returned(store.name) is not None:
            yield (
                f"store {store.name!r}, removed after version {store.removed.until}, until "
                f"{_date(changing.kept_until(store.removed, rules))}"
            )


def _useless_choices(before: InEffect, spec: AppSpec, rules: ChangeRules) -> Iterator[str]:
    """A choice that stays in the settings would be made silently when the store is removed the next time."""
    for store in sorted(rules.returned):
        if spec.store(store) is None or before.returned(store) is None:
            yield f"returned_stores has {store!r}, which doesn't come back with this start. Remove it from the settings"


def _date(wall: int) -> str:
    return datetime.fromtimestamp(wall / 1000, UTC).isoformat(" ", "minutes")
