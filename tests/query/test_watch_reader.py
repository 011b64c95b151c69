"""The shared reader of watchers: what it keeps, and that a read is shared whatever its watchers do."""

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from holdfast.errors import StorageUnavailable
from holdfast.instance.log_reader import LogReader
from holdfast.log.commits import Commit
from holdfast.log.log import Log
from holdfast.log.segments import STATE, STATE_SCHEMA, seal
from holdfast.log.storage import open_storage
from holdfast.query.store_specs import StoreSpecs
from holdfast.query.watch_changes import Interest
from holdfast.query.watch_reader import NewestFirst, SharedReader
from holdfast.stores.formats.keys import encode_key
from holdfast.words import TaskId, Version
from tests.instance.app_log import new_url
from tests.log.making import app_spec, grow, next_commit, store_spec


def kept(values: NewestFirst[str], *keys: tuple[int, int]) -> list[tuple[int, int]]:
    return [key for key in keys if values.find((Version(key[0]), key[1])) is not None]


def keep(values: NewestFirst[str], *keys: tuple[int, int], size: int = 10) -> None:
    for version, piece in keys:
        values.keep((Version(version), piece), "x", size)


def test_the_smallest_versions_are_dropped_first() -> None:
    values: NewestFirst[str] = NewestFirst(30)
    keep(values, (3, 0), (1, 0), (2, 0))
    assert (values.dropped, values.bytes) == (0, 30)
    keep(values, (4, 0))
    assert kept(values, (1, 0), (2, 0), (3, 0), (4, 0)) == [(2, 0), (3, 0), (4, 0)]
    assert (values.dropped, values.bytes) == (1, 30)


def test_older_versions_push_out_none_of_the_newest() -> None:
    values: NewestFirst[str] = NewestFirst(40)
    keep(values, *((version, 0) for version in range(1, 8)))
    newest = [(4, 0), (5, 0), (6, 0), (7, 0)]
    assert (values.dropped, kept(values, *newest)) == (3, newest)
    keep(values, (1, 0), (2, 0))  # a watcher catches up
    assert (values.dropped, kept(values, (1, 0), (2, 0), *newest)) == (3, [(2, 0), *newest])


def test_a_version_larger_than_everything_makes_nobody_slow() -> None:
    values: NewestFirst[str] = NewestFirst(30)
    keep(values, (1, 0), *((2, piece) for piece in range(6)))
    assert values.dropped == 1
    assert kept(values, *((2, piece) for piece in range(6))) == [(2, 3), (2, 4), (2, 5)]
    keep(values, (3, 0), size=1000)
    assert (values.dropped, kept(values, (3, 0))) == (2, [(3, 0)])


class Slowly(LogReader):
    """Reads of version 1 wait for a signal, and fail as often as asked."""

    def __init__(self, log: Log, failures: int = 0) -> None:
        super().__init__(log)
        self.go_on, self.reads, self._failures = threading.Event(), 0, failures

    def commit(self, version: Version) -> Commit | None:
        self.reads += 1
        assert self.go_on.wait(30)
        if self.reads <= self._failures:
            raise StorageUnavailable("a test wants it.")
        return super().commit(version)


@pytest.fixture
def log() -> Log:
    found = Log.create_or_open(open_storage(new_url()), app_spec())
    grow(found, 1)
    return found


def test_a_watcher_that_leaves_does_not_end_the_read_of_the_others(log: Log) -> None:
    source = Slowly(log)

    async def run(threads: ThreadPoolExecutor) -> int:
        reader = SharedReader(source, StoreSpecs(source), "counts", threads)
        leaves, *stay = [asyncio.ensure_future(reader.version(Version(1))) for _ in range(3)]
        await asyncio.sleep(0)
        leaves.cancel()
        source.go_on.set()
        return len({id(version) for version in await asyncio.gather(*stay)})

    with ThreadPoolExecutor(1) as threads:
        assert asyncio.run(run(threads)) == 1
    assert source.reads == 1


def test_a_read_that_fails_is_not_kept(log: Log) -> None:
    source = Slowly(log, failures=1)
    source.go_on.set()

    async def run(threads: ThreadPoolExecutor) -> list[object]:
        reader = SharedReader(source, StoreSpecs(source), "counts", threads)
        both = await asyncio.gather(*(reader.version(Version(1)) for _ in range(2)), return_exceptions=True)
        return [*both, (await reader.version(Version(1))).commit.version]

    with ThreadPoolExecutor(1) as threads:
        first, second, third = asyncio.run(run(threads))
    assert isinstance(first, StorageUnavailable) and isinstance(second, StorageUnavailable)
    assert (third, source.reads) == (1, 2)


def test_what_a_watcher_of_a_key_gets_is_found_on_the_event_loop_without_a_sort() -> None:
    keys = [encode_key(store_spec().key, [f"user-{n}"]) for n in range(50_000)]
    random.Random(1).shuffle(keys)
    log = Log.create_or_open(open_storage(new_url()), app_spec())
    table = pa.table({"key": keys, "value": [None] * len(keys)}, schema=STATE_SCHEMA)
    ref = log.write_segment(TaskId(0, 0), Version(1), seal([(STATE, "counts", table)]), inline_limit=1 << 30)
    log.create_commit(next_commit(log, None, {"0_0": (ref,)}))
    source = LogReader(log)

    async def run(threads: ThreadPoolExecutor) -> tuple[list[int], float]:
        reader = SharedReader(source, StoreSpecs(source), "counts", threads)
        [changes] = await reader.changes(await reader.version(Version(1)), 0)
        began = time.thread_time()
        found = changes.rows(Interest(keys[7], keys[7] + b"\x00"))
        return list(found), time.thread_time() - began

    with ThreadPoolExecutor(1) as threads:
        found, taken = asyncio.run(run(threads))
    began = time.thread_time()
    sorted(range(len(keys)), key=keys.__getitem__)
    assert found == [7]
    assert taken < (time.thread_time() - began) / 5
