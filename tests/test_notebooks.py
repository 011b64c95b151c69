"""An app in a real Jupyter kernel: cells are run again, with changed code too, and interrupted; the kernel restarts."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps import game, write

pytestmark = pytest.mark.spark

jupyter = pytest.importorskip("jupyter_client", reason="ipykernel isn't installed: make setup")

TIMEOUT = 120.0

PREPARE = """
import time
from pathlib import Path
import holdfast as hf
from pyspark.sql import SparkSession, functions as F
from tests.apps import INTERPRETED, entries_of, settings
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(map=dict(INTERPRETED))
spark = builder.getOrCreate()
folder = Path(".")
"""
CELL = """
app = hf.App("points", settings=settings(folder, stop_timeout="30s"))
source = app.reader("parquet").schema("player string, points long, at timestamp").load("input")
stream = app.stream(source, key="player", timestamp="at")
stream.group_by().aggregate(points=hf.sum("points")).store("points")
app.start(replace=True)
"""
CHANGED = CELL.replace(
    "stream.group_by()",
    """
def waits(points):
    Path("busy").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    return points * 100
stream = stream.with_column("points", F.udf(waits, "long")("points"))
stream.group_by()""",
)
RESULT = "app.process_all_available(); print(entries_of(app))"


class Notebook:
    """A kernel that runs cells one by one."""

    def __init__(self, folder: Path) -> None:
        self.kernel: Any = jupyter.manager.KernelManager()
        self.kernel.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        path = [str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.kernel.start_kernel(cwd=str(folder), env={**os.environ, "PYTHONPATH": os.pathsep.join(path)})
        self.client: Any = self.kernel.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT)

    def run(self, code: str) -> str:
        """What a cell shows on its last line: a value, a line of its output, or an error."""
        return self.shown(self.client.execute(code))

    def shown(self, cell: str) -> str:
        last = ""
        while True:
            message = self.client.get_iopub_msg(timeout=TIMEOUT)
            if message["parent_header"].get("msg_id") != cell:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream" and content["name"] == "stdout":
                last = content["text"].strip()
            elif kind == "execute_result":
                last = content["data"]["text/plain"]
            elif kind == "error":
                last = f"{content['ename']}: {content['evalue']}"
            elif kind == "status" and content["execution_state"] == "idle":
                return last

    def interrupted(self, code: str, when: Path) -> str:
        """What a cell shows that is interrupted once there is such a file."""
        cell = self.client.execute(code)
        while not when.exists():
            assert self.kernel.is_alive()
            time.sleep(0.01)
        self.kernel.interrupt_kernel()
        return self.shown(cell)

    def restart(self) -> None:
        self.kernel.restart_kernel(now=True)
        self.client.wait_for_ready(timeout=TIMEOUT)

    def close(self) -> None:
        self.client.stop_channels()
        self.kernel.shutdown_kernel(now=True)


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    write(tmp_path / "input", 1, [game("alice", 1)])
    made = Notebook(tmp_path)
    yield made
    made.close()


def test_cells_are_run_again_changed_and_interrupted(notebook: Notebook, tmp_path: Path) -> None:
    assert notebook.run(PREPARE) == ""
    assert "state='running'" in notebook.run(CELL)
    assert notebook.run(RESULT) == "{'alice': {'points': 1}}"
    assert "state='running', version=1" in notebook.run(CELL)
    refused = notebook.run(CELL.replace("replace=True", ""))
    assert refused.startswith("AppNameTaken: An app named 'points' runs"), refused
    assert "app.start(replace=True)" in refused
    assert "version=1" in notebook.run("app.start(replace=True)"), "as the error says"
    assert "state='running'" in notebook.run(CHANGED)
    write(tmp_path / "input", 2, [game("alice", 2)])
    assert notebook.interrupted(RESULT, tmp_path / "busy").startswith("KeyboardInterrupt")
    assert notebook.run("print(app.state)") == "running"
    (tmp_path / "go").touch()
    assert notebook.run(RESULT) == "{'alice': {'points': 201}}"
    run = CELL.replace("app.start(", "app.on_state(lambda old, new: Path(str(new)).touch()); app.run(")
    (tmp_path / "running").unlink(missing_ok=True)
    notebook.interrupted(run, tmp_path / "running")
    assert notebook.run("print(app.state, app.cause, spark.streams.active)") == "stopped None []"


@pytest.mark.slow
def test_a_restarted_kernel_continues_while_instances_of_the_old_one_may_live(
    notebook: Notebook, tmp_path: Path
) -> None:
    for _ in range(2):
        assert notebook.run(PREPARE) == ""
        assert "state='running'" in notebook.run(CELL)
        assert notebook.run(RESULT) == "{'alice': {'points': 1}}"
        notebook.restart()
