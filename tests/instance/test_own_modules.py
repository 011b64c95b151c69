"""An instance can import the same modules as the app: users' hooks, engines and codecs, which may print."""

import os
import re
import resource
import signal
from pathlib import Path

import pytest

from holdfast import launching
from holdfast.instances import InstanceFailed
from holdfast.launching import launch
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds import store_spec
from tests.apps import settings
from tests.instance.app_log import AppLog
from tests.instance.embedded import start_once
from tests.instance.test_process import config_of

pytestmark = pytest.mark.usefixtures("without_forks")

HOOK = """
def tune(store, tunable):
    tunable.options.set_max_bytes_for_level_base(7_654_321)
"""


PRINTS_AT_IMPORT = 'print("own_tuning is imported")\n'
PRINTS_MUCH = """
import sys
sys.stdout.write(("x" * 1023 + "\\n") * 4096)
sys.stdout.flush()
"""

MODULES = {
    "silent": "",
    "prints": PRINTS_AT_IMPORT,
    "prints megabytes": PRINTS_MUCH,
    "takes standard output away": "import sys\nsys.stdout = None\n",
}
DIES = """
import os, pathlib, signal
if child := os.fork():
    pathlib.Path("child").write_text(str(child))
    os._exit(7)
signal.pause()
"""


def put_module(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str = "own_tuning") -> None:
    """Writes a module to a folder that Python imports from, as it does from the main script's folder."""
    project = folder / "project"
    project.mkdir()
    (project / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.chdir(folder)


@pytest.mark.parametrize("first", MODULES.values(), ids=list(MODULES))
def test_a_module_beside_the_main_script_is_found(first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_module(tmp_path, monkeypatch, first + HOOK)
    chosen = settings(tmp_path)
    key = Schema.of(k="string")
    spec = store_spec("tuned", "key-value", key=key, codec="msgpack/1", rocksdb_options="own_tuning:tune")
    start_once(chosen, spec)
    newest = max(Path(chosen.state_dir("app")).rglob("OPTIONS-*"), key=lambda path: path.name)
    assert "max_bytes_for_level_base=7654321" in newest.read_text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import sys\nsys.exit('closed for lunch')\n", "can't be imported here: SystemExit: closed for lunch"),
        ("import sys\ndef tune(store, tunable):\n    sys.exit(3)\n", "failed for store 'tuned': SystemExit: 3"),
        ("class Ends(BaseException):\n    pass\ndef tune(store, tunable):\n    raise Ends('now')\n", "Ends: now"),
    ],
)
def test_a_module_that_ends_the_program_fails_the_start(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_module(tmp_path, monkeypatch, text)
    key = Schema.of(k="string")
    spec = store_spec("tuned", "key-value", key=key, codec="msgpack/1", rocksdb_options="own_tuning:tune")
    with pytest.raises(InstanceFailed, match=re.escape(why)):
        start_once(settings(tmp_path), spec)


def test_an_app_with_many_open_files_launches_instances(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        launched = launch(config_of(AppLog(str(tmp_path / "log")), tmp_path), lambda: False)
        launched.process.kill()
        launched.process.wait()
        assert launched.address.startswith("grpc://")
    finally:
        for number in many:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_death_before_the_ready_line_is_noticed_although_a_child_holds_the_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_module(tmp_path, monkeypatch, DIES, name="sitecustomize")  # Python imports it before anything else
    with pytest.raises(InstanceFailed, match="ended with code 7"):
        launch(config_of(AppLog(str(tmp_path / "log")), tmp_path), lambda: False)
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_an_instance_that_does_not_come_up_is_named_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launching, "_WARN_SECONDS", 1.0)
    monkeypatch.setattr(launching, "_LONGEST_SECONDS", 2.5)
    put_module(tmp_path, monkeypatch, "import time\ntime.sleep(3600)\n", name="sitecustomize")
    with pytest.raises(
        InstanceFailed, match=r"Instance one \(process \d+\) had not come up after .* was killed"
    ) as late:
        launch(config_of(AppLog(str(tmp_path / "log")), tmp_path), lambda: False)
    assert caplog.text.count("instance one (process") == 2
    assert "hasn't come up in 1 s" in caplog.text
    found = re.search(r"process (\d+)", str(late.value))
    assert found is not None
    with pytest.raises(ProcessLookupError):
        os.kill(int(found[1]), 0)
