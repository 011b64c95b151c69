"""What watchers get of each kind of store, from the log alone, and how the stream goes on from any of its events."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from examples.count_min_sketch import CountMinSketch
from holdfast.instance.log_reader import LogReader
from holdfast.log.appfile import AppSpec
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.query import watch_reader, watch_stream
from holdfast.query.store_specs import StoreSpecs
from holdfast.query.watch_changes import Interest, interest_in_key, interest_in_prefix
from holdfast.query.watch_places import EventPlace, event_ids, place_after
from holdfast.query.watch_reader import SharedReader
from holdfast.query.watch_stream import NewestVersion, Watcher
from holdfast.stores.access import Now
from holdfast.stores.formats.cells import Cell, pack
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.kinds.session import Session
from holdfast.stores.layouts.base import REWRITE_NOTE
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId, Version
from tests.instance.app_log import new_url
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import LEVELS
from tests.query.watched import Event, KindDriver, parsed

SINGLE = hf.KeyValueStore("single", value=int)
SLICED = hf.KeyValueStore("sliced", value=int, ttl="20s")
BOUNDED = hf.KeyValueStore("bounded", value=int, max_entries=2)
PLACES = hf.TimestampedKeyValueStore("places", value=str)
PRICES = hf.VersionedKeyValueStore("prices", value=int, retention="1m")
PLAYS = hf.WindowStore("plays", value=int, size="10s", retention="1m")
TWICE = hf.WindowStore("twice", value=int, size="10s", retention="1m", duplicates=True)
VISITS = hf.SessionStore("visits", key=(str, int), value=int, gap="5s", retention="1m")
WORDS = CountMinSketch("words", width=128)
FLEETING = hf.KeyValueStore("fleeting", value=int, durable=False)
DECLARED: tuple[Any, ...] = (SINGLE, SLICED, BOUNDED, PLACES, PRICES, PLAYS, TWICE, VISITS, WORDS, FLEETING)
SPECS = (*(store.spec() for store in DECLARED), LEVELS)
APP = AppSpec(id="game", partitions=2, stores=SPECS, subtopologies=subtopologies_of({spec.name: 0 for spec in SPECS}))
TASK, OTHER = TaskId(0, 0), TaskId(0, 1)
START = 1_000_000
NOW = Now(START, START)
BEGINNING, EVERYTHING = EventPlace(Version(1)), Interest()


@pytest.fixture
def driver() -> KindDriver:
    return KindDriver(Log.create_or_open(open_storage(new_url()), APP))


def events_of(log: Log, store: str, begin: EventPlace = BEGINNING, interest: Interest = EVERYTHING) -> list[Event]:
    """All events of a store from a place on, as one watcher gets them."""
    source = LogReader(log)
    source.newest()

    async def collected(threads: ThreadPoolExecutor) -> bytes:
        reader = SharedReader(source, StoreSpecs(source), store, threads)
        newest = NewestVersion(source)
        found = bytearray()
        async for frames in Watcher(store, interest, begin, log.id, reader, newest, heartbeat=0.0001).events():
            found += (each := b"".join(frames))
            at_end = each.startswith(b": heartbeat") and b"." not in each
            if at_end and int(each.split(b"-")[1]) == source.newest_known:
                newest.close()
        return bytes(found)

    with ThreadPoolExecutor(1) as threads:
        *found, end = parsed(asyncio.run(collected(threads)).decode().splitlines())
    assert (end.name, end.data["error"]) == ("end", "stopping")
    return [event for event in found if event.data is not None]


def seen(driver: KindDriver, store: Any, interest: Interest = EVERYTHING) -> list[Any]:
    """The changes of a store without what every event has."""
    found = [event.data for event in events_of(driver.log, store.name, interest=interest)]
    return [{name: value for name, value in data.items() if name not in ("committed", "task")} for data in found]


def putting(*puts: tuple[Any, ...]) -> Callable[[Any], None]:
    """Puts these into a store."""

    def use(store: Any) -> None:
        for put in puts:
            store.put(*put)

    return use


def test_a_put_a_change_and_a_delete_are_one_event_each(driver: KindDriver) -> None:
    driver.commit(SINGLE, TASK, NOW, lambda store: store.put("ann", 1))
    driver.commit(SINGLE, TASK, NOW, lambda store: store.put("ann", 2))
    driver.commit(PLACES, TASK, NOW, lambda store: store.put("ann", "Oslo", START))  # nothing of this store
    driver.commit(SINGLE, TASK, NOW, lambda store: store.delete("ann"))
    log = driver.log
    events = events_of(log, "single")
    assert [event.data for event in events] == [
        {"key": "ann", "value": 1, "version": 1, "committed": 1, "task": "0_0"},
        {"key": "ann", "value": 2, "version": 2, "committed": 2, "task": "0_0"},
        {"key": "ann", "deleted": True, "version": 4, "committed": 4, "task": "0_0"},
    ]
    commits = [commit for each in (1, 2, 4) if (commit := log.commit(Version(each))) is not None]
    assert [event.id for event in events] == [f"{event_ids(log.id, *each.point)}.0.0" for each in commits]


def test_an_entry_that_expires_is_a_delete_where_the_log_has_one(driver: KindDriver) -> None:
    """As for sinks: a store with a TTL of its own drops its entries without a change; an entry's own TTL is one."""
    driver.commit(SINGLE, TASK, NOW, lambda store: store.put("ann", 1, ttl="1s"))
    driver.commit(SLICED, TASK, NOW, lambda store: store.put("ann", 1))
    later = Now(START + 60_000, START + 60_000)
    driver.commit(SINGLE, TASK, later, lambda store: None)
    driver.commit(SLICED, TASK, later, lambda store: store.put("bob", 2))
    assert seen(driver, SINGLE) == [
        {"key": "ann", "value": 1, "expires": START + 1_000, "version": 1},
        {"key": "ann", "deleted": True, "version": 3},
    ]
    assert seen(driver, SLICED) == [
        {"key": "ann", "value": 1, "expires": START + 20_000, "version": 2},
        {"key": "bob", "value": 2, "expires": START + 80_000, "version": 4},
    ]


def test_an_evicted_entry_is_deleted(driver: KindDriver) -> None:
    for version, key in enumerate(("ann", "bob", "cleo"), start=1):
        driver.commit(BOUNDED, TASK, NOW, putting((key, version)))
    assert seen(driver, BOUNDED)[2:] == [
        {"key": "ann", "deleted": True, "version": 3},
        {"key": "cleo", "value": 3, "version": 3},
    ]


def test_of_a_versioned_store_the_latest_values_are_events(driver: KindDriver) -> None:
    driver.commit(PRICES, TASK, NOW, lambda store: store.put("tea", 3, START))
    driver.commit(PRICES, TASK, NOW, lambda store: store.put("tea", 4, START + 1_000))
    driver.commit(PRICES, TASK, NOW, lambda store: store.put("tea", 2, START - 1_000))  # changes the history alone
    assert seen(driver, PRICES) == [
        {"key": "tea", "value": 3, "timestamp": START, "version": 1},
        {"key": "tea", "value": 4, "timestamp": START + 1_000, "version": 2},
    ]


def test_windows_and_sessions_have_their_times(driver: KindDriver) -> None:
    driver.commit(PLAYS, TASK, NOW, lambda store: store.put("ann", 1, START))
    driver.commit(TWICE, TASK, NOW, lambda store: [store.put("ann", n, START) for n in (1, 2)])
    first, merged = Session(("ann", 7), START, START), Session(("ann", 7), START, START + 3_000)
    driver.commit(VISITS, TASK, NOW, lambda store: store.put(first, 1))
    driver.commit(VISITS, TASK, NOW, lambda store: [store.remove(first), store.put(merged, 2)])
    window = {"key": "ann", "start": START, "end": START + 10_000}
    assert seen(driver, PLAYS) == [{**window, "value": 1, "version": 1}]
    assert seen(driver, TWICE) == [{**window, "value": n, "version": 2} for n in (1, 2)]
    session = {"key": ["ann", 7], "start": START, "end": START}
    assert seen(driver, VISITS) == [
        {**session, "value": 1, "version": 3},
        {**session, "deleted": True, "version": 4},
        {**session, "end": START + 3_000, "value": 2, "version": 4},
    ]


def test_a_store_of_your_own_kind_shows_its_entries_as_they_are_stored(driver: KindDriver) -> None:
    driver.commit(WORDS, TASK, NOW, lambda store: store.add("home", "ann"))
    found = seen(driver, WORDS)
    assert found and all(event["key"][0] == "home" and isinstance(event["value"], str) for event in found)


def test_a_rewrite_is_no_event(driver: KindDriver) -> None:
    cell = pack(Cell(msgspec.msgpack.encode(1)))
    note = pack(Cell(b"{}"))
    driver.write("single", {TASK: {encode_key(SINGLE.spec().key, ["ann"]): cell, REWRITE_NOTE: note}})
    assert seen(driver, SINGLE) == []


def test_changes_of_a_former_store_of_the_name_are_no_events(driver: KindDriver) -> None:
    driver.commit(SINGLE, TASK, NOW, lambda store: store.put("ann", 1))
    again = tuple(msgspec.structs.replace(spec, after=1) if spec.name == "single" else spec for spec in SPECS)
    driver.log.app = msgspec.structs.replace(driver.log.app, stores=again)
    driver.commit(SINGLE, TASK, NOW, lambda store: store.put("ann", 2))
    assert [event["value"] for event in seen(driver, SINGLE)] == [2]


def test_what_cannot_be_read_is_an_event_with_an_error(driver: KindDriver) -> None:
    key = encode_key(LEVELS.key, ["ann", 1])
    driver.write("levels", {TASK: {key: pack(Cell(b"\xc1")), key + b"more": pack(Cell(b"\x01"))}})
    broken, unknown = seen(driver, LEVELS)
    assert broken["key"] == ["ann", 1] and "can't be read" in broken["error"]
    assert unknown["key"] is None and key.hex() in unknown["error"]


def keys_of(driver: KindDriver, store: Any, interest: Interest) -> list[tuple[Any, int]]:
    return [(event["key"], event["version"]) for event in seen(driver, store, interest)]


def test_a_key_or_a_prefix_of_strings(driver: KindDriver) -> None:
    for key in ("ann", "anna", "bob"):
        driver.commit(SINGLE, TASK, NOW, putting((key, 1)))
    spec = SINGLE.spec()
    assert keys_of(driver, SINGLE, interest_in_key(spec, "ann", 2)) == [("ann", 1)]
    assert keys_of(driver, SINGLE, interest_in_prefix(spec, "ann")) == [("ann", 1), ("anna", 2)]
    assert len(keys_of(driver, SINGLE, interest_in_prefix(spec, ""))) == 3


def test_a_key_or_a_prefix_of_windows_and_sessions(driver: KindDriver) -> None:
    for key in ("ann", "anna"):
        driver.commit(PLAYS, TASK, NOW, putting((key, 1, START), (key, 1, START + 10_000)))
        driver.commit(VISITS, TASK, NOW, putting((Session((key, 7), START, START), 1)))
    plays, visits = PLAYS.spec(), VISITS.spec()
    assert keys_of(driver, PLAYS, interest_in_key(plays, "ann", 2)) == [("ann", 1)] * 2
    assert keys_of(driver, PLAYS, interest_in_prefix(plays, "an")) == [("ann", 1)] * 2 + [("anna", 3)] * 2
    assert keys_of(driver, VISITS, interest_in_key(visits, '["ann",7]', 2)) == [(["ann", 7], 2)]
    assert keys_of(driver, VISITS, interest_in_prefix(visits, '["ann"]')) == [(["ann", 7], 2)]
    assert keys_of(driver, VISITS, interest_in_key(visits, '["ann",8]', 2)) == []


Cells = dict[bytes, bytes | None]


@st.composite
def histories(draw: st.DrawFn) -> list[dict[TaskId, Cells]]:
    """Versions of the store `levels`: what each task changes."""
    values = st.one_of(st.none(), st.integers(0, 9).map(lambda n: pack(Cell(msgspec.msgpack.encode(n)))))
    keys = st.tuples(st.sampled_from(["a", "ab", "b", "a\0", ""]), st.integers(-1, 2)).map(
        lambda key: encode_key(LEVELS.key, key)
    )
    return draw(
        st.lists(st.dictionaries(st.sampled_from([TASK, OTHER]), st.dictionaries(keys, values, max_size=6)), max_size=5)
    )


@pytest.fixture(scope="module", autouse=True)
def _small_steps() -> Iterator[None]:
    """Several pieces per version and several sends per piece."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_reader, "PIECE_BYTES", 60)
        patch.setattr(watch_stream, "_ROWS_AT_ONCE", 2)
        yield


@given(history=histories(), wanted=st.sampled_from([None, '["a",1]', '["a"]', '["ab"]']))
def test_a_stream_goes_on_after_any_event_without_gap_or_repeat(
    history: list[dict[TaskId, Cells]], wanted: str | None
) -> None:
    driver = KindDriver(Log.create_or_open(open_storage(new_url()), APP))
    for version in history:
        driver.write("levels", version)
    interest = _interest(LEVELS, wanted)
    events = events_of(driver.log, "levels", interest=interest)
    expected = [
        (number, str(task), key, cell is None)
        for number, version in enumerate(history, start=1)
        for task in (TASK, OTHER)
        for key, cell in sorted(version.get(task, {}).items())
        if interest.start <= key and (interest.stop is None or key < interest.stop)
    ]
    got = [
        (e.data["version"], e.data["task"], encode_key(LEVELS.key, e.data["key"]), "deleted" in e.data) for e in events
    ]
    assert got == expected
    for n, event in enumerate(events):
        assert event.id is not None
        rest = events_of(driver.log, "levels", place_after(event.id, driver.log.id), interest)
        assert rest == events[n + 1 :]


def _interest(spec: StoreSpec, wanted: str | None) -> Interest:
    if wanted is None:
        return EVERYTHING
    return interest_in_key(spec, wanted, 2) if "," in wanted else interest_in_prefix(spec, wanted)
