"""A crash at any step changes nothing in windows, and every result is sent exactly once: final, per record, or late."""

from pathlib import Path

import pytest

from holdfast.pipeline.driver import BatchResult
from holdfast.stores.layouts.due import Due
from holdfast.topology.windows import Windows
from tests.crash.machine import Record, reached
from tests.crash.matrix import crash_twice, points_of_an_operator, stay_quiet
from tests.crash.window_machine import LATE_RECORDS, UPDATES, WINDOWS, WindowMachine

BATCHES: list[list[Record]] = [
    [("alice", 1), ("bob", 2), ("carol", 11), ("alice", 3)],
    [("alice", 14), ("bob", 5), ("carol", 12)],
    [("bob", 24), ("dave", 9)],
    [("alice", 15), ("alice", 1_000)],  # the windows before close at once, far past their retention
    [("bob", 1_001), ("erin", 7)],  # erin is late
    [("frank", 1_030)],
    [],
]

FINAL = [
    ("alice", 0, 2),
    ("alice", 10, 2),
    ("alice", 1_000, 1),
    ("bob", 0, 2),
    ("bob", 20, 1),
    ("bob", 1_000, 1),
    ("carol", 10, 2),
    ("dave", 0, 1),
]


@pytest.fixture(scope="module", params=WINDOWS.values(), ids=list(WINDOWS))
def windows(request: pytest.FixtureRequest) -> Windows:
    chosen: Windows = request.param
    return chosen


@pytest.fixture(scope="module")
def undisturbed(windows: Windows, tmp_path_factory: pytest.TempPathFactory) -> WindowMachine:
    machine = WindowMachine(tmp_path_factory.mktemp("undisturbed"), windows)
    machine.run(BATCHES)
    return machine


@pytest.fixture(scope="module")
def counts(windows: Windows, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    return reached(BATCHES, WindowMachine(tmp_path_factory.mktemp("counts"), windows))


def test_without_a_crash_each_window_that_closed_was_sent_once(undisturbed: WindowMachine) -> None:
    sent = undisturbed.sent()
    assert len({(player, start) for player, start, _ in sent}) == len(sent)
    if undisturbed.windows is WINDOWS["tumbling"]:
        assert sent == sorted(FINAL)
        assert undisturbed.state() == {("frank", 1_030, 1_040, 1)}
    elif undisturbed.windows is WINDOWS["session"]:
        assert [row for row in sent if row[0] == "alice"] == [("alice", 1, 2), ("alice", 14, 2), ("alice", 1_000, 1)]
        assert undisturbed.state() == {("frank", 1_030, 1_030, 1)}
    else:
        # The window from 0 to 5 had closed when the second record came, and the one right after the first had not.
        assert [row for row in sent if row[0] == "bob"] == [
            ("bob", -3, 1),
            ("bob", 2, 1),
            ("bob", 19, 1),
            ("bob", 996, 1),
        ]


@pytest.mark.parametrize("point", points_of_an_operator())
def test_crashes_at_any_point_change_no_window_and_no_final_row(
    point: str, windows: Windows, counts: dict[str, int], undisturbed: WindowMachine, tmp_path: Path
) -> None:
    machine = WindowMachine(tmp_path / "first", windows)
    crash_twice(machine, BATCHES, point, counts[point], tmp_path / "new")
    assert machine.state() == undisturbed.state()
    assert machine.files() == undisturbed.files()


@pytest.fixture(scope="module", params=[UPDATES, LATE_RECORDS])
def sent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> WindowMachine:
    """A machine whose sinks got one row per record, or late records."""
    machine = WindowMachine(tmp_path_factory.mktemp("sent"), WINDOWS["session"], request.param)
    machine.run(BATCHES)
    return machine


@pytest.mark.parametrize("point", points_of_an_operator("segment", "commit", "sink"))
def test_crashes_on_the_way_to_sinks_change_no_update_and_no_late_record(
    point: str, sent: WindowMachine, tmp_path: Path
) -> None:
    rows = [row for version in sent.memory.versions.values() for row in version]
    assert len(rows) == (1 if sent.sent_output == LATE_RECORDS else 17)
    machine = WindowMachine(tmp_path / "first", WINDOWS["session"], sent.sent_output)
    crash_twice(machine, BATCHES, point, 4, tmp_path / "new")
    assert machine.state() == sent.state()
    assert machine.files() == sent.files()


def test_windows_close_when_nothing_arrives(tmp_path: Path) -> None:
    """The driver makes one version that sends them, and no other."""
    machine = WindowMachine(tmp_path, WINDOWS["tumbling"])
    machine.run(BATCHES[:3])
    made = stay_quiet(
        machine,
        due=lambda version: {"scores": Due.soonest(each.due(version)["scores"] for each in machine.replicas.values())},
        compute=lambda due, step: machine.computed([], step) if due else BatchResult(),
    )
    assert made == 1
    machine.restart()
    assert machine.sent() == [("alice", 0, 2), ("bob", 0, 2), ("dave", 0, 1)]
