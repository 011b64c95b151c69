"""A warning where a test pipes records too far ahead of its wall clock: they are dead letters, as in an app."""

import warnings
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.topology.topology import Source, SubTopology
from holdfast.words import Millis


class RecordAhead(UserWarning):
    """A record's event time is further ahead of the test's wall clock than `batch.max_ahead`."""


def warn_of_times(
    subtopologies: Iterable[SubTopology], tables: Mapping[str, pa.Table], wall: Millis, max_ahead: timedelta
) -> None:
    """Warns of the latest record of each source that is too far ahead, by the time that the source's records have."""
    latest = wall + max_ahead // timedelta(milliseconds=1)
    columns = {
        (branch.origin.name, each.stream.timestamp): None
        for each in subtopologies
        for branch in each.stream.branches
        if isinstance(branch.origin, Source)
    }
    for name, column in columns:
        if column is None or column not in tables.get(name, pa.table({})).column_names:
            continue
        newest = pc.max(tables[name][column].cast(pa.timestamp("us")).cast(pa.int64())).as_py()
        if newest is not None and newest >= (latest + 1) * 1000:
            warnings.warn(
                f"A record of {name!r} has the event time {_shown(newest)}, more than {max_ahead} (batch.max_ahead) "
                f"ahead of the test's wall clock, {_shown(wall * 1000)}: it is a dead letter. Call "
                'driver.advance("...") before, or start the clock elsewhere with TestDriver(app, wall=...).',
                RecordAhead,
                stacklevel=4,
            )


def _shown(micros: int) -> str:
    try:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
    except OverflowError:
        return f"{micros // 1000} ms since 1970"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
