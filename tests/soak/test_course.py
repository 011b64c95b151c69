"""What counts as growth in a soak."""

import shutil
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.soak.course import ALLOWED, Course, sizes


def growth(folder: Path, name: str, values: Iterable[float]) -> list[str]:
    ended = threading.Event()
    ended.set()
    course = Course(folder, lambda: 0, ended)
    course.samples = {each: [1.0] * 300 for each in ALLOWED} | {name: list(values)}
    return course.growth()


@pytest.mark.parametrize("name", ALLOWED)
def test_what_grows_all_the_time_is_reported(tmp_path: Path, name: str) -> None:
    [line] = growth(tmp_path, name, (100 + n for n in range(300)))
    assert line.startswith(f"{name} keep growing")


@pytest.mark.parametrize("name", ALLOWED)
def test_what_grows_at_first_or_between_two_cleanings_is_not(tmp_path: Path, name: str) -> None:
    assert growth(tmp_path, name, (min(n, 100) for n in range(300))) == []
    assert growth(tmp_path, name, (50 + n % 40 for n in range(300))) == []
    assert growth(tmp_path, name, (900 if n == 250 else 100 for n in range(300))) == [], "an app that is down"


def test_a_soak_without_samples_is_not_flat(tmp_path: Path) -> None:
    assert growth(tmp_path, "objects in the log", [0] * 300) == ["objects in the log: no sample has any"]


def test_folders_that_are_deleted_meanwhile_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "leader").mkdir()
    (tmp_path / "leader" / "1").touch()
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
        assert [sizes(tmp_path, ["leader"]) for _ in range(300)] == [[4]] * 300
    finally:
        ended.set()
        changing.join()
