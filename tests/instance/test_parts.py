"""Small parts of an instance: the next step, events, the task's directory, progress bars."""

import io
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance.events import Events, RestoreEvent, RestorePhase, TaskEvent
from holdfast.instance.messages import InstanceRefused, TaskNotHere, decode_error, encode_error
from holdfast.instance.next_step import ApplySegment, LoadSnapshot, Unreachable, Unusable, Wait, check_state, next_step
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.instance.restore_bars import RestoreBars
from holdfast.instance.state_dir import StateDirectoryUnusable, TaskDirectory, file_system_of
from holdfast.stores.engines.base import Mark
from holdfast.words import NOTHING, TaskId, Version

TASK = TaskId(0, 1)


@pytest.mark.parametrize(
    ("at", "committed", "snapshots", "there", "step"),
    [
        (0, 0, [], True, Wait()),
        (5, 5, [5], True, Wait()),
        (6, 5, [], True, Wait()),
        (0, 3, [], True, ApplySegment(Version(1))),
        (0, 3, [2, 4], True, LoadSnapshot(Version(2))),
        (1, 9, [8], True, ApplySegment(Version(2))),
        (1, 9, [8], False, LoadSnapshot(Version(8))),
        (8, 9, [8], False, Unreachable(Version(8), Version(9))),
    ],
)
def test_the_next_step(at: int, committed: int, snapshots: list[int], there: bool, step: object) -> None:
    known = [Version(version) for version in snapshots]
    assert next_step(Version(at), Version(committed), known, next_there=there) == step


def test_state_of_an_interrupted_apply_is_complete_from_its_version_on() -> None:
    mark = Mark(Version(4), "c4", "L", applying=Version(6), applying_commit="c6")
    verdict = check_state(mark, log="L", newest=Version(7), commit="c4", applying="c6")
    assert (verdict.at, verdict.whole_from) == (4, 6)  # type: ignore[union-attr]
    assert isinstance(check_state(mark, log="L", newest=Version(5), commit="c4", applying=None), Unusable)
    assert isinstance(check_state(mark, log="L", newest=Version(7), commit=None, applying="c6"), Unusable)


def test_a_part_of_a_version_that_the_log_no_longer_has_is_not_completed_from_another_one() -> None:
    mark = Mark(Version(4), "c4", "L", applying=Version(6), applying_commit="c6")
    for log_has in "another commit", None:
        verdict = check_state(mark, log="L", newest=Version(7), commit="c4", applying=log_has)
        assert isinstance(verdict, Unusable)
        assert "a part of version 6 of commit 'c6'" in verdict.reason


def test_events_are_numbered_and_can_be_waited_for() -> None:
    events = Events(keep=3)
    for version in range(5):
        events.append(TaskEvent("0_0", "running", version))
    page = events.since(0)
    assert ([numbered.number for numbered in page.events], page.next, page.missed) == ([3, 4, 5], 5, 2)
    assert events.since(5).events == ()
    assert events.since(5, life="another").missed == 2  # numbers of an earlier process don't count
    assert events.since(5, life=events.life).events == ()
    waiting = threading.Thread(target=lambda: found.extend(events.since(5, wait=30).events))
    found: list[object] = []
    waiting.start()
    events.append(TaskEvent("0_0", "running", 9))
    waiting.join()
    assert len(found) == 1
    events.close()
    assert events.since(6, wait=30).events == ()


def test_an_unusable_state_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "0_1").write_text("a file")
    with pytest.raises(StateDirectoryUnusable, match="can't be used"):
        TaskDirectory(tmp_path, TASK, "one")


def test_unfinished_files_are_deleted(tmp_path: Path) -> None:
    for name in ("loading", "saving", "data", "former"):
        (tmp_path / "0_1" / name).mkdir(parents=True)
    with TaskDirectory(tmp_path, TASK, "one") as home:
        assert sorted(path.name for path in home.path.iterdir()) == [".lock", "data", "former", "loading"]
        home.drop_leftovers()
        assert sorted(path.name for path in home.path.iterdir()) == [".lock", "data"]
        home.write_checkpoint("L", "c7", Version(7), ["b", "a"], 512)
        checkpoint = home.read_checkpoint()
        assert checkpoint is not None
        assert (checkpoint.log, checkpoint.stores, checkpoint.applied_bytes) == ("L", {"a": 7, "b": 7}, 512)


def test_the_deepest_mount_decides_the_file_system() -> None:
    mounts = "disk / ext4 rw 0 0\ntmpfs /mnt/my\\040disk tmpfs rw 0 0\n"
    assert file_system_of(Path("/mnt/my disk/state"), mounts) == "tmpfs"
    assert file_system_of(Path("/mnt/other"), mounts) == "ext4"


def test_bars_show_versions_and_bytes() -> None:
    screen = io.StringIO()

    def event(
        phase: RestorePhase, end: int, total: int = 0, *, done: int = 0, of: int = 0, kept: int = 0
    ) -> RestoreEvent:
        return RestoreEvent(phase, "0_1", "scores", NOTHING, end, 0, total, done, of, kept)

    def percentages() -> list[float]:
        return [bar.percentage for bar in bars._bars.tasks]

    with closing(RestoreBars(Console(file=screen, force_terminal=True, width=120))) as bars:
        bars.show(event(RestorePhase.BATCH, 3))  # started before the bars
        bars.show(event(RestorePhase.START, 10))
        bars.show(event(RestorePhase.BATCH, 4, done=50, of=200, kept=20))
        assert percentages() == [25]
        bars._bars.refresh()
        bars.show(event(RestorePhase.BATCH, 8, total=1_234))
        assert percentages() == [80]
        bars.show(event(RestorePhase.END, 10, total=2_000))
        assert percentages() == []
    assert "restoring 0_1/scores" in screen.getvalue()
    assert "50 bytes of 200 bytes of a snapshot (20 bytes were on disk)" in screen.getvalue()


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads take turns after a microsecond, not after 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("often_switched")
def test_two_instances_that_restore_one_task_have_a_bar_each_and_may_report_at_once() -> None:
    def restore(instance: str) -> None:
        for phase in (RestorePhase.START, RestorePhase.BATCH, RestorePhase.END) * 50:
            bars.show(RestoreEvent(phase, "0_1", "scores", NOTHING, 10, 0, 0, instance=instance))

    with (
        closing(RestoreBars(Console(file=io.StringIO(), force_terminal=True))) as bars,
        ThreadPoolExecutor(4) as threads,
    ):
        for instance in ("a", "b"):
            bars.show(RestoreEvent(RestorePhase.START, "0_1", "scores", NOTHING, 10, 0, 0, instance=instance))
        assert len(bars._bars.tasks) == 2
        for done in [threads.submit(restore, instance) for instance in ("a", "b", "a", "b")]:
            done.result()
        assert bars._bars.tasks == []


def test_without_a_terminal_nothing_is_drawn() -> None:
    screen = io.StringIO()
    with closing(RestoreBars(Console(file=screen))) as bars:
        bars.show(RestoreEvent(RestorePhase.START, "0_1", "scores", 0, 10, 0, 0))
        bars.show(RestoreEvent(RestorePhase.END, "0_1", "scores", 0, 10, 0, 0))
    assert screen.getvalue() == ""


@pytest.mark.parametrize("kind", [VersionNotAvailable, TaskNotHere])
def test_an_error_that_only_has_the_name_of_a_known_one_is_not_that_error(kind: type[HoldfastError]) -> None:
    namesake = type(kind.__name__, (HoldfastError,), {"category": ErrorCategory.INVALID})
    derived = type("Derived", (kind,), {})
    assert [type(decode_error(encode_error(each("why")))) for each in (kind, derived, namesake)] == [
        kind,
        kind,
        InstanceRefused,
    ]
