"""When a snapshot is due: by size, by ratio, by age."""

from datetime import timedelta

import pytest

from holdfast.instance.snapshotter import is_due
from holdfast.settings.sections import SnapshotSettings

MIB = 1 << 20


@pytest.mark.parametrize(
    ("versions", "tail", "snapshot", "minutes", "due"),
    [
        (0, 0, None, 99, False),  # no new version
        (1, 10 * MIB, None, 1, False),  # the first snapshot waits for size or age
        (1, 256 * MIB, None, 0, True),
        (1, 1, None, 10, True),
        (3, 20 * MIB, 10 * MIB, 0, True),
        (3, 19 * MIB, 10 * MIB, 0, False),
        (3, MIB - 1, 100, 0, False),  # a small store doesn't get a snapshot per version
        (3, 0, 100, 10, True),  # so that cleaning continues although the task changes nothing
        (3, 256 * MIB, 10_000 * MIB, 0, True),
    ],
)
def test_a_snapshot_is_due_by_size_ratio_or_age(
    versions: int, tail: int, snapshot: int | None, minutes: int, due: bool
) -> None:
    limits = SnapshotSettings(ratio=2.0, bytes="256MiB", age="10m")
    since = timedelta(minutes=minutes)
    assert due is is_due(limits, tail_versions=versions, tail_bytes=tail, snapshot_bytes=snapshot, since=since)
