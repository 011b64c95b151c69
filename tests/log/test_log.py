"""The log: which driver's commit wins, how the newest version is found, what a start checks."""

import itertools
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest

from holdfast import faults
from holdfast.chance import Random, new_id
from holdfast.errors import DamagedObject, ErrorCategory, StorageUnavailable
from holdfast.log import commits, names
from holdfast.log.appfile import AppChanged
from holdfast.log.commits import Commit, Writer
from holdfast.log.log import BrokenChain, Log, LogMissing, LostRace, WrittenSegments
from holdfast.log.objects import Storage
from holdfast.log.segments import DEAD, OUTPUT, STATE, STATE_SCHEMA, Compression, seal
from holdfast.words import NOTHING, TaskId, Version
from tests.log import making
from tests.log.making import TASK, Watched, app_spec, changes, grow, sealed, store_spec


def test_a_log_is_created_once_and_opened_afterwards(storage: Storage) -> None:
    with pytest.raises(LogMissing, match="log.url") as raised:
        Log.open(storage)
    assert raised.value.category is ErrorCategory.INVALID
    created = Log.create_or_open(storage, app_spec())
    assert len(created.id) == 32
    again, opened = Log.create_or_open(storage, app_spec()), Log.open(storage)
    assert created.id == again.id == opened.id
    assert created.app == again.app == opened.app
    assert storage.list(names.APPS) == ["app/00000000000000000001.json"]


def test_two_starts_at_once_create_one_log(memory: Storage) -> None:
    others: list[Log] = []

    def meanwhile(call: str, name: str) -> None:
        if call == "create" and not others:
            others.append(Log.create_or_open(memory, app_spec()))

    mine = Log.create_or_open(Watched(memory, before=meanwhile), app_spec())
    assert mine.id == others[0].id


def test_a_store_can_be_added(storage: Storage) -> None:
    before = Log.create_or_open(storage, app_spec())
    grow(before, 1)
    after = Log.create_or_open(storage, app_spec(store_spec(), store_spec("peaks")))
    assert (before.app.number, after.app.number) == (1, 2)
    assert after.id == before.id
    assert Log.open(storage).app == before.app, "nothing is committed with the second file yet"
    grow(after, 1)
    assert Log.open(storage).app == after.app
    assert after.app_at(1) == before.app


def test_a_start_that_fails_decides_nothing(storage: Storage) -> None:
    waiting = Log.create_or_open(storage, app_spec(partitions=4))
    for _ in range(3):
        Log.create_or_open(storage, app_spec(partitions=8))  # a mistake; this start fails later on
    grow(waiting, 1)
    with pytest.raises(AppChanged, match=r"4 partitions; the settings say 8. Set partitions=4"):
        Log.create_or_open(storage, app_spec(partitions=8))
    again = Log.create_or_open(storage, app_spec(partitions=4))
    assert again.app == waiting.app
    for _ in range(3):
        Log.create_or_open(storage, app_spec(store_spec(), store_spec("peaks"), partitions=4))
    assert Log.create_or_open(storage, app_spec(partitions=4)).app == waiting.app
    assert len(storage.list(names.APPS)) == 3, "one file per content, however often a start is tried"


def test_a_file_takes_effect_only_after_the_file_it_was_compared_with(storage: Storage) -> None:
    grow(Log.create_or_open(storage, app_spec()), 1)
    mine = Log.create_or_open(storage, app_spec(store_spec(), store_spec("peaks")))
    theirs = Log.create_or_open(storage, app_spec(store_spec(), store_spec("sums")))
    newest = grow(theirs, 1)
    with pytest.raises(LostRace, match="app file 3, and this driver's app file 2 follows 1: process 41 on host-a"):
        mine.create_commit(making.next_commit(mine, newest))
    assert mine.newest() == newest


@pytest.mark.parametrize("data", [b"", b"garbage", b'{"checksum":"00000000000000000000000000000000","format":9}'])
def test_an_unreadable_file_that_no_commit_names_is_passed_over(storage: Storage, data: bytes) -> None:
    first = Log.create_or_open(storage, app_spec())
    grow(first, 1)
    storage.create(names.app(2), data)
    assert Log.create_or_open(storage, app_spec()).app == first.app
    added = Log.create_or_open(storage, app_spec(store_spec(), store_spec("peaks")))
    assert (added.app.number, added.app.follows) == (3, 1)
    assert Log.create_or_open(storage, app_spec(store_spec(), store_spec("peaks"))).app == added.app


def test_an_app_file_whose_put_lost_its_answer_is_used(memory: Storage) -> None:
    def answer_lost(call: str, name: str) -> None:
        if call == "create" and name.startswith(names.APPS):
            raise StorageUnavailable("connection reset")

    with pytest.raises(StorageUnavailable):
        Log.create_or_open(Watched(memory, after=answer_lost), app_spec())
    assert Log.create_or_open(memory, app_spec()).app.number == 1


def test_the_order_of_declaration_does_not_matter(storage: Storage) -> None:
    a, b = store_spec("a"), store_spec("b")
    Log.create_or_open(storage, app_spec(a, b))
    assert Log.create_or_open(storage, app_spec(b, a)).app.number == 1


def test_an_app_may_change_freely_until_its_first_version(storage: Storage) -> None:
    before = Log.create_or_open(storage, app_spec(partitions=4))
    after = Log.create_or_open(storage, app_spec(store_spec(key="bigint"), partitions=2))
    assert (after.id, after.app.number, after.app.partitions) == (before.id, 2, 2)
    assert Log.create_or_open(storage, app_spec(partitions=4)).app == before.app
    with pytest.raises(AppChanged, match=r"Give 'another-app' a log.url of its own, or start it as"):
        Log.create_or_open(storage, msgspec.structs.replace(app_spec(), id="another-app"))


def test_a_changed_app_is_refused_with_every_difference(storage: Storage) -> None:
    grow(Log.create_or_open(storage, app_spec(partitions=4)), 1)
    with pytest.raises(AppChanged) as raised:
        Log.create_or_open(storage, app_spec(store_spec(key="bigint"), partitions=2))
    message = str(raised.value)
    assert "4 partitions" in message
    assert "partitions=4" in message
    assert "'counts'" in message
    assert storage.place in message
    assert len(raised.value.differences) == 2
    assert raised.value.category is ErrorCategory.INVALID


def test_an_empty_log_has_no_newest_version(log: Log) -> None:
    assert log.newest() is None
    assert log.newest(Version(7)) is None
    assert log.commit(Version(1)) is None


def test_the_newest_version_is_found_from_any_hint(log: Log) -> None:
    newest = grow(log, 13, inline_limit=1 << 20)
    for hint in range(20):
        assert log.newest(Version(hint)) == newest
    assert log.commit(Version(13)) == newest


def test_the_newest_version_is_found_without_listing_all_commits(memory: Storage) -> None:
    newest = grow(Log.create_or_open(memory, app_spec()), 1000, inline_limit=1 << 20)
    watched = Watched(memory)
    log = Log.open(watched)
    watched.calls.clear()
    assert log.newest() == newest
    assert len(watched.calls) < 30
    assert not [name for call, name in watched.calls if call.startswith("list") and name == names.COMMITS]
    watched.calls.clear()
    log.newest(Version(999))
    assert len(watched.calls) <= 6


def test_a_search_for_the_newest_version_starts_over_when_a_cleaning_overtakes_it(memory: Storage) -> None:
    log = Log.create_or_open(memory, app_spec())
    newest = grow(log, 40, inline_limit=1 << 20)
    # The commits before 30 are deleted during the search; the snapshot at 30 is where it continues.
    manifest = names.manifest(TASK, Version(30))

    def clean(call: str, name: str) -> None:
        if call == "exists" and name == names.commit(Version(4)) and not memory.exists(manifest):
            memory.create(manifest, b"")
            memory.delete([names.commit(Version(version)) for version in range(1, 30)])

    assert Log.open(Watched(memory, before=clean)).newest() == newest


def test_a_snapshot_without_its_commit_is_damage(memory: Storage) -> None:
    log = Log.create_or_open(memory, app_spec())
    memory.create(names.manifest(TASK, Version(3)), b"")
    with pytest.raises(DamagedObject, match="commits/00000000000000000003.json"):
        log.newest()


def test_the_driver_that_loses_a_race_learns_who_won(log: Log) -> None:
    first = grow(log, 1)
    mine = making.next_commit(log, first)
    other = making.next_commit(log, first, writer=Writer("driver-b", "host-b", 77, 2))
    log.create_commit(other)
    with pytest.raises(LostRace, match="process 77 on host-b") as raised:
        log.create_commit(mine)
    assert raised.value.category is ErrorCategory.INVALID
    assert log.commit(Version(2)) == other


def test_a_commit_that_was_stored_although_the_answer_was_an_error_has_won(storage: Storage) -> None:
    log = Log.create_or_open(storage, app_spec())
    first = grow(log, 1)
    commit = making.next_commit(log, first)

    def answer_lost(call: str, name: str) -> None:
        if call == "create":
            raise StorageUnavailable("connection reset")

    Log.open(Watched(storage, after=answer_lost)).create_commit(commit)
    assert log.commit(Version(2)) == commit
    log.create_commit(commit)  # and again, as a driver that saw only the error does


def test_a_commit_that_was_not_stored_is_an_error(storage: Storage) -> None:
    log = Log.create_or_open(storage, app_spec())

    def refuse(call: str, name: str) -> None:
        if call == "create":
            raise StorageUnavailable("connection refused")

    commit = making.next_commit(log, None)
    with pytest.raises(StorageUnavailable, match="refused"):
        Log.open(Watched(storage, before=refuse)).create_commit(commit)
    assert log.newest() is None
    log.create_commit(commit)


def test_an_error_on_a_commit_that_another_driver_won_is_a_lost_race(storage: Storage) -> None:
    log = Log.create_or_open(storage, app_spec())
    other = making.next_commit(log, None, writer=Writer("driver-b", "host-b", 77, 2))

    def overtaken(call: str, name: str) -> None:
        if call == "create":
            storage.create(name, commits.encode(other))
            raise StorageUnavailable("connection reset")

    with pytest.raises(LostRace, match="host-b"):
        Log.open(Watched(storage, before=overtaken)).create_commit(making.next_commit(log, None))


def test_a_segment_that_exists_is_compared(memory: Storage) -> None:
    log = Log.create_or_open(memory, app_spec())

    def take(call: str, name: str) -> None:
        if call == "create":
            memory.create(name, b"other")

    with pytest.raises(DamagedObject, match="segments/0_0/0+1-"):
        Log.open(Watched(memory, before=take)).write_segment(
            TASK, Version(1), making.sealed({b"k": b"v"}), inline_limit=0
        )
    assert log.newest() is None


def test_a_commit_without_its_predecessor_is_refused(log: Log) -> None:
    first = grow(log, 1)
    skipping = making.next_commit(log, making.next_commit(log, first))
    with pytest.raises(LostRace, match="version 2, which it follows, is missing"):
        log.create_commit(skipping)
    with pytest.raises(BrokenChain, match="host-a"):
        log.create_commit(making.next_commit(log, msgspec.structs.replace(first, id="another")))
    assert log.newest() == first


def test_a_commit_of_another_log_is_refused(log: Log) -> None:
    commit = msgspec.structs.replace(making.next_commit(log, None), log="another")
    with pytest.raises(BrokenChain, match="another"):
        log.create_commit(commit)


def test_version_1_cannot_be_committed_again_after_a_cleaning(log: Log) -> None:
    grow(log, 5)
    log.storage.create(names.manifest(TASK, Version(5)), b"")
    log.storage.delete([names.commit(Version(1))])
    with pytest.raises(LostRace):
        log.create_commit(making.next_commit(log, None))
    assert log.commit(Version(1)) is None


def overtaken(log: Log, *, mine: int, floor: int, newest: int) -> tuple[Commit, Callable[[], None]]:
    """A driver's next commit, and what happens before its put: others continue and clean up to the floor."""
    before = grow(log, mine - 1) if mine > 1 else None

    def meanwhile() -> None:
        with faults.active({"commit.before": lambda: None, "commit.middle": lambda: None}):
            grow(log, newest - mine + 1)
        log.storage.delete([names.commit(Version(version)) for version in range(1, floor)])

    return making.next_commit(log, before), meanwhile


@pytest.mark.parametrize("mine", [1, 3])
def test_a_driver_that_slept_withdraws_a_commit_on_a_cleaned_number(log: Log, mine: int) -> None:
    commit, meanwhile = overtaken(log, mine=mine, floor=6, newest=8)
    with faults.active({"commit.before": meanwhile}), pytest.raises(LostRace, match="Another driver continued"):
        Log.open(log.storage).create_commit(commit)
    assert log.commit(Version(mine)) is None


@pytest.mark.parametrize("mine", [1, 3])
def test_a_commit_on_a_cleaned_number_is_never_the_newest(log: Log, mine: int) -> None:
    commit, meanwhile = overtaken(log, mine=mine, floor=6, newest=8)

    def kill() -> None:
        raise faults.InjectedFault("killed before it could withdraw the commit")

    with faults.active({"commit.before": meanwhile, "commit.middle": kill}), pytest.raises(faults.InjectedFault):
        Log.open(log.storage).create_commit(commit)
    assert log.commit(Version(mine)) == commit, "the commit is there"
    for hint in range(10):
        newest = log.newest(Version(hint))
        assert newest is not None
        assert newest.version == 8, f"hint {hint}"


def test_the_fault_points_are_before_and_after_the_put(log: Log) -> None:
    seen: list[bool] = []

    def look() -> None:
        seen.append(log.storage.exists(names.commit(Version(1))))

    with faults.active({"commit.before": look, "commit.after": look}):
        log.create_commit(making.next_commit(log, None))
    assert seen == [False, True]


def test_small_segments_are_inline_and_large_ones_are_objects(log: Log) -> None:
    data = sealed({b"a": b"1", b"b": None})
    inline = log.write_segment(TASK, Version(1), data, inline_limit=len(data.data))
    stored = log.write_segment(TASK, Version(1), data, inline_limit=len(data.data) - 1)
    assert (inline.name, stored.inline) == (None, None)
    assert stored.name is not None
    assert stored.name.startswith("segments/0_0/00000000000000000001-")
    assert log.storage.list(names.SEGMENTS) == [stored.name]
    assert inline.length == stored.length == len(data.data)
    for ref in (inline, stored):
        [(store, table)] = log.state_parts(ref)
        assert (store, table) == ("counts", changes({b"a": b"1", b"b": None}))
        assert log.read_part(ref, ref.parts[0]) == table


def test_small_segments_of_several_tasks_are_one_object_unless_they_fit_into_the_commit(storage: Storage) -> None:
    watched = Watched(storage)
    log = Log.create_or_open(watched, app_spec(partitions=3))
    entries = [{b"%d" % number: b"v"} for number in range(3)]
    large = log.write_segment(TaskId(0, 2), Version(1), sealed(entries[2]), inline_limit=0)
    written = {
        f"0_{number}": WrittenSegments(
            (log.write_segment(TASK, Version(1), sealed(entries[number]), inline_limit=999),)
        )
        for number in range(2)
    } | {"0_2": WrittenSegments((large,))}
    size = sum(each.segments[0].length for each in written.values()) - large.length
    assert log.write_together(Version(1), written, inline_bytes=size) == written
    watched.calls.clear()
    moved = log.write_together(Version(1), written, inline_bytes=size - 1)
    assert [call for call, _ in watched.calls] == ["create"]
    refs = [each.segments[0] for each in moved.values()]
    assert refs[0].name == refs[1].name == watched.calls[0][1]
    assert refs[0].name.startswith("segments/all/00000000000000000001-")
    assert refs[2] == large
    assert [dict(log.state_parts(ref)) for ref in refs] == [{"counts": changes(each)} for each in entries]
    watched.calls.clear()
    read = log.read_state([(ref, ref.parts[0]) for ref in refs])
    assert [(keys.to_pylist(), values.to_pylist()) for keys, values in read] == [
        ([b"%d" % n], [b"v"]) for n in range(3)
    ]
    assert len(watched.calls) == 2, "each object is read once"


def test_many_state_parts_are_read_like_each_of_them(log: Log) -> None:
    """Also parts that can't be read as one stream with the others: of another compression, or of several batches."""
    tables = [changes({b"%d" % n: None if n == 3 else bytes(n) for n in range(first, 9)}) for first in range(8)]
    tables.append(pa.concat_tables(tables[:2]))
    mixed: tuple[Compression | None, ...] = ("lz4", "zstd", None)
    for compressions in (mixed[:1], mixed):
        for count in (1, 8, 9):
            refs = [
                log.write_segment(TASK, Version(1), seal([(STATE, "counts", table)], compression=each), inline_limit=0)
                for table, each in zip(tables[:count], itertools.cycle(compressions), strict=False)
            ]
            read = log.read_state([(ref, ref.parts[0]) for ref in refs])
            assert [pa.table(each, schema=STATE_SCHEMA).combine_chunks() for each in read] == [
                log.read_part(ref, ref.parts[0]).combine_chunks() for ref in refs
            ]
    assert log.read_state([]) == []


def test_attempts_of_one_task_never_share_a_name(log: Log) -> None:
    refs = [log.write_segment(TaskId(0, 3), Version(9), sealed({b"a": b"1"}), inline_limit=0) for _ in range(3)]
    assert len({ref.name for ref in refs}) == 3


def test_parts_of_one_type_are_read_in_one_request(storage: Storage) -> None:
    watched = Watched(storage)
    log = Log.create_or_open(watched, app_spec())
    state, output = changes({b"a": b"1"}), pa.table({"player": ["a"], "n": [1]})
    data = seal([(STATE, "x", state), (STATE, "y", state), (OUTPUT, "rows", output), (DEAD, "late", output)])
    ref = log.write_segment(TASK, Version(1), data, inline_limit=0)
    watched.calls.clear()
    assert [name for name, _ in log.state_parts(ref)] == ["x", "y"]
    assert len(watched.calls) == 1
    assert dict(log.read_parts(ref, OUTPUT)) == {"rows": output}
    assert dict(log.read_parts(ref, DEAD)) == {"late": output}
    assert log.read_part(ref, ref.parts[2]) == output


def test_the_newest_commit_has_the_sinks_positions_until_a_clean_stop_has_newer_ones(log: Log) -> None:
    assert log.sinks.at(None) == {}
    first = grow(log, 1, sinks={"files": 0, "a/b": 0})
    assert log.sinks.at(first) == {"files": NOTHING, "a/b": NOTHING}
    log.sinks.mark(first, {"files": Version(1), "a/b": Version(1)})
    assert Log.open(log.storage).sinks.at(log.newest()) == {"files": 1, "a/b": 1}
    second = grow(log, 1, sinks={"files": 1})
    assert log.sinks.at(second) == {"files": 1}, "the positions of an earlier stop no longer count"


def test_positions_of_a_stop_on_another_timeline_do_not_count(log: Log) -> None:
    """The log was set back by deleting commits, and another version has the number at which the app stopped."""
    lost = grow(log, 2, sinks={"files": 1})
    log.sinks.mark(lost, {"files": Version(2)})
    assert log.sinks.at(lost) == {"files": 2}
    log.storage.delete([names.commit(Version(2))])
    assert log.sinks.at(grow(log, 1, sinks={"files": 1})) == {"files": 1}


def test_ids_come_from_the_given_random_source(memory: Storage) -> None:
    log, same = Log.create_or_open(memory, app_spec(), Random(7)), Random(7)
    assert [log.id, log.new_id(), log.new_id()] == [new_id(same), new_id(same), new_id(same)]
