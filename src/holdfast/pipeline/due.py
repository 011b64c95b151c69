"""What is due per sub-topology: in its stores, and by the operator's own schedule.

    replicas: next_due per store ─┐
                                  ├─► due per sub-topology ─► idle.py makes a version ─► must_run ─► tasks
    operator: next_due ───────────┘

Pure functions; `idle.py` acts on the result.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from holdfast.pipeline.driver import Step
from holdfast.stores.layouts.due import Due
from holdfast.topology.topology import Operator, SubTopology
from holdfast.words import Millis

CLOCK: Final = "the event clock"
"""The name under which a move of the event clock is due."""


def due_of(
    subtopologies: Iterable[SubTopology], stores: Mapping[str, Due], step: Step | None, clock_moves_at: Millis | None
) -> dict[str, Due]:
    """What is due next per sub-topology, given what is due in stores, and the next version if it were made at once."""
    found = {CLOCK: Due(hidden=clock_moves_at)}
    for each in subtopologies:
        of_stores = [stores[store.name] for store in each.stores if store.name in stores]
        found[each.name] = Due.soonest([*of_stores, Due(tasks=_by_itself(each.operator, step))])
    return found


def must_run(subtopology: SubTopology, due: Collection[str], step: Step) -> bool:
    """Whether the tasks of a sub-topology have to run in a version without a batch.

    Whatever a version is made for, a punctuator whose time has come by its clocks fires in it, or never.
    """
    if subtopology.operator.only_with_rows:
        return False
    own = _by_itself(subtopology.operator, step)
    return subtopology.name in due or (own is not None and own <= step.wall)


def _by_itself(operator: Operator, step: Step | None) -> int | None:
    return None if step is None or step.before is None else operator.next_due(step.before, step.event)
