"""The `holdfast` command, as a user runs it."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Protocol

import httpx2
import pytest

from holdfast.cli import main
from holdfast.instance.client import StateClient
from holdfast.instance.config import InstanceConfig, Role
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.settings.model import all_settings
from holdfast.settings.rest import RestSettings
from tests.instance.processes import Process
from tests.log.making import app_spec


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


class Holdfast(Protocol):
    def __call__(self, *arguments: str, folder: Path, stdin: str = "", **env: str) -> Done: ...


@pytest.fixture
def holdfast(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Holdfast:
    """The command in this process, since a new process imports for seconds."""

    def run(*arguments: str, folder: Path, stdin: str = "", **env: str) -> Done:
        for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
            monkeypatch.delenv(name)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["holdfast", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    return run


def test_config_lists_every_setting_with_its_value_and_origin(tmp_path: Path, holdfast: Holdfast) -> None:
    (tmp_path / "holdfast.toml").write_text('[batch]\ncommit_interval = "10s"\n')
    done = holdfast("config", folder=tmp_path, HOLDFAST_REST__PORT="0")
    assert done.returncode == 0, done.stderr
    rows = dict(re.findall(r"^(\S+)\s+(\S+\s+\S+)\s*$", done.stdout, re.MULTILINE))
    assert set(rows) == {"setting", *all_settings()}
    assert rows["batch.commit_interval"].split() == ["10s", "holdfast.toml"]
    assert rows["rest.port"].split() == ["0", "HOLDFAST_REST__PORT"]
    assert rows["partitions"].split() == ["4", "default"]


def test_config_as_json_has_the_same_content(tmp_path: Path, holdfast: Holdfast) -> None:
    done = holdfast("config", "--json", folder=tmp_path, HOLDFAST_PARTITIONS="8")
    shown = json.loads(done.stdout)
    assert list(shown) == list(all_settings())
    assert shown["partitions"] == {"value": "8", "from": "HOLDFAST_PARTITIONS"}


def test_config_reads_the_given_file(tmp_path: Path, holdfast: Holdfast) -> None:
    (tmp_path / "mine.toml").write_text("partitions = 3\n")
    done = holdfast("config", "--json", "--file", "mine.toml", folder=tmp_path)
    assert json.loads(done.stdout)["partitions"] == {"value": "3", "from": "mine.toml"}


def test_config_never_shows_a_secret(tmp_path: Path, holdfast: Holdfast) -> None:
    secret = {"HOLDFAST_LOG__OPTIONS__SECRET_ACCESS_KEY": "hush", "HOLDFAST_LOG__OPTIONS__REGION": "eu"}
    for arguments in (["config"], ["config", "--json"]):
        done = holdfast(*arguments, folder=tmp_path, **secret)
        assert "secret_access_key" in done.stdout
        assert "region=eu" in done.stdout
        assert "hush" not in done.stdout + done.stderr


def test_an_unknown_setting_is_an_error_in_one_line(tmp_path: Path, holdfast: Holdfast) -> None:
    done = holdfast("config", folder=tmp_path, HOLDFAST_BATCH__COMIT_INTERVAL="10s")
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "Did you mean 'batch.commit_interval'?" in done.stderr


def test_the_version_is_the_package_version(tmp_path: Path, holdfast: Holdfast) -> None:
    assert holdfast("--version", folder=tmp_path).stdout.strip() == version("holdfast")


def test_the_script_is_installed() -> None:
    (script,) = entry_points(group="console_scripts", name="holdfast")
    assert script.value == "holdfast.cli:main"


def test_help_lists_the_commands(tmp_path: Path, holdfast: Holdfast) -> None:
    help_text = holdfast("--help", folder=tmp_path).stdout
    assert all(command in help_text for command in ("config", "demo", "instance"))


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("nowhere", "'nowhere' is not a place. Write 'module:name'."),
        ("no_such_module:app", "No module named 'no_such_module'"),
        ("no_such_module:app", "Run the command in the folder of the module, or put that folder on PYTHONPATH."),
        ("os:sep", "'os:sep' is a str and not an hf.App. Name the variable or the function that has the app."),
    ],
)
def test_a_plan_needs_an_app(tmp_path: Path, holdfast: Holdfast, place: str, says: str) -> None:
    done = holdfast("plan", place, folder=tmp_path)
    assert done.returncode == 1
    assert says in done.stderr


@pytest.mark.parametrize("starts", ["app.run()", "app.start()", "with app: pass"])
def test_a_plan_starts_no_app(tmp_path: Path, holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch, starts: str) -> None:
    """Importing the first program of the README would start it, and so end the driver that runs."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "program.py").write_text(f"import holdfast as hf\napp = hf.App('game')\n{starts}\n")
    sys.modules.pop("program", None)
    done = holdfast("plan", "program:app", folder=tmp_path)
    assert done.returncode == 1
    assert "'program:app': The program starts app 'game' when it is imported, and a plan starts nothing." in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr
    assert not (tmp_path / ".holdfast").exists()


def test_an_instance_without_a_configuration_is_an_error(tmp_path: Path, holdfast: Holdfast) -> None:
    done = holdfast("instance", folder=tmp_path)
    assert done.returncode == 1
    assert "on standard input" in done.stderr


@pytest.mark.parametrize("options", [["--log", "log"], ["--id", "i-1"], ["--bind", "0.0.0.0:7070"]])
def test_an_instance_with_options_needs_the_id_of_an_app(
    tmp_path: Path, holdfast: Holdfast, options: list[str]
) -> None:
    done = holdfast("instance", *options, folder=tmp_path, stdin="{}")
    assert (done.returncode, "Add --app ID." in done.stderr) == (1, True), done.stderr


def test_an_instance_in_a_terminal_waits_for_no_configuration(tmp_path: Path) -> None:
    terminal, inside = pty.openpty()
    with open(terminal, "rb"), open(inside, "rb") as stdin:
        made = [sys.executable, "-m", "holdfast", "instance"]
        done = subprocess.run(made, cwd=tmp_path, stdin=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "Add --app ID." in done.stderr) == (1, True), done.stderr


COMMAND = ("-m", "holdfast", "instance")


def test_an_error_in_an_instances_configuration_shows_no_secret() -> None:
    """In its own process, since an instance keeps pandas out of its process and tests of Spark need pandas."""
    line = json.dumps({"app": "game", "log": {"options": {"token": "hush"}}, "tasks": "none"}) + "\n"
    done = subprocess.run(
        [sys.executable, *COMMAND], input=line, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "is not an InstanceConfig" in done.stderr
    assert "hush" not in done.stderr + done.stdout


def config_of(folder: Path, name: str) -> InstanceConfig:
    return InstanceConfig(
        app="scores",
        name=name,
        log_url=str(folder / "log"),
        app_file=1,
        state_dir=str(folder / "state"),
        tasks={"0_0": Role.ACTIVE},
        rest=RestSettings(port=0),
    )


def running_instance(folder: Path) -> Process:
    """An instance of an app without versions, as `app.run()` starts it."""
    Log.create_or_open(open_storage(str(folder / "log")), app_spec())
    return Process(config_of(folder, "a"), COMMAND)


def test_an_instance_serves_tasks_and_queries_until_sigterm(tmp_path: Path) -> None:
    with running_instance(tmp_path) as process:
        line = process.addresses()
        with StateClient(line["flight"], 10.0) as client:
            assert client.status().name == "a"
        with httpx2.Client(base_url=line["rest"], timeout=10.0) as http:
            assert http.get("/health/live").status_code == 200
            assert [store["store"] for store in http.get("/v1/stores").json()["stores"]] == ["counts"]
            assert "holdfast_task_version" in http.get("/metrics").text
        assert process.terminate() < 5
        assert process.wait()[0] == 0


def test_an_instance_ends_when_its_standard_input_is_closed(tmp_path: Path) -> None:
    with running_instance(tmp_path) as process:
        process.addresses()
        assert process.close_stdin(5) == 0


def test_a_second_instance_on_one_state_directory_is_refused(tmp_path: Path) -> None:
    with running_instance(tmp_path) as process:
        process.addresses()
        with Process(config_of(tmp_path, "b"), COMMAND) as second:
            code, errors = second.wait()
        assert code == 1
        # A state directory in memory gives a warning first.
        assert len([line for line in errors.splitlines() if "temporary file system" not in line]) == 1
        assert f"held by instance 'a' (process {process.pid} on " in errors
