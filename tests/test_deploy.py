"""The files under deploy/: valid by the schemas of their tools, and with names and options that Holdfast knows."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from holdfast import cli, instance_command
from holdfast.settings.load import load
from holdfast.settings.model import Settings

DEPLOY = Path(__file__).parent.parent / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
COMPOSE = DEPLOY / "compose" / "compose.yaml"
IMAGE, SPARK_IMAGE = DEPLOY / "Dockerfile", DEPLOY / "compose" / "spark.Dockerfile"
UNIT = DEPLOY / "systemd" / "holdfast-instance@.service"
ENVIRONMENT = DEPLOY / "systemd" / "instance.env"
VALUES = {
    "POD_NAME": "holdfast-0",
    "NODE_NAME": "node-7",
    **dict(re.findall(r"^(INSTANCE_\w+)=(.*)$", ENVIRONMENT.read_text(), re.MULTILINE)),
}
"""What the variables in the commands stand for."""


def test_there_are_manifests() -> None:
    assert MANIFESTS and COMPOSE.exists() and UNIT.exists()


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_manifests_are_valid(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    assert documents
    for document in documents:
        kubernetes_validate.validate(document, "1.37", strict=True)


def test_the_compose_file_is_valid() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_instance_in_a_container_is_started_with_its_storage_and_bucket() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    (endpoint,) = {
        each["environment"]["HOLDFAST_LOG__OPTIONS__ENDPOINT"]
        for each in services.values()
        if "secrets" in each and "environment" in each
    }
    storage, _, port = endpoint.removeprefix("http://").partition(":")
    assert f":{port}" in services[storage]["command"]
    (made,) = [name for name, each in services.items() if "mkdir" in each["command"]]
    assert services[made]["volumes"] == services[storage]["volumes"], "the bucket is a folder of the server's"
    for service in services.values():
        if service["command"][0] == "instance":
            assert {storage, made} <= service["depends_on"].keys()
            (log,) = [part.partition("://")[2] for part in service["command"] if part.startswith("--log=")]
            assert services[made]["command"][-1].endswith(f"/{log.partition('/')[0]}")


def test_instances_in_containers_may_write_their_state() -> None:
    """A new volume has the owner of the folder in the image that it is mounted at."""
    (folder,) = re.findall(r"^RUN install --directory --owner=holdfast .* (\S+)$", IMAGE.read_text(), re.MULTILINE)
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    instances = [each for each in services.values() if each.get("command", [""])[0] == "instance"]
    mounted = [volume.split(":") for each in instances for volume in each["volumes"]]
    assert len({name for name, _ in mounted}) == len(instances) == 3
    assert {place for _, place in mounted} == {folder}
    assert {each["environment"]["HOLDFAST_STATE__DIR"] for each in instances} == {folder}


@pytest.mark.parametrize("path", [IMAGE, SPARK_IMAGE], ids=lambda path: path.name)
def test_images_have_a_python_that_holdfast_runs_on(path: Path) -> None:
    (needed,) = re.findall(
        r'^requires-python = ">=(.*)"$', (DEPLOY.parent / "pyproject.toml").read_text(), re.MULTILINE
    )
    (found,) = re.findall(r"^FROM python:([0-9.]+)-slim$", path.read_text(), re.MULTILINE)
    assert [*map(int, found.split("."))] >= [*map(int, needed.split("."))]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze isn't installed")
def test_the_systemd_unit_is_valid(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/holdfast/bin/holdfast", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and unit.name not in done.stderr, done.stderr


def test_every_setting_in_the_files_is_one() -> None:
    found = list(environments())
    assert len(found) == 5
    for variables in found:
        env = {name: value for name, value in variables.items() if name.startswith("HOLDFAST_")}
        assert load(env=env).settings != Settings()


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_pod_that_moves_to_another_node_is_back_within_its_session(path: Path) -> None:
    containers = [each for document in yaml.safe_load_all(path.read_text()) for each in containers_of(document)]
    assert containers
    for container in containers:
        variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        group = load(
            env={name: value for name, value in variables.items() if name.startswith("HOLDFAST_")}
        ).settings.group
        assert group.session_timeout >= timedelta(minutes=1), "a minute, as docs/operations.md says"


@pytest.mark.parametrize("number", range(5))
def test_every_command_in_the_files_is_accepted(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, str | None]] = []
    monkeypatch.setattr(instance_command, "host_as_server", lambda app, settings, log, *_: started.append((app, log)))
    arguments = [re.sub(r"[$][({](\w+)[)}]", lambda match: VALUES[match[1]], each) for each in list(commands())[number]]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    ((app, log),) = started
    assert app == "pulse"
    assert log is not None and log.startswith("s3://")


def environments() -> Iterator[dict[str, str]]:
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            for container in containers_of(document):
                yield {each["name"]: each["value"] for each in container["env"] if "value" in each}
    for service in yaml.safe_load(COMPOSE.read_text())["services"].values():
        if any(name.startswith("HOLDFAST_") for name in service.get("environment", {})):
            yield service["environment"]
    unit = dict(re.findall(r"^Environment=(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    yield unit | dict(re.findall(r"^(\w+)=(.*)$", ENVIRONMENT.read_text(), re.MULTILINE))


def containers_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    return found


def commands() -> Iterator[list[str]]:
    """The arguments of every `holdfast` command in the files."""
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            for container in containers_of(document):
                yield container["args"]
    for service in yaml.safe_load(COMPOSE.read_text())["services"].values():
        if service.get("command", [""])[0] == "instance":
            yield service["command"]
    (start,) = re.findall(r"^ExecStart=\S+ (.*)$", UNIT.read_text(), re.MULTILINE)
    yield shlex.split(start)
