"""Folders of tasks that an instance no longer hosts are kept for a while, and never deleted while a task is hosted."""

from pathlib import Path

from holdfast.instance.leftover_state import LeftoverState
from holdfast.instance.state_dir import TaskDirectory
from holdfast.words import TaskId, Version

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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0_0", "notes.txt"]


def test_a_folder_that_is_held_is_not_deleted(tmp_path: Path) -> None:
    made(tmp_path, TASK, 7)
    leftover = LeftoverState(tmp_path, "one", keep=0.0)
    with TaskDirectory(tmp_path, TASK, "another"):
        leftover.look(0.0, hosted=[])
        assert (tmp_path / "0_0" / "data").exists()
    leftover.look(1.0, hosted=[])
    assert not (tmp_path / "0_0").exists()
