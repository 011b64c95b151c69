"""When a snapshot is due: by size, by ratio, by age."""

from datetime import timedelta

import pytest

from holdfast.log.snapshot_policy import Due, snapshot_due

MIB = 1 << 20


@pytest.mark.parametrize(
    ("versions", "tail", "snapshot", "minutes", "due"),
    [
        (0, 0, None, 99, None),  # no new version
        (1, 10 * MIB, None, 1, None),  # the first snapshot waits for size or age
        (1, 256 * MIB, None, 0, Due.SIZE),
        (1, 1, None, 10, Due.AGE),
        (3, 20 * MIB, 10 * MIB, 0, Due.RATIO),
        (3, 19 * MIB, 10 * MIB, 0, None),
        (3, MIB - 1, 100, 0, None),  # a small store doesn't get a snapshot per version
        (3, 0, 100, 10, Due.AGE),  # so that cleaning continues although the task changes nothing
        (3, 256 * MIB, 10_000 * MIB, 0, Due.SIZE),
    ],
)
def test_snapshot_due(versions: int, tail: int, snapshot: int | None, minutes: int, due: Due | None) -> None:
    assert due is snapshot_due(
        tail_versions=versions,
        tail_bytes=tail,
        snapshot_bytes=snapshot,
        since=timedelta(minutes=minutes),
        ratio=2.0,
        size=256 * MIB,
        age=timedelta(minutes=10),
    )
