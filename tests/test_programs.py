"""The programs in the documentation and in examples/ run unchanged over the data in examples/data."""

import re
import runpy
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from tests.test_docs import IS_PROGRAM, ROOT, Block, blocks

pytestmark = pytest.mark.spark

PROGRAMS = [block for block in blocks("python") if IS_PROGRAM in block.text]
"""Blocks that read `"games/"` are whole programs; a comment `# prints <text>` says what they print."""


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the data in `games/`; `app.run()` ends when it has processed all of it."""
    shutil.copytree(ROOT / "examples/data/games", tmp_path / "games")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")  # as for a program in that folder
    monkeypatch.setenv("HOLDFAST_BASE_DIR", str(tmp_path / "holdfast"))
    monkeypatch.setenv("HOLDFAST_REST__PORT", "0")
    monkeypatch.setattr(hf.App, "run", run_to_the_end)
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)  # other tests use the session too
    return tmp_path


def run_to_the_end(app: hf.App) -> None:
    with app:
        app.process_all_available()


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_programs_in_the_documentation_run(block: Block, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Spark's JVM has another working directory, so it gets the absolute path of the data.
    exec(compile(block.text.replace(IS_PROGRAM, repr(f"{folder}/games")), str(block), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    for expected in re.findall(r"# prints (.+)", block.text):
        assert expected in printed


EXAMPLES = {
    "batching": ["{'shop': 'tea', 'orders': 10, 'cents': 1045}"],
    "conversations": ['"messages":1', '"user":"bob"', '{"start":1767268800000,"messages":2}'],
    "sqlite_upsert": ["alice      120 points"],
    "wind_turbines": ["commands: [{'turbine': 't-1', 'power': 'on'}]"],
}
MORE = {
    "fraud": ["a-2: 4 payments of 19600 cents within ten minutes"],
    "leaderboard": ["Chess: alice 70, bob 45, dora 40", "Go: bob 60, emil 20", "cleo has rank 4 in Chess"],
    "lru_store": ["evicted: ['hats']", "rendered: ['home', 'hats', 'shoes', 'socks']"],
    "mail_delivery": ["day 2: {'ann': {'m-3': 'parcel'}}"],
    "patient_monitoring": ["ann: 110 beats per minute and 39.1 °C"],
    "tombstones": ["socks deleted", "hats 3", "shoes 4"],
    "user_sessions": ["ann 12:00-12:50: 3 clicks, home to checkout", "bob 12:36-12:36: 1 clicks, home to home"],
}
"""For `make crash`: `tests/test_examples.py` has them in a test driver."""


@pytest.mark.parametrize("name", [*EXAMPLES, *[pytest.param(name, marks=pytest.mark.slow) for name in MORE]])
def test_examples_run_and_print_results(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / f"examples/{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert [text for text in {**EXAMPLES, **MORE}[name] if text not in printed] == [], printed


def test_the_programs_were_found() -> None:
    assert any(block.page.name == "README.md" for block in PROGRAMS)
