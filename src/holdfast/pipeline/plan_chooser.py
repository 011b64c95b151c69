"""Chooses the plan of an aggregation's next batch from its last batches.

Batches of a stream are similar. The last ones show how many records share a key, and whether there are unusable
records, for which a fast plan would fail.
"""

from dataclasses import dataclass

from holdfast.pipeline.task_columns import BatchPlan

SHARED = 2.0
"""From this many records per key, aggregating before the shuffle is faster (docs/decisions/0012)."""

DEAD_LETTER_BATCHES = 100
"""How many batches use the plan with dead letters after one that needed it. A rejected plan costs more."""


@dataclass
class PlanChooser:
    """Chooses the plan of the next batch of one aggregation.

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
        """Records the numbers of a batch."""
        if keys:
            self.records_per_key = records / keys
        self.dead_letters_for = DEAD_LETTER_BATCHES if dead_letters else max(0, self.dead_letters_for - 1)


@dataclass
class FailureMemory:
    """Whether expressions of a stream are expected to fail for a record: then its batches are checked at once.

    >>> memory = FailureMemory()
    >>> memory.saw(failed=True)
    >>> memory.expected
    True
    """

    checked_for: int = 0

    @property
    def expected(self) -> bool:
        return self.checked_for > 0

    def saw(self, *, failed: bool) -> None:
        """Records whether a record of a batch has failed."""
        self.checked_for = DEAD_LETTER_BATCHES if failed else max(0, self.checked_for - 1)
