"""Explaining: one sentence per task that says why it is where it is, with the values that decided it."""

from holdfast.group.candidates import Presence
from holdfast.group.draft import Draft, Spot
from holdfast.group.members import Hosted
from holdfast.settings.units import shown_size


def explain(draft: Draft, spot: Spot) -> str:
    """The sentence of one task."""
    parts = [f"active on {spot.active}: {spot.reason or _stays(draft, spot)}"]
    parts += [f"standby on {id}{_tags(draft, id)}: {_state(draft, spot, id)}" for id in spot.standbys]
    parts += [f"warming on {id}: {_progress(draft, spot, id)}{_moving(spot)}" for id in spot.warming]
    if spot.everywhere:
        parts.append("on every member, since it has a global store")
    elif (missing := 1 + draft.rules.standbys - len(spot.replicas)) > 0:
        parts.append(f"{missing} of {draft.rules.standbys} standbys missing, since there are no more members")
    return "; ".join(parts)


def _stays(draft: Draft, spot: Spot) -> str:
    active = str(spot.active)
    if draft.presence[active] is Presence.AWAY:
        return "it is silent, no other replica is caught up, and its session has not ended"
    if draft.presence[active] in (Presence.LEAVING, Presence.STOPPING):
        return "it leaves, and keeps the task until another replica is caught up"
    if draft.is_close(spot, active):
        return f"it was there before and is caught up at version {spot.reports[active].version}"
    return f"it was there before, is {_state(draft, spot, active)}, and no replica here is caught up"


def _state(draft: Draft, spot: Spot, id: str) -> str:
    presence = draft.presence[id]
    prefix = "" if presence is Presence.HERE else f"{presence.value}, "
    hosted = spot.reports.get(id)
    if hosted is None:
        return f"{prefix}nothing restored yet"
    if draft.is_close(spot, id):
        return f"{prefix}caught up at version {hosted.version}"
    return f"{prefix}restoring at version {hosted.version} of {draft.newest}"


def _progress(draft: Draft, spot: Spot, id: str) -> str:
    hosted = spot.reports.get(id) or Hosted(version=0, running=False)
    restored, size = shown_size(max(0, hosted.bytes)), shown_size(spot.weight.bytes)
    return f"{restored} of {size} restored, {max(0, draft.newest - hosted.version)} versions behind"


def _moving(spot: Spot) -> str:
    return f", {spot.moving}" if spot.moving else ", so that the task can move there"


def _tags(draft: Draft, id: str) -> str:
    pairs = zip(draft.rules.spread_by, draft.location[id], strict=True)
    shown = ", ".join(f"{tag} {value}" for tag, value in pairs if value)
    return f" ({shown})" if shown else ""
