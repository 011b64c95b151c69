"""docs/walkthrough.md is correct: its files and functions exist, and no walk has more than 20 files."""

import ast
import re
import threading
from pathlib import Path
from types import FrameType

import httpx2
import pytest

from holdfast.settings.rest import RestSettings
from tests.client.conftest import GAME
from tests.instance.processes import until
from tests.query.fake_tasks import NUMBERS
from tests.query.instances import replicas_of, serving

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/holdfast"
PAGE = ROOT / "docs/walkthrough.md"
STEP = re.compile(r"^\| (\d+) \| `([\w/]+\.py)` \| `([\w.]+)` \| (.+) \|$", re.MULTILINE)
WALKS = {
    section.split("\n", 1)[0]: [(path, name) for _, path, name, _ in STEP.findall(section)]
    for section in PAGE.read_text().split("\n## ")[1:]
    if STEP.search(section)
}
STEPS = sorted({step for steps in WALKS.values() for step in steps})


def defined(path: Path) -> set[str]:
    """The functions, classes and methods of a module, methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


@pytest.mark.parametrize(("path", "name"), STEPS)
def test_each_step_names_a_function_that_exists(path: str, name: str) -> None:
    assert name in defined(SOURCE / path)


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_has_at_most_20_files(walk: str) -> None:
    assert 1 <= len({path for path, _ in WALKS[walk]}) <= 20


def test_a_query_calls_the_functions_of_its_walk_in_this_order(tmp_path: Path) -> None:
    with serving(tmp_path, GAME, RestSettings(port=0)) as (driver, instance, _):
        driver.commit(NUMBERS, {(4,): 4})
        instance.committed(driver.version)
        until(lambda: all(each.published.version == driver.version for each in replicas_of(instance)), "a version")
        for replica in replicas_of(instance):
            replica.flush_overlay()
    called: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            name = frame.f_code.co_qualname.split(".<locals>")[0]
            called.append((str(path.relative_to(SOURCE)), name))

    threading.setprofile(note)
    try:
        # Started again, so that the value is in RocksDB alone.
        with serving(tmp_path, GAME, RestSettings(port=0)) as (_, _, service):
            called.clear()
            assert httpx2.get(f"{service.url}/v1/stores/numbers/keys/4").json()["value"] == 4
    finally:
        threading.setprofile(None)
    rest = iter(called)
    assert [step for step in WALKS["One query"] if step not in rest] == []


def test_there_is_a_walk_for_an_aggregate_a_processor_and_a_query() -> None:
    assert len(WALKS) == 3
    for walk, steps in WALKS.items():
        table = PAGE.read_text().split(f"\n## {walk}\n")[1].split("\n## ")[0]
        assert len(steps) == len(re.findall(r"^\| \d", table, re.MULTILINE)), f"a row of {walk!r} isn't a step"
