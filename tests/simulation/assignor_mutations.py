"""Mutations of the assignor and of what it is told, each a list of attributes to replace (`mutations.py`)."""

from typing import Any

from holdfast.group import roles
from holdfast.group.candidates import Presence
from holdfast.group.coordinator import Coordinator
from holdfast.group.draft import Draft, Spot
from holdfast.words import Version

Patches = list[tuple[object, str, Any]]


def anyone_can_go() -> Patches:
    return [(roles, "_can_go", lambda draft, spot, id, lasting: True)]


def the_silent_count() -> Patches:
    can_go = roles._can_go

    def counts(draft: Draft, spot: Spot, id: str, lasting: list[str]) -> bool:
        silent = [other for other in lasting if other != id and draft.presence[other] is Presence.AWAY]
        return can_go(draft, spot, id, lasting) or bool(silent and id != spot.active)

    return [(roles, "_can_go", counts)]


def those_that_restart_count() -> Patches:
    """A replica that is close is worth as much as one that answers."""

    def value(draft: Draft, spot: Spot, id: str) -> float:
        hosted = spot.reports.get(id)
        return 0.0 if hosted is None else float("inf") if draft.is_close(spot, id) else hosted.version

    return [(roles, "_value", value)]


def nothing_is_caught_up() -> Patches:
    def is_close(self: Draft, spot: Spot, id: str) -> bool:
        lag = self.lag(spot, id)
        return lag is not None and lag <= self.rules.acceptable_lag

    return [(Draft, "is_close", is_close)]


def old_heartbeats_are_behind() -> Patches:
    def forgets(self: Coordinator, newest: Version) -> None:
        self._heartbeats = dict.fromkeys(self.members, ((0, "", 0), None))

    return [(Coordinator, "_note_heartbeats", forgets)]
