"""Stores of real instances as columns: one version over all tasks, which stays readable while it is held."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pyarrow as pa
import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.instance import held_versions
from holdfast.instance.held_versions import HeldVersions, HoldTerms, TooManyHolds, TooManyHoldsOfCaller
from holdfast.instance.instance import Instance
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.query.columns import ColumnReader, HeldStores
from holdfast.query.freshness import ANY, Freshness
from holdfast.query.service import RestService
from holdfast.query.task_reader import NotReady, VersionGone
from holdfast.stores.engines.open_views import OPEN_VIEWS
from holdfast.stores.formats.keys import prefix_range
from holdfast.words import TaskId, Version
from tests.instance.processes import until
from tests.query.fake_tasks import LEVELS, NUMBERS, SCORES, World
from tests.query.instances import Driver, Group, config, know_each_other, replicas_of, started
from tests.query.test_service import GAME

MANY = 200


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with started(tmp_path, GAME) as group:
        yield group


@pytest.fixture
def columns(group: Group) -> ColumnReader:
    return ColumnReader(group.rests[0].reader)


def squares(group: Group, factor: int) -> Version:
    version = group.driver.commit(NUMBERS, {(n,): factor * n * n for n in range(MANY)})
    group.settle()
    return version


def values(columns: ColumnReader, held: HeldStores, store: str = "numbers") -> list[int]:
    table = pa.Table.from_batches(columns.batches(store, held), columns.table(store).schema)
    assert sorted(table["n"].to_pylist()) == list(range(MANY))
    return [int(value) for _, value in sorted(zip(table["n"].to_pylist(), table["value"].to_pylist(), strict=True))]


def test_all_tasks_of_both_instances_come_at_one_version(group: Group, columns: ColumnReader) -> None:
    squares(group, 1)
    with columns.held(["numbers"], ANY, 30) as held:
        assert held.version == 1
        assert values(columns, held) == [n * n for n in range(MANY)]


def test_a_held_version_stays_readable_while_the_app_moves_on(group: Group, columns: ColumnReader) -> None:
    squares(group, 1)
    with columns.held(["numbers", "scores"], ANY, 30) as held:
        for factor in range(2, 9):
            squares(group, factor)
            for instance in group.instances:
                for replica in replicas_of(instance):
                    replica.flush_overlay()
        assert values(columns, held) == [n * n for n in range(MANY)]
    with pytest.raises(VersionNotAvailable):
        values(columns, held)
    with pytest.raises(VersionGone), columns.held(["numbers"], Freshness(at=Version(1)), 30):
        pass
    with columns.held(["numbers"], Freshness(at=Version(7)), 30) as held:
        assert values(columns, held) == [7 * n * n for n in range(MANY)]


def test_columns_keys_and_tasks_can_be_chosen(group: Group, columns: ColumnReader) -> None:
    group.driver.commit(LEVELS, {(player, n): n for player in ("ann", "bob") for n in range(50)})
    group.settle()
    with columns.held(["levels"], ANY, 30) as held:
        ann = [prefix_range(LEVELS.key, ["ann"], partial=False)]
        found = pa.Table.from_batches(columns.batches("levels", held, columns=["level"], keys=ann))
        assert found.column_names == ["level"] and sorted(found["level"].to_pylist()) == list(range(50))
        parts = [
            sum(batch.num_rows for batch in columns.batches("levels", held, tasks=[task]))
            for task in columns.tasks_of("levels")
        ]
        assert sum(parts) == 100 and min(parts) > 0


@pytest.fixture
def with_standbys(tmp_path: Path) -> Iterator[Group]:
    """The second instance has standbys of all tasks; the first has them active."""
    driver = Driver(str(tmp_path / "log"), GAME)
    with ExitStack() as stack:
        active = Instance(config(tmp_path, "game-0", GAME.tasks()))
        instances = [active, Instance(config(tmp_path, "game-1", (), standbys=GAME.tasks()))]
        for instance in instances:
            instance.start()
            stack.callback(instance.stop)
        know_each_other(instances)
        rests = [RestService(instance) for instance in instances]
        for service in rests:
            service.start()
            stack.callback(service.stop)
        yield Group(driver, instances, rests, stack.enter_context(httpx2.Client(timeout=20)))


def move_on(group: Group) -> None:
    for factor in range(2, 9):
        squares(group, factor)
        for instance in group.instances:
            for replica in replicas_of(instance):
                replica.flush_overlay()


def test_rows_come_from_the_replicas_that_hold_the_version(with_standbys: Group) -> None:
    squares(with_standbys, 1)
    columns = ColumnReader(with_standbys.rests[1].reader)
    with columns.held(["numbers"], Freshness(active=True), 30) as held:
        assert held.source.instances == ("game-0",), "the standbys here are not asked"
        move_on(with_standbys)
        assert values(columns, held) == [n * n for n in range(MANY)]


def test_if_a_hold_has_gone_another_replica_with_the_version_is_read(with_standbys: Group) -> None:
    squares(with_standbys, 1)
    for at, freshness in ((1, ANY), (0, ANY)):
        columns = ColumnReader(with_standbys.rests[at].reader)
        held = columns.hold(["numbers"], freshness, HoldTerms(30))
        assert held.source.instances == (f"game-{at}",)
    move_on(with_standbys)
    for replica in replicas_of(with_standbys.instances[0]):
        replica.published.held.end_all()
    assert values(columns, held) == [n * n for n in range(MANY)], "the standbys hold it"
    with columns.held(["numbers"], Freshness(at=Version(1)), 30) as again:
        assert again.source.instances == ("game-1",)
        assert values(columns, again) == [n * n for n in range(MANY)]
    with pytest.raises(VersionGone), columns.held(["numbers"], Freshness(at=Version(2)), 30):
        pass


CLIENT = HoldTerms(30, caller="ann")


def most_held(group: Group) -> int:
    """How many versions the replica holds that holds the most."""
    return max(len(replica.published.held._held) for instance in group.instances for replica in replicas_of(instance))


def test_all_holds_of_a_version_are_one_until_the_last_of_them_ends(group: Group, columns: ColumnReader) -> None:
    squares(group, 1)
    held = [columns.hold(["numbers"], ANY, CLIENT) for _ in range(2 * held_versions.MOST)]
    assert most_held(group) == 1
    move_on(group)
    for each in held[1:]:
        each.release()
    assert values(columns, held[0]) == [n * n for n in range(MANY)]
    held[0].release()
    held[0].release()
    assert most_held(group) == 0


def test_a_version_is_kept_for_the_longest_time_of_its_holds(group: Group, columns: ColumnReader) -> None:
    squares(group, 1)
    longest = columns.hold(["numbers"], ANY, HoldTerms(30))
    columns.hold(["numbers"], ANY, HoldTerms(0))
    move_on(group)
    assert values(columns, longest) == [n * n for n in range(MANY)]
    longest.release()
    assert most_held(group) == 0


def test_a_held_version_is_not_reported_as_forgotten(
    group: Group,
    columns: ColumnReader,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    squares(group, 1)
    held = columns.hold(["numbers"], ANY, HoldTerms(600))
    move_on(group)
    for replica in (each for instance in group.instances for each in replicas_of(instance)):
        replica.published.forget_older()  # the versions before, which keep old state for a while
    assert any(str(tmp_path) in view.of for view, _ in OPEN_VIEWS.older_than(0)), "the hold keeps old state"
    for later, said in ((300, False), (700, True)):
        monkeypatch.setattr(OPEN_VIEWS, "_clock", lambda: SYSTEM_CLOCK.monotonic() + later)  # noqa: B023
        OPEN_VIEWS.warn_about_old()
        assert any(str(tmp_path) in text and "kept old" in text for text in caplog.messages) is said
    held.release()


def test_a_hold_ends_in_an_app_that_makes_no_version(group: Group, columns: ColumnReader) -> None:
    squares(group, 1)
    columns.hold(["numbers"], ANY, HoldTerms(0))
    until(lambda: most_held(group) == 0, "the hold has ended")


def test_a_version_is_not_found_after_the_time_of_its_hold(group: Group) -> None:
    """Also before anything has removed it."""
    squares(group, 1)
    now = 0.0
    held = HeldVersions(TaskId(0, 0), lambda: now)
    view = replicas_of(group.instances[0])[0].published.read_view()
    held.add(view, HoldTerms(5))
    assert held.has(view.version)
    now = 5.0
    assert (held.has(view.version), held.find(view.version)) == (False, None)
    held.end_all()


def test_clients_leave_room_for_the_instances_own_reads(
    group: Group, columns: ColumnReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_versions, "MOST", 3)
    monkeypatch.setattr(held_versions, "RESERVED", 1)
    held: list[HeldStores] = []
    for factor in (1, 2):
        squares(group, factor)
        held.append(columns.hold(["numbers"], ANY, CLIENT))
    squares(group, 3)
    with pytest.raises(TooManyHolds, match="2 versions of task 1_. are held, as many as clients may hold. Release"):
        columns.hold(["numbers"], ANY, CLIENT)
    columns.hold(["numbers"], Freshness(at=Version(1)), CLIENT).release()
    with columns.held(["numbers"], ANY, 30) as own:
        assert values(columns, own) == [3 * n * n for n in range(MANY)]
        squares(group, 4)
        with pytest.raises(TooManyHolds, match="3 versions of task 1_. are held, as many as a replica holds"):
            columns.hold(["numbers"], ANY, HoldTerms(30))
    held.pop().release()
    columns.hold(["numbers"], ANY, CLIENT).release()


def test_one_client_leaves_versions_to_the_others(
    group: Group, columns: ColumnReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_versions, "MOST_OF_CALLER", 2)
    held: list[HeldStores] = []
    for factor in (1, 2):
        squares(group, factor)
        held.append(columns.hold(["numbers"], ANY, CLIENT))
    squares(group, 3)
    with pytest.raises(TooManyHoldsOfCaller, match="2 versions of task 1_. are held for ann, as many as one client"):
        columns.hold(["numbers"], ANY, CLIENT)
    again = columns.hold(["numbers"], Freshness(at=Version(1)), CLIENT)
    columns.hold(["numbers"], ANY, HoldTerms(30, caller="bob"))
    with columns.held(["numbers"], ANY, 30):
        pass
    held[0].release()
    with pytest.raises(TooManyHoldsOfCaller):  # it has another hold of the same version
        columns.hold(["numbers"], ANY, CLIENT)
    again.release()
    columns.hold(["numbers"], ANY, CLIENT)
    assert most_held(group) == 2


def test_a_task_that_is_ahead_is_read_at_the_version_of_the_others() -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(30)})
    ahead = world.tasks[world.app.tasks()[-1]]
    ahead.write(2, "numbers", {})
    columns = ColumnReader(world.reader)
    with columns.held(["numbers"], ANY, 1) as held:
        assert held.version == 1
        assert {task.holds for task in world.tasks.values()} == {0, 1}
    assert not any(task.holds for task in world.tasks.values())


def test_tasks_too_far_apart_are_refused_and_nothing_stays_held() -> None:
    world = World()
    world.commit(1, SCORES, {})
    for version in range(2, 9):
        world.tasks[TaskId(0, 0)].write(version, "scores", {})
    columns = ColumnReader(world.reader)
    with pytest.raises(NotReady, match="is at version 1, and version 8"):
        columns.hold(["scores"], ANY, HoldTerms(1))
    assert not any(task.holds for task in world.tasks.values())
