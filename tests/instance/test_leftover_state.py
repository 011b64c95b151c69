"""Folders of tasks that an instance no longer hosts are kept for a while, and never deleted while a task is hosted."""

import threading
from pathlib import Path

import pytest

from holdfast.instance import leftover_state
from holdfast.instance.leftover_state import LeftoverState
from holdfast.instance.state_dir import TaskDirectory, remove
from holdfast.words import TaskId, Version
from tests.instance.processes import until

TASK, OTHER = TaskId(0, 0), TaskId(0, 1)


def made(folder: Path, task: TaskId, version: int) -> None:
    with TaskDirectory(folder, task, "one") as home:
        home.data.mkdir()
        home.write_checkpoint("log", "commit", Version(version), ["counts"], 0)


def test_a_folder_is_named_until_it_was_left_for_long_enough(tmp_path: Path) -> None:
    made(tmp_path, TASK, 7)
    made(tmp_path, OTHER, 9)
    (tmp_path / "notes.txt").write_text("not a task")
    leftover = LeftoverState(tmp_path, "one", keep=600.0)
    leftover.look(0.0, hosted=[OTHER])
    assert leftover.versions() == {TASK: 7}
    leftover.look(500.0, hosted=[TASK])  # it is back, and the other one was left
    assert leftover.versions() == {OTHER: 9}
    leftover.look(700.0, hosted=[])
    assert leftover.versions() == {TASK: 7, OTHER: 9}
    leftover.look(1_100.0, hosted=[])
    assert leftover.versions() == {TASK: 7}
    assert not (tmp_path / "0_1").exists()
    until(lambda: sorted(path.name for path in tmp_path.iterdir()) == ["0_0", "notes.txt"], "it is deleted")


def test_a_folder_that_is_held_is_not_deleted(tmp_path: Path) -> None:
    made(tmp_path, TASK, 7)
    leftover = LeftoverState(tmp_path, "one", keep=0.0)
    with TaskDirectory(tmp_path, TASK, "another"):
        leftover.look(0.0, hosted=[])
        assert (tmp_path / "0_0" / "data").exists()
    leftover.look(1.0, hosted=[])
    assert not (tmp_path / "0_0").exists()


def test_a_heartbeat_does_not_wait_until_a_large_folder_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def slowly(path: Path) -> None:
        assert go_on.wait(60)
        remove(path)

    monkeypatch.setattr(leftover_state, "remove", slowly)
    made(tmp_path, TASK, 7)
    leftover = LeftoverState(tmp_path, "one", keep=0.0)
    leftover.look(0.0, hosted=[])
    assert leftover.versions() == {} and not (tmp_path / "0_0").exists()
    made(tmp_path, TASK, 9)  # it is hosted again meanwhile
    leftover.look(1.0, hosted=[TASK])
    made(tmp_path, OTHER, 9)
    leftover.look(2.0, hosted=[TASK])
    go_on.set()

    def is_deleted() -> bool:
        leftover.look(3.0, hosted=[TASK])
        return sorted(path.name for path in tmp_path.iterdir()) == ["0_0"]

    until(is_deleted, "both are deleted")


def test_what_a_process_before_had_no_time_to_delete_is_deleted(tmp_path: Path) -> None:
    made(tmp_path, TASK, 7)
    (tmp_path / "0_0").rename(tmp_path / ".deleted-0_0-0")
    leftover = LeftoverState(tmp_path, "one", keep=600.0)
    leftover.look(0.0, hosted=[])
    until(lambda: not list(tmp_path.iterdir()), "it is deleted")
    assert leftover.versions() == {}
