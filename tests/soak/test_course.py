"""What counts as growth in a soak, and how the objects of a log are counted."""

import os
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.soak.course import IN_HEAP, LONG_ENOUGH, OF_FILES, OF_PROCESSES, VERSION, Course, counted, sizes

JUDGED = (*OF_PROCESSES, IN_HEAP, *OF_FILES)


def growth(folder: Path, name: str, values: Iterable[float], versions: Iterable[float] = range(300)) -> list[str]:
    ended = threading.Event()
    ended.set()
    course = Course(folder, lambda: 0, ended)
    course.join()
    course.samples.update({each: [1.0] * 300 for each in JUDGED} | {name: list(values), VERSION: list(versions)})
    return course.growth()


@pytest.mark.parametrize("name", JUDGED)
def test_what_grows_all_the_time_is_reported(tmp_path: Path, name: str) -> None:
    [line] = growth(tmp_path, name, (100 + n for n in range(300)))
    assert line.startswith(f"{name} keep growing")


@pytest.mark.parametrize("name", JUDGED)
def test_what_grows_at_first_or_between_two_cleanings_is_not(tmp_path: Path, name: str) -> None:
    assert growth(tmp_path, name, (min(n, 100) for n in range(300))) == []
    assert growth(tmp_path, name, (50 + n % 40 for n in range(300))) == []
    assert growth(tmp_path, name, (900 if n == 250 else 100 for n in range(300))) == [], "an app that is down"
    assert growth(tmp_path, name, (2 if n < 200 else 4 for n in range(300))) == [], "a few more"


@pytest.mark.parametrize("name", OF_FILES)
def test_an_app_that_gets_faster_keeps_more_versions(tmp_path: Path, name: str) -> None:
    faster = [n if n < 200 else 200 + 2 * (n - 200) for n in range(300)]
    assert growth(tmp_path, name, (100 if n < 200 else 200 for n in range(300)), faster) == []
    assert len(growth(tmp_path, name, (100 if n < 200 else 300 for n in range(300)), faster)) == 1
    assert len(growth(tmp_path, "MiB of jvm", (100 if n < 200 else 200 for n in range(300)), faster)) == 1


def test_a_soak_without_samples_is_not_flat(tmp_path: Path) -> None:
    assert growth(tmp_path, "commits", []) == ["commits: there is no sample"]


def test_files_of_snapshots_are_counted_by_whether_a_manifest_names_them(tmp_path: Path) -> None:
    for name in ("commits/1.json", "commits/2.json", "snapshots/0_1/files/a", "snapshots/0_1/files/b", ".tmp/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "snapshots/0_1/1.json").write_text('{"files": [{"hash": "a"}, {"hash": "gone"}]}')
    found = counted(tmp_path, sizes(tmp_path))
    assert found["commits"] == 2
    assert found["manifests of snapshots"] == 1
    assert found["files of snapshots that a manifest names"] == 1
    assert found["files of snapshots that none names"] == 1
    assert found["temporary files"] == 1


def test_what_is_left_from_before_the_app_was_left_alone_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "base" / "soak" / "log"
    old = ["commits/1.json", "snapshots/0_1/files/a", "snapshots/0_1/files/b", "app/1.json"]
    for name in [*old, "commits/2.json"]:
        (log / name).parent.mkdir(parents=True, exist_ok=True)
        (log / name).write_text("{}")
    for name in old:
        os.utime(log / name, (1, 1))
    (log / "snapshots/0_1/1.json").write_text('{"files": [{"hash": "a"}]}')
    ended = threading.Event()
    ended.set()
    course = Course(tmp_path, lambda: 0, ended)
    assert course.leftovers() == [], "it was never left alone"
    course._alone_since = time.time() - LONG_ENOUGH - 60
    left = ["commits/1.json is left from before", "snapshots/0_1/files/b is left from before"]
    assert sorted(course.leftovers()) == left


def test_folders_that_are_deleted_meanwhile_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    ended = threading.Event()

    def change() -> None:
        while not ended.is_set():
            for n in range(40):
                (tmp_path / str(n) / "inner").mkdir(parents=True)
            for n in range(40):
                shutil.rmtree(tmp_path / str(n))

    changing = threading.Thread(target=change)
    changing.start()
    try:
        assert [sizes(tmp_path) for _ in range(300)] == [{"file": 4}] * 300
    finally:
        ended.set()
        changing.join()
