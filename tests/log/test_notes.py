"""What a start says beforehand: sinks that are new or come back, and a wall clock that is far from the log's."""

import re
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from holdfast.log import names
from holdfast.log.commits import Clocks, Commit
from holdfast.log.log import Log
from holdfast.log.notes import clock_notes, sink_notes
from holdfast.log.objects import Storage
from holdfast.stores.spec import StoreSpec
from holdfast.words import Millis, Version
from tests.log.making import app_spec, grow, store_spec
from tests.pipeline.test_protocol import commit

BACK = "is back after the app ran without it"
CLEANED = "which are no longer in the log"
HOUR, DAY = 3_600_000, 86_400_000


def spec(**options: Any) -> StoreSpec:
    return structs.replace(store_spec("a"), **options)


def at_version_9(storage: Storage, **sinks: int) -> tuple[Log, Commit]:
    log = Log.create_or_open(storage, app_spec(store_spec("a")))
    grow(log, 9)
    newest = log.newest()
    assert newest is not None
    log.sinks.mark(newest, {name: Version(at) for name, at in sinks.items()})
    return log, newest


def test_sinks_that_are_new_or_back_are_named_with_the_versions_they_miss(storage: Storage) -> None:
    log, newest = at_version_9(storage, files=9, crashed=8, back=6, gone=2, **{"folder:1f": 9})
    log.storage.delete([names.commit(Version(version)) for version in range(1, 6)])
    assert sink_notes(["files"], newest, log.chain) == [
        "sink 'crashed' is not in the code any more: it gets no further versions"
    ]
    found = sink_notes(["files", "crashed", "back", "gone", "new"], newest, log.chain)
    assert found == [
        f"sink 'back' {BACK}. The log still has what it lacks: it gets versions 7 to 9 first",
        f"sink 'gone' {BACK}. It has missed versions 3 to 5, {CLEANED}, and goes on with version 6",
        "sink 'new' is new: it gets the versions after version 9",
    ]


@pytest.mark.parametrize(
    ("store", "now", "said"),
    [
        (spec(ttl_ms=HOUR), DAY + HOUR, None),
        (store_spec("a"), 9 * DAY, None),
        (spec(retention_ms=HOUR), 9 * DAY, None),
        (spec(ttl_ms=HOUR), 3 * DAY, "says 1970-01-04 .* made at 1970-01-02 .*, 2d before.* of 'a' expire"),
        (spec(retention_ms=HOUR, clock="wall"), 3 * DAY, "2d before.* of 'a' expire"),
        (spec(ttl_ms=HOUR), 0, "1d later. Until this clock has come that far, no entry of 'a' expires"),
    ],
)
def test_a_clock_far_from_that_of_the_log_is_named_with_what_would_expire(
    store: StoreSpec, now: int, said: str | None
) -> None:
    """After a long downtime it is right, so the start isn't refused."""
    newest = commit(9, None, Clocks(wall=DAY, event=None, sources={}))
    found = clock_notes(newest, [store], Millis(now), timedelta(hours=1))
    if said is None:
        assert found == []
    else:
        [note] = found
        assert re.search(said, note), note
