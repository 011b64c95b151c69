"""Which plan a table's next batch takes, by what its last ones were like.

A stream is much the same from batch to batch. So the last batch tells how many records share a key, and whether a
record can't be used now and then, for which a fast plan would be tried in vain.
"""

from dataclasses import dataclass

from holdfast.pipeline.task_columns import BatchPlan

SHARED = 2.0
"""From how many records per key on aggregating before the exchange pays (docs/decisions/0012)."""

DEAD_LETTER_BATCHES = 100
"""How many batches take the plan with dead letters after one that needed it: a rejected plan costs more."""


@dataclass
class PlanChooser:
    """What one table's batches were like, and the plan of the next.

    >>> chooser = PlanChooser(can_be_raw=True)
    >>> chooser.plan
    <BatchPlan.GROUPED: 'grouped'>
    >>> chooser.saw(records=1000, keys=900)
    >>> chooser.plan
    <BatchPlan.RAW: 'raw'>
    """

    can_be_raw: bool
    records_per_key: float = SHARED
    dead_letters_for: int = 0

    @property
    def plan(self) -> BatchPlan:
        if self.dead_letters_for:
            return BatchPlan.WITH_DEAD_LETTERS
        return BatchPlan.RAW if self.can_be_raw and self.records_per_key < SHARED else BatchPlan.GROUPED

    def saw(self, records: int, keys: int, *, dead_letters: bool = False) -> None:
        """What the batch turned out to be. One without keys tells nothing about them."""
        if keys:
            self.records_per_key = records / keys
        self.dead_letters_for = DEAD_LETTER_BATCHES if dead_letters else max(0, self.dead_letters_for - 1)
