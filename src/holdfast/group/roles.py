"""Roles: which replica of a task is the active one, which replicas are missing, and which are no longer needed.

No data moves for a change of roles, so all of them happen at once. Balancing has a hysteresis (`starts`, `improves`):
it begins only where it would still be right if the loads of the one were 20% smaller and those of the other 20% larger,
and then it goes on until no change improves anything. So loads that wobble by 20% around a balanced assignment change
nothing: 1.2 / 0.8 is 1.5.
"""

import math
from collections.abc import Iterable

from holdfast.group.candidates import Presence
from holdfast.group.draft import Draft, Spot
from holdfast.group.picking import Picker
from holdfast.words import NOTHING

START_RATIO = 1.5
START_EXTRA = 0.15
STOP_EXTRA = 0.1


def starts(heavy: float, light: float, mean: float) -> bool:
    """Whether balancing begins. `heavy` is the load of the heavier member without what would move."""
    return heavy > START_RATIO * light + START_EXTRA * mean


def improves(heavy: float, light: float, mean: float) -> bool:
    """Whether a move is worth it while balancing is under way."""
    return heavy > light + STOP_EXTRA * mean


def choose_actives(draft: Draft, picker: Picker) -> None:
    """Every task gets an active replica. Those without any are placed last, the heaviest of them first."""
    for spot in draft.spots:
        for id in [id for id in spot.warming if draft.is_ready(spot, id) or _is_drained_and_answers(draft, spot, id)]:
            draft.add(spot, id)
        _hand_over(draft, spot)
        # What isn't restored yet on a member that is drained is given up.
        spot.warming = [id for id in spot.warming if draft.presence[id] is not Presence.LEAVING]
    lost = [spot for spot in draft.spots if spot.active is None]
    for spot in sorted(lost, key=lambda each: -(each.weight.hold + each.weight.lead)):
        _place(draft, spot, picker)


def _hand_over(draft: Draft, spot: Spot) -> None:
    """The active role goes to a caught-up replica if it isn't on one, and away from a member that leaves."""
    now = spot.active
    if now is not None and draft.is_close(spot, now) and draft.is_here(now):
        return
    if now is not None and not _is_away(draft, now) and (draft.is_close(spot, now) or draft.is_running(spot, now)):
        able = draft.ready(spot)  # there is no hurry: it answers until then
        if not able and draft.presence[now] is Presence.STOPPING:
            able = [id for id in spot.replicas if _is_drained_and_answers(draft, spot, id)]
    else:
        here = [id for id in spot.reports if draft.is_here(id)]
        # What a member that leaves has may be the only copy.
        able = [
            id
            for id in dict.fromkeys((*here, *spot.replicas, *spot.warming))
            if not _is_away(draft, id) and draft.is_close(spot, id)
        ]
    if not able:
        return
    best = min(
        able,
        key=lambda id: (
            draft.presence[id] is Presence.STOPPING,
            not spot.reports[id].running,
            not draft.is_here(id),
            id not in spot.replicas,
            draft.leads[id],
            draft.loads[id],
            id,
        ),
    )
    spot.reason = f"caught up at version {spot.reports[best].version}, {_fault(draft, spot, now)}"
    _lead(draft, spot, best)


def _is_drained_and_answers(draft: Draft, spot: Spot, id: str) -> bool:
    return draft.presence[id] is Presence.LEAVING and draft.answers(spot, id)


def _place(draft: Draft, spot: Spot, picker: Picker) -> None:
    """No replica is caught up: the most advanced one, or the lightest member, becomes active at once."""
    fault = _fault(draft, spot, None)
    advanced = [id for id, hosted in spot.reports.items() if hosted.version != NOTHING and draft.is_here(id)]
    assigned = [id for id in (*spot.replicas, *spot.warming) if draft.is_here(id)]
    if advanced:
        best = min(advanced, key=lambda id: (-spot.reports[id].version, id not in spot.replicas, draft.loads[id], id))
        spot.reason = f"{fault}, and no replica is more advanced than version {spot.reports[best].version} here"
    elif assigned:
        best = min(assigned, key=lambda id: (not _value(draft, spot, id), draft.leads[id], draft.loads[id], id))
        spot.reason = f"{fault}, and it was to be restored here before"
    elif (picked := picker.pick(spot)) is not None:
        best = picked
        spot.reason = f"{fault}, and this member is the lightest ({picker.weight(best):.1f})"
    else:
        return  # nobody is here
    _lead(draft, spot, best)


def _lead(draft: Draft, spot: Spot, id: str) -> None:
    if id not in spot.replicas:
        draft.add(spot, id)
    draft.lead(spot, id)


def _is_away(draft: Draft, id: str) -> bool:
    return draft.presence[id] is Presence.AWAY


def _fault(draft: Draft, spot: Spot, now: str | None) -> str:
    """Why the active replica isn't where it was."""
    if now is None:
        return "the task is new" if spot.before is None else f"{spot.before.active} has left the group"
    if not draft.is_here(now):
        return f"{now} is {draft.presence[now].value}"
    lag = draft.lag(spot, now)
    return f"{now} has no replica yet" if lag is None else f"{now} is {lag} versions behind"


def fill(draft: Draft, picker: Picker) -> None:
    """Adds the standbys that are missing. What a leaving member has counts until it is replaced."""
    for spot in sorted(draft.spots, key=lambda each: -each.weight.hold):
        while len(spot.replicas) < draft.wanted(spot) or (spot.everywhere and not _has_all(draft, spot)):
            if (id := next((id for id in spot.warming if draft.is_here(id)), None) or picker.pick(spot)) is None:
                break
            draft.add(spot, id)


def _has_all(draft: Draft, spot: Spot) -> bool:
    return all(id in spot.replicas for id in draft.here)


def shed(draft: Draft) -> None:
    """Removes replicas that are no longer needed. One that was active until now stays for one more generation."""
    for spot in draft.spots:
        lasting, wanted = draft.lasting(spot), draft.wanted(spot)
        former = None if spot.before is None else spot.before.active
        if len(lasting) >= wanted and spot.active in lasting:
            for id in [id for id in spot.replicas if id not in lasting and id != former]:
                if _can_go(draft, spot, id, lasting):
                    draft.drop(spot, id)
        while len(lasting) > wanted:
            least = least_useful(draft, spot, lasting, [id for id in lasting if _can_go(draft, spot, id, lasting)])
            if least is not None and least == spot.active:
                best = min((id for id in draft.ready(spot) if id != least), key=lambda id: (draft.leads[id], id))
                spot.reason = f"caught up at version {spot.reports[best].version}, and {least} is to drop the task"
                draft.lead(spot, best)
                least = None
            if least is None or least == former:
                break
            draft.drop(spot, least)
            lasting.remove(least)


def _can_go(draft: Draft, spot: Spot, id: str, lasting: list[str]) -> bool:
    """Whether enough replicas are left without this one that are here and have as much as it has.

    One that is silent, or restarts, may not come back with its state: it is not a reason to drop one that answers.
    """
    if id == spot.active and not any(other != id for other in draft.ready(spot)):
        return False
    own = _value(draft, spot, id)
    left = [other for other in lasting if other != id and draft.is_here(other) and _value(draft, spot, other) >= own]
    return len(left) >= min(draft.wanted(spot), 1 + draft.rules.standbys)


def _value(draft: Draft, spot: Spot, id: str) -> float:
    """What a replica is worth: its version, or more than any if it answers. A load that has begun is not nothing."""
    if (hosted := spot.reports.get(id)) is None:
        return 0.0
    return math.inf if draft.answers(spot, id) else hosted.version or 0.5 * bool(hosted.loading)


def least_useful(draft: Draft, spot: Spot, among: list[str], able: Iterable[str]) -> str | None:
    """The one of `able` without which the others are best: spread over the tags, caught up, on the lightest members."""

    def key(id: str) -> tuple[tuple[int, ...], bool, float, str]:
        is_behind = not draft.is_close(spot, id) and id not in spot.warming
        load = draft.loads[id] if id in spot.warming else draft.load_without(spot, id)
        return draft.spread(other for other in among if other != id), is_behind, load, id

    return max((id for id in able if draft.is_here(id)), key=key, default=None)


def level_roles(draft: Draft) -> None:
    """Spreads the active roles by load, among replicas that are caught up."""
    options = [
        (spot, able)
        for spot in sorted(draft.spots, key=lambda each: -each.weight.lead)
        if spot.active is not None
        and draft.is_here(spot.active)
        and spot.standbys
        and (spot.everywhere or len(draft.lasting(spot)) <= draft.wanted(spot))
        and len(able := [id for id in spot.replicas if id == spot.active or draft.is_ready(spot, id)]) > 1
    ]
    mean = sum(draft.leads[id] for id in draft.here) / max(1, len(draft.here))
    rule = starts
    changed = True
    while changed:
        changed = False
        for spot, able in options:
            former = str(spot.active)
            light = min(able, key=lambda id: (draft.leads[id], id))
            if light != former and rule(draft.leads[former] - spot.weight.lead, draft.leads[light], mean):
                spot.reason = (
                    f"caught up at version {spot.reports[light].version} and lighter, with {draft.leads[light]:.1f} of "
                    f"active load against {draft.leads[former]:.1f} on {former}"
                )
                draft.lead(spot, light)
                changed, rule = True, improves
