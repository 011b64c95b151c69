"""Fault points: they fire where and when a test says, and do nothing otherwise."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import faults

CODE = """
from holdfast import faults
faults.load_from_environment("driver")
for n in range(1, 6):
    print(n, flush=True)
    try:
        faults.point("commit.before")
    except faults.InjectedFault as fault:
        print("fault", flush=True)
"""


def run(fault: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HOLDFAST_FAULT": fault} | ({"HOLDFAST_FAULT_DIR": str(folder)} if folder else {})
    return subprocess.run(
        [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def points_in_the_code() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    root = Path(holdfast.__file__).parent
    for source in root.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "point":
                match node.args:
                    case [ast.Constant(value=str(name))]:
                        found.setdefault(name, []).append(f"{source.relative_to(root)}:{node.lineno}")
    return found


def test_the_known_points_are_those_in_the_code() -> None:
    assert set(points_in_the_code()) == set(faults.POINTS)


def test_a_kill_happens_at_the_nth_time() -> None:
    done = run("commit.before=kill@3")
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["1", "2", "3"]


def test_the_last_fault_waits_for_the_others(tmp_path: Path) -> None:
    env = {**os.environ, "HOLDFAST_FAULT": "sink.after=kill@1,commit.before=kill@2:last"}
    env["HOLDFAST_FAULT_DIR"] = str(tmp_path)
    with subprocess.Popen([sys.executable, "-c", CODE], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]
        assert process.poll() is None
        (tmp_path / "sink.after.fired").touch()
        assert process.wait(50) == -signal.SIGKILL
        assert process.stdout.read() == ""


def test_a_fault_with_a_folder_fires_once_in_all_processes(tmp_path: Path) -> None:
    assert run("commit.before=kill@2", tmp_path).returncode == -signal.SIGKILL
    again = run("commit.before=kill@2", tmp_path)
    assert (again.returncode, again.stdout.split()) == (0, ["1", "2", "3", "4", "5"])


def test_a_raise_is_an_injected_fault(tmp_path: Path) -> None:
    assert run("commit.before=raise@4", tmp_path).stdout.split() == ["1", "2", "3", "4", "fault", "5"]


def test_other_points_do_nothing() -> None:
    assert run("commit.after=kill@1").stdout.split() == ["1", "2", "3", "4", "5"]
    assert run("").stdout.split() == ["1", "2", "3", "4", "5"]


def test_an_unknown_point_is_refused_with_the_known_ones() -> None:
    done = run("comit.before=kill@1")
    assert done.returncode == 1
    assert "'comit.before' is not a fault point" in done.stderr
    with pytest.raises(faults.UnknownFaultPoint, match=r"commit\.before"), faults.active({"nowhere": lambda: None}):
        pass


def test_faults_are_active_within_their_block_only() -> None:
    reached: list[str] = []
    with faults.active({"sink.before": lambda: reached.append("outer")}):
        with faults.active({"sink.before": lambda: reached.append("inner")}):
            faults.point("sink.before")
        faults.point("sink.before")
    faults.point("sink.before")
    assert reached == ["inner", "outer"]
