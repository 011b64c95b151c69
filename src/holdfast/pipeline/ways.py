"""Which way a table's next batch goes, by what its last ones were like.

A stream is much the same from batch to batch. So the last batch tells how many records share a key, and whether a
record can't be used now and then, for which a fast way would be tried in vain.
"""

from dataclasses import dataclass

from holdfast.pipeline.layout import Way

SHARED = 2.0
"""From how many records a key on aggregating before the exchange pays (docs/decisions/0012)."""

CAREFUL_BATCHES = 100
"""How many batches go the careful way after one that had to: a vain try costs more than the detour."""


@dataclass
class Chooser:
    """One table's ways so far, and the next.

    >>> chooser = Chooser(can_be_raw=True)
    >>> chooser.way
    <Way.GROUPED: 'grouped'>
    >>> chooser.saw(records=1000, keys=900)
    >>> chooser.way
    <Way.RAW: 'raw'>
    """

    can_be_raw: bool
    records_a_key: float = SHARED
    careful_for: int = 0

    @property
    def way(self) -> Way:
        if self.careful_for:
            return Way.CAREFUL
        return Way.RAW if self.can_be_raw and self.records_a_key < SHARED else Way.GROUPED

    def saw(self, records: int, keys: int, *, needed_care: bool = False) -> None:
        """What the batch turned out to be. One without keys tells nothing about them."""
        if keys:
            self.records_a_key = records / keys
        self.careful_for = CAREFUL_BATCHES if needed_care else max(0, self.careful_for - 1)
